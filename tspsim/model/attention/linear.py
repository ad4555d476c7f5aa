"""Linear attention by a delta rule in most layers of a model, full attention in the others.

``gdn``: Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464) with a gate per head, as in Qwen3-Next and Qwen3.5; other
layers have grouped-query attention. ``kda``: Kimi Delta Attention (Kimi Team 2025, arXiv:2510.26692) with a gate per
channel; other layers have latent attention. A linear layer keeps a state and the convolution's last inputs for every
sequence, whatever its length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from ...base.errors import InputError
from ...operators import (
    DTYPES,
    BatchQuantity,
    DeltaScan,
    MemoryBound,
    Operator,
    Role,
    Rows,
    ShortConvolution,
    element_bytes,
)
from ..parts import Block, Dimensions, LinearAttention
from ..shard import ServingShard
from .base import ATTENTION_KINDS, MOST_DECODED, AttentionKind, CacheUse, decoded, prefilled, product, tokens_of
from .grouped import GROUPED
from .latent import LATENT

if TYPE_CHECKING:
    from .sections import AttentionSection


class Linear(AttentionKind):
    """Base of both kinds."""

    #: Attention kind of the layers with full attention.
    full: ClassVar[AttentionKind]
    full_sequences = False
    divides_prompts = True

    @property
    def cache_types(self) -> Mapping[str, float]:
        """Types of the cache in layers with full attention."""
        return self.full.cache_types

    def describe(self, model: Dimensions) -> dict[str, Any]:
        values = self.full.describe(model) | asdict(linear_of(model)) | {"kind": self.name}
        return {name: value for name, value in values.items() if name in self.section.model_fields}

    def block(self, model: Dimensions, layer: int) -> Block:
        if linear_of(model).full(layer, model.layers):
            return self.full.block(model, layer)
        return Block(attention=self.name)

    def period(self, model: Dimensions) -> int:
        return linear_of(model).full_every

    def other_parameters(self, model: Dimensions, block: Block) -> int:
        """Taps of the convolution, and a decay with its bias per head."""
        linear = linear_of(model)
        return linear.channels * linear.convolution + 2 * linear.v_heads

    def norm_parameters(self, model: Dimensions, block: Block) -> int:
        """The norm over a head's output."""
        return self.head_norm_parameters(model, block)

    def head_norm_parameters(self, model: Dimensions, block: Block) -> int:
        return linear_of(model).v_dim

    def attend(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        linear = linear_of(layer.model)
        return tuple(
            DeltaScan(
                part,
                self.name,
                self.share(layer, linear.k_heads),
                linear.k_dim,
                self.share(layer, linear.v_heads),
                linear.v_dim,
                layer.formats.state,
                layer.wide_dtype,
                verifies=part[0][0] == layer.verified > 1,
            )
            for part in _kernels(rows)
        )

    def reads(self, operator: Operator, block: Block) -> BatchQuantity:
        """One kernel has the prompts and one the sequences that decode (:func:`_kernels`)."""
        if not isinstance(operator, DeltaScan | ShortConvolution):
            return operator.reads
        return BatchQuantity.DECODING if operator.rows[0][0] <= MOST_DECODED else BatchQuantity.PROMPTS

    def leave(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        linear, tokens = linear_of(layer.model), tokens_of(rows)
        width = self.share(layer, linear.v_heads) * linear.v_dim
        size = 3.0 * tokens * width * layer.activation_bytes
        gated = MemoryBound("rmsnorm", size, tokens, name="gated norm", role=Role.NORM)
        return gated, product(layer, tokens, layer.model.hidden, width, "output projection", Role.OUTPUT)

    def convolve(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        """The convolution over this shard's q, k and v."""
        linear = linear_of(layer.model)
        keys = self.share(layer, linear.k_heads) * linear.k_dim
        channels = 2 * keys + self.share(layer, linear.v_heads) * linear.v_dim
        return tuple(
            ShortConvolution(part, self.name, channels, linear.convolution, layer.wide_dtype) for part in _kernels(rows)
        )

    def cache(self, model: Dimensions, block: Block, cache_type: str, state_type: str = "fp32") -> CacheUse:
        """The state of a sequence in ``state_type``, and its convolution's last inputs in bf16."""
        linear = linear_of(model)
        if state_type not in DTYPES:
            raise InputError(f"a state is not kept in '{state_type}'; it can: {', '.join(DTYPES)}")
        reached = 2.0 * linear.channels * (linear.convolution - 1)
        state = linear.state_elements * element_bytes(state_type)
        return CacheUse(0.0, sequence_bytes=state + reached, state_heads=linear.k_heads)

    def cache_elements(self, model: Dimensions, block: Block) -> float:
        return 0.0

    def pair_flops(self, model: Dimensions, block: Block, pairs: float) -> float:
        """6 FLOPs an element of the state, to update and read it, whatever the context."""
        return 6.0 * linear_of(model).state_elements

    @staticmethod
    def share(layer: ServingShard, heads: int) -> int:
        """Heads of a shard: ``heads`` / shards, at least 1."""
        return max(1, heads // layer.shards)


class GatedDelta(Linear):
    """Gated DeltaNet: a gate per head; q, k, v and output gate in one product, decay and step size in another."""

    name, full = "gdn", GROUPED

    @property
    def section(self) -> type[AttentionSection]:
        from .sections import GatedDeltaSection

        return GatedDeltaSection

    def matrix_parameters(self, model: Dimensions, block: Block) -> int:
        """h·(2·K + 2·V) for q, k, v and the gate, 2·h a head for decay and step size, V·h for the output."""
        linear = linear_of(model)
        entering = 2 * linear.key_width + 2 * linear.value_width + 2 * linear.v_heads
        return model.hidden * (entering + linear.value_width)

    def project(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        linear, tokens, hidden = linear_of(layer.model), tokens_of(rows), layer.model.hidden
        keys, values = self.share(layer, linear.k_heads), self.share(layer, linear.v_heads)
        width = 2 * keys * linear.k_dim + 2 * values * linear.v_dim
        return (
            product(layer, tokens, width, hidden, "q, k, v and gate", Role.QKV),
            product(layer, tokens, 2 * values, hidden, "decay and step size", Role.QKV),
            *self.convolve(layer, rows),
        )


class KimiDelta(Linear):
    """Kimi Delta Attention: a gate per channel; decay and output gate are of low rank, a head's width."""

    name, full = "kda", LATENT

    @property
    def section(self) -> type[AttentionSection]:
        from .sections import KimiDeltaSection

        return KimiDeltaSection

    def matrix_parameters(self, model: Dimensions, block: Block) -> int:
        """h·(2·K + V) for q, k and v, h a head for the step size, both low-rank gates, V·h for the output."""
        linear, hidden = linear_of(model), model.hidden
        gates = hidden * (linear.k_dim + linear.v_dim) + linear.k_dim * linear.key_width
        gates += linear.v_dim * linear.value_width
        return hidden * (linear.channels + linear.v_heads + linear.value_width) + gates

    def undivided_parameters(self, model: Dimensions, block: Block) -> int:
        """The down-projections of both low-rank gates."""
        linear = linear_of(model)
        return model.hidden * (linear.k_dim + linear.v_dim)

    def other_parameters(self, model: Dimensions, block: Block) -> int:
        """Taps of the convolution, a decay per head and its bias per channel."""
        linear = linear_of(model)
        return linear.channels * linear.convolution + linear.v_heads + linear.key_width

    def enter(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        linear, name = linear_of(layer.model), "gates, down"
        width = linear.k_dim + linear.v_dim
        return (product(layer, tokens_of(rows), width, layer.model.hidden, name, Role.LATENT_DOWN),)

    def project(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        linear, tokens = linear_of(layer.model), tokens_of(rows)
        heads = self.share(layer, linear.v_heads)
        keys, values = heads * linear.k_dim, heads * linear.v_dim
        return (
            product(layer, tokens, 2 * keys + values + heads, layer.model.hidden, "q, k, v and step size", Role.QKV),
            product(layer, tokens, keys, linear.k_dim, "decay, up", Role.LATENT_QUERIES),
            product(layer, tokens, values, linear.v_dim, "output gate, up", Role.LATENT_QUERIES),
            *self.convolve(layer, rows),
        )


def linear_of(model: Dimensions) -> LinearAttention:
    assert model.linear is not None
    return model.linear


def _kernels(rows: Rows) -> tuple[tuple[tuple[int, int], ...], ...]:
    """(queries, sequences) rows of the chunked kernels, and those of the recurrent kernels; empty ones left out."""
    parts = (tuple((queries, sequences) for queries, _, sequences in part) for part in (prefilled(rows), decoded(rows)))
    return tuple(part for part in parts if part)


GATED_DELTA = ATTENTION_KINDS.register(GatedDelta())
KIMI_DELTA = ATTENTION_KINDS.register(KimiDelta())
