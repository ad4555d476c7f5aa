"""Announced devices, which were not measured: numbers of a data sheet, and a stated default for everything else.

A file in ``topologies/devices`` with ``announced: true`` needs peaks, HBM bandwidth and memory. What it leaves out is
taken from a measured device, its ``like``: by default the vendor's latest measured one. Kernel models are borrowed
(:mod:`.kernels`), scaled to the device, with the range of another generation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import create_model

from tspsim.base import catalog
from tspsim.base.stated import Stated
from tspsim.base.strict import Strict, keys_of

from .specification import ASSUMED_AS, DeviceSpec, MeasuredAt

#: Vendor → its latest device with measured products and attention, forward and backward.
LATEST_MEASURED: dict[str, str] = {"amd": "mi355x", "nvidia": "b200"}
#: Facts, and sections of facts, that are taken from ``like`` if the file leaves them out.
_LENT, _LENT_SECTIONS = ("compute_units", "clock", "l2", "tdp"), ("sustained", "overlap")
#: Keys that an announced device may leave out.
_LEFT_OUT = ("family", "visible_memory", *_LENT, *_LENT_SECTIONS)
#: Keys of an announced device besides ``announced``, declared as in :class:`DeviceSpec`.
_KEYS = (
    *("sold", "name", "vendor", "description", "family", "like", "node", "peak", "hbm_bandwidth", "memory"),
    *("visible_memory", *_LENT, "all_in_power", "prices", *_LENT_SECTIONS),
)

if TYPE_CHECKING:
    _AnnouncedKeys = DeviceSpec
else:
    _AnnouncedKeys = create_model(
        "_AnnouncedKeys", __base__=Strict, announced=(Literal[True], ...), **keys_of(DeviceSpec, _KEYS, _LEFT_OUT)
    )


class AnnouncedDevice(_AnnouncedKeys):
    """An announced device, from its data sheet.

    ``like`` is the catalog name of the measured device from which everything left out is taken. ``sold``: the device
    can be bought, but no measurements of it are fitted here. ``kernels``, ``achieved`` and ``measured_at`` are keys of
    measured devices only.
    """

    def completed(self, like: DeviceSpec) -> dict[str, Any]:
        """Fields of the device's specification, with sources; those left out are taken from ``like``."""
        stated = {name: getattr(self, name) for name in type(self).model_fields}
        lent = {name: _assumed(like, getattr(like, name)) for name in _LENT}
        visible = self.memory.value * like.visible_memory.value / like.memory.value
        source = f"{ASSUMED_AS}{like.name}: the same share of what the vendor prints"
        lent["visible_memory"] = like.visible_memory.model_copy(update={"value": visible, "source": source})
        for part in _LENT_SECTIONS:
            own = getattr(like, part)
            lent[part] = own.model_copy(
                update={name: _assumed(like, value) for name in type(own).model_fields if (value := getattr(own, name))}
            )
        left_out = {name: value for name, value in lent.items() if stated[name] is None}
        facts = {name: (stated | left_out)[name].value for name in ("hbm_bandwidth", "compute_units", "l2")}
        peak = {dtype: number.value for dtype, number in self.peak.items()}
        further = {
            "measured_at": MeasuredAt.model_construct(**facts, peak=peak),  # the borrowed kernels run on its own facts
            "family": self.family or self.name, "like": like.name, "relatives": (like.name, *like.relatives),
            "defaults": like.defaults,
        }  # fmt: skip
        return stated | left_out | further


def _assumed(like: DeviceSpec, number: Stated[Any]) -> Stated[Any]:
    return number.model_copy(update={"source": f"{ASSUMED_AS}{like.name}: {number.source}"})


#: Devices by catalog name or path; defaults of announced ones are filled in.
DEVICES: catalog.HardwareFiles[DeviceSpec] = catalog.HardwareFiles(
    "devices", DeviceSpec, AnnouncedDevice, lambda stated: stated.like or LATEST_MEASURED[stated.vendor]
)
