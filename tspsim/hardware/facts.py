"""The facts of a device: what its file states, in SI units, each with its source; and the names of kernel libraries:
whose a fit is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tspsim.base.errors import InputError
from tspsim.base.provenance import Provenance
from tspsim.operators import multiplied_as

from ..base.memo import once

if TYPE_CHECKING:
    from ..base.stated import Stated
    from .specification import DeviceSpec, KernelFit


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


# --- names of kernel libraries --------------------------------------------------------------------------------

#: Engines by the first word of their libraries' names: one is asked for by that word alone. ATOM runs AITER's kernels.
ENGINES: dict[str, str] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "trtllm": "trtllm",
    "tensorrt-llm": "trtllm",
    "aiter": "aiter",
    "atom": "aiter",
}


def of_library(fits: Sequence[KernelFit], name: str | None) -> list[KernelFit]:
    """The fits of a library by its name in full; else the newest of the engine that the name's first word is.

    Of an engine's kernels those whose names have the further words; where none has, all: another kernel of the engine
    is nearer to one that was not measured than another engine's is. One that was measured untuned is
    asked for by its name alone.
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
    """Whether a library is the one of that name, or its engine's with the further words in its own."""
    if fit.library == name:
        return True
    engine = _engine(name)
    words = name.lower().split()[1:]
    return engine is not None and engine == _engine(fit.library) and all(word in fit.library.lower() for word in words)


def maker_of(library: str) -> str:
    """Whose a library is, by the letters that it begins with: an engine as stacks name it, else these.

    >>> maker_of("TensorRT-LLM 1.2"), maker_of("aiter_asm(ref)"), maker_of("hipBLASLt")
    ('trtllm', 'aiter', 'hipblaslt')
    """
    word = re.split(r"[^a-z-]", library.lower(), maxsplit=1)[0]
    return ENGINES.get(word, word)


def _engine(library: str) -> str | None:
    """The engine that a library is of, by its whole first word; None of what is no engine's, or a reference's."""
    return ENGINES.get(library.split(" ", 1)[0].lower())


def version_of(library: str) -> tuple[int, ...]:
    """Of an engine, as the second word of a library has it; nothing where it is no version."""
    words = library.split(" ", 2)
    return tuple(map(int, re.findall(r"\d+", words[1]))) if len(words) > 1 and words[1][0].isdigit() else ()
