"""Families of kernels: their models, and the shapes that these read.

The kernel families by the names that device files use: their formula, parameters, switches and shape
columns.

Shapes of calls as the kernel models read them: positive sizes, numbers or arrays of one shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ..base.errors import InputError
from ..operators import element_bytes
from . import decode, gemm, latent, linear, memory_bound, moe, prefill, sparse
from .limits import DeviceLimits, Parameter

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
    is_attention: bool = False
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
        prefill.seconds, _ATTENTION_SHAPE, prefill.PARAMETERS, _ATTENTION_SWITCHES, is_attention=True
    ),
    "attention_backward": Family(
        partial(prefill.seconds, backward=True),
        _ATTENTION_SHAPE,
        prefill.BACKWARD_PARAMETERS,
        _BACKWARD_SWITCHES,
        is_attention=True,
    ),
    "attention_decode": Family(
        decode.seconds,
        ("batch", "context", "heads", "kv_heads", "head_dim"),
        decode.PARAMETERS,
        further={"queries": 1.0},
        is_attention=True,
    ),
    "latent_prefill": Family(
        latent.prefill_seconds,
        ("batch", "q_len", "kv_len", "heads", "key_dim", "value_dim"),
        latent.PREFILL_PARAMETERS,
        _LATENT_SWITCHES,
        is_attention=True,
    ),
    "latent_decode": Family(
        latent.decode_seconds,
        ("batch", "context", "heads", "latent_dim", "rope_dim", "queries"),
        latent.DECODE_PARAMETERS,
        {"block_rows": (64, 128, 16)},
        is_attention=True,
    ),
    "absorb": Family(latent.absorb_seconds, ("tokens", "heads", "n", "k"), gemm.PARAMETERS, _GEMM_SWITCHES),
    "memory_bound": Family(memory_bound.seconds, ("size_bytes", "rows", "columns"), memory_bound.PARAMETERS),
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


# --- shapes of calls as the kernel models read them -----------------------------------------------------------

_MAY_BE_ZERO = frozenset(
    {"rows", "columns", "causal", "choice", "longest", "prompts", "pairs", "touched", "gated", "elsewhere"}
)


def read_shape(shape: Mapping[str, Any]) -> dict[str, Any]:
    """Floats, or float arrays of one shape; refuses what is not a size. Tuples, of segments, are left as they are."""
    if all(isinstance(value, int | float | tuple) for value in shape.values()):
        numbers: dict[str, Any] = {n: v if isinstance(v, tuple) else float(v) for n, v in shape.items()}
        smallest = {name: value for name, value in numbers.items() if not isinstance(value, tuple)}
        largest = max(smallest.values())
    else:
        arrays = np.broadcast_arrays(*(np.asarray(value, dtype=float) for value in shape.values()))
        numbers = dict(zip(shape, arrays, strict=True))
        smallest = {name: array.min() if array.size else 1.0 for name, array in numbers.items()}
        largest = max((array.max() for array in arrays if array.size), default=1.0)
    for name, value in smallest.items():
        if not value > 0.0 and not (value == 0.0 and name in _MAY_BE_ZERO):
            raise InputError(f"{name} must be more than zero, not {value:g}")
    if not largest < float("inf"):
        raise InputError("sizes must be finite")
    return numbers
