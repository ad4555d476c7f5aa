"""All-reduce kernels of serving engines, inside a node.

    one-shot   base + hop·(n−1) + (n−1)·S/(B·e)     every rank reads every vector
    two-shot   base + hop·(n−1) + V/(B·e)           reduce-scatter and all-gather, V = 2·S·(n−1)/n
    fallback   the same with its own parameters     large messages go to the collective library
    t = (Σ t^−12)^(−1/12)

The form is the kernels' own (vllm csrc/custom_all_reduce.cuh, TensorRT-LLM customAllReduceKernels.cu).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...base.errors import InputError
from ..kinds import ALL_REDUCE, CollectiveKind
from . import direct
from .algorithm import AlgorithmCandidate, inside_bytes_per_s, slowest
from .schedule import Group, power_sum

if TYPE_CHECKING:
    from ..calibration import CustomAllReduce, TransferSpread

SHARPNESS = 12.0
#: GPUs that the kernels are made for (vllm, custom_all_reduce.py: _SUPPORTED_WORLD_SIZES).
MOST_RANKS = 8


@dataclass(frozen=True, slots=True)
class Custom:
    """The kernels of one engine on ``ranks`` GPUs whose links carry ``bandwidth_bytes_per_s`` each way.

    ``floor_s`` are the seconds a byte takes on the slowest link, ``stretch`` (≥ 1) how much slower that is than as
    specified.
    """

    kernels: CustomAllReduce
    ranks: int
    bandwidth_bytes_per_s: float
    floor_s: float
    stretch: float = 1.0

    @property
    def spread(self) -> TransferSpread:
        return self.kernels.spread

    def alone(self, size_bytes: float) -> tuple[float, float]:
        """(latency, fluid part) in seconds of an all-reduce of ``size_bytes``."""
        peers = self.ranks - 1
        passed = 2.0 * size_bytes * peers / self.ranks
        ways = [(self.kernels.one_shot, peers * size_bytes), (self.kernels.fallback, passed)]
        if self.kernels.two_shot is not None:
            ways.append((self.kernels.two_shot, passed))
        moving = [moved / (self.bandwidth_bytes_per_s * shot.efficiency) for shot, moved in ways]
        times = [shot.base + peers * shot.hop + seconds for (shot, _), seconds in zip(ways, moving, strict=True)]
        total = power_sum(times, -SHARPNESS)
        fluid = min(moving[times.index(min(times))], total)
        # What the engines' corners round off is latency too, so that no part falls where another way takes over.
        return max(0.0, total - fluid), max(fluid * self.stretch, size_bytes * self.floor_s)


def engine_takes(group: Group, kind: CollectiveKind) -> bool:
    """Whether engines have kernels of their own for a group: an all-reduce of few GPUs inside one node."""
    return kind is ALL_REDUCE and len(group.members) == 1 and group.size <= MOST_RANKS


def choices(group: Group, kind: CollectiveKind, library: str | None) -> tuple[AlgorithmCandidate, ...]:
    """The all-reduce of the serving engine that ``library`` names, if it names one."""
    curves = [curve for curve in group.cluster.node.collectives.custom_all_reduce if curve.library == library]
    if not curves:
        return ()
    if kind is not ALL_REDUCE or len(group.members) > 1:
        raise InputError(f"library '{library}' knows nothing but all_reduce inside one node")
    schedule = direct.build(group, kind)[0]
    floor, stretch = slowest(group, schedule, lambda sound: direct.build(sound, kind)[0])
    cost = Custom(curves[0], group.size, inside_bytes_per_s(group), floor, stretch)
    return (AlgorithmCandidate(curves[0].library.replace(" ", "_"), schedule, cost),)
