"""Linear attention: a state of fixed size a sequence instead of a cache that grows.

Gated delta rule (Yang et al. 2024, arXiv:2412.06464, §3): the state of a head is k_dim × v_dim; in prefill it is
advanced chunk by chunk with products, in decoding by one outer product a token.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base.quick import quick
from .base import Operator, Role
from .dtypes import element_bytes

#: Tokens a chunk of the parallel form holds.
CHUNK = 64
#: (query tokens a sequence, sequences).
TokenRows = tuple[tuple[int, int], ...]


class QueryRows:
    """``rows`` of (query tokens, sequences)."""

    __slots__ = ()
    rows: TokenRows

    @property
    def tokens(self) -> int:
        return sum(q * n for q, n in self.rows)

    @property
    def sequences(self) -> int:
        return sum(n for _, n in self.rows)


@quick
@dataclass(frozen=True, slots=True)
class DeltaScan(QueryRows, Operator):
    """The recurrence of one layer: chunked where a sequence has many tokens, one step where it has one."""

    #: ``(query tokens, sequences)``.
    rows: TokenRows
    #: ``gdn`` (a gate a head), ``kda`` (a gate a channel) or ``mamba2``.
    variant: str
    #: Heads on this rank and their widths; the state is v_heads · k_dim · v_dim elements a sequence.
    k_heads: int
    k_dim: int
    v_heads: int
    v_dim: int
    #: What the state is kept in.
    state_dtype: str = "fp32"
    dtype: str = "bf16"
    #: Tokens are drafts and one, of which some may turn out wrong: the state is written behind every one of them, so
    #: that the right one stays (vLLM's and SGLang's: a state a token of a verify step, vllm-project/vllm#49887).
    verifies: bool = False
    name: str = "delta rule"
    role: Role = Role.ATTENTION

    kind = "attention"

    @property
    def flops(self) -> float:
        """A token updates and reads the state (6·k_dim·v_dim a head); of many, pairs inside a chunk besides: three
        products of width k_dim (of K with itself, its transform of K, and Q with K) and two of v_dim, half of each
        behind the causal mask."""
        inside = sum(q * n * min(q, CHUNK) for q, n in self.rows if q > 1)
        pairs = inside * self.v_heads * (3.0 * self.k_dim + 2.0 * self.v_dim)
        return 6.0 * self.tokens * self.v_heads * self.k_dim * self.v_dim + pairs

    @property
    def state_bytes(self) -> float:
        """Of one sequence."""
        return self.v_heads * self.k_dim * self.v_dim * element_bytes(self.state_dtype)

    @property
    def written(self) -> int:
        """States that are written."""
        return self.tokens if self.verifies else self.sequences

    @property
    def cold_bytes(self) -> float:
        """States read once, and written."""
        return float(self.sequences + self.written) * self.state_bytes

    @property
    def hbm_bytes(self) -> float:
        """States read once and written, q, k, v read and outputs written."""
        moved = 2.0 * self.k_heads * self.k_dim + 2.0 * self.v_heads * self.v_dim
        return self.cold_bytes + self.tokens * moved * element_bytes(self.dtype)

    @property
    def shape(self) -> str:
        pieces = " + ".join(f"{n}×{q}" for q, n in self.rows[:3])
        return f"{pieces} tokens, {self.variant}, {self.v_heads} heads of {self.k_dim}×{self.v_dim}"


@quick
@dataclass(frozen=True, slots=True)
class ShortConvolution(QueryRows, Operator):
    """A causal convolution of ``width`` over ``channels`` channels of q, k and v."""

    rows: TokenRows
    variant: str
    channels: int
    width: int = 4
    dtype: str = "bf16"
    name: str = "short convolution"
    role: Role = Role.OTHER

    kind = "memory_bound"

    @property
    def flops(self) -> float:
        return 2.0 * self.tokens * self.channels * self.width

    @property
    def hbm_bytes(self) -> float:
        """Channels read and written, and the last tokens' that a sequence keeps."""
        element = element_bytes(self.dtype)
        kept = 2.0 * self.sequences * self.channels * (self.width - 1)
        return (2.0 * self.tokens * self.channels + kept) * element

    @property
    def shape(self) -> str:
        return f"{self.tokens} tokens, {self.channels} channels, {self.variant}"
