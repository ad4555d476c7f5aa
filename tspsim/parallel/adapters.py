"""Low-rank adapters beside frozen weights (LoRA): operators that they add to a layer, and those that freezing drops.

Beside a product X[m, k]·W[k, n], adapters of rank r compute P = X·A[k, r] and Y += P·B[r, n] (Hu et al. 2021, LoRA,
§4.1). In the backward, frozen W has dX = dY·Wᵀ but no dW = Xᵀ·dY; adapters add dP = dY·Bᵀ, dB = Pᵀ·dY, dA = Xᵀ·dP and
dX += dP·Aᵀ. Adapters are stored and multiplied in bf16, whatever the weights' type.

If W is sharded, so is one of the two: B with W's columns, A with its rows. All holders of a shard need the other
*whole*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field

from ..base.strict import OneOf, refuse, section
from ..base.units import PositiveCount
from ..model import Architecture, Block
from ..model.layer import LayerShard
from ..model.routed import RoutedShard
from ..operators import Computes, Gemm, GroupedGemm, MemoryBound, Operator, Role, Sharding

#: Target of adapters → roles of products. Routers have no adapters.
TARGETS = {
    "qkv": (Role.QKV, Role.LATENT_DOWN, Role.LATENT_QUERIES, Role.LATENT_KEYS_VALUES),
    "output": (Role.OUTPUT,),
    "gate_up": (Role.GATE_UP, Role.EXPERTS_GATE_UP),
    "down": (Role.DOWN, Role.EXPERTS_DOWN),
}


def _once(targets: tuple[str, ...]) -> tuple[str, ...]:
    twice = next((target for target in targets if targets.count(target) > 1), None)
    if twice is not None:
        raise refuse(f"'{twice}' is named twice; name each product once")
    return targets


Target = Annotated[str, OneOf(lambda: tuple(TARGETS))]
OfExperts = Annotated[str, OneOf(lambda: ("each", "shared", "none"))]
ELEMENT_BYTES = 2.0


class Halves(NamedTuple):
    """Parameters of adapters beside one shard: those sharded like its weights, and those whole on all shards."""

    split: float = 0.0
    whole: float = 0.0

    @property
    def both(self) -> float:
        return self.split + self.whole


@dataclass(frozen=True)
class Adapters:
    """Adapters of ``rank`` beside the products in ``targets`` (keys of :data:`TARGETS`).

    ``experts``: adapters of routed experts. ``each``: a pair per expert; ``shared``: one pair for all experts of a rank
    (Megatron-Bridge's ``share_expert_adapters``); ``none``: no pair.
    """

    __pydantic_config__ = section("Low-rank adapters beside frozen weights (LoRA).")

    rank: Annotated[PositiveCount, Field(le=65536, description="columns of an adapter's first matrix")]
    targets: Annotated[
        tuple[Target, ...], Field(min_length=1, description="products that have an adapter"), AfterValidator(_once)
    ] = tuple(TARGETS)
    experts: Annotated[
        OfExperts, Field(description="adapters of routed experts: a pair each, one pair for all of a rank, or none")
    ] = "each"

    def beside(self, role: Role) -> bool:
        """Whether products of this role have adapters."""
        if role.routed and self.experts == "none":
            return False
        return any(role in TARGETS[target] for target in self.targets)

    def beside_layer(self, model: Architecture, block: Block) -> bool:
        """Whether a layer of this kind has any adapters."""
        routed = self.routed(RoutedShard(model, 1, 1)) if block.experts else Halves()
        return self.common(LayerShard(model, 1, block=block)).both + routed.both > 0

    # --- parameters -----------------------------------------------------------------------------------------

    def attention(self, layer: LayerShard) -> Halves:
        """Adapters of one layer's shard of attention: r·(k + n) parameters per product."""
        return self._halves((*layer.down_projections(1), *layer.projections(1), layer.output(1)))

    def mlp(self, layer: LayerShard) -> Halves:
        """Adapters of the shard of the MLP that all tokens visit: dense, or shared experts."""
        return self._halves((layer.gate_up(1), layer.down(1)) if layer.ffn else ())

    def common(self, layer: LayerShard) -> Halves:
        """Adapters of all of a layer's shard but its routed experts."""
        attention, mlp = self.attention(layer), self.mlp(layer)
        return Halves(attention.split + mlp.split, attention.whole + mlp.whole)

    def routed(self, shard: RoutedShard) -> Halves:
        """Adapters of a rank's routed experts; halves are whole on several ranks only if columns are sharded."""
        halves = self._halves((shard.gate_up(), shard.down()))
        return halves if shard.columns > 1 else Halves(halves.both)

    def _halves(self, products: Iterable[Gemm]) -> Halves:
        split = whole = 0.0
        for product in products:
            if not self.beside(product.role):
                continue
            pairs = product.batch if self.experts == "each" else 1
            into, out_of = pairs * self.rank * product.k, pairs * self.rank * product.n
            if product.role.sharding is Sharding.REPLICATED:
                whole += into + out_of
            elif product.role.sharding is Sharding.ROWS:
                split, whole = split + into, whole + out_of
            else:
                split, whole = split + out_of, whole + into
        return Halves(split, whole)

    # --- products -------------------------------------------------------------------------------------------

    def attach(self, operators: Iterable[Operator]) -> Iterator[Operator]:
        """The operators of a frozen layer with those of its adapters."""
        for operator in operators:
            if operator.computes is Computes.WEIGHT_GRADIENT:
                continue
            yield operator
            if isinstance(operator, Gemm) and self.beside(operator.role):
                forward = operator.computes is Computes.OUTPUT
                yield from self.forward(operator) if forward else self.backward(operator)

    def forward(self, product: Gemm) -> Iterator[Operator]:
        """Adapters of Y[m, n] = X[m, k]·W: P, its product with B, and the sum with Y."""
        m, n, k, r, batch = *self._shape(product), self.rank, self._pairs(product)
        yield adapter_product(m, r, k, batch, "adapter down")
        yield adapter_product(m, n, r, batch, "adapter up")
        yield added(batch * m, n)

    def backward(self, gradient: Gemm) -> Iterator[Operator]:
        """Adapters of dX[m, k] = dY[m, n]·Wᵀ, a gradient of shape [m, k] and depth n."""
        m, k, n, r, batch = *self._shape(gradient), self.rank, self._pairs(gradient)
        yield adapter_product(m, r, n, batch, "adapter up, d input", Computes.INPUT_GRADIENT)
        yield adapter_product(r, n, m, batch, "adapter up, d weight", Computes.WEIGHT_GRADIENT)
        yield adapter_product(k, r, m, batch, "adapter down, d weight", Computes.WEIGHT_GRADIENT)
        yield adapter_product(m, k, r, batch, "adapter down, d input", Computes.INPUT_GRADIENT)
        yield added(batch * m, k)

    def _pairs(self, product: Gemm) -> int:
        """Pairs beside a grouped product: its batch, or one for all its rows."""
        return product.batch if self.experts == "each" else 1

    def _shape(self, product: Gemm) -> tuple[int, int, int]:
        return product.m * (product.batch // self._pairs(product)), product.n, product.k


def adapter_product(m: int, n: int, k: int, pairs: int, name: str, computes: Computes = Computes.OUTPUT) -> Gemm:
    """One product of ``pairs`` adapters."""
    product = GroupedGemm if pairs > 1 else Gemm
    return product(m, n, k, batch=pairs, name=name, role=Role.ADAPTER, computes=computes)


def added(rows: int, columns: int) -> MemoryBound:
    """A sum into a tensor: two reads, one write."""
    return MemoryBound("add", 3.0 * rows * columns * ELEMENT_BYTES, rows, name="add adapter", role=Role.ADAPTER)
