"""The catalog's device for a trace."""

from __future__ import annotations

import re

from ..base import catalog, dialect
from ..base.errors import InputError
from ..base.units import parse
from .table import TracedDevice

#: Largest difference between the memory that a driver reports and the data sheet's, as a share.
_MEMORY = 0.12
#: Names that drivers give to devices that they have no name for.
_GENERIC = re.compile(r"^(AMD Radeon Graphics|gfx\d+\w*)$", re.IGNORECASE)
_SIZE = re.compile(r"(\d+) ?GB\b", re.IGNORECASE)


def device_of(machine: TracedDevice) -> str:
    """The device's name in the catalog, from the trace's device name, else from compute units and memory; empty where
    none fits.

    >>> device_of(TracedDevice("NVIDIA H100 80GB HBM3", 132, 85_000_000_000))
    'h100'
    >>> device_of(TracedDevice("NVIDIA A100-SXM4-80GB"))
    'a100-80gb'
    >>> device_of(TracedDevice("", 304, 206_141_652_992))
    'mi300x'
    >>> device_of(TracedDevice("NVIDIA H100 PCIe", 114, 85_000_000_000))
    'h100-pcie'
    """
    names = catalog.names("devices")
    words = re.sub(r"[^a-z0-9]+", " ", machine.name.lower()).split()
    named = [name for name in names if name.split("-")[0] in words]
    generic = not machine.name or (not named and _GENERIC.search(machine.name) is not None)
    if generic and not (machine.compute_units and machine.memory_bytes):
        return ""  # without a name, both numbers are needed
    # Vendors' names state the memory where a device has several.
    stated = _SIZE.search(machine.name)
    memory = machine.memory_bytes or (1e9 * float(stated[1]) if stated else 0.0)
    fitting: list[tuple[int, float, str]] = []
    for name in named or (names if generic else []):
        units, sizes = _stated(name)
        parts = name.split("-")
        others = sum(1 if part not in words else -1 for part in parts)
        if not named and units != machine.compute_units:
            continue
        away = min((abs(size / memory - 1.0) for size in sizes), default=1.0) if memory else 0.0
        if away <= _MEMORY:
            fitting.append((others, away, name))
    return min(fitting)[2] if fitting else (named[0] if len(named) == 1 else "")


def _stated(name: str) -> tuple[int, list[float]]:
    """Compute units in a device's file, and its memory as the data sheet and the driver count it."""
    try:
        entry = dialect.read_yaml(catalog.locate("devices", name))
        units = entry.get("compute_units")
        units = units.get("value") if isinstance(units, dict) else units
        sizes = [
            parse(value["value"] if isinstance(value, dict) else value, "bytes")
            for key in ("memory", "visible_memory")
            if (value := entry.get(key)) is not None
        ]
    except (InputError, KeyError):
        return 0, []  # a file in the current folder that describes no device
    return (units if isinstance(units, int) else 0), [float(size) for size in sizes]
