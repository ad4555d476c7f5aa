"""The facts of a device: what its file states, in SI units, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tspsim.base.errors import InputError
from tspsim.base.provenance import Provenance
from tspsim.operators import multiplied_as

from ..base.memo import once

if TYPE_CHECKING:
    from ..base.stated import Stated
    from .specification import DeviceSpec


@dataclass(frozen=True, eq=False)
class DeviceFacts:
    """What a device is, whatever runs on it."""

    #: The device file.
    spec: DeviceSpec

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def vendor(self) -> str:
        return self.spec.vendor

    @property
    def family(self) -> str:
        return self.spec.family

    @once
    def peak_flops_per_s(self) -> Mapping[str, float]:
        """Dense FLOP/s by every type that the matrix units have."""
        own = {dtype: peak.value for dtype, peak in self.spec.peak.items()}
        return MappingProxyType(own | {dtype: own[other] for dtype, other in multiplied_as(own).items()})

    def peak_of(self, dtype: str) -> float:
        """Dense FLOP/s of a type: its own, or of the type whose instructions a scaled format runs on.

        Raises
        ------
        InputError
            The device has no instructions for it; the message lists those it has.
        """
        peaks = self.peak_flops_per_s
        if dtype in peaks:
            return peaks[dtype]
        others = multiplied_as(peaks, in_blocks=True)
        if dtype in others:
            return peaks[others[dtype]]
        raise InputError(f"{self.name} has no {dtype}; it has {', '.join(sorted({*peaks, *others}))}")

    @property
    def hbm_bytes_per_s(self) -> float:
        return self.spec.hbm_bandwidth.value

    @property
    def memory_bytes(self) -> float:
        """What the vendor prints; closed forms use it."""
        return self.spec.memory.value

    @property
    def visible_memory_bytes(self) -> float:
        """What a process sees; verdicts use it."""
        return self.spec.visible_memory.value

    @property
    def compute_units(self) -> int:
        return self.spec.compute_units.value

    @property
    def tdp_watts(self) -> float:
        """What it may draw: its limit where it has one."""
        limit = self.spec.power_limit
        return self.spec.tdp.value if limit is None else limit.value

    @property
    def all_in_watts(self) -> float | None:
        """Power a GPU with its share of the server, network and cooling; None where no source gives it."""
        saved = self.spec.tdp.value - self.tdp_watts
        return self.spec.all_in_power.value - saved if self.spec.all_in_power else None

    @property
    def prices_usd_per_hour(self) -> Mapping[str, float]:
        """USD a GPU hour by basis (hyperscaler, neocloud, rental); empty where no source gives one."""
        prices = self.spec.prices
        if prices is None:
            return MappingProxyType({})
        return MappingProxyType(
            {"hyperscaler": prices.hyperscaler, "neocloud": prices.neocloud, "rental": prices.rental}
        )

    @property
    def compute_slowdown(self) -> float:
        """Time of compute beside communication over its time alone, at least 1."""
        return self.spec.overlap.compute.value

    @property
    def communication_slowdown(self) -> float:
        """Time of communication beside compute over its time alone, at least 1."""
        return self.spec.overlap.communication.value

    def stated(self) -> tuple[Provenance, ...]:
        """Every fact with its source and basis."""
        spec = self.spec
        numbers: dict[str, tuple[str, Stated[Any]]] = {
            **{f"peak {dtype}": (f"{peak.value / 1e12:g} TFLOP/s", peak) for dtype, peak in spec.peak.items()},
            "HBM bandwidth": (f"{spec.hbm_bandwidth.value / 1e12:g} TB/s", spec.hbm_bandwidth),
            "memory": (f"{spec.memory.value / 1e9:g} GB", spec.memory),
            "visible memory": (f"{spec.visible_memory.value / 2**30:.2f} GiB", spec.visible_memory),
            "compute units": (f"{spec.compute_units.value}", spec.compute_units),
            "L2": (f"{spec.l2.value / 2**20:g} MiB", spec.l2),
            "sustained GEMM rate": (f"{spec.sustained.gemm.value:g} of burst", spec.sustained.gemm),
            "sustained attention rate": (f"{spec.sustained.attention.value:g} of burst", spec.sustained.attention),
            "compute beside communication": (f"{spec.overlap.compute.value:g}×", spec.overlap.compute),
            "communication beside compute": (f"{spec.overlap.communication.value:g}×", spec.overlap.communication),
        }
        return tuple(
            Provenance(f"{self.name}: {what}", text, number.source, spec.basis_of(number))
            for what, (text, number) in numbers.items()
        )
