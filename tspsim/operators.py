"""The shapes a device can be asked to compute: plain data, no clock, no device.

An operator knows its floating-point operations and the bytes it cannot avoid moving to and from HBM; what it
costs on a device is the business of :mod:`tspsim.hardware`. A multiply-add counts as two operations; causal
attention counts only the score pairs it needs (half of a square score matrix).
"""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes of one element. Block-scaled formats count their scales (OCP MX v1.0: one byte a block of 32;
#: NVFP4: one byte a block of 16).
DTYPE_BYTES: dict[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "int8": 1.0,
    "mxfp8": 1.03125,
    "mxfp4": 0.53125,
    "nvfp4": 0.5625,
    "int4": 0.5,
}


@dataclass(frozen=True, slots=True)
class Gemm:
    """C[m, n] = A[m, k] · B[k, n], ``batch`` times (a batch of more than one is a grouped GEMM of equal parts).

    ``quantised``: A comes in ``dtype`` from the kernel before; otherwise quantising it is part of a narrow product.
    """

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    batch: int = 1
    name: str = "gemm"
    quantised: bool = False

    kind = "gemm"

    @property
    def flops(self) -> float:
        """2·m·n·k a product."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def hbm_bytes(self) -> float:
        """A and B read once in the operand's type, C written once in bf16."""
        element = DTYPE_BYTES[self.dtype]
        return self.batch * ((self.m * self.k + self.n * self.k) * element + 2.0 * self.m * self.n)

    @property
    def shape(self) -> str:
        return f"{self.batch}×" * (self.batch > 1) + f"[{self.m}×{self.k}]·[{self.k}×{self.n}] {self.dtype}"


@dataclass(frozen=True, slots=True)
class Attention:
    """softmax(Q·Kᵀ)·V over ``segments``, in one kernel call.

    Parameters
    ----------
    segments
        ``(query tokens, context tokens)`` of every piece in the call. With ``causal`` a piece is aligned at its
        lower right corner, as FlashAttention does: its last query sees the whole context. A sequence shard in
        zigzag order is two segments.
    heads, kv_heads, head_dim
        Query heads, key/value heads and the width of one, on this rank.
    direction
        ``forward`` or ``backward`` (the backward alone: five products instead of two).
    """

    segments: tuple[tuple[int, int], ...]
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool = True
    dtype: str = "bf16"
    direction: str = "forward"
    name: str = "attention"

    kind = "attention"

    @property
    def pairs(self) -> float:
        """Query-key pairs a head: q·kv, less the causal triangle q²/2."""
        return sum(q * kv - (q * q / 2.0 if self.causal else 0.0) for q, kv in self.segments)

    @property
    def flops(self) -> float:
        """4·pairs·heads·head_dim forward, 10 backward (Dao 2023, FlashAttention-2, §4.1)."""
        factor = 4.0 if self.direction == "forward" else 10.0
        return factor * self.pairs * self.heads * self.head_dim

    @property
    def hbm_bytes(self) -> float:
        """Q, K, V read once and the output written once (backward: gradients as well)."""
        element = DTYPE_BYTES[self.dtype]
        queries = sum(q for q, _ in self.segments) * self.heads * self.head_dim
        context = sum(kv for _, kv in self.segments) * self.kv_heads * self.head_dim
        factor = 1.0 if self.direction == "forward" else 2.5
        return factor * (queries * (element + 2.0) + 2.0 * context * element)

    @property
    def shape(self) -> str:
        pieces = " + ".join(f"{q}×{kv}" for q, kv in self.segments[:3])
        more = f" + {len(self.segments) - 3} more" if len(self.segments) > 3 else ""
        mask = "causal" if self.causal else "full"
        return f"{pieces}{more} {mask}, {self.heads}/{self.kv_heads} heads of {self.head_dim} {self.dtype}"


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """A kernel whose time is the bytes it reads and writes: norm, rope, residual add, activation, lookup, copy.

    ``op`` names the kernel family (``copy``, ``add``, ``rmsnorm``, ``add_rmsnorm``, ``swiglu``, ``rope``, …);
    ``rows`` is its number of tokens where that matters to the kernel.
    """

    op: str
    size_bytes: float
    rows: int = 0
    flops_count: float = 0.0
    name: str = "memory"

    kind = "memory_bound"

    @property
    def flops(self) -> float:
        return self.flops_count

    @property
    def hbm_bytes(self) -> float:
        return self.size_bytes

    @property
    def shape(self) -> str:
        return f"{self.op}, {self.size_bytes / 1e6:.1f} MB"


Operator = Gemm | Attention | MemoryBound
