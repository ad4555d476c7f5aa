"""Linear attention: a sequence keeps a state of fixed size instead of a growing cache.

Gated delta rule (Yang et al. 2024, arXiv:2412.06464, §3): the state of a head is k_dim × v_dim. Prefill updates it
chunk by chunk with matrix products, decode with one outer product a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..base.quick import quick
from .base import Operator, Role
from .batch import QUERY_ROWS, RowField
from .dtypes import element_bytes

#: Tokens a chunk of the parallel form.
CHUNK = 64
#: (query tokens a sequence, sequences).
TokenRows = tuple[tuple[int, int], ...]


class QueryRows:
    """Sums over ``rows`` of (query tokens a sequence, sequences)."""

    __slots__ = ()
    rows_field: ClassVar[RowField | None] = QUERY_ROWS
    reads_contexts: ClassVar[bool] = False
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
    """The delta-rule recurrence of one layer: chunked for many tokens a sequence, one step for one token."""

    #: ``(query tokens a sequence, sequences)``.
    rows: TokenRows
    #: ``gdn`` (a gate per head), ``kda`` (a gate per channel) or ``mamba2``.
    variant: str
    #: Heads on this rank and their widths; a sequence's state has v_heads · k_dim · v_dim elements.
    k_heads: int
    k_dim: int
    v_heads: int
    v_dim: int
    #: Type of the state.
    state_dtype: str = "fp32"
    dtype: str = "bf16"
    #: A verify step: the state after every draft token is written, so that rejected drafts can be undone (vLLM and
    #: SGLang, vllm-project/vllm#49887).
    verifies: bool = False
    name: str = "delta rule"
    role: Role = Role.ATTENTION

    kind = "attention"

    @property
    def flops(self) -> float:
        """6·k_dim·v_dim a token and head to update and read the state, and products over pairs inside a chunk.

        Pairs have three products of width k_dim (K with K, its transform of K, Q with K) and two of width v_dim, half
        of each under the causal mask.
        """
        inside = sum(q * n * min(q, CHUNK) for q, n in self.rows if q > 1)
        pairs = inside * self.v_heads * (3.0 * self.k_dim + 2.0 * self.v_dim)
        return 6.0 * self.tokens * self.v_heads * self.k_dim * self.v_dim + pairs

    @property
    def state_bytes(self) -> float:
        """Bytes of one sequence's state."""
        return self.v_heads * self.k_dim * self.v_dim * element_bytes(self.state_dtype)

    @property
    def written(self) -> int:
        """Number of states written: one a token in verify steps, else one a sequence."""
        return self.tokens if self.verifies else self.sequences

    @property
    def cold_bytes(self) -> float:
        """Bytes of states read and written."""
        return float(self.sequences + self.written) * self.state_bytes

    @property
    def hbm_bytes(self) -> float:
        """States read and written; q, k, v read and outputs written."""
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
        """Channels of all tokens read and written, and of the ``width`` − 1 last tokens that a sequence keeps."""
        element = element_bytes(self.dtype)
        kept = 2.0 * self.sequences * self.channels * (self.width - 1)
        return (2.0 * self.tokens * self.channels + kept) * element

    @property
    def shape(self) -> str:
        return f"{self.tokens} tokens, {self.channels} channels, {self.variant}"
