"""The legal plans of a model on a cluster, for one global batch.

Some choices are fixed as a competent engineer would fix them: tokens in zigzag order, the library's own choice of
algorithms, layers as even as possible (and chunks of equal size where possible), tensor parallelism and TSP on
neighbouring GPUs, four chunks for overlapped reductions. Sequences are not cut finer than :data:`LEAST_TOKENS`, and not
at all where the micro-batch has whole ones to give away: sp = 2 with two sequences is two replicas with one, plus an
exchange. Everything else is free. A plan is chosen in three steps, so that a search can discard many at once: a family
fixes the kernels of a rank, a layout its schedule and communication, and last comes the division of state over
replicas.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...base.errors import InputError
from ...base.memo import once, remembered
from ...base.quick import replace
from ...model import Architecture
from ...network import Cluster
from ...operators import element_bytes
from ...parallel import (
    CONTEXT_METHODS,
    SCHEMES,
    Job,
    Plan,
    Work,
    build_mesh,
    located,
    mesh_axes,
    scheme_axes,
    scheme_of,
)  # fmt: skip
from ...parallel.activation_store import ACTIVATION_STORES, WIDE
from ...parallel.choices import legal as is_legal
from ...parallel.choices import schedules_of, with_defaults
from ...parallel.lengths import OFFLOAD_FROM
from ...parallel.pipeline import ORDERS, Pipeline
from ...parallel.rank_groups import replica_axis
from ...parallel.recomputed import ATTENTION, CHEAP, FULL, KEPT, PartialRecompute
from ...parallel.search_keys import not_searched, searched_keys, ways_of
from ...parallel.search_rule import SearchRule
from ...program.instructions import Mesh
from ...step.paths import CHECK_S, Division, Effort
from .candidate import Candidate, name_of

RECOMPUTATION = (KEPT, ATTENTION, CHEAP, FULL)
#: Axes that a placement may lay across nodes while replicas fill the node; tensor parallelism and TSP stay innermost.
MOVABLE = ("sp", "pp")
#: Tokens per rank for sequences of unequal length, over the least that the longest needs.
ROOMS = (1, 2, 4)
#: Least tokens of a sequence per shard.
LEAST_TOKENS = 512


@remembered(1024)
def divisors_of(number: int) -> tuple[int, ...]:
    """Divisors, smallest first.

    >>> divisors_of(12)
    (1, 2, 3, 4, 6, 12)
    """
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    large = [number // size for size in reversed(small) if size * size != number]
    return *small, *large


@dataclass(frozen=True)
class Space:
    """All legal plans."""

    #: The model and the work of a replica; each plan sets its number of sequences.
    model: Architecture
    work: Work
    #: The cluster.
    cluster: Cluster
    #: Sequences of a step over all replicas, the same for every plan.
    batch: int
    #: Counts the checks.
    effort: Effort = field(default_factory=Effort, repr=False, compare=False)
    _placed: dict[Hashable, list[tuple[tuple[str, ...], Mesh]]] = field(default_factory=dict, repr=False)
    _meshes: dict[Hashable, Mesh] = field(default_factory=dict, repr=False)
    _divided: dict[Hashable, tuple[Division, ...]] = field(default_factory=dict, repr=False)
    _pipelines: dict[Hashable, tuple[tuple[int, int, str], ...]] = field(default_factory=dict, repr=False)

    def on(self, cluster: Cluster) -> Space:
        """The plans of the same model and batch on another cluster."""
        return Space(self.model, self.work, cluster, self.batch, self.effort)

    def legal(self, job: Job) -> bool:
        """Whether a plan's degrees divide what they must."""
        self.effort.add(CHECK_S)
        return is_legal(job)

    @once
    def divisors(self) -> tuple[int, ...]:
        return divisors_of(self.cluster.gpus)

    def families(self) -> Iterator[Job]:
        """Every choice of degrees, micro-batch, recomputation and exchange, as the job of its simplest plan."""
        for spread in self.spreads():
            yield from self.families_of(spread)

    def spreads(self) -> Iterator[Job]:
        """Every choice of degrees, micro-batch and exchange, without recomputation and with the usual expert dispatch:
        the start of a search. For sequences of unequal length, the families themselves."""
        if self.work.unequal.tokens:
            yield from self._unequal_families()
            return
        gpus, per_node = self.cluster.gpus, self.cluster.gpus_per_node
        for degrees in self.degrees():
            lone = Plan("", degrees)
            sequences = self.batch // lone.dp
            work = replace(self.work, sequences=sequences)
            sizes = divisors_of(sequences)
            for ep in self.expert_degrees(gpus // lone.pp):
                placed = located(Plan("", {**degrees, "ep": ep}), gpus, per_node)
                for size, exchange in itertools.product(sizes, self.exchanges(lone)):
                    if math.gcd(size, lone.sp) == 1:
                        plan = replace(placed, exchange=exchange, micro_batch=size)
                        yield Job(self.model, with_defaults(plan), work)

    def families_of(self, spread: Job) -> Iterator[Job]:
        """Every expert dispatch, with every recomputation."""
        for way in self.dispatches(spread):
            yield from self.recomputations(way)

    def recomputations(self, way: Job) -> Iterator[Job]:
        """The families of a dispatch, the one without recomputation first."""
        yield way
        if self.work.step.trains and not way.unequal:
            for recomputation in RECOMPUTATION[1:]:
                family = replace(way, plan=replace(way.plan, recomputation=recomputation))
                if self.legal(family):
                    yield family

    def dispatches(self, job: Job) -> Iterator[Job]:
        """A spread with every expert dispatch, without recomputation. Experts beside tensor parallelism need sequence
        regions."""
        if job.unequal:
            yield job
            return
        for regions in (False, True) if job.plan.ep > 1 and job.plan.tp > 1 else (False,):
            alike = replace(job, plan=replace(job.plan, sequence_regions=regions)) if regions else job
            any_legal = False
            for candidate in self._candidates(alike, self.kernel_keys):
                if self.legal(candidate):
                    any_legal = True
                    yield candidate
            if any_legal:
                return

    def _candidates(self, job: Job, keys: Sequence[SearchRule]) -> Iterator[Job]:
        """A job with every value of the keys that declare candidates; derived values are computed anew for each."""
        if not keys:
            yield self._whole(job)
            return
        for candidate in ways_of(self._whole(job), keys):
            yield self._whole(candidate)

    def _whole(self, job: Job) -> Job:
        plan = job.plan.owned(self.model, training=job.training)
        return job if plan is job.plan else replace(job, plan=plan)

    @once
    def kernel_keys(self) -> list[SearchRule]:
        """Keys with their own candidates that change kernels, in this question."""
        return [key for key in searched_keys(self.model, self.work) if key.ways is not None and key.kernels]

    @once
    def moment_keys(self) -> list[SearchRule]:
        """Keys with their own candidates that only change when things run."""
        return [key for key in searched_keys(self.model, self.work) if key.ways is not None and not key.kernels]

    def _unequal_families(self) -> Iterator[Job]:
        """Families for sequences of unequal length: shared by as many ranks as each needs, by a fixed number, or by
        none; with the least tokens per rank that the longest needs, or two or four times that."""
        longest, training = max(self.work.unequal.tokens), self.work.step.trains
        for degrees in self.degrees():
            lone = Plan("", degrees)
            if not SCHEMES.get(lone.scheme).unequal:
                continue
            work = replace(self.work, replicas=lone.dp)
            for shared in (True, False) if lone.sp == 1 and lone.dp > 1 else (False,):
                most = lone.token_shards * (lone.dp if shared else 1)
                least = -(-longest // most)
                rooms = [least * times for times in ROOMS if least * times * lone.token_shards <= longest or times == 1]
                methods = CONTEXT_METHODS.names() if lone.sp > 1 else self._shared_exchanges(shared)
                for room, exchange, recomputation in itertools.product(
                    rooms, methods, (KEPT, FULL) if training else (KEPT,)
                ):
                    options = {"rank_tokens": room} | ({"dynamic_sp": True} if shared else {})
                    plan = Plan("", degrees, exchange=exchange, recomputation=recomputation, options=options)
                    plan = with_defaults(plan)
                    job = Job(self.model, located(plan, self.cluster.gpus, self.cluster.gpus_per_node), work)
                    yield from (
                        candidate for candidate in self._candidates(job, self.kernel_keys) if self.legal(candidate)
                    )

    @staticmethod
    def _shared_exchanges(shared: bool) -> tuple[str, ...]:
        """Context methods of sequences that some ranks share: the usual one, and those that overlap by themselves."""
        hiding = tuple(
            method.name for method in CONTEXT_METHODS.values() if method.overlaps and method.name != Plan.exchange
        )
        return (Plan.exchange, *(hiding if shared else ()))

    def degrees(self) -> Iterator[dict[str, int]]:
        """Ranks on every axis; of schemes with equal sizes the one with more axes first."""
        gpus, none = self.cluster.gpus, dict.fromkeys(mesh_axes(), 1)
        spreads = [
            (sizes, scheme)
            for scheme in sorted(SCHEMES.values(), key=lambda candidate: -len(candidate.axes))
            for sizes in itertools.product(self.divisors, repeat=len(scheme.axes))
            if gpus % math.prod(sizes) == 0 and (scheme.usual or math.prod(sizes) > 1)
        ]
        spreads.sort(key=lambda entry: entry[0] + (1,) * (len(scheme_axes()) - len(entry[0])))
        for pp in self.divisors:
            if pp > self.model.layers:
                break
            for sizes, scheme in spreads:
                replica = pp * math.prod(sizes)
                if gpus % replica or (self.batch % (gpus // replica) and not self.work.unequal.tokens):
                    continue
                degrees = {**none, **dict(zip(scheme.axes, sizes, strict=True)), "pp": pp, "dp": gpus // replica}
                if degrees[scheme.token_axis] == 1 or degrees[scheme.token_axis] * LEAST_TOKENS <= self.work.sequence:
                    yield degrees

    def exchanges(self, plan: Plan) -> tuple[str, ...]:
        """The context methods of a plan's sequence shards; without shards the usual one."""
        return CONTEXT_METHODS.names() if plan.sp > 1 else (Plan.exchange,)

    def expert_degrees(self, ranks: int) -> list[int]:
        """Ranks that experts may be spread over; one where the model has none."""
        experts = getattr(self.model, "experts", None)
        if experts is None:
            return [1]
        few = [degree for degree in self.divisors if experts.count % degree == 0 and ranks % degree == 0]
        if self.work.step.serves:
            return few
        # More ranks than experts: each rank has a slice of an expert's columns.
        count, width = experts.count, experts.width
        slices = [degree for degree in self.divisors if degree > count and degree % count == 0 and ranks % degree == 0]
        return [*few, *(degree for degree in slices if width % (degree // count) == 0)]

    def searched(self) -> Mapping[str, tuple[str, ...]]:
        """Keys that are searched besides degrees, and the values tried where not all are."""
        keys = searched_keys(self.model, self.work)
        return {key.called or key.name: tuple(key.values(self.model, self.work)) for key in keys}

    def left(self) -> Mapping[str, tuple[str, ...]]:
        """Reasons why keys stay as stated, each with these keys, or values of theirs."""
        return {reason: tuple(keys) for reason, keys in not_searched(self.model, self.work).items()}

    def within_stage(self, family: Job) -> Iterator[Candidate]:
        """Every schedule of a family's ranks within a stage: placement, regions, overlap; the pipeline is not chosen
        yet."""
        for place, (rails, mesh) in enumerate(self.placements(family.plan)):
            plan = located(replace(family.plan, rail_axes=rails), self.cluster.gpus, self.cluster.gpus_per_node)
            for number, job in enumerate(schedules_of(replace(family, plan=plan), self.cluster.layout.mesh)):
                if not self.legal(job):
                    continue
                for hidden, candidate in enumerate(self._candidates(job, self.moment_keys)):
                    if hidden == 0 or self.legal(candidate):
                        yield Candidate(candidate, mesh, (place, number, hidden))

    def layouts(self, staged: Candidate) -> Iterator[Candidate]:
        """Every pipeline around a schedule."""
        for number, vpp, schedule in self.pipelines(staged.job):
            job = replace(staged.job, plan=replace(staged.plan, vpp=vpp, schedule=schedule))
            if number == 0 or self.legal(job):
                yield Candidate(job, staged.mesh, (*staged.order, number))

    def pipelines(self, family: Job) -> tuple[tuple[int, int, str], ...]:
        """Number, chunks per stage and schedule of every pipeline that a family's degrees and micro-batches allow.
        Where layers can be cut into equal chunks, only such cuts. The first always exists."""
        plan, count, splits = family.plan, family.micro_batches, scheme_of(family.plan).layer_weights is not None
        key = (plan.pp, plan.schedule, count, family.training, splits, plan.ep > 1)
        if key not in self._pipelines:
            allowed = []
            for number, (vpp, name) in enumerate(self._cuts(family)):
                order = replace(plan, vpp=vpp, schedule=name).order
                if not number or order.check(Pipeline(plan.pp, vpp, count, splits)) is None:
                    allowed.append((number, vpp, name))
            self._pipelines[key] = tuple(allowed)
        return self._pipelines[key]

    def _cuts(self, family: Job) -> Iterator[tuple[int, str]]:
        usual = family.plan.schedule
        yield 1, usual
        layers, pp = self.model.layers, family.plan.pp
        if pp == 1:
            return
        if family.training:
            orders = (order for order in ORDERS.values() if order.name != usual and order.searched)
            yield from ((1, order.name) for order in orders if family.plan.ep > 1 or not order.for_experts)
        for vpp in range(2, layers // pp + 1):
            if layers % pp or layers % (pp * vpp) == 0:
                yield vpp, usual

    def placements(self, plan: Plan) -> Sequence[tuple[tuple[str, ...], Mesh]]:
        """Axes laid along rails while replicas fill the node, and the mesh; each mesh once, the usual one first."""
        key = tuple(plan.degrees.items())
        if key not in self._placed:
            self._placed[key] = list(self._places(plan))
        return self._placed[key]

    def _places(self, plan: Plan) -> Iterator[tuple[tuple[str, ...], Mesh]]:
        movable = [axis for axis in MOVABLE if plan.degree(axis) > 1]
        seen = set()
        for count in range(len(movable) + 1):
            for rails in itertools.combinations(movable, count):
                try:
                    mesh = build_mesh(replace(plan, rail_axes=rails), self.cluster.gpus, self.cluster.gpus_per_node)
                except InputError:
                    continue
                order = sorted(range(len(mesh.axes)), key=lambda dimension: mesh.axes[dimension])
                key = mesh.ranks.transpose(order).tobytes()
                if key not in seen:
                    seen.add(key)
                    yield rails, mesh

    def divisions(self, layout: Candidate) -> tuple[Division, ...]:
        """Every ZeRO stage of a layout and its shard groups; all ranks before groups."""
        plan, training = layout.plan, layout.job.training
        key = (*plan.degrees.items(), plan.rail_axes, plan.schedule, training)
        if key not in self._divided:
            divisions = []
            for zero in range(4) if training and layout.job.copies > 1 else (0,):
                divisions.append(Division(zero, None, layout.mesh))
                for group in self.shard_groups(layout) if zero else ():
                    grouped = replace(plan, zero=zero, shard_group=group)
                    if self.legal(replace(layout.job, plan=grouped)):
                        divisions.append(Division(zero, group, self._grouped(grouped)))
            self._divided[key] = tuple(divisions)
        return self._divided[key]

    def plan(self, layout: Candidate, division: Division) -> Candidate | None:
        """A layout with a division of its state, named; None where that is not legal."""
        zero, group, mesh = division
        plan = replace(layout.plan, zero=zero, shard_group=group)
        job = replace(layout.job, plan=replace(plan, name=name_of(plan)))
        if (group is not None or job.unequal) and not self.legal(job):
            return None
        number = 0 if group is None else 1 + self.shard_groups(layout).index(group)
        return Candidate(job, mesh, (*layout.order, zero, number))

    def plans(self, layout: Candidate) -> Iterator[Candidate]:
        """The plans of a layout."""
        for division in self.divisions(layout):
            if (plan := self.plan(layout, division)) is not None:
                yield plan

    def thinner(self, candidate: Candidate, fits: Callable[[Job], bool]) -> Iterator[Candidate]:
        """Replacements for a plan that keeps everything and does not fit: for each method of keeping less, the least
        that fits. Activations are stored in eight bits only where products multiply in eight bits anyway: a search does
        not change the arithmetic."""
        plan, job = candidate.plan, candidate.job
        if not job.training or plan.recomputation != KEPT:
            return
        most = max(job.chunk_sizes)
        narrow = element_bytes(job.work.precision) < 2.0
        stores = [name for name in ACTIVATION_STORES if name != WIDE.name] if narrow else []
        ways: list[Callable[[int], Plan]] = [
            lambda layers: replace(plan, recomputation=FULL, recomputed=PartialRecompute(layers)),
            *([lambda layers: replace(plan, offload_layers=layers)] if self.work.host_bytes_per_s else []),
        ]

        def named(other: Plan) -> Job:
            return replace(job, plan=replace(other, name=name_of(other)))

        for number, name in enumerate(stores):
            stored = named(replace(plan, activation_store=name))
            if self.legal(stored) and fits(stored):
                yield replace(candidate, job=stored, order=(*candidate.order, number))
                break
        for number, way in enumerate(ways, start=len(stores)):
            if not self.legal(named(way(most))) or not fits(named(way(most))):
                continue
            least = bisect.bisect_left(range(1, most), True, key=lambda layers: fits(named(way(layers)))) + 1
            thin = way(least)
            if thin.offload_layers and job.unequal:
                thin = self._from(thin, lambda plan: fits(named(plan)))
            yield replace(candidate, job=named(thin), order=(*candidate.order, number, least))

    def _from(self, plan: Plan, fits: Callable[[Plan], bool]) -> Plan:
        """The plan with activations of as few sequences offloaded as possible: the longest."""

        def away_from(tokens: int) -> Plan:
            return replace(plan, options={**plan.options, OFFLOAD_FROM: tokens})

        lengths = sorted(set(self.work.unequal.tokens))
        most = bisect.bisect_left(lengths, True, key=lambda tokens: not fits(away_from(tokens)))
        return away_from(lengths[most - 1]) if most > 1 else plan

    def _grouped(self, plan: Plan) -> Mesh:
        """The mesh of a plan whose state shard groups divide; each once."""
        key = (*plan.degrees.items(), plan.rail_axes, plan.shard_group)
        if key not in self._meshes:
            self._meshes[key] = build_mesh(plan, self.cluster.gpus, self.cluster.gpus_per_node)
        return self._meshes[key]

    def shard_groups(self, layout: Candidate) -> tuple[int, ...]:
        """Sizes of groups that may divide state: ranks of whole nodes, fewest first.

        Groups smaller than a node would leave its links unused and keep more.
        """
        job = layout.job
        if job.copies == 1 or self.cluster.nodes == 1:
            return ()
        line = layout.mesh.groups(replica_axis(job))[0] // self.cluster.gpus_per_node
        near = int((line == line[0]).sum())
        return tuple(size for size in self.divisors if size < job.copies and size % near == 0 and size > 1)
