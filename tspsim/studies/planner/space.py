"""The legal plans of a model on a cluster, for one global batch.

What a competent engineer would fix is fixed: tokens in zigzag order, the library's own choice of algorithms, layers as
even as can be (and chunks of equal size where there are such), tensor parallelism and TSP on neighbouring GPUs, four
chunks where reductions are overlapped. Sequences are not cut finer than :data:`LEAST_TOKENS`, and not cut at all where
the micro-batch has whole ones to give away: sp = 2 with two sequences is two replicas with one, and an exchange. The
rest is free. A plan is chosen in three steps, so that a search can leave out many at once: a family says what kernels a
rank runs, a layout when and where it talks, and last comes what replicas divide among them.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...base.errors import InputError
from ...base.memo import once
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
from ...parallel.recomputed import ATTENTION, CHEAP, FULL, KEPT, Partly
from ...parallel.search_keys import left_alone, searched_keys, ways_of
from ...parallel.sought import Sought
from ...program.mesh import Mesh
from ...step.paths import CHECK_S, Division, Effort
from .candidate import Candidate, name_of

RECOMPUTATION = (KEPT, ATTENTION, CHEAP, FULL)
#: Axes that a placement may lay across nodes while replicas fill the node; tensor parallelism and TSP stay innermost.
MOVABLE = ("sp", "pp")
#: Tokens a rank of sequences of unequal length, over what the longest leaves each where most share it.
ROOMS = (1, 2, 4)
#: Tokens of a sequence that a shard has at least.
LEAST_TOKENS = 512


@dataclass(frozen=True)
class Space:
    """All legal plans."""

    #: What every replica computes; its number of sequences is set a plan.
    model: Architecture
    work: Work
    #: Where.
    cluster: Cluster
    #: Sequences of a step over all replicas: every plan has the same.
    batch: int
    #: Is told what is looked at.
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
        gpus = self.cluster.gpus
        return tuple(degree for degree in range(1, gpus + 1) if gpus % degree == 0)

    def families(self) -> Iterator[Job]:
        """Every choice of degrees, micro-batch, recomputation and exchange, as the job of its simplest plan."""
        for spread in self.spreads():
            yield from self.families_of(spread)

    def spreads(self) -> Iterator[Job]:
        """Every choice of degrees, micro-batch and exchange, nothing made again and experts reached as usual: what a
        search begins with. Of sequences of unequal length the families themselves."""
        if self.work.unequal.tokens:
            yield from self._unequal_families()
            return
        gpus, per_node = self.cluster.gpus, self.cluster.gpus_per_node
        for degrees in self.degrees():
            lone = Plan("", degrees)
            sequences = self.batch // lone.dp
            work = replace(self.work, sequences=sequences)
            sizes = [size for size in range(1, sequences + 1) if sequences % size == 0]
            for ep in self.expert_degrees(gpus // lone.pp):
                placed = located(Plan("", {**degrees, "ep": ep}), gpus, per_node)
                for size, exchange in itertools.product(sizes, self.exchanges(lone)):
                    if math.gcd(size, lone.sp) == 1:
                        plan = replace(placed, exchange=exchange, micro_batch=size)
                        yield Job(self.model, with_defaults(plan), work)

    def families_of(self, spread: Job) -> Iterator[Job]:
        """Every way to the experts, and what is made again of each."""
        for way in self.ways(spread):
            yield from self.makings(way)

    def makings(self, way: Job) -> Iterator[Job]:
        """The families of a way: what each makes again, nothing first."""
        yield way
        if self.work.step.trains and not way.unequal:
            for recomputation in RECOMPUTATION[1:]:
                family = replace(way, plan=replace(way.plan, recomputation=recomputation))
                if self.legal(family):
                    yield family

    def ways(self, job: Job) -> Iterator[Job]:
        """A spread with every way to its experts, nothing made again; those spread beside tensor parallelism need
        sequence regions."""
        if job.unequal:
            yield job
            return
        for regions in (False, True) if job.plan.ep > 1 and job.plan.tp > 1 else (False,):
            alike = replace(job, plan=replace(job.plan, sequence_regions=regions)) if regions else job
            found = False
            for each in self._ways(alike, self.kernel_keys):
                if self.legal(each):
                    found = True
                    yield each
            if found:
                return

    def _ways(self, job: Job, keys: Sequence[Sought]) -> Iterator[Job]:
        """A job with everything that keys which declare their ways try; what follows from each is found anew."""
        if not keys:
            yield job
            return
        for each in ways_of(self._whole(job), keys):
            yield self._whole(each)

    def _whole(self, job: Job) -> Job:
        plan = job.plan.owned(self.model)
        return job if plan.expert_owners == job.plan.expert_owners else replace(job, plan=plan)

    @once
    def kernel_keys(self) -> list[Sought]:
        """Keys with ways of their own that change kernels, in this question."""
        return [each for each in searched_keys(self.model, self.work) if each.ways is not None and each.kernels]

    @once
    def moment_keys(self) -> list[Sought]:
        """Those that change when things run alone."""
        return [each for each in searched_keys(self.model, self.work) if each.ways is not None and not each.kernels]

    def _unequal_families(self) -> Iterator[Job]:
        """Of sequences of unequal length: shared by as many ranks as each needs, by a fixed number, or by none; as many
        tokens a rank as the longest leaves each, or twice and four times as many."""
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
                    yield from (each for each in self._ways(job, self.kernel_keys) if self.legal(each))

    @staticmethod
    def _shared_exchanges(shared: bool) -> tuple[str, ...]:
        """Of sequences that some ranks share: the usual one, and those that hide by themselves."""
        hiding = tuple(each.name for each in CONTEXT_METHODS.values() if each.overlaps and each.name != Plan.exchange)
        return (Plan.exchange, *(hiding if shared else ()))

    def degrees(self) -> Iterator[dict[str, int]]:
        """Ranks on every axis; of schemes with as many the one that has more axes first."""
        gpus, none = self.cluster.gpus, dict.fromkeys(mesh_axes(), 1)
        spreads = [
            (sizes, scheme)
            for scheme in sorted(SCHEMES.values(), key=lambda each: -len(each.axes))
            for sizes in itertools.product(self.divisors, repeat=len(scheme.axes))
            if gpus % math.prod(sizes) == 0 and (scheme.usual or math.prod(sizes) > 1)
        ]
        spreads.sort(key=lambda each: each[0] + (1,) * (len(scheme_axes()) - len(each[0])))
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
        """The context methods of a plan's sequence shards; of none the usual one."""
        return CONTEXT_METHODS.names() if plan.sp > 1 else (Plan.exchange,)

    def expert_degrees(self, ranks: int) -> list[int]:
        """What experts may be spread over: one rank where the model has none."""
        experts = getattr(self.model, "experts", None)
        if experts is None:
            return [1]
        few = [degree for degree in self.divisors if experts.count % degree == 0 and ranks % degree == 0]
        if self.work.step.serves:
            return few
        # More ranks than experts: each has a slice of one's columns.
        count, width = experts.count, experts.width
        slices = [degree for degree in self.divisors if degree > count and degree % count == 0 and ranks % degree == 0]
        return [*few, *(degree for degree in slices if width % (degree // count) == 0)]

    def searched(self) -> Mapping[str, tuple[str, ...]]:
        """What of a plan is chosen here besides degrees → the values looked at, where not all of them are."""
        keys = searched_keys(self.model, self.work)
        return {each.called or each.name: tuple(each.values(self.model, self.work)) for each in keys}

    def left(self) -> Mapping[str, tuple[str, ...]]:
        """Why keys are left as they are stated → these keys, or values of theirs."""
        return {reason: tuple(keys) for reason, keys in left_alone(self.model, self.work).items()}

    def within_stage(self, family: Job) -> Iterator[Candidate]:
        """Every schedule of a family's ranks within a stage: placement, regions, overlap; no pipeline chosen yet."""
        for place, (rails, mesh) in enumerate(self.placements(family.plan)):
            plan = located(replace(family.plan, rail_axes=rails), self.cluster.gpus, self.cluster.gpus_per_node)
            for number, job in enumerate(schedules_of(replace(family, plan=plan), self.cluster.layout.mesh)):
                if not self.legal(job):
                    continue
                for hidden, told in enumerate(self._ways(job, self.moment_keys)):
                    if hidden == 0 or self.legal(told):
                        yield Candidate(told, mesh, (place, number, hidden))

    def layouts(self, staged: Candidate) -> Iterator[Candidate]:
        """Every pipeline around that."""
        for number, vpp, schedule in self.pipelines(staged.job):
            job = replace(staged.job, plan=replace(staged.plan, vpp=vpp, schedule=schedule))
            if number == 0 or self.legal(job):
                yield Candidate(job, staged.mesh, (*staged.order, number))

    def pipelines(self, family: Job) -> tuple[tuple[int, int, str], ...]:
        """Number, chunks a stage and schedule of every pipeline that a family's degrees and micro-batches allow; where
        layers can be cut into equal chunks, only such cuts. The first is always there."""
        plan, count, splits = family.plan, family.micro_batches, scheme_of(family.plan).layer_weights is not None
        key = (plan.pp, plan.schedule, count, family.training, splits, plan.ep > 1)
        if key not in self._pipelines:
            found = []
            for number, (vpp, name) in enumerate(self._cuts(family)):
                order = replace(plan, vpp=vpp, schedule=name).order
                if not number or order.check(Pipeline(plan.pp, vpp, count, splits)) is None:
                    found.append((number, vpp, name))
            self._pipelines[key] = tuple(found)
        return self._pipelines[key]

    def _cuts(self, family: Job) -> Iterator[tuple[int, str]]:
        usual = family.plan.schedule
        yield 1, usual
        layers, pp = self.model.layers, family.plan.pp
        if pp == 1:
            return
        if family.training:
            orders = (each for each in ORDERS.values() if each.name != usual and each.searched)
            yield from ((1, each.name) for each in orders if family.plan.ep > 1 or not each.for_experts)
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
        """Every ZeRO stage of a layout and who divides it; all ranks before groups of them."""
        plan, training = layout.plan, layout.job.training
        key = (*plan.degrees.items(), plan.rail_axes, plan.schedule, training)
        if key not in self._divided:
            found = []
            for zero in range(4) if training and layout.job.copies > 1 else (0,):
                found.append(Division(zero, None, layout.mesh))
                for group in self.shard_groups(layout) if zero else ():
                    grouped = replace(plan, zero=zero, shard_group=group)
                    if self.legal(replace(layout.job, plan=grouped)):
                        found.append(Division(zero, group, self._grouped(grouped)))
            self._divided[key] = tuple(found)
        return self._divided[key]

    def plan(self, layout: Candidate, division: Division) -> Candidate | None:
        """A layout whose state is divided so, named; None where that is not legal."""
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
        """What may take the place of a plan that keeps everything and does not fit: the least that fits of each way to
        keep less. Activations are stored in eight bits only where products multiply in eight bits anyway: a search does
        not change what is computed."""
        plan, job = candidate.plan, candidate.job
        if not job.training or plan.recomputation != KEPT:
            return
        most = max(job.chunk_sizes)
        narrow = element_bytes(job.work.precision) < 2.0
        stores = [name for name in ACTIVATION_STORES if name != WIDE.name] if narrow else []
        ways: list[Callable[[int], Plan]] = [
            lambda layers: replace(plan, recomputation=FULL, recomputed=Partly(layers)),
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
        """The plan with activations of no more sequences away than have to be: the longest."""

        def away_from(tokens: int) -> Plan:
            return replace(plan, options={**plan.options, OFFLOAD_FROM: tokens})

        lengths = sorted(set(self.work.unequal.tokens))
        most = bisect.bisect_left(lengths, True, key=lambda tokens: not fits(away_from(tokens)))
        return away_from(lengths[most - 1]) if most > 1 else plan

    def _grouped(self, plan: Plan) -> Mesh:
        """The mesh of a plan whose state groups of ranks divide; each once."""
        key = (*plan.degrees.items(), plan.rail_axes, plan.shard_group)
        if key not in self._meshes:
            self._meshes[key] = build_mesh(plan, self.cluster.gpus, self.cluster.gpus_per_node)
        return self._meshes[key]

    def shard_groups(self, layout: Candidate) -> tuple[int, ...]:
        """Ranks that may divide state among themselves: those of as many whole nodes as divide, fewest first.

        Fewer than a node's would leave its links unused and keep more.
        """
        job = layout.job
        if job.copies == 1 or self.cluster.nodes == 1:
            return ()
        line = layout.mesh.groups(replica_axis(job))[0] // self.cluster.gpus_per_node
        near = int((line == line[0]).sum())
        return tuple(size for size in self.divisors if size < job.copies and size % near == 0 and size > 1)
