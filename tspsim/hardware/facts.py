"""Facts of a device as its file states them, in SI units, with their sources; names of kernel libraries."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tspsim.base.errors import InputError
from tspsim.base.provenance import Provenance
from tspsim.operators import Operator, multiplied_as

from ..base.memo import once

if TYPE_CHECKING:
    from ..base.stated import Stated
    from .specification import DeviceSpec, KernelFit


@dataclass(frozen=True, eq=False)
class DeviceFacts:
    """Facts of a device that do not depend on what runs on it."""

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
        """Dense FLOP/s by type, of all types that the matrix units multiply."""
        own = {dtype: peak.value for dtype, peak in self.spec.peak.items()}
        return MappingProxyType(own | {dtype: own[other] for dtype, other in multiplied_as(own).items()})

    def peak_of(self, dtype: str) -> float:
        """Dense FLOP/s of a type, or of the type whose instructions a block-scaled type runs on.

        Raises
        ------
        InputError
            The device has no instructions for the type; the message lists the types it has.
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

    def bound_by_bytes(self, operator: Operator) -> float:
        """How far bytes bound an operator: time of its bytes over time of its FLOPs, both at the peak, at most 1."""
        reads_s = operator.hbm_bytes / self.hbm_bytes_per_s
        if not operator.flops:
            return 1.0
        return min(1.0, reads_s * self.peak_of(operator.dtype) / operator.flops)

    @property
    def memory_bytes(self) -> float:
        """Memory that the vendor states; closed forms use it."""
        return self.spec.memory.value

    @property
    def visible_memory_bytes(self) -> float:
        """Memory that a process can allocate; verdicts on whether a plan fits use it."""
        return self.spec.visible_memory.value

    @property
    def compute_units(self) -> int:
        return self.spec.compute_units.value

    @property
    def tdp_watts(self) -> float:
        """Power that the GPU may draw: its power limit, else its TDP."""
        limit = self.spec.power_limit
        return self.spec.tdp.value if limit is None else limit.value

    @property
    def all_in_watts(self) -> float | None:
        """Power of a GPU with its share of server, network and cooling; None: no source."""
        saved = self.spec.tdp.value - self.tdp_watts
        return self.spec.all_in_power.value - saved if self.spec.all_in_power else None

    @property
    def prices_usd_per_hour(self) -> Mapping[str, float]:
        """USD a GPU hour by basis (hyperscaler, neocloud, rental); empty: no source."""
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
        """Source and basis of every fact."""
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


# --- names of kernel libraries --------------------------------------------------------------------------------

#: First word of a library's name → engine. Fits can be requested by this word alone. ATOM runs AITER's kernels.
ENGINES: dict[str, str] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "trtllm": "trtllm",
    "tensorrt-llm": "trtllm",
    "aiter": "aiter",
    "atom": "aiter",
}


def of_library(fits: Sequence[KernelFit], name: str | None) -> list[KernelFit]:
    """Fits of the library ``name``; else those of the newest version of the engine that its first word names.

    Of an engine's fits, those whose names have the further words of ``name``; if none has, all of them, because another
    kernel of the engine is nearer than another engine's. Untuned fits are only returned by their full name.
    """
    if name is None:
        return []
    exact = [fit for fit in fits if fit.library == name]
    engine = _engine(name)
    if exact or engine is None:
        return exact
    own = [fit for fit in fits if _engine(fit.library) == engine and fit.untuned is None]
    own = [fit for fit in own if is_of(fit, name)] or own
    newest = max((version_of(fit.library) for fit in own), default=())
    return [fit for fit in own if version_of(fit.library) == newest]


def is_of(fit: KernelFit, name: str) -> bool:
    """Whether a fit's library is ``name``, or of the engine that ``name`` begins with and has its further words."""
    if fit.library == name:
        return True
    engine = _engine(name)
    words = name.lower().split()[1:]
    return engine is not None and engine == _engine(fit.library) and all(word in fit.library.lower() for word in words)


def maker_of(library: str) -> str:
    """Maker of a library by the letters that its name begins with: an engine as stacks name it, else these letters.

    >>> maker_of("TensorRT-LLM 1.2"), maker_of("aiter_asm(ref)"), maker_of("hipBLASLt")
    ('trtllm', 'aiter', 'hipblaslt')
    """
    word = re.split(r"[^a-z-]", library.lower(), maxsplit=1)[0]
    return ENGINES.get(word, word)


def _engine(library: str) -> str | None:
    """Engine of a library by its first word; None: of no engine, or a reference's."""
    return ENGINES.get(library.split(" ", 1)[0].lower())


def version_of(library: str) -> tuple[int, ...]:
    """Version in the second word of an engine's library; empty: no version."""
    words = library.split(" ", 2)
    return tuple(map(int, re.findall(r"\d+", words[1]))) if len(words) > 1 and words[1][0].isdigit() else ()
