"""Devices under the names of measured tables, and other catalog entries, each read once."""

from __future__ import annotations

from pathlib import Path

from tspsim.base import catalog
from tspsim.base.errors import InputError, UnknownNameError
from tspsim.hardware import Device, load_device
from tspsim.model import load_model
from tspsim.network import build_cluster
from tspsim.parallel import load_stack
from tspsim.step.question import Lookups

from ..base.memo import remembered

#: Name in tables → catalog name. Tables that say only A100 mean the 80 GB board of cloud and DGX machines.
ALIASES = {"a100": "a100-80gb", "h100 (96gb hbm2e, 500w)": "h100-96gb-500w"}
#: Boards that share a name with a device of the catalog, and how they differ from it.
OTHER_BOARDS = {
    "h200-nvl": "a PCIe board with 0.84 of the SXM module's peak, in fours on NVLink bridges; nothing is measured on it"
}
_SUFFIXES = ("_sxm", "-sxm", " sxm")


def device_name(written: object) -> str | None:
    """The catalog name of a GPU as a table writes it; None where the catalog has no such device.

    >>> device_name("H200"), device_name("b200_sxm"), device_name("TPU v5p")
    ('h200', 'b200', None)
    """
    name = str(written).strip().lower()
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    name = ALIASES.get(name, name)
    if catalog.is_path(name):
        return None
    try:
        catalog.locate("devices", name)
    except UnknownNameError:
        return None
    return name


def device(name: str) -> Device:
    """A device of the catalog, loaded again only if its file changes."""
    path = catalog.locate("devices", name)
    state = path.stat()
    return _loaded(name, path.resolve(), state.st_mtime_ns, state.st_size)


@remembered(64)
def _loaded(name: str, path: Path, changed_ns: int, size_bytes: int) -> Device:
    return load_device(name)


#: Clusters kept at once: neighbouring rows share a cluster, and each cluster caches its answers.
CLUSTERS = 16
_cluster, _model, _stack = remembered(CLUSTERS)(build_cluster), remembered(256)(load_model), remembered(256)(load_stack)
LOOKUPS = Lookups(build_cluster=_cluster, load_device=device, load_model=_model, load_stack=_stack)


def forget() -> None:
    """Read the catalog again after a folder of devices has changed."""
    for kept in (_loaded, _cluster, _model, _stack):
        kept.cache_clear()


def named_device(written: object) -> str:
    """The catalog name of a GPU. Raises InputError with the reason if the catalog has no such device."""
    name = device_name(written)
    if name is None:
        board = OTHER_BOARDS.get(str(written).strip().lower())
        raise InputError(f"no device '{written}' in the catalog" + (f": {board}" if board else ""))
    return name
