"""Find, read and validate the YAML that describes devices, nodes, fabrics, transports, clusters, models and scenarios.

A catalog entry is a file ``NAME.yaml`` in its kind's folder. Folders are searched in this order, so that a
user's own entry wins over a shipped one of the same name:

1. every folder in the environment variable ``TSPSIM_CATALOG`` (separated as ``PATH`` is),
2. the current folder,
3. what ships with the package.

Files come from strangers: :mod:`.dialect` reads them. An error is one line (:class:`~tspsim.errors.InputError`): file,
key path, value, what is allowed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from .dialect import KEPT_FILES, mapping_in, read_yaml, text_of
from .errors import InputError, UnknownNameError, did_you_mean, printable, shorten
from .memo import MOST, BoundedCache, remembered
from .registry import changes

if TYPE_CHECKING:
    import pandas
    from pydantic import BaseModel

Model = TypeVar("Model", bound="BaseModel")
Kind = Literal["devices", "nodes", "fabrics", "transports", "clusters", "models", "stacks", "failures", "scenarios"]

#: Where the entries of a kind lie, below each folder that is searched.
FOLDERS: dict[str, str] = {
    "devices": "topologies/devices",
    "nodes": "topologies/nodes",
    "fabrics": "topologies/fabrics",
    "transports": "topologies/transports",
    "clusters": "topologies/clusters",
    "models": "workloads/models",
    "stacks": "workloads/stacks",
    "failures": "topologies/failures",
    "scenarios": "scenarios",
}

#: Keys that only one kind of entry has. A file is of the first kind whose keys it has all.
_TELLING: tuple[tuple[tuple[str, ...], Kind], ...] = (
    (("workload",), "scenarios"),
    (("jobs",), "scenarios"),
    (("components",), "failures"),
    (("hbm_bandwidth",), "devices"),
    (("peak",), "devices"),
    (("intra",), "nodes"),
    (("nic", "switch"), "fabrics"),
    (("collectives", "name"), "transports"),
    (("architectures",), "models"),
    (("hidden_size", "num_hidden_layers"), "models"),
    (("hidden", "layers"), "models"),
    (("device", "nodes"), "clusters"),
    (("plans",), "scenarios"),
)

_PATH_SUFFIXES = (".yaml", ".yml", ".json")


def roots() -> list[Path]:
    """The folders that are searched, first wins."""
    own = [Path(part) for part in os.environ.get("TSPSIM_CATALOG", "").split(os.pathsep) if part]
    return [*own, Path(), _shipped()]


@remembered(1)
def _shipped() -> Path:
    """The folder of what ships with the package: a wheel's own, or the checkout."""
    package = Path(__file__).resolve().parents[1]
    shipped = package / "_catalog"
    return shipped if shipped.is_dir() else package.parent


def names(kind: Kind) -> list[str]:
    """Names of all entries of ``kind``, sorted."""
    stems: set[str] = set()
    for root in roots():
        # A folder that is missing or unreadable has no entries.
        with contextlib.suppress(OSError), os.scandir(root / FOLDERS[kind]) as entries:
            stems.update(entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml"))
    return sorted(stems)


def table(kind: Kind | None = None) -> pandas.DataFrame:
    """The catalog as a table, as ``tspsim catalog list`` prints it; ``tspsim.catalog()`` is the same.

    Parameters
    ----------
    kind
        One of :data:`FOLDERS`; None: all.

    Raises
    ------
    UnknownNameError
        No such kind.

    >>> import tspsim
    >>> tspsim.catalog("devices").loc["h100", "kind"]
    'devices'
    """
    import pandas

    if kind is not None and kind not in FOLDERS:
        raise UnknownNameError("kind of entry", kind, FOLDERS)
    kinds = [cast("Kind", name) for name in FOLDERS] if kind is None else [kind]
    entries = [(kind, name) for kind in kinds for name in names(kind)]
    rows = [{"kind": kind, "description": describe_entry(kind, name), "file": str(locate(kind, name))}
            for kind, name in entries]  # fmt: skip
    return pandas.DataFrame(rows, index=pandas.Index([name for _, name in entries], name="name"))


def describe_entry(kind: Kind, name: str) -> str:
    """An entry in a line; one that cannot be read says why instead of hiding the others."""
    try:
        data = read_yaml(locate(kind, name))
    except InputError as error:
        return f"cannot be read: {shorten(error.message, 100)}"
    return printable(shorten(data.get("description") or data.get("source") or "", 160))


def locate(kind: Kind, name_or_path: str | Path, *, beside: Path | None = None) -> Path:
    """The file of a catalog entry, or the file that a path names.

    Parameters
    ----------
    kind
        Which catalog to search.
    name_or_path
        A catalog name, or a path: text with a separator or ending in .yaml, .yml or .json.
    beside
        A second folder relative paths are tried from: the one of the file that mentions them.

    Raises
    ------
    UnknownNameError
        No entry has this name; the message offers the nearest.
    InputError
        The path does not exist.
    """
    text = str(name_or_path)
    if is_path(text):
        candidates = [Path(text), *([beside / text] if beside else [])]
        file = next((path for path in candidates if _exists(path)), None)
        if file is None:
            remedy = _nearest_file(Path(text), kind) or "; give a path that exists or a catalog name"
            raise InputError(f"no such file{remedy}", file=shorten(text))
        return file
    for root in roots():
        path = root / FOLDERS[kind] / f"{text}.yaml"
        if _exists(path):
            return path
    raise UnknownNameError(kind.removesuffix("s"), text, [*names(kind), *_files_here(Path(), kind)])


def locate_file(path: str, *, beside: Path | None = None) -> Path:
    """A file that is no entry, such as a GraphML file: from here, from the folder of the file that names it, or from a
    folder of the catalog.

    Raises
    ------
    InputError
        There is no such file.
    """
    folders = [Path(), *([beside] if beside else []), *roots()]
    file = next((folder / path for folder in folders if _exists(folder / path)), None)
    if file is None:
        raise InputError("no such file; give a path that exists", file=shorten(path, 200))
    return file


def _nearest_file(path: Path, kind: Kind) -> str:
    """`` (did you mean …?)``: a file in the same folder, or a catalog entry; empty when no name is near."""
    beside = [str(path.parent / name) for name in _files_here(path.parent)]
    near = did_you_mean(path, beside, limit=0) if beside else ""
    if not near.startswith(" (did"):
        near = did_you_mean(path.stem if path.suffix in _PATH_SUFFIXES else path.name, names(kind), limit=0)
    return near if near.startswith(" (did") else ""


def _files_here(folder: Path, kind: Kind | None = None) -> list[str]:
    """Names of the YAML and JSON files in a folder, those of one kind alone; none where it cannot be read."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix in _PATH_SUFFIXES)
    except (OSError, ValueError):
        return []
    return [path.name for path in paths if kind is None or _may_be(path, kind)]


def _may_be(path: Path, kind: Kind) -> bool:
    """Whether a file may describe an entry of this kind: its kind fits, or is unreadable."""
    try:
        return kind_of(path, read_yaml(path)) in (kind, None)
    except InputError:
        return False


#: Between an entry and one of its versions.
VERSION = "@"


def is_path(text: str) -> bool:
    """Whether ``text`` means a file rather than a catalog name."""
    return "/" in text or os.sep in text or text.endswith(_PATH_SUFFIXES)


def versioned(name: str) -> tuple[str, str]:
    """``NAME`` and ``VERSION`` of ``NAME@VERSION``; of a file, or without one, the version is empty.

    >>> versioned("vllm@0.19"), versioned("mine@home.yaml")
    (('vllm', '0.19'), ('mine@home.yaml', ''))
    """
    base, _, version = (name, "", "") if is_path(name) else name.partition(VERSION)
    return base, version


def kind_of(path: Path, data: Mapping[str, Any]) -> Kind | None:
    """What an entry describes: by the folder it lies in, else by its keys; None where neither says."""
    folder = path.resolve().parent
    for kind, place in FOLDERS.items():
        if folder.parts[-len(Path(place).parts) :] == Path(place).parts:
            return cast("Kind", kind)
    return next((kind for keys, kind in _TELLING if all(key in data for key in keys)), None)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long or with a null byte names nothing
        return False


def is_file(text: str) -> bool:
    """Whether a text is the name of a file that is there."""
    try:
        return bool(text) and Path(text).is_file()
    except (OSError, ValueError):
        return False


def load(kind: Kind, name_or_path: str | Path, type_: type[Model]) -> Model:
    """Locate, read and validate one entry; raises :class:`~tspsim.errors.InputError` with the place."""
    entry: Model = _read_as(locate(kind, name_or_path), type_, type_)
    return entry


@dataclass(frozen=True)
class HardwareFiles(Generic[Model]):
    """Files of one kind of hardware, each measured or announced. One with ``announced: true`` states less; the rest
    comes from a measured one.

    Attributes
    ----------
    kind
        Their kind in the catalog.
    measured, announced
        What a file says of measured hardware, and of announced, which is ``completed`` with what it borrows.
    lender
        Announced hardware → the name of the measured one that it borrows from.
    """

    kind: Kind
    measured: type[Model]
    announced: type[BaseModel]
    lender: Callable[[Any], str]

    def load(self, name: str | Path) -> Model:
        """The hardware of a file, with the defaults of announced hardware filled in.

        Raises
        ------
        InputError
            The file is wrong, or the one it borrows from is announced itself.
        """
        path, what = locate(self.kind, name), self.kind.removesuffix("s")
        entry: Any = _read_as(path, self.measured, self.announced)
        if isinstance(entry, self.measured):
            return entry
        file, lender = str(path), self.lender(entry)
        if lender == entry.name:
            raise InputError(f"an announced {what} cannot be like itself; name a measured one", file=file, key="like")
        try:
            like: Any = self.load(lender)
        except InputError as error:
            raise error.at(file=file, key="like") from None
        if like.announced:
            raise InputError(f"'{lender}' is announced itself; name a measured {what}", file=file, key="like")
        completed: Model = _completed.of_parts(
            (entry, like), file, lambda: validate(entry.completed(like), self.measured, file=file)
        )
        return completed


#: Announced hardware, completed with what it borrows.
_completed = BoundedCache(MOST, changes)


def _read_as(path: Path, type_: type[BaseModel], announced: type[BaseModel]) -> Any:
    """A file as ``type_``, or as ``announced`` where it says ``announced: true``. All readers of the same text share
    one immutable object."""
    return _known(text_of(path), path, type_, announced)


@remembered(KEPT_FILES)
def _known(text: str, path: Path, type_: type[BaseModel], announced: type[BaseModel]) -> Any:
    """Cached by the text, as the dialect does; a file that is wrong is read again."""
    data = mapping_in(text, path)
    return validate(data, announced if data.get("announced") is True else type_, file=str(path))


def validate(data: object, type_: type[Model], *, file: str | None = None) -> Model:
    """``data`` as ``type_``, or one :class:`~tspsim.errors.InputError` line: where, and what is allowed."""
    from pydantic import ValidationError

    from .explain import explain

    try:
        return type_.model_validate(data)
    except ValidationError as error:
        raise explain(error, data, type_, file=file) from None


class _Called(ModuleType):
    """This module as a function: ``tspsim.catalog()`` lists the catalog."""

    def __call__(self, kind: Kind | None = None) -> pandas.DataFrame:
        return table(kind)


sys.modules[__name__].__class__ = _Called
