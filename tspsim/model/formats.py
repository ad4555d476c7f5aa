"""In which types a served model keeps its weights, multiplies and keeps its cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ..base.memo import once
from ..operators import weight_bytes


class WeightClass(StrEnum):
    """Weights that checkpoints keep in a type of their own."""

    ATTENTION = "attention"
    DENSE = "dense"
    SHARED = "shared"
    EXPERTS = "experts"
    EMBEDDING = "embedding"


@dataclass(frozen=True)
class Formats:
    """Types by class of weights."""

    #: As kept and read.
    weights: Mapping[WeightClass, str] = field(default_factory=dict)
    #: As multiplied: the type of activations.
    products: Mapping[WeightClass, str] = field(default_factory=dict)
    #: Of K and V, or latents.
    cache: str = "bf16"
    #: Of the states of linear attention.
    state: str = "fp32"

    def kept(self, part: WeightClass) -> str:
        return self.weights.get(part, "bf16")

    def multiplied(self, part: WeightClass) -> str:
        return self.products.get(part, "bf16")

    def read(self, part: WeightClass) -> str | None:
        """The type that products read weights in, where it is narrower than the one they multiply: weight-only
        kernels widen on the way."""
        if part not in self._read:
            kept, wide = self.kept(part), self.multiplied(part)
            self._read[part] = kept if weight_bytes(kept) < weight_bytes(wide) else None
        return self._read[part]

    @once
    def _read(self) -> dict[WeightClass, str | None]:
        return {}

    def weight_bytes(self, part: WeightClass) -> float:
        """Bytes of a weight of this class."""
        return weight_bytes(self.kept(part))

    def bytes_of(self, parameters: Mapping[WeightClass, int]) -> float:
        """Bytes of some parameters, counted by class."""
        return sum(count * self.weight_bytes(part) for part, count in parameters.items())

    def __hash__(self) -> int:
        return hash((tuple(sorted(self.weights.items())), tuple(sorted(self.products.items())), self.cache, self.state))


#: Everything in bf16.
BF16 = Formats()
