"""Seconds of a kernel inside a step as a function of the prompts that it reads, all else looked up once.

:func:`~tspsim.hardware.pricers.price` looks up a model, a clock and types for every operator. A stream of
serving steps differs in prompts alone, so a class of operators may register a *row pricer*, which makes that function::

    @row_pricer(MyKernel)
    def over(device: Device, kernel: MyKernel) -> Seconds:
        return lambda queries, lengths: device.memory_bound(kernel.hbm_bytes_of(queries)).seconds

The function gives the seconds of the pricer of the class. Where none is registered, operators are priced one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import mul
from typing import Any, TypeVar

import numpy as np

from ..base.quick import replace
from ..operators import (
    Attention,
    DeltaScan,
    GrowingSums,
    Indexer,
    LatentPrefill,
    Operator,
    RowSums,
    ShortConvolution,
    SparseAttention,
    element_bytes,
)
from . import sparse
from .device import Device
from .families import FAMILIES
from .kernels import Kernel
from .limits import Estimate, FloatArray
from .pricers import registers
from .prices import scoring_at_clock

#: Seconds of one call over prompts, by the query tokens of each and its context with these.
Seconds = Callable[[tuple[int, ...], tuple[int, ...]], float]
Priced = TypeVar("Priced", bound=Operator)
RowPricer = Callable[[Device, Priced], Seconds | None]
#: Seconds of one call by the sums of all rows.
OverSums = Callable[[RowSums], float]
SumPricer = Callable[[Device, Priced], OverSums]

ROW_PRICERS: dict[type[Operator], RowPricer[Any]] = {}
SUM_PRICERS: dict[type[Operator], SumPricer[Any]] = {}


def row_pricer(*classes: type[Priced]) -> Callable[[RowPricer[Priced]], RowPricer[Priced]]:
    """Decorator that registers a function as the row pricer of these classes, without their subclasses."""
    return registers(ROW_PRICERS, classes)


def over_rows(device: Device, operator: Operator) -> Seconds | None:
    """Seconds of an operator over other prompts; None where nobody registered how."""
    pricer = ROW_PRICERS.get(type(operator))
    return None if pricer is None else pricer(device, operator)


def sum_pricer(*classes: type[Priced]) -> Callable[[SumPricer[Priced]], SumPricer[Priced]]:
    """Decorator that registers a function as the pricer of these classes over the sums of all rows."""
    return registers(SUM_PRICERS, classes)


def over_sums(device: Device, operator: Operator) -> OverSums | None:
    """Seconds of an operator over other rows, of prompts and decoding sequences; None where nobody registered how."""
    pricer = SUM_PRICERS.get(type(operator))
    return None if pricer is None else pricer(device, operator)


@row_pricer(Attention)
def attention(device: Device, attention: Attention) -> Seconds:
    """Attention without rope and cache write (:func:`tspsim.hardware.prices.attention`)."""
    kernel = device.attention_alone(f"attention_{attention.direction}", attention.dtype, attention.kv_dtype)
    columns = {name: getattr(attention, name) for name in ("heads", "kv_heads", "head_dim", "causal")}
    return _segments(device, kernel, attention, columns, half=0.5 if attention.causal else 0.0)


@row_pricer(LatentPrefill)
def latent_prefill(device: Device, attention: LatentPrefill) -> Seconds:
    """Attention with expanded keys and values (:func:`tspsim.hardware.prices.latent_prefill`)."""
    kernel = device.kernel("latent_prefill", attention.dtype, kv_dtype=attention.kv_dtype)
    columns = {name: getattr(attention, name) for name in ("heads", "key_dim", "value_dim")}
    return _segments(device, kernel, attention, columns, half=0.5)


def _segments(
    device: Device, kernel: Kernel, attention: Attention | LatentPrefill, columns: dict[str, Any], *, half: float
) -> Seconds:
    """One call over all segments at the clock of a step; a segment's queries see q·kv − ``half``·q² pairs."""
    call = device.over_segments(kernel, attention.kv_dtype, columns)
    slowed = device.shares_at_clock(Estimate(1.0, 1.0, 1.0), 1.0, kernel).seconds - 1.0
    # FLOPs are proportional to pairs, bytes to queries and to contexts: those of three small calls give the factors.
    one, longer, wider = (replace(attention, segments=(segment,)) for segment in ((1, 1), (1, 2), (2, 2)))
    pair_flops = (longer.flops - one.flops) if attention.dtype else 0.0
    context_bytes = longer.hbm_bytes - one.hbm_bytes
    query_bytes = wider.hbm_bytes - longer.hbm_bytes
    shares, dtype = device.matrix_shares, attention.dtype

    def seconds(queries: tuple[int, ...], lengths: tuple[int, ...]) -> float:
        alone_s: float = call(queries, lengths)
        if not slowed:
            return alone_s
        pairs = sum(map(mul, queries, lengths)) - (half * sum(map(mul, queries, queries)) if half else 0.0)
        moved = query_bytes * sum(queries) + context_bytes * sum(lengths)
        return float(alone_s * (1.0 + shares(dtype, pair_flops * pairs, moved) * slowed))

    return seconds


@row_pricer(DeltaScan)
def delta_scan(device: Device, scan: DeltaScan) -> Seconds | None:
    """The recurrence over prompts in chunks (:func:`tspsim.hardware.prices.delta_scan`)."""
    if scan.verifies:
        return None
    sizes = {name: float(getattr(scan, name)) for name in ("k_heads", "k_dim", "v_heads", "v_dim")}
    return _in_chunks(device, f"{scan.variant}_scan", scan.dtype, scan.state_dtype, sizes)


@row_pricer(ShortConvolution)
def short_convolution(device: Device, convolution: ShortConvolution) -> Seconds:
    """The convolution over prompts (:func:`tspsim.hardware.prices.short_convolution`)."""
    sizes = {"channels": float(convolution.channels)}
    return _in_chunks(device, f"{convolution.variant}_convolution", convolution.dtype, None, sizes)


def _in_chunks(device: Device, name: str, dtype: str, second: str | None, sizes: dict[str, float]) -> Seconds:
    """One call by the number of prompts, their tokens and the longest."""
    kernel, family = device.kernel(name, dtype, kv_dtype=second), FAMILIES[name]
    limits, parameters, form = device.limits(kernel.dtype), kernel.parameters, family.form
    widths = [sizes[column] for column in family.shape[3:]]
    widths += [element_bytes(kernel.dtype), element_bytes(second or kernel.dtype)]
    switches = {**kernel.switches, **family.further}
    assert family.shape[:3] == ("sequences", "tokens", "longest")

    def seconds(queries: tuple[int, ...], lengths: tuple[int, ...]) -> float:
        sizes = float(len(queries)), float(sum(queries)), float(max(queries))
        return float(form(limits, parameters, *sizes, *widths, **switches))

    return seconds


# --- kernels that read all rows -------------------------------------------------------------------------------


@sum_pricer(Indexer)
def indexer(device: Device, scores: Indexer) -> OverSums:
    """Index scores and selection (:func:`tspsim.hardware.prices.indexer`)."""
    name, _ = sparse.indexer_call(scores)
    kernel = scoring_at_clock(device, device.kernel(name, scores.dtype))
    sizes = float(scores.heads), float(scores.head_dim)
    return BySums(scores, sparse.indexer_over(device.limits(kernel.dtype), kernel.parameters, *sizes))


@sum_pricer(SparseAttention)
def sparse_attention(device: Device, attention: SparseAttention) -> OverSums:
    """Attention to selected entries (:func:`tspsim.hardware.prices.sparse_attention`)."""
    name, _ = sparse.attention_call(attention)
    kernel = scoring_at_clock(device, device.kernel(name, attention.dtype, kv_dtype=attention.kv_dtype))
    widths = float(attention.heads), float(attention.key_dim), float(attention.value_dim), attention.entry_bytes
    over = sparse.attention_over(device.limits(kernel.dtype), kernel.parameters, *widths)
    return BySums(attention, over, whole_arrays=True)


class BySums:
    """Seconds of a kernel by the sums of all rows.

    Parameters
    ----------
    kernel
        The kernel.
    over
        Its seconds by the sizes that rows give.
    whole_arrays
        Whether these are, of arrays, bit for bit those of numbers: powers are not.
    """

    def __init__(
        self, kernel: Indexer | SparseAttention, over: Callable[..., Any], *, whole_arrays: bool = False
    ) -> None:
        self._sizes_over, self._over, self._whole_arrays = kernel.sizes_over, over, whole_arrays

    def __call__(self, sums: RowSums) -> float:
        return float(self._over(*self._sizes_over(sums)))

    def each(self, sums: GrowingSums) -> FloatArray:
        """Seconds of the steps of a run: shape (steps,), bit for bit those of a call."""
        sizes, steps = self._sizes_over(sums), len(sums.later)
        if self._whole_arrays:
            return np.broadcast_to(self._over(*sizes), steps)
        columns = [np.broadcast_to(size, steps).tolist() for size in sizes]
        return np.array(list(map(self._over, *columns)))
