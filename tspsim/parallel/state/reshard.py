"""Resharding an actor's weights from training to generation: who gathers, one object per way.

Training spreads M bytes over the p·t ranks of a replica (pipeline stages, tensor shards), generation over the p_g·t_g
of a smaller one, on the same GPUs. Published (HybridFlow, Sheng et al. 2024, arXiv:2409.19256, §5.3 and Table 2), as
bytes that a rank receives, most weights that it holds, and weights kept for training beside those for generation:

    everyone     all ranks of all d replicas gather, whose shards are those of ZeRO 3 (DeepSpeed-Chat):
                 M·(p·t·d − 1)/(p·t·d),                      M,           M/(p·t·d)
    replica      the ranks of a replica gather all of it, then keep their part (HybridFlow-V):
                 M·(p·t − 1)/(p·t),                          M,           M/(p·t)
    interleaved  ranks whose training shards are parts of the same generation shard gather that one alone:
                 M·(p·t − p_g·t_g)/(p_g·t_g·p·t),            M/(p_g·t_g), 0
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from ...base.registry import Registry

#: Dimensions of ranks, outermost first: replicas; pipeline stages that generation keeps, and stages that it merges;
#: tensor shards likewise.
AXES = ("dp", "stages", "joined stages", "shards", "joined shards")


@dataclass(frozen=True)
class ReshardLayout:
    """Degrees of training, and of each replica of generation."""

    pp: int
    tp: int
    dp: int
    generate_pp: int
    generate_tp: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Size of every dimension in :data:`AXES`."""
        stages, shards = self.generate_pp, self.generate_tp
        return self.dp, stages, self.pp // stages, shards, self.tp // shards

    @property
    def replica(self) -> int:
        """Ranks that share the weights while training."""
        return self.pp * self.tp

    @property
    def generating(self) -> int:
        """Ranks that share the weights while generating."""
        return self.generate_pp * self.generate_tp


@dataclass(frozen=True)
class ReshardMethod:
    """A way to reshard: which ranks gather."""

    name: str
    summary: str
    #: Dimensions of :data:`AXES` along which a group's ranks differ.
    axes: tuple[str, ...]
    #: Layout → share of all weights that a rank holds after gathering.
    held: Callable[[ReshardLayout], float]
    #: Layout → share that it keeps for training beside those for generation.
    beside: Callable[[ReshardLayout], float]

    def ranks(self, layout: ReshardLayout) -> int:
        """Ranks of one group."""
        return prod(size for axis, size in zip(AXES, layout.sizes, strict=True) if axis in self.axes)


RESHARD_METHODS: Registry[ReshardMethod] = Registry("way to reshard", "tspsim.reshard_ways", ReshardMethod)

EVERYONE = RESHARD_METHODS.register(
    ReshardMethod(
        "everyone",
        "all ranks of all replicas gather all weights",
        AXES,
        lambda at: 1.0,
        lambda at: 1.0 / (at.replica * at.dp),
    )
)
REPLICA = RESHARD_METHODS.register(
    ReshardMethod(
        "replica", "the ranks of a replica gather all weights", AXES[1:], lambda at: 1.0, lambda at: 1.0 / at.replica
    )
)
INTERLEAVED = RESHARD_METHODS.register(
    ReshardMethod(
        "interleaved",
        "ranks whose training shards make one generation shard gather that one alone",
        ("joined stages", "joined shards"),
        lambda at: 1.0 / at.generating,
        lambda at: 0.0,
    )
)
