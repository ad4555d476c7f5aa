"""Kernel families by the names in device files: formula, parameters, switches and shape columns of each.

Memory-bound kernels have their formula here; every other family has a module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ..base.errors import InputError
from ..operators import element_bytes
from . import decode, gemm, latent, linear, moe, prefill, sparse
from .limits import DeviceLimits, Parameter, maximum, minimum

#: Shape columns by name: floats, or arrays of shape (rows,).
Shape = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Family:
    """Formula of a kernel family."""

    #: ``form(limits, parameters, *shape, bytes, second_bytes, **switches)`` → seconds of one call, without a range.
    #: Shape columns are floats, or arrays of one shape (rows,); bytes are those of an element of either type.
    form: Callable[..., Any]
    #: Names of the shape columns.
    shape: tuple[str, ...]
    #: Name → default, bounds and meaning.
    parameters: Mapping[str, Parameter]
    #: Name → allowed values: facts of a library, such as its tiles, which a fit selects on the rows it uses.
    switches: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    #: Optional shape column → its value in every measured row.
    further: Mapping[str, float] = field(default_factory=dict)
    #: Whether the sustained rate of attention applies, not that of products.
    is_attention: bool = False
    #: Columns that the rows of one curve share: held-out rows are whole curves. None: single shapes.
    curve: tuple[str, ...] | None = None
    #: Whether the kernel converts the second type to the first: then each second type is a kernel of its own.
    converts: bool = False
    #: Columns that differ between the segments of one call; ``form`` has no arguments for them, and gives seconds as a
    #: function of them.
    by_segment: tuple[str, ...] = ()

    def seconds(
        self,
        limits: DeviceLimits,
        parameters: Mapping[str, float],
        switches: Mapping[str, Any],
        shape: Shape,
        dtype: str,
        second_dtype: str,
    ) -> Any:
        """Seconds of one call, without a range; where ``shape`` lacks the columns that differ by segment, a function of
        them. ``second_dtype`` is the type of cached K and V, or of expert weights."""
        widths = element_bytes(dtype), element_bytes(second_dtype)
        more = {name: shape.get(name, usual) for name, usual in self.further.items()} if self.further else {}
        if not self.by_segment:
            columns = [shape[name] for name in self.shape]
            return self.form(limits, parameters, *columns, *widths, **switches, **more)
        columns = [shape[name] for name in self.shape if name not in self.by_segment]
        call = self.form(limits, parameters, *columns, *widths, **switches, **more)
        lengths = [shape[name] for name in self.by_segment if name in shape]
        return call(*lengths) if lengths else call

    def check_switches(self, given: Mapping[str, Any]) -> None:
        """Raise ValueError for an unknown switch, or a value that it does not allow."""
        for name, value in given.items():
            if name not in self.switches:
                raise ValueError(f"unknown switch '{name}'; known: {', '.join(self.switches) or 'none'}")
            if value not in self.switches[name]:
                allowed = ", ".join(str(v) for v in self.switches[name])
                raise ValueError(f"switch {name} = {value} is not one of {allowed}")


MEMORY_BOUND_PARAMETERS: dict[str, Parameter] = {
    "launch_us": Parameter(1.2, 0.2, 20.0, "start of the kernel"),
    "hbm_efficiency": Parameter(0.75, 0.05, 1.0, "share of the HBM bandwidth"),
    "large_cost": Parameter(0.0, 0.0, 2.0, "further cost a byte of sizes beyond large_megabytes"),
    "large_megabytes": Parameter(200.0, 20.0, 2000.0, "where large sizes begin"),
    "row_us": Parameter(0.0, 0.0, 20.0, "latency of one row's reduction, 8192 columns"),
    "row_exponent": Parameter(0.9, 0.0, 2.0, "growth of that latency with the columns"),
    "rows_us": Parameter(0.0, 0.0, 5.0, "every row that one unit takes in turn"),
}


def memory_bound_seconds(
    limits: DeviceLimits, parameters: Mapping[str, float], size_bytes: Any, rows: Any, columns: Any, *_: float
) -> Any:
    """Seconds of one memory-bound call (copy, add, norm, activation), without a range: a float, or an array (calls,).

        bytes_s = bytes / (HBM · hbm_efficiency) · (1 + large_cost · x⁴ / (1 + x⁴))    x = bytes / large_megabytes
        time    = launch + sqrt(row² + (bytes_s + rows / units · rows_us)²)            row_us = 0: launch + bytes_s

    The factor with ``x`` is the cost of bytes beyond the caches. ``row`` is the latency of a reduction over rows
    (norms): row_us · (columns / 8192)^row_exponent, half of it for a single row. Time is at least bytes / HBM; it does
    not fall when bytes, or rows of the same length, grow.
    """
    p = parameters
    x = size_bytes / (p["large_megabytes"] * 1e6)
    x4 = minimum(x, 1e6) ** 4
    transfer = size_bytes / (limits.hbm * p["hbm_efficiency"]) * (1.0 + p["large_cost"] * x4 / (1.0 + x4))
    if p["row_us"] > 0.0:
        row = p["row_us"] * 1e-6 * (maximum(columns, 1.0) / 8192.0) ** p["row_exponent"] * (rows > 0)
        ramp = 1.0 - 0.5 * np.exp(-maximum(rows - 1.0, 0.0) / 4.0)
        transfer = np.sqrt((row * ramp) ** 2 + (transfer + rows / limits.compute_units * p["rows_us"] * 1e-6) ** 2)
    return maximum(p["launch_us"] * 1e-6 + transfer, size_bytes / limits.hbm)


_LENGTHS = ("q_len", "kv_len")
_GEMM_SHAPE = ("m", "n", "k", "batch")
_ATTENTION_SHAPE = ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "causal")
#: The first value, 128 queries a block, is that of FlashAttention-2 and -3 and of ROCm composable_kernel's ck_tile
#: fmha_fwd at head_dim 128; another must fit clearly better.
_ATTENTION_SWITCHES = {"block_rows": (128, 64, 256), "packed": (False, True)}
#: 64 keys a block first: with few rows to fit, it predicts held-out rows best.
_BACKWARD_SWITCHES = {"block_rows": (64, 128, 256), "packed": (False,)}

#: A library's tables state its form; its rows select ``block_rows``.
_LATENT_SWITCHES = {"form": ("expanded", "absorbed"), "block_rows": (128, 256, 64)}
_INDEXER_SHAPE = ("queries", "pairs", "entries", "choice", "longest", "heads", "head_dim")
_SPARSE_SHAPE = ("queries", "prompts", "pairs", "entries", "heads", "key_dim", "value_dim", "entry_bytes")
_SCAN_SHAPE = ("sequences", "tokens", "longest", "k_heads", "k_dim", "v_heads", "v_dim")
_CONVOLUTION_SHAPE = ("sequences", "tokens", "longest", "channels")
_GEMM_SWITCHES = {"tiles": tuple(gemm.TILES), "splits": gemm.SPLITS}

_EXPERTS = ("hidden", "expert_ffn", "experts", "topk")

#: Grouped products (``batch`` equal ones in a call) are kernels of their own; their backward is both gradients.
FAMILIES: dict[str, Family] = {
    "gemm": Family(gemm.seconds, _GEMM_SHAPE, gemm.PARAMETERS, _GEMM_SWITCHES),
    "grouped_gemm": Family(gemm.seconds, _GEMM_SHAPE, gemm.PARAMETERS, _GEMM_SWITCHES),
    "grouped_gemm_backward": Family(gemm.both_gradients, _GEMM_SHAPE, gemm.PARAMETERS, _GEMM_SWITCHES),
    "attention_forward": Family(
        prefill.segments_of,
        _ATTENTION_SHAPE,
        prefill.PARAMETERS,
        _ATTENTION_SWITCHES,
        is_attention=True,
        by_segment=_LENGTHS,
    ),
    "attention_backward": Family(
        partial(prefill.segments_of, backward=True),
        _ATTENTION_SHAPE,
        prefill.BACKWARD_PARAMETERS,
        _BACKWARD_SWITCHES,
        is_attention=True,
        by_segment=_LENGTHS,
    ),
    "attention_decode": Family(
        decode.seconds,
        ("batch", "context", "heads", "kv_heads", "head_dim"),
        decode.PARAMETERS,
        further={"queries": 1.0},
        is_attention=True,
    ),
    "latent_prefill": Family(
        latent.prefill_of_segments,
        ("batch", "q_len", "kv_len", "heads", "key_dim", "value_dim"),
        latent.PREFILL_PARAMETERS,
        _LATENT_SWITCHES,
        is_attention=True,
        by_segment=_LENGTHS,
    ),
    "latent_decode": Family(
        latent.decode_seconds,
        ("batch", "context", "heads", "latent_dim", "rope_dim", "queries"),
        latent.DECODE_PARAMETERS,
        {"block_rows": (64, 128, 16)},
        is_attention=True,
    ),
    "absorb": Family(latent.absorb_seconds, ("tokens", "heads", "n", "k"), gemm.PARAMETERS, _GEMM_SWITCHES),
    "memory_bound": Family(memory_bound_seconds, ("size_bytes", "rows", "columns"), MEMORY_BOUND_PARAMETERS),
    # Tables hold few shapes of experts, each at a dozen numbers of tokens: single rows left out would be too easy.
    "fused_moe": Family(
        moe.seconds,
        ("tokens", *_EXPERTS, "pairs", "touched", "gated"),
        moe.PARAMETERS,
        further={"elsewhere": 1.0},
        curve=_EXPERTS,
        converts=True,
    ),
    # Kernels over single tokens differ from those over compressed entries.
    "indexer": Family(sparse.indexer, _INDEXER_SHAPE, sparse.INDEXER_PARAMETERS),
    "sparse_attention": Family(sparse.attention, _SPARSE_SHAPE, sparse.PARAMETERS),
    "compressed_indexer": Family(sparse.indexer, _INDEXER_SHAPE, sparse.INDEXER_PARAMETERS),
    "compressed_attention": Family(sparse.attention, _SPARSE_SHAPE, sparse.PARAMETERS),
    # Linear attention by variant: ``scan`` runs prompts in chunks, ``step`` one token after the other.
    **{
        f"{variant}_{name}": Family(form, _SCAN_SHAPE, linear.SCAN_PARAMETERS, further={"extra_states": 0.0})
        for variant in ("gdn", "kda")
        for name, form in (("scan", linear.scan), ("step", partial(linear.scan, chunk=1.0)))
    },
    **{
        f"{variant}_{name}": Family(linear.convolution, _CONVOLUTION_SHAPE, linear.CONVOLUTION_PARAMETERS)
        for variant in ("gdn", "kda", "mamba2")
        for name in ("convolution", "convolution_step")
    },
}

#: Families whose kernels convert their second operand.
CONVERTING = frozenset(name for name, family in FAMILIES.items() if family.converts)


# --- shapes of calls ------------------------------------------------------------------------------------------

_MAY_BE_ZERO = frozenset(
    {"rows", "columns", "causal", "choice", "longest", "prompts", "pairs", "touched", "gated", "elsewhere"}
)


#: Types of the sizes of a single call; a set is faster than :func:`isinstance` on every size of every kernel.
_NUMBERS = frozenset({int, float, bool, tuple, np.float64})


def read_shape(shape: Mapping[str, Any]) -> dict[str, Any]:
    """Shape columns as floats, or as float arrays of one shape; tuples of segments stay tuples.

    Raises
    ------
    InputError
        A size is zero, negative or not finite.
    """
    if _NUMBERS.issuperset(map(type, shape.values())):
        numbers: dict[str, Any] = {n: v if type(v) is tuple else float(v) for n, v in shape.items()}
        sizes = [value for value in numbers.values() if type(value) is float]
        largest = max(sizes)
        if min(sizes) > 0.0 and largest < float("inf"):
            return numbers
        smallest = {name: value for name, value in numbers.items() if type(value) is float}
    else:
        columns = {name: np.asarray(value, dtype=float) for name, value in shape.items()}
        rows = np.broadcast_shapes(*{column.shape for column in columns.values()})
        numbers = {name: column if column.shape == rows else np.full(rows, column) for name, column in columns.items()}
        # A single number is looked at as one.
        smallest = {n: float(c) if c.ndim == 0 else c.min() if c.size else 1.0 for n, c in columns.items()}
        largest = max((float(c) if c.ndim == 0 else c.max() for c in columns.values() if c.size), default=1.0)
    for name, value in smallest.items():
        if not value > 0.0 and not (value == 0.0 and name in _MAY_BE_ZERO):
            raise InputError(f"{name} must be more than zero, not {value:g}")
    if not largest < float("inf"):
        raise InputError("sizes must be finite")
    return numbers
