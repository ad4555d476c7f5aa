"""Devices that nobody can measure yet: what a data sheet says, and a stated default for everything else.

A file in ``topologies/devices`` that says ``announced: true`` needs peaks, HBM bandwidth and memory. What it leaves
out is that of a measured device, its ``like``: the vendor's latest one that was measured, unless the file names
another. Its kernels are borrowed as those of any device without fits are (:mod:`.kernels`), at its own pace and with
the ranges of another generation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import create_model

from tspsim.base import catalog
from tspsim.base.stated import Stated
from tspsim.base.strict import Strict, keys_of

from .specification import ASSUMED_AS, DeviceSpec, MeasuredAt

#: The device of each vendor's latest generation that was measured as a whole: products, attention forward and backward.
LATEST_MEASURED: dict[str, str] = {"amd": "mi355x", "nvidia": "b200"}
#: Facts that ``like`` lends as they are where the file has none, and sections of which it lends every number.
_LENT, _LENT_SECTIONS = ("compute_units", "clock", "l2", "tdp"), ("sustained", "overlap")
#: Keys that the file may leave out though a measured device's may not.
_LEFT_OUT = ("family", "visible_memory", *_LENT, *_LENT_SECTIONS)
#: All that it may have beside ``announced``, each as :class:`DeviceSpec` declares it.
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
    """A device as a data sheet tells it.

    ``like`` is the catalog name of the measured device that everything left out is taken from. ``sold`` says that one
    can have it, or could: others may have measured it, but nothing of that is fitted here. There is no place for
    ``kernels``, ``achieved`` and ``measured_at``: a device that was measured is not announced any more.
    """

    def completed(self, like: DeviceSpec) -> dict[str, Any]:
        """The fields of the device's specification, what is left out as ``like`` has it, each with its source."""
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
            "measured_at": MeasuredAt.model_construct(**facts, peak=peak),  # what the lent kernels are told of it
            "family": self.family or self.name, "like": like.name, "relatives": (like.name, *like.relatives),
            "defaults": like.defaults,
        }  # fmt: skip
        return stated | left_out | further


def _assumed(like: DeviceSpec, number: Stated[Any]) -> Stated[Any]:
    return number.model_copy(update={"source": f"{ASSUMED_AS}{like.name}: {number.source}"})


#: Devices by catalog name or path; an announced one with its defaults filled in.
DEVICES: catalog.HardwareFiles[DeviceSpec] = catalog.HardwareFiles(
    "devices", DeviceSpec, AnnouncedDevice, lambda stated: stated.like or LATEST_MEASURED[stated.vendor]
)
