"""From a device and a kernel family to the parameters that apply, and where they come from.

The search is the same for every family: the device's own fit for this type and library; the device's own fit for a
kindred type; then the same for each relative in turn. What is borrowed keeps the relative's latencies and shares, runs
on this device's peak, bandwidth and compute units, is anchored on the best figure measured on this device where its
file has one, and gets a wider range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tspsim.errors import InputError

if TYPE_CHECKING:
    from .specification import DeviceSpec, KernelFit, Spread

#: Types whose kernels resemble another's, nearest first.
KINDRED: dict[str, tuple[str, ...]] = {
    "fp32": ("bf16",),
    "fp16": ("bf16",),
    "bf16": ("fp16",),
    "fp8": ("fp8_block", "bf16"),
    "fp8_block": ("fp8", "bf16"),
    "int8": ("fp8", "bf16"),
    "mxfp8": ("fp8", "fp8_block", "bf16"),
    "mxfp4": ("nvfp4", "fp8", "bf16"),
    "nvfp4": ("mxfp4", "fp8", "bf16"),
    "int4": ("mxfp4", "fp8", "bf16"),
}
#: A borrowed range: the logarithm of the relative's own, this many times, and at least this factor.
BORROWED_WIDENING = 1.6
BORROWED_FACTOR = 1.35
#: Beyond the shapes that were measured.
EXTRAPOLATED_WIDENING = 1.6


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel model ready to be asked: parameters, switches, range, and where they are from."""

    family: str
    dtype: str
    library: str
    parameters: Mapping[str, float]
    switches: Mapping[str, Any]
    spread: Spread
    source: str
    basis: str
    widening: float = 1.0

    def bounds(self, seconds: Any) -> tuple[Any, Any]:
        """Low and high of a predicted time; floats or arrays."""
        us = seconds * 1e6
        first, second = self.spread.borders_us
        if isinstance(us, float):
            regime: Any = (us > first) + (us > second)
            low, high = self.spread.low[regime], self.spread.high[regime]
        else:
            regime = np.searchsorted(np.array([first, second]), us)
            low, high = np.array(self.spread.low)[regime], np.array(self.spread.high)[regime]
        smallest, largest = self.spread.domain_us
        outside = (us < smallest) | (us > largest)
        exponent = self.widening * (1.0 + (EXTRAPOLATED_WIDENING - 1.0) * outside)
        if self.widening > 1.0:
            low, high = np.minimum(low, 1.0 / BORROWED_FACTOR), np.maximum(high, BORROWED_FACTOR)
        return seconds * low**exponent, seconds * high**exponent


def find(
    spec: DeviceSpec,
    relatives: Sequence[DeviceSpec],
    family: str,
    dtype: str,
    library: str | None,
    kv_dtype: str | None,
) -> Kernel:
    """The kernel model that applies; raises :class:`~tspsim.errors.InputError` when no relative has one."""
    for owner in (spec, *relatives):
        for kindred in (dtype, *KINDRED.get(dtype, ())):
            fit = _pick(owner, family, kindred, library, kv_dtype)
            if fit is not None:
                return _own(fit) if owner is spec and kindred == dtype else _borrowed(spec, owner, fit, dtype)
    known = sorted(
        {fit.dtype for owner in (spec, *relatives) for fit in owner.kernels if fit.family == family}
    )
    raise InputError(
        f"{spec.name} has no {family} model for {dtype}, nor has a relative of it; known types: {', '.join(known) or 'none'}"
    )


def _pick(
    owner: DeviceSpec, family: str, dtype: str, library: str | None, kv_dtype: str | None
) -> KernelFit | None:
    """The fit of the wanted library; else of the device's default library, else the one with most rows."""
    fits = [fit for fit in owner.kernels if fit.family == family and fit.dtype == dtype]
    exact = [fit for fit in fits if fit.kv_dtype == kv_dtype]
    fits = exact if kv_dtype is not None and exact else fits
    for wanted in (library, owner.defaults.get(family)):
        named = [fit for fit in fits if fit.library == wanted]
        if named:
            return named[0]
    return max(fits, key=lambda fit: fit.rows_used, default=None)


def _own(fit: KernelFit) -> Kernel:
    error = fit.held_out
    basis = f"fitted on {fit.rows_used} rows ({fit.date})"
    if error is not None:
        basis += f", median error {error.median:.1%} on {error.rows} other rows"
    return Kernel(
        fit.family, fit.dtype, fit.library, fit.parameters, fit.switches, fit.spread, fit.source, basis
    )


def _borrowed(spec: DeviceSpec, owner: DeviceSpec, fit: KernelFit, dtype: str) -> Kernel:
    parameters = dict(fit.parameters)
    anchor = ""
    best = _best_share(spec, fit.family, dtype)
    if best is not None and "efficiency" in parameters:
        # The best measured figure is what the inner loop keeps in a long call, so after throttling.
        lost = parameters.get("throttle", parameters.get("crowding", 0.0))
        parameters["efficiency"] = min(1.0, best[0] / (1.0 - lost))
        anchor = f", anchored on {best[0]:.0%} of peak ({best[1]})"
    if fit.family == "memory_bound" and spec.achieved.hbm is not None and owner.achieved.hbm is not None:
        mine = spec.achieved.hbm.value / spec.hbm_bandwidth.value
        theirs = owner.achieved.hbm.value / owner.hbm_bandwidth.value
        parameters["hbm_efficiency"] = min(1.0, parameters["hbm_efficiency"] * mine / theirs)
        anchor = f", anchored on streaming {mine:.0%} of HBM ({spec.achieved.hbm.source})"
    what = "" if owner is spec else f" from {owner.name}"
    kind = "" if fit.dtype == dtype else f" of {fit.dtype}"
    return Kernel(
        fit.family, dtype, fit.library, parameters, fit.switches, fit.spread, fit.source,
        f"inherited{what}{kind}{anchor}; wider range", BORROWED_WIDENING,
    )  # fmt: skip


def _best_share(spec: DeviceSpec, family: str, dtype: str) -> tuple[float, str] | None:
    """Best measured share of peak for a family and type, with its source."""
    best = {
        "gemm": spec.achieved.gemm.get(dtype),
        "attention_forward": spec.achieved.attention_forward,
        "attention_backward": spec.achieved.attention_backward,
    }.get(family)
    if best is None:
        return None
    peak = peak_of(spec, dtype if family == "gemm" else "bf16")
    return min(1.0, best.value / peak), best.source


def peak_of(spec: DeviceSpec, dtype: str) -> float:
    """Dense FLOP/s of a type, or of the nearest wider type the tensor cores run instead."""
    for name in (dtype, *PEAK_OF.get(dtype, ()), "bf16"):
        if name in spec.peak:
            return spec.peak[name].value
    raise AssertionError("peak.bf16 is required by DeviceSpec")


#: Where a type has no peak of its own: the type whose instructions run it.
PEAK_OF: dict[str, tuple[str, ...]] = {
    "fp16": ("bf16",),
    "fp8_block": ("fp8",),
    "mxfp8": ("fp8",),
    "nvfp4": ("mxfp4", "fp8"),
    "mxfp4": ("nvfp4", "fp8"),
    "int4": ("int8", "fp8"),
    "int8": ("fp8",),
}
