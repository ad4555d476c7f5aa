"""Select the kernel model of a device for a kernel family: its parameters, range and source.

The search is the same for every family: the device's own fit for the type and library, its own fit for a similar
type, then the same of each relative in turn. A borrowed model keeps the relative's latencies and shares, runs on this
device's peak, bandwidth and compute units, and has a wider range. If the device's file has a best measured rate, the
model is anchored on it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tspsim.base.errors import InputError
from tspsim.operators import multiplied_as, similar_types

from . import gemm, moe
from .facts import is_of, of_library
from .families import CONVERTING, FAMILIES
from .limits import DeviceLimits, Estimate

if TYPE_CHECKING:
    from ..base.stated import Stated
    from .specification import DeviceSpec, KernelFit

#: Half widths in log time that a borrowed range adds to the lender's, one for each way in which the two differ; squares
#: add. They are least-squares fits to 203 groups of rows, so that 92 % of the rows lie inside: each measured device
#: predicted from another of its vendor, and each type from a similar one (docs/borrowed-kernels.md).
OTHER_DEVICE = 0.18
#: Half widths for another generation, by family. ANCHORED_GENERATION applies instead where the best rate measured on
#: the device anchors the model.
OTHER_GENERATION: dict[str, float] = {
    "gemm": 0.36,
    "grouped_gemm": 0.36,
    "grouped_gemm_backward": 0.36,
    "fused_moe": 0.45,
    "attention_forward": 0.17,
    "attention_backward": 0.17,
    "attention_decode": 0.70,
    "latent_prefill": 0.17,
    "latent_decode": 0.36,
    "absorb": 0.36,
    "memory_bound": 0.70,
    **dict.fromkeys(("indexer", "sparse_attention"), 0.70),
    **dict.fromkeys(("compressed_indexer", "compressed_attention"), 0.36),
    **dict.fromkeys(("gdn_scan", "gdn_step", "kda_scan", "kda_step"), 0.36),
    **{f"{v}_convolution{s}": 0.36 for v in ("gdn", "kda", "mamba2") for s in ("", "_step")},
}
ANCHORED_GENERATION = 0.16
#: Added to another generation's, unless the model is anchored.
OTHER_VENDOR = 0.40
OTHER_LIBRARY = 0.40
OTHER_TYPE = 0.70
#: Added for a lender's fit to fewer than LENDER_ROWS rows, which cover one corner of the shapes.
LENDER_ROWS = 40
FEW_ROWS = 0.55
#: Family → family of the same form whose kernel model is used where the first was not measured.
FALLBACK_FAMILY: dict[str, str] = {"grouped_gemm": "gemm", "grouped_gemm_backward": "gemm"}
#: Rows that determine a family's parameters. A fit to fewer adjusts another kernel's parameters, and is lent only if no
#: relative has a fit to enough rows.
SUFFICIENT_ROWS = 5
#: The same for products, whose three sizes vary independently: a row a parameter.
SUFFICIENT_GEMM_ROWS = 14
#: Exponent of a range's factors outside the measured shapes.
EXTRAPOLATED_WIDENING = 1.6


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A kernel model: parameters, switches, range and source.

    ``low`` and ``high`` are factors of the predicted time by regime: three between ``borders_s``, and three more for
    times outside ``domain_s``. ``sustained``: its rows were measured at the clock of a long step.
    """

    family: str
    dtype: str
    library: str
    parameters: Mapping[str, float]
    switches: Mapping[str, Any]
    source: str
    basis: str
    borders_s: tuple[float, float]
    domain_s: tuple[float, float]
    low: tuple[float, ...]
    high: tuple[float, ...]
    sustained: bool

    def estimate(self, seconds: float) -> Estimate:
        """A predicted time with its range."""
        regime = bisect_right(self.borders_s, seconds)
        if not self.domain_s[0] <= seconds <= self.domain_s[1]:
            regime += REGIMES
        return Estimate(seconds, seconds * self.low[regime], seconds * self.high[regime])

    def estimates(self, seconds: Any) -> Estimate:
        """Predicted times of shape (rows,) with their ranges."""
        regime = np.searchsorted(np.array(self.borders_s), seconds, side="right")
        regime = regime + REGIMES * ((seconds < self.domain_s[0]) | (seconds > self.domain_s[1]))
        return Estimate(seconds, seconds * np.array(self.low)[regime], seconds * np.array(self.high)[regime])


def widening_weights(kernel: Kernel) -> Kernel:
    """The model of products that widen weights of few bits, by that of products that widen none: with the tiles of such
    kernels, and a wider range, because the time to widen weights was not measured."""
    tiles = kernel.switches.get("tiles")
    return replace(
        kernel,
        switches={**kernel.switches, "tiles": gemm.WIDENING_TILES.get(tiles, tiles)} if tiles else kernel.switches,
        low=tuple(math.exp(-math.hypot(math.log(value), OTHER_TYPE)) for value in kernel.low),
        high=tuple(math.exp(math.hypot(math.log(value), OTHER_TYPE)) for value in kernel.high),
    )


#: Regimes of predicted times; a range has as many factors again for times outside the measured shapes.
REGIMES = 3


def find_kernel(
    spec: DeviceSpec,
    relatives: Sequence[DeviceSpec],
    family: str,
    dtype: str,
    library: str | None,
    kv_dtype: str | None,
) -> Kernel:
    """The kernel model that applies.

    Raises
    ------
    InputError
        Neither the device nor a relative has a model of the family for the type or a similar one.
    """
    if spec.announced:
        return _announced(spec, relatives, family, dtype, library, kv_dtype)
    # A default library without a fit must not hide the fits of others.
    for by_default, few_rows in ((True, False), (False, False), (False, True)):
        wanted = library or (spec.defaults.get(family) if by_default else None)
        for owner in (spec, *relatives):
            for similar, equal in _types_tried(family, dtype, kv_dtype or dtype):
                fit = _pick(owner, family, similar, wanted, similar if equal else kv_dtype or dtype, by_default, equal)
                if fit is not None and (owner is spec or few_rows or sufficient_rows(family, fit.rows_used)):
                    same = similar == dtype and not _converts_another(fit, kv_dtype)
                    if owner is spec and same:
                        return _own(spec, fit)
                    return _borrowed(spec, owner, relatives, fit, dtype, library, kv_dtype, same_type=same)
    if family in FALLBACK_FAMILY:
        return _grouped(family, find_kernel(spec, relatives, FALLBACK_FAMILY[family], dtype, None, kv_dtype))
    dtypes = sorted({fit.dtype for owner in (spec, *relatives) for fit in owner.kernels if fit.family == family})
    raise InputError(
        f"{spec.name} has no {family} model for {dtype}, nor has a relative of it; "
        f"known types: {', '.join(dtypes) or 'none'}"
    )


def _types_tried(family: str, dtype: str, second: str) -> list[tuple[str, bool]]:
    """Operand types whose fits are tried, nearest first, and whether only one with equal types is wanted. A kernel that
    converts its second operand is another for each pair of types: of equal ones, those of a similar type come first."""
    types = (dtype, *similar_types(dtype))
    equal = types if family in CONVERTING and second == dtype else ()
    return [*((similar, True) for similar in equal), *((similar, False) for similar in types)]


def _announced(
    spec: DeviceSpec, relatives: Sequence[DeviceSpec], family: str, dtype: str, library: str | None,
    kv_dtype: str | None,
) -> Kernel:  # fmt: skip
    """Kernel model of an unmeasured device: that of its ``like``, scaled, with another generation's range."""
    like, others = relatives[0], relatives[1:]
    peak_of(spec, dtype)  # raises InputError for a type without matrix units
    lent_dtype = next((kin for kin in (dtype, *similar_types(dtype)) if has_peak(like, kin)), dtype)
    lent = find_kernel(like, others, family, lent_dtype, library, kv_dtype)
    widths = [OTHER_DEVICE, OTHER_GENERATION[family], *([OTHER_TYPE] if lent_dtype != dtype else [])]
    return replace(
        lent,
        dtype=dtype,
        parameters={**lent.parameters, **_scaled_rates(spec, like, lent, lent_dtype, dtype)},
        basis=f"{'a data sheet, nothing fitted' if spec.sold else 'announced, never measured'}: shares of peak and "
        f"bandwidth as {like.name} reaches them ({lent.basis}); wider range",
        low=tuple(math.exp(-math.hypot(math.log(value), *widths)) for value in lent.low),
        high=tuple(math.exp(math.hypot(math.log(value), *widths)) for value in lent.high),
    )


def _scaled_rates(spec: DeviceSpec, like: DeviceSpec, lent: Kernel, lent_dtype: str, dtype: str) -> dict[str, float]:
    """Parameters of a measured kernel on an unmeasured device with faster compute units.

    Shares of peak and bandwidth, and launch times, stay. In kernels that walk tiles in steps, the load rate of a unit
    grows with the unit's peak, and the step latency falls by the same factor. In streaming kernels the load rate grows
    with the unit's share of the HBM bandwidth.
    """
    measured = like.as_measured
    units = float(spec.as_measured.compute_units.value) / measured.compute_units.value
    stream = spec.hbm_bandwidth.value / measured.hbm_bandwidth.value
    pace = peak_of(spec, dtype) / peak_of(measured, lent_dtype) / units
    own = lent.parameters
    factors = {
        "step_us": 1.0 / pace, "load_gb_per_s": pace if "step_us" in own else stream / units,
        "gather_gb_per_s": stream / units, "quantise_gb_per_s": stream,
    }  # fmt: skip
    return {name: own[name] * factor for name, factor in factors.items() if name in own}


def sufficient_rows(family: str, rows: int) -> bool:
    """Whether a fit to ``rows`` rows determines a family's parameters."""
    return rows >= (SUFFICIENT_GEMM_ROWS if "gemm" in family else SUFFICIENT_ROWS)


def _pick(
    owner: DeviceSpec, family: str, dtype: str, library: str | None, second: str, by_default: bool,
    only_second: bool = False,
) -> KernelFit | None:  # fmt: skip
    """The owner's fit of ``library`` or engine; else of its default library; else the one to most rows; each of the
    ``second`` type, or unless ``only_second`` of the most similar one, or of any.

    None, so that the search goes on, if the owner has no fit at all of its default library. If that library was only
    measured in other types, another library's fit of this type is taken.
    """
    same = [fit for fit in owner.kernels if fit.family == family]
    fits = [fit for fit in same if fit.dtype == dtype and (fit.untuned is None or fit.library == library)]
    near = (second,) if only_second else (second, *similar_types(second))
    alike = ([fit for fit in fits if fit.kv_dtype == kind] for kind in near)
    fits = next(filter(None, alike), [] if only_second else fits)
    own = of_library(fits, library)
    default = owner.defaults.get(family) if by_default else None
    if not own and default is not None:
        own = of_library(fits, default)
        if not own and not of_library(same, default):
            return None
    return max(own or fits, key=lambda fit: fit.rows_used, default=None)


def _converts_another(fit: KernelFit, kv_dtype: str | None) -> bool:
    """Whether the kernel converts its second operand from another type than ``kv_dtype``."""
    return FAMILIES[fit.family].converts and kv_dtype is not None and fit.kv_dtype not in (None, kv_dtype)


def _grouped(family: str, plain: Kernel) -> Kernel:
    """Kernel model of unmeasured grouped products: a plain product's tiles over all groups, with a wider range."""
    low = tuple(math.exp(-math.hypot(math.log(value), OTHER_LIBRARY)) for value in plain.low)
    high = tuple(math.exp(math.hypot(math.log(value), OTHER_LIBRARY)) for value in plain.high)
    return replace(plain, family=family, low=low, high=high, basis=f"as plain products, wider range; {plain.basis}")


def _own(spec: DeviceSpec, fit: KernelFit) -> Kernel:
    error = fit.held_out
    basis = f"fitted on {fit.rows_used} rows ({fit.date})"
    if error is not None:
        basis += f", median error {error.median:.1%} on {error.rows} other rows"
    return _kernel(fit, fit.dtype, fit.parameters, basis, sustained=spec.sustained.includes(fit.library))


def _borrowed(
    spec: DeviceSpec, owner: DeviceSpec, relatives: Sequence[DeviceSpec], fit: KernelFit, dtype: str,
    library: str | None, second_dtype: str | None, *, same_type: bool,
) -> Kernel:  # fmt: skip
    parameters = dict(fit.parameters) | _widening(spec, fit, second_dtype)
    anchor = ""
    best = _best_measured(spec, fit.family, dtype)
    if best is None and owner.family != spec.family:
        best = _best_of_generation(spec, relatives, fit.family, dtype)
    sustained = _at_step_clock(spec, owner, fit)
    if best is not None:
        anchored = fit
        if library is not None and FAMILIES[fit.family].is_attention:  # libraries' products reach nearly the same rate
            anchored = _pick(owner, fit.family, fit.dtype, None, fit.kv_dtype or fit.dtype, by_default=True) or fit
        at_step = _at_step_clock(spec, owner, anchored)
        reached = best.value * (spec.sustained.rate_of(fit.family) if at_step else 1.0)
        if anchored is not fit:
            reached *= _large_rate(owner, fit) / _large_rate(owner, anchored)
        elif sustained and same_type and owner.family == spec.family:
            reached *= _share_of_best(owner, fit)
        parameters |= _efficiency_reaching(reached, spec, fit, dtype)
        clock = " at the clock of a step" if sustained else ""
        anchor = f", anchored on {reached / 1e12:.0f} TFLOP/s of a large call{clock} ({best.source})"
    elif fit.family in FALLBACK_FAMILY and owner.family == spec.family:
        faster = _faster_products(spec, owner, dtype, at_step=sustained)
        if faster is not None:
            parameters |= _efficiency_reaching(_large_rate(owner, fit) * faster, spec, fit, dtype)
            anchor = f", {faster:.2f} times as fast, as the best plain products of both devices"
    if fit.family == "memory_bound" and spec.achieved.hbm is not None and owner.achieved.hbm is not None:
        mine = spec.achieved.hbm.value / spec.as_measured.hbm_bandwidth.value
        theirs = owner.achieved.hbm.value / owner.as_measured.hbm_bandwidth.value
        parameters["hbm_efficiency"] = min(1.0, parameters["hbm_efficiency"] * mine / theirs)
        if owner.family != spec.family:  # the anchor has streamed sizes beyond the caches: their cost is in it
            parameters["large_cost"] = 0.0
        anchor = f", anchored on streaming {mine:.0%} of HBM ({spec.achieved.hbm.source})"
    what = "" if owner is spec else f" from {owner.name}"
    second = f"/{fit.kv_dtype}" if FAMILIES[fit.family].converts else ""
    kind = "" if same_type else f" of {fit.dtype}{second}"
    basis = f"inherited{what}{kind}{anchor}; wider range"
    widths = _range_widths(spec, owner, fit, library, anchored=bool(anchor), same_type=same_type)
    return _kernel(fit, dtype, parameters, basis, widths, sustained=sustained)


def _widening(spec: DeviceSpec, fit: KernelFit, second_dtype: str | None) -> dict[str, float]:
    """What changes in a kernel of experts that widens weights of ``second_dtype``, by one that read wider ones."""
    rows = spec.widening.get(second_dtype or "")
    return {} if rows is None or not _converts_another(fit, second_dtype) else {moe.WIDENING: rows.value}


def _at_step_clock(spec: DeviceSpec, owner: DeviceSpec, fit: KernelFit) -> bool:
    """Whether a lender's rows are at the clock that the borrower has in a long step; not if it may draw less power."""
    same_limit = owner.family != spec.family or spec.tdp.value >= owner.tdp.value
    return same_limit and owner.sustained.includes(fit.library)


def _share_of_best(owner: DeviceSpec, fit: KernelFit) -> float:
    """Rate of the large call of a library measured at the clock of a step, over the best of the lender at that clock.

    The default choice of kernels falls short of the best by the same share on all devices of a generation.
    """
    best = _best_measured(owner, fit.family, fit.dtype)
    if best is None:
        return 1.0
    return min(1.0, _large_rate(owner, fit) / (best.value * owner.sustained.rate_of(fit.family)))


def _large_rate(owner: DeviceSpec, fit: KernelFit) -> float:
    """FLOP/s of a fit's large call on the device that it was measured on."""
    shape, flops = _LARGE[fit.family]
    limits = limits_of(owner.as_measured, fit.dtype)
    return float(
        flops / FAMILIES[fit.family].seconds(limits, fit.parameters, fit.switches, shape, fit.dtype, fit.dtype)
    )


def _range_widths(
    spec: DeviceSpec, owner: DeviceSpec, fit: KernelFit, library: str | None, *, anchored: bool, same_type: bool
) -> list[float]:
    """Half widths in log time, one for each way in which a borrowed fit differs from the requested kernel."""
    wanted = library or spec.defaults.get(fit.family)
    generation = ANCHORED_GENERATION if anchored else OTHER_GENERATION[fit.family]
    differs = (
        (OTHER_DEVICE, owner is not spec),
        (generation, owner.family != spec.family),
        (OTHER_VENDOR, owner.vendor != spec.vendor and not anchored),
        # The library of a memory-bound fit is its op, and ops move bytes alike.
        (OTHER_LIBRARY, wanted is not None and not is_of(fit, wanted) and fit.family != "memory_bound"),
        (OTHER_TYPE, not same_type),
        (FEW_ROWS, fit.rows_used < LENDER_ROWS),
    )
    return [width for width, applies in differs if applies]


def _kernel(
    fit: KernelFit, dtype: str, parameters: Mapping[str, float], basis: str, widths: Sequence[float] = (),
    *, sustained: bool,
) -> Kernel:  # fmt: skip
    """Kernel model of ``fit``; ``widths`` widen its range as half widths in log time, whose squares add."""
    spread = fit.spread
    low = [math.exp(-math.hypot(math.log(value), *widths)) for value in spread.low] if widths else spread.low
    high = [math.exp(math.hypot(math.log(value), *widths)) for value in spread.high] if widths else spread.high
    return Kernel(
        fit.family,
        dtype,
        fit.library,
        parameters,
        fit.switches,
        fit.source,
        basis,
        (spread.borders_us[0] * 1e-6, spread.borders_us[1] * 1e-6),
        (spread.domain_us[0] * 1e-6, spread.domain_us[1] * 1e-6),
        (*low, *(value**EXTRAPOLATED_WIDENING for value in low)),
        (*high, *(value**EXTRAPOLATED_WIDENING for value in high)),
        sustained,
    )


#: A call that reaches a device's best rate, by family: (shape, floating-point operations).
_LARGE: dict[str, tuple[dict[str, float], float]] = {
    "gemm": ({"m": 8192.0, "n": 8192.0, "k": 8192.0, "batch": 1.0}, 2.0 * 8192.0**3),
    "attention_forward": (
        {"batch": 16.0, "q_len": 16384.0, "kv_len": 16384.0, "heads": 16.0, "kv_heads": 16.0,
         "head_dim": 128.0, "causal": 1.0},
        2.0 * 16.0 * 16.0 * 16384.0**2 * 128.0,
    ),
}  # fmt: skip
_LARGE["latent_prefill"] = (
    {"batch": 16.0, "q_len": 16384.0, "kv_len": 16384.0, "heads": 16.0, "key_dim": 192.0, "value_dim": 128.0},
    16.0 * 16.0 * 16384.0**2 * (192.0 + 128.0),
)
_LARGE["grouped_gemm"] = ({"m": 8192.0, "n": 4096.0, "k": 4096.0, "batch": 8.0}, 8.0 * 2.0 * 8192.0 * 4096.0**2)
_LARGE["grouped_gemm_backward"] = (_LARGE["grouped_gemm"][0], 2.0 * _LARGE["grouped_gemm"][1])
_LARGE["attention_backward"] = (_LARGE["attention_forward"][0], 2.5 * _LARGE["attention_forward"][1])


def _best_measured(spec: DeviceSpec, family: str, dtype: str) -> Stated[float] | None:
    """Best rate measured on a device for a family and type, FLOP/s with source; None without one."""
    return {
        "gemm": spec.achieved.gemm.get(dtype),
        "attention_forward": spec.achieved.attention_forward,
        "latent_prefill": spec.achieved.attention_forward,
        "attention_backward": spec.achieved.attention_backward,
    }.get(family)


def _faster_products(spec: DeviceSpec, owner: DeviceSpec, dtype: str, *, at_step: bool) -> float | None:
    """Best rate of a device's plain products over a relative's, in bursts or at the clock of a step; None if not
    measured on both."""
    own, other = (_best_measured(device, "gemm", dtype) for device in (spec, owner))
    if own is None or other is None:
        return None
    clocks = spec.sustained.gemm.value / owner.sustained.gemm.value if at_step else 1.0
    return own.value / other.value * clocks


def _best_of_generation(
    spec: DeviceSpec, relatives: Sequence[DeviceSpec], family: str, dtype: str
) -> Stated[float] | None:
    """Best rate at the share of peak that the nearest relative of its generation reached; None without one."""
    for other in relatives:
        best = _best_measured(other, family, dtype) if other.family == spec.family else None
        if best is not None:
            share = best.value / peak_of(other.as_measured, dtype)
            value = share * peak_of(spec.as_measured, dtype)
            source = f"{other.name}'s share of its peak; {best.source}"
            return best.model_copy(update={"value": value, "source": source})
    return None


def _efficiency_reaching(flops_per_s: float, spec: DeviceSpec, fit: KernelFit, dtype: str) -> dict[str, float]:
    """Inner-loop parameters with which a large call runs at ``flops_per_s`` on the device as it was measured.

    ``efficiency`` and, where the family has it, ``load_gb_per_s`` are the lender's times one factor. Bisection finds
    the factor, because the rate rises with it.
    """
    shape, flops = _LARGE[fit.family]
    limits = limits_of(spec.as_measured, dtype)
    family = FAMILIES[fit.family]
    loop = [name for name in ("efficiency", "load_gb_per_s") if name in family.parameters]

    def scaled(factor: float) -> dict[str, float]:
        bounds = {name: family.parameters[name] for name in loop}
        return {name: min(max(fit.parameters[name] * factor, p.low), p.high) for name, p in bounds.items()}

    low, high = 0.02, 50.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        parameters = fit.parameters | scaled(middle)
        seconds = family.seconds(limits, parameters, fit.switches, shape, dtype, dtype)
        low, high = (middle, high) if flops / seconds < flops_per_s else (low, middle)
    return scaled((low * high) ** 0.5)


def limits_of(spec: DeviceSpec, dtype: str) -> DeviceLimits:
    """Limits of a device that a kernel model of ``dtype`` reads."""
    units = float(spec.compute_units.value)
    shared_by = float(spec.measured_at.compute_units) if spec.measured_at else units
    return DeviceLimits(peak_of(spec, dtype), spec.hbm_bandwidth.value, units, spec.l2.value, shared_by)


def has_peak(spec: DeviceSpec, dtype: str) -> bool:
    """Whether the matrix units multiply a type."""
    return dtype in spec.peak or dtype in multiplied_as(spec.peak)


def peak_of(spec: DeviceSpec, dtype: str) -> float:
    """Dense FLOP/s of a type; raises InputError if the matrix units do not multiply it."""
    if dtype in spec.peak:
        return spec.peak[dtype].value
    others = multiplied_as(spec.peak)
    if dtype in others:
        return spec.peak[others[dtype]].value
    has = sorted({*spec.peak, *others})
    raise InputError(f"{spec.name} has no matrix units for {dtype}; it has {', '.join(has)}")
