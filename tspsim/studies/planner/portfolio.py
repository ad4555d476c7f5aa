"""The first portfolio: plans that an engineer would write for a model and a machine before any search.

Its rules: one scheme within the node, or none; experts on one rank, over a node or over a few, with the dispatch that
takes least on this machine; the fewest pipeline stages that fit, and more until nothing is recomputed, each with one
chunk of layers and with the number of chunks whose bubble is shortest; replicas that divide no state where everything
can be kept, else the optimizer's state or everything; of the plans that fit, the one that recomputes least. A search
simulates the most promising of them first, so that its answer is never worse than a plan written by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence

from ...base.errors import UnreachableError
from ...parallel import Job, Plan, scheme_axes
from ...parallel.dispatch import DISPATCHES, OVERLAPS
from ...parallel.pipeline import ORDERS, chunk_layers
from ...parallel.recomputed import KEPT
from .shapes import PlanLine, Shapes
from .space import Space

#: Pipeline stages, and nodes that a layer's experts are spread over.
STAGES, EXPERT_NODES = (1, 2, 4, 8, 16, 32), (1, 2, 4, 8)
#: Ranks that a scheme spreads a replica over, at most a node.
RANKS = (2, 4, 8)
#: Most ranks of tensor parallelism in a pipeline with experts over ranks.
BESIDE = 2
#: Switches that are turned on where the plan has them; all others are the simplest.
USUAL = Plan("", {}, sequence_regions=True, overlap=True)


def portfolio(shapes: Shapes, room_bytes: float, admit: Callable[[Job], bool]) -> Iterator[PlanLine]:
    """Portfolio plans at micro-batches of one sequence; ``admit``: which degrees are allowed."""
    space = shapes.sets.space
    near, experts, trains = space.cluster.gpus_per_node, space.model.experts, space.work.step.trains
    over = {1, *_over(experts.count, near)} if experts is not None else {1}
    stages: dict[Hashable, list[Job]] = {}
    for spread in shapes.spreads:
        plan = spread.plan
        ranks = [plan.degree(axis) for axis in scheme_axes() if plan.degree(axis) > 1]
        alone = len(ranks) <= 1 and all(ranks_of_axis in RANKS or ranks_of_axis == near for ranks_of_axis in ranks)
        usual = plan.exchange == Plan.exchange and plan.micro_batch == 1
        if alone and usual and plan.pp in STAGES and plan.ep in over and admit(spread):
            key = tuple(plan.degree(axis) for axis in scheme_axes()), plan.ep
            stages.setdefault(key, []).append(spread)
    for every in stages.values():
        written = PipelinePlans(shapes, USUAL, room_bytes)
        for spread in sorted(every, key=lambda job: job.plan.pp):
            zeros = (0, 1, 3) if trains and spread.copies > 1 else (0,)
            kept = []
            for vpp in dict.fromkeys((1, quickest_chunks(spread, space))):
                lines = written.lines(spread, zeros, vpp)
                yield from lines
                kept.append(any(_keeps_all(line) for line in lines if line.division.zero < 2))
            if all(kept):
                break


def in_turn(shapes: Shapes, room_bytes: float, admit: Callable[[Job], bool]) -> Iterator[PlanLine]:
    """Plans whose micro-batches hide each other's expert exchanges, in pipelines of the orders made for it and in the
    usual one, as in published training over many nodes (DeepSeek-V3, §3.2.1)."""
    space = shapes.sets.space
    near, experts = space.cluster.gpus_per_node, space.model.experts
    if experts is None or not space.work.step.trains:
        return
    over = _over(experts.count, near)
    orders = (Plan.schedule, *(order.name for order in ORDERS.values() if order.searched and order.for_experts))
    written: dict[Hashable, PipelinePlans] = {}
    for spread in shapes.spreads:
        plan = spread.plan
        alike = plan.micro_batch == 1 and plan.token_shards == 1 and plan.tp <= BESIDE
        if not alike or plan.pp not in STAGES or plan.ep not in over or not admit(spread):
            continue
        for hiding in (overlap.name for overlap in OVERLAPS.values() if overlap.micro_batches):
            for schedule in orders if plan.pp > 1 else orders[:1]:
                key = plan.tp, plan.ep, hiding, schedule
                if key not in written:
                    like = USUAL.with_values({"expert_overlap": hiding, "schedule": schedule})
                    written[key] = PipelinePlans(shapes, like, room_bytes)
                yield from written[key].lines(spread, (0, 1) if spread.copies > 1 else (0,))


class PipelinePlans:
    """Plans of spreads that differ only in the pipeline, all with one expert dispatch: the cheapest for the first
    spread.

    Parameters
    ----------
    shapes
        The sets that plans are made of.
    like
        The plan that they are nearest to.
    room_bytes
        Memory that they may need.
    """

    def __init__(self, shapes: Shapes, like: Plan, room_bytes: float) -> None:
        self.shapes, self.like, self.room_bytes = shapes, like, room_bytes
        self.way: str | None = None

    def lines(self, spread: Job, zeros: Sequence[int], vpp: int = 1) -> list[PlanLine]:
        """A spread's plans with the given ZeRO stages and chunks per stage; zero 0 only where everything can be
        kept."""
        lines = [line for zero in zeros if (line := self._line(spread, zero, vpp)) is not None]
        return [line for line in lines if len(zeros) == 1 or line.division.zero or _keeps_all(line)]

    def _line(self, spread: Job, zero: int, vpp: int) -> PlanLine | None:
        if self.way is not None or spread.plan.ep == 1:
            return self._by(self.way or self.like.expert_dispatch, spread, zero, vpp)
        ways = (dispatch.name for dispatch in DISPATCHES.values() if dispatch.trains and dispatch.searched)
        lines = [line for way in ways if (line := self._by(way, spread, zero, vpp)) is not None]
        if not lines:
            return None
        quickest = min(lines, key=self._even_s)
        self.way = quickest.candidate.plan.expert_dispatch
        return quickest

    def _by(self, way: str, spread: Job, zero: int, vpp: int) -> PlanLine | None:
        like = self.like.with_values({"expert_dispatch": way, "vpp": vpp})
        return self.shapes.lightest(spread, zero, like, self.room_bytes)

    def _even_s(self, line: PlanLine) -> float:
        try:
            return self.shapes.sets.once(self.shapes.sets.staged_s, line.staged)
        except UnreachableError:
            return math.inf


def quickest_chunks(spread: Job, space: Space) -> int:
    """Chunks per stage with the shortest step, layers counted alike: passes of the stage with most layers, and a bubble
    of the largest chunk on every other stage (Narayanan et al. 2021, arXiv:2104.04473, §2.2)."""
    plan, layers = spread.plan, space.model.layers

    def passes(vpp: int) -> tuple[int, int]:
        chunks = chunk_layers(layers, plan.pp * vpp)
        fullest = max(sum(chunks[stage :: plan.pp]) for stage in range(plan.pp))
        return spread.micro_batches * fullest + (plan.pp - 1) * max(chunks), vpp

    allowed = [vpp for _, vpp, schedule in space.pipelines(spread) if schedule == plan.schedule]
    return min(allowed, key=passes)


def _over(experts: int, near: int) -> set[int]:
    """Ranks that a layer's experts are spread over: half a node, a node, some nodes, or one rank per expert."""
    return {experts, near // 2, *(near * nodes for nodes in EXPERT_NODES)}


def _keeps_all(line: PlanLine) -> bool:
    return line.candidate.plan.recomputation == KEPT
