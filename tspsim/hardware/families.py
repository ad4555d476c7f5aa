"""Families of kernels by the names that device files use: formula, parameters, switches and shape columns, and the
shapes of calls that they read: positive sizes, numbers or arrays of one shape.

A family that does more than move bytes has a module of its own."""

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
    """One kernel model."""

    #: ``form(limits, parameters, *shape, bytes, second_bytes, **switches)`` → seconds of one call, before any range.
    #: Columns of the shape are floats, or arrays of one shape (rows,); bytes are those of an element of either type.
    form: Callable[..., Any]
    #: The columns that a shape consists of.
    shape: tuple[str, ...]
    #: Name → default, bounds and meaning.
    parameters: Mapping[str, Parameter]
    #: Name → the values allowed (facts about a library, such as its tiles; chosen on rows used in the fit).
    switches: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    #: Columns that a call may state besides → their value in every row that was measured.
    further: Mapping[str, float] = field(default_factory=dict)
    #: Whether its matrix units run at the clock of attention.
    attends: bool = False
    #: The columns that rows of one curve share: a fit leaves out whole curves. None: single shapes.
    curve: tuple[str, ...] | None = None
    #: Whether the second type is converted to the first on the way: a kernel of another one is another kernel.
    converts: bool = False

    def seconds(
        self,
        limits: DeviceLimits,
        parameters: Mapping[str, float],
        switches: Mapping[str, Any],
        shape: Shape,
        dtype: str,
        second_dtype: str,
    ) -> Any:
        """Seconds before any range; the second type is the one K and V, or expert weights, are kept in."""
        columns = [shape[name] for name in self.shape]
        widths = element_bytes(dtype), element_bytes(second_dtype)
        more = {name: shape.get(name, usual) for name, usual in self.further.items()}
        return self.form(limits, parameters, *columns, *widths, **switches, **more)

    def check_switches(self, given: Mapping[str, Any]) -> None:
        """Raise ValueError for a switch this family does not have, or a value it does not know."""
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
    """Seconds of a kernel that only reads, does a little arithmetic, and writes (copy, add, norm, activation), before
    any range: floats, or arrays of shape (calls,).

        bytes_s = bytes / (HBM · hbm_efficiency) · (1 + large_cost · x⁴ / (1 + x⁴))    x = bytes / large_megabytes
        time    = launch + sqrt(row² + (bytes_s + rows / units · rows_us)²)

    ``x`` describes copies, which cost more a byte once the working set outgrows the caches. ``row`` is the latency of a
    kernel that reduces over rows (norms), about one row's pass: row_us · (columns / 8192)^row_exponent, half of it for
    a single row. Never less than bytes / HBM; time does not fall when bytes, or rows of the same length, grow.
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


_GEMM_SHAPE = ("m", "n", "k", "batch")
_ATTENTION_SHAPE = ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "causal")
#: 128 queries a block first: what FlashAttention-2 and -3 and ROCm composable_kernel's ck_tile fmha_fwd use at
#: head_dim 128; another height must fit clearly better.
_ATTENTION_SWITCHES = {"block_rows": (128, 64, 256), "packed": (False, True)}
#: Of the backward's heights for a few rows, 64 keys a block is the one that predicts rows left out best.
_BACKWARD_SWITCHES = {"block_rows": (64, 128, 256), "packed": (False,)}

#: Which form a library runs its tables say; the heights of its blocks are told by the rows.
_LATENT_SWITCHES = {"form": ("expanded", "absorbed"), "block_rows": (128, 256, 64)}
_INDEXER_SHAPE = ("queries", "pairs", "entries", "choice", "longest", "heads", "head_dim")
_SPARSE_SHAPE = ("queries", "prompts", "pairs", "entries", "heads", "key_dim", "value_dim", "entry_bytes")
_SCAN_SHAPE = ("sequences", "tokens", "longest", "k_heads", "k_dim", "v_heads", "v_dim")
_CONVOLUTION_SHAPE = ("sequences", "tokens", "longest", "channels")
_GEMM_SWITCHES = {"tiles": tuple(gemm.TILES), "splits": gemm.SPLITS}

_EXPERTS = ("hidden", "expert_ffn", "experts", "topk")

#: Equal products in one call (``batch`` of them) are kernels of their own; their backward is that of A and that of B.
FAMILIES: dict[str, Family] = {
    "gemm": Family(gemm.seconds, _GEMM_SHAPE, gemm.PARAMETERS, _GEMM_SWITCHES),
    "grouped_gemm": Family(gemm.seconds, _GEMM_SHAPE, gemm.PARAMETERS, _GEMM_SWITCHES),
    "grouped_gemm_backward": Family(gemm.both_gradients, _GEMM_SHAPE, gemm.PARAMETERS, _GEMM_SWITCHES),
    "attention_forward": Family(
        prefill.seconds, _ATTENTION_SHAPE, prefill.PARAMETERS, _ATTENTION_SWITCHES, attends=True
    ),
    "attention_backward": Family(
        partial(prefill.seconds, backward=True),
        _ATTENTION_SHAPE,
        prefill.BACKWARD_PARAMETERS,
        _BACKWARD_SWITCHES,
        attends=True,
    ),
    "attention_decode": Family(
        decode.seconds,
        ("batch", "context", "heads", "kv_heads", "head_dim"),
        decode.PARAMETERS,
        further={"queries": 1.0},
        attends=True,
    ),
    "latent_prefill": Family(
        latent.prefill_seconds,
        ("batch", "q_len", "kv_len", "heads", "key_dim", "value_dim"),
        latent.PREFILL_PARAMETERS,
        _LATENT_SWITCHES,
        attends=True,
    ),
    "latent_decode": Family(
        latent.decode_seconds,
        ("batch", "context", "heads", "latent_dim", "rope_dim", "queries"),
        latent.DECODE_PARAMETERS,
        {"block_rows": (64, 128, 16)},
        attends=True,
    ),
    "absorb": Family(latent.absorb_seconds, ("tokens", "heads", "n", "k"), gemm.PARAMETERS, _GEMM_SWITCHES),
    "memory_bound": Family(memory_bound_seconds, ("size_bytes", "rows", "columns"), MEMORY_BOUND_PARAMETERS),
    # Tables hold a few shapes of experts at a dozen numbers of tokens each: one left out of a fitted curve is easy.
    "fused_moe": Family(
        moe.seconds,
        ("tokens", *_EXPERTS, "pairs", "touched", "gated"),
        moe.PARAMETERS,
        further={"elsewhere": 1.0},
        curve=_EXPERTS,
        converts=True,
    ),
    # Over tokens, and over entries that stand for several: kernels of their own.
    "indexer": Family(sparse.indexer, _INDEXER_SHAPE, sparse.INDEXER_PARAMETERS),
    "sparse_attention": Family(sparse.attention, _SPARSE_SHAPE, sparse.PARAMETERS),
    "compressed_indexer": Family(sparse.indexer, _INDEXER_SHAPE, sparse.INDEXER_PARAMETERS),
    "compressed_attention": Family(sparse.attention, _SPARSE_SHAPE, sparse.PARAMETERS),
    # Linear attention by variant: a prompt in chunks, and one token after the other.
    **{
        f"{variant}_{name}": Family(form, _SCAN_SHAPE, linear.SCAN_PARAMETERS, further={"besides": 0.0})
        for variant in ("gdn", "kda")
        for name, form in (("scan", linear.scan), ("step", partial(linear.scan, chunk=1.0)))
    },
    **{
        f"{variant}_{name}": Family(linear.convolution, _CONVOLUTION_SHAPE, linear.CONVOLUTION_PARAMETERS)
        for variant in ("gdn", "kda", "mamba2")
        for name in ("convolution", "convolution_step")
    },
}


# --- shapes of calls as the kernel models read them -----------------------------------------------------------

_MAY_BE_ZERO = frozenset(
    {"rows", "columns", "causal", "choice", "longest", "prompts", "pairs", "touched", "gated", "elsewhere"}
)


#: Types of single calls: what nobody asks :func:`isinstance` of, a dozen times for every kernel of a step.
_KINDS = frozenset({int, float, bool, tuple, np.float64})


def read_shape(shape: Mapping[str, Any]) -> dict[str, Any]:
    """Floats, or float arrays of one shape; refuses what is not a size. Tuples, of segments, are left as they are."""
    if _KINDS.issuperset(map(type, shape.values())):
        numbers: dict[str, Any] = {n: v if type(v) is tuple else float(v) for n, v in shape.items()}
        smallest = {name: value for name, value in numbers.items() if type(value) is float}
        largest = max(smallest.values())
        if min(smallest.values()) > 0.0 and largest < float("inf"):
            return numbers
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
