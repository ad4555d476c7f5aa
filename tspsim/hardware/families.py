"""The kernel families by the names that device files use: their formula, parameters, switches and shape
columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tspsim.operators import DTYPE_BYTES

from . import decode, gemm, memory_bound, moe, prefill
from .limits import DeviceLimits, Parameter

#: Shape columns by name: floats, or arrays of shape (rows,).
Shape = Mapping[str, Any]
Cost = Callable[[DeviceLimits, Mapping[str, float], Mapping[str, Any], Shape, str, str], Any]


@dataclass(frozen=True, slots=True)
class Family:
    """One kernel model.

    Attributes
    ----------
    seconds
        ``seconds(limits, parameters, switches, shape, dtype, second_dtype)``; the second type is the one K
        and V, or expert weights, are kept in.
    shape
        The columns that a shape consists of.
    parameters
        Name → default, bounds and meaning.
    switches
        Name → the values allowed (facts about a library, such as its tiles; chosen on rows used in the fit).
    """

    seconds: Cost
    shape: tuple[str, ...]
    parameters: Mapping[str, Parameter]
    switches: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def check_switches(self, given: Mapping[str, Any]) -> None:
        """Raise ValueError for a switch this family does not have, or a value it does not know."""
        for name, value in given.items():
            if name not in self.switches:
                raise ValueError(f"unknown switch '{name}'; known: {', '.join(self.switches) or 'none'}")
            if value not in self.switches[name]:
                allowed = ", ".join(str(v) for v in self.switches[name])
                raise ValueError(f"switch {name} = {value} is not one of {allowed}")


def _gemm(
    limits: DeviceLimits, p: Mapping[str, float], switches: Mapping[str, Any], shape: Shape, dtype: str, _: str
) -> Any:
    size = DTYPE_BYTES[dtype]
    m, n, k, batch = (shape[name] for name in _GEMM_SHAPE)
    return gemm.seconds(limits, p, m, n, k, batch, bytes_a=size, bytes_b=size, **switches)


def _both_gradients(
    limits: DeviceLimits, p: Mapping[str, float], switches: Mapping[str, Any], shape: Shape, dtype: str, _: str
) -> Any:
    m, n, k, batch = (shape[name] for name in _GEMM_SHAPE)
    sides = {"m": m, "n": n, "k": k, "batch": batch}
    of_a, of_b = sides | {"n": k, "k": n}, sides | {"m": k, "k": m}
    return sum(_gemm(limits, p, switches, product, dtype, dtype) for product in (of_a, of_b))


def _attention(backward: bool) -> Cost:
    def seconds(
        limits: DeviceLimits,
        p: Mapping[str, float],
        switches: Mapping[str, Any],
        shape: Shape,
        dtype: str,
        kv_dtype: str,
    ) -> Any:
        batch, q, kv, heads, kv_heads, head_dim, causal = (shape[name] for name in _ATTENTION_SHAPE)
        segments = tuple(zip(q, kv, strict=True)) if isinstance(q, tuple) else ((q, kv),)
        return prefill.seconds(
            limits, p, segments, batch, heads, kv_heads, head_dim, causal,
            backward=backward, bytes_q=DTYPE_BYTES[dtype], bytes_kv=DTYPE_BYTES[kv_dtype], **switches,
        )  # fmt: skip

    return seconds


def _decode(
    limits: DeviceLimits,
    p: Mapping[str, float],
    switches: Mapping[str, Any],
    shape: Shape,
    dtype: str,
    kv_dtype: str,
) -> Any:
    return decode.seconds(
        limits, p, *(shape[name] for name in _DECODE_SHAPE), bytes_kv=DTYPE_BYTES[kv_dtype]
    )


def _memory_bound(
    limits: DeviceLimits, p: Mapping[str, float], switches: Mapping[str, Any], shape: Shape, dtype: str, _: str
) -> Any:
    return memory_bound.seconds(limits, p, *(shape[name] for name in _MEMORY_SHAPE))


def _moe(
    limits: DeviceLimits,
    p: Mapping[str, float],
    switches: Mapping[str, Any],
    shape: Shape,
    dtype: str,
    weight_dtype: str,
) -> Any:
    sizes = {"bytes_a": DTYPE_BYTES[dtype], "bytes_w": DTYPE_BYTES[weight_dtype]}
    return moe.seconds(limits, p, *(shape[name] for name in _MOE_SHAPE), **sizes)


_GEMM_SHAPE = ("m", "n", "k", "batch")
_ATTENTION_SHAPE = ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "causal")
_DECODE_SHAPE = ("batch", "context", "heads", "kv_heads", "head_dim")
_MEMORY_SHAPE = ("size_bytes", "rows", "columns")
_MOE_SHAPE = ("tokens", "hidden", "expert_ffn", "experts", "topk")
#: 128 queries a block first: what FlashAttention-2 and -3 and ROCm composable_kernel's ck_tile fmha_fwd use at
#: head_dim 128; another height must fit clearly better.
_ATTENTION_SWITCHES = {"block_rows": (128, 64, 256), "packed": (False, True)}
#: Of the backward's heights for a few rows, 64 keys a block is the one that predicts rows left out best.
_BACKWARD_SWITCHES = {"block_rows": (64, 128, 256), "packed": (False,)}

_GEMM_SWITCHES = {"tiles": tuple(gemm.TILES), "splits": gemm.SPLITS}

#: Equal products in one call (``batch`` of them) are kernels of their own; their backward is that of A and that of B.
FAMILIES: dict[str, Family] = {
    "gemm": Family(_gemm, _GEMM_SHAPE, gemm.PARAMETERS, _GEMM_SWITCHES),
    "grouped_gemm": Family(_gemm, _GEMM_SHAPE, gemm.PARAMETERS, _GEMM_SWITCHES),
    "grouped_gemm_backward": Family(_both_gradients, _GEMM_SHAPE, gemm.PARAMETERS, _GEMM_SWITCHES),
    "attention_forward": Family(
        _attention(backward=False), _ATTENTION_SHAPE, prefill.PARAMETERS, _ATTENTION_SWITCHES
    ),
    "attention_backward": Family(
        _attention(backward=True), _ATTENTION_SHAPE, prefill.BACKWARD_PARAMETERS, _BACKWARD_SWITCHES
    ),
    "attention_decode": Family(_decode, _DECODE_SHAPE, decode.PARAMETERS),
    "memory_bound": Family(_memory_bound, _MEMORY_SHAPE, memory_bound.PARAMETERS),
    "fused_moe": Family(_moe, _MOE_SHAPE, moe.PARAMETERS),
}
