"""Long steps of unequal sequences: each micro-batch is simulated alone, and their times are joined in order.

With hundreds of ranks, each with micro-batches of its own, such a step has tens of millions of instructions. But
between the first weights and the last gradients a group of ranks meets no other rank: its ranks ran the micro-batch
before in one group (or a wider one), so they begin, run and end each micro-batch together. Hence

    step = max over replicas (first + Σ c) + last

- c: time of a micro-batch if all groups of the cluster work on an equal one, simulated with two and with three layers;
  each further layer takes as long as the third.
- last: time that gradient sums and the optimizer add to the last micro-batch of the replica that is ready last.
- first: if replicas shard the optimizer's state, each layer's weights are gathered by all replicas before its first
  forward. That forward takes all replicas as long as the longest of them (f) plus what the gathers add to it; a
  replica whose own forward takes f₁ waits f − f₁. All are simulated.

Every group runs the program of its rank with the longest kernels. Left out: ranks that end a micro-batch one hop
before others, and contention between groups at different work on a fabric. ``tests/step/test_apart.py`` compares with
whole runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import simpy
from numpy.typing import NDArray

from ..base.memo import knowing
from ..base.quick import replace
from ..engine.core import Interference, Submission
from ..engine.instances import Assignment, Cost
from ..engine.lowered import InstructionCosts, IssuedItems, LoweredProgram
from ..engine.ranks import Rank, SimulatedDevice
from ..engine.steady import execute
from ..engine.system import SimulatedRank, System
from ..engine.timeline import ON_HOST, Label, Labels
from ..network import Cluster
from ..network.fluid import Channel
from ..parallel import Job, scheme_of, write_program
from ..parallel.lengths import Pack
from ..parallel.step import Writer
from ..program import Compute, Program
from ..program.excerpts import split_after_layers
from ..program.instructions import Mesh, length_of
from ..steps import FORWARD
from . import metrics

#: Instructions of all ranks of a step beyond which micro-batches are simulated alone.
MOST_INSTRUCTIONS = 1_000_000
#: Layers simulated of a model with equal layers; each further layer takes as long as the last.
LAYERS = (2, 3)
#: Note on an answer that was joined from micro-batches.
NOTE = (
    "each micro-batch was simulated alone, and the step was joined from them in order, since it has more than "
    f"{MOST_INSTRUCTIONS / 1e6:.0f} million instructions: ranks of a group begin each micro-batch together, and groups "
    "at different work do not slow each other (`tspsim docs engine.md`)"
)

Numbers = dict[tuple[str, ...], float]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def too_long_to_run_whole(job: Job) -> bool:
    """Whether a step has unequal sequences, is too long to run whole, and its ranks meet only within a group."""
    plan = job.plan
    if not job.unequal or plan.pp > 1 or plan.ep > 1 or plan.zero > 1 or plan.checkpoint is not None or job.held_s:
        return False
    packs, replicas = job.assignment.packs, len(job.assignment.packs)
    widest = max(range(replicas), key=lambda replica: sum(pack.ranks for pack in packs[replica]))
    shards = plan.token_shards
    # A pack's program has at least one instruction per layer and hop.
    if job.model.layers * replicas * shards * sum(pack.ranks for pack in packs[widest]) * 8 < MOST_INSTRUCTIONS:
        return False
    program = write_program(scheme_of(plan), job, {"dp": widest})
    return sum(map(length_of, program.items)) * replicas * shards > MOST_INSTRUCTIONS


@dataclass(frozen=True)
class MicroBatchPart:
    """Means over the ranks that run a micro-batch: seconds, FLOPs and bytes by key, and bytes carried by each link."""

    #: ``("s",)`` total seconds; ``("compute", family)``, ``("exposed", kind)`` seconds; ``("bytes", part, kind, axis,
    #: layered)`` bytes received; ``("flops",)``; ``("hbm",)`` bytes.
    numbers: Numbers
    #: Link → bytes of all ranks.
    links: Mapping[int, float]
    system: System

    def __add__(self, other: MicroBatchPart) -> MicroBatchPart:
        return self.plus(other, 1.0)

    def __sub__(self, other: MicroBatchPart) -> MicroBatchPart:
        return self.plus(other, -1.0)

    def plus(self, other: MicroBatchPart, times: float) -> MicroBatchPart:
        """The sum of this part and ``times`` times the other."""
        numbers, links = dict(self.numbers), dict(self.links)
        for key, value in other.numbers.items():
            numbers[key] = numbers.get(key, 0.0) + times * value
        for link, value in other.links.items():
            links[link] = links.get(link, 0.0) + times * value
        return MicroBatchPart(numbers, links, self.system)

    @property
    def seconds(self) -> float:
        return self.numbers["s",]


@dataclass(frozen=True)
class JoinedSystem(System):
    """The systems of all parts as one: their bytes over links, and the transfers of the widest."""

    widest: System | None = None
    bytes_over: Mapping[int, float] = field(default_factory=dict)

    def uses(self) -> Mapping[Channel, int]:
        return self.widest.uses() if self.widest is not None else {}

    def link_loads(self) -> tuple[Integers, Floats, Integers]:
        links = sorted(link for link, size in self.bytes_over.items() if size > 0.0)
        sizes = np.array([self.bytes_over[link] for link in links])
        return np.array(links, dtype=np.int64), sizes, np.ones(len(links), dtype=np.int64)


class Apart:
    """The micro-batches of one step, each simulated when first needed."""

    def __init__(self, cluster: Cluster, cost: Cost, mesh: Mesh, job: Job, interference: Interference) -> None:
        self.cluster, self.cost, self.mesh, self.job, self.interference = cluster, cost, mesh, job, interference
        self.scheme = scheme_of(job.plan)
        self._costs: dict[object, float] = {}
        self._known: dict[object, MicroBatchPart] = {}

    def submission(self) -> Submission:
        """The joined step, with rows for each replica's kernels and waits of each micro-batch."""
        replicas = self.job.assignment.packs
        every = [[self.part(pack) for pack in packs] for packs in replicas]
        gathers, waits_s = self._gathers([packs[0] for packs in replicas])
        ready_s = [wait_s + sum(part.seconds for part in parts) for wait_s, parts in zip(waits_s, every, strict=True)]
        longest = max(range(len(every)), key=ready_s.__getitem__)
        last = self.part(replicas[longest][-1], LAST) - every[longest][-1]
        rows: list[list[tuple[str, MicroBatchPart]]] = []
        for packs, parts, wait_s in zip(replicas, every, waits_s, strict=True):
            listed = [(title(pack), part) for pack, part in zip(packs, parts, strict=True)]
            waiting = replace(gathers, numbers={**gathers.numbers, ("s",): gathers.seconds + wait_s})
            rows.append([("weights gathered", waiting), *listed, ("gradients summed, update", last)])
        links = self._links(replicas, every, (gathers, last))
        widest = max((part for parts in every for part in parts), key=lambda part: part.numbers.get(("exposed",), 0.0))
        return self._written(rows, links, widest.system)

    def _gathers(self, firsts: Sequence[Pack]) -> tuple[MicroBatchPart, list[float]]:
        """Time that weight gathers add to the longest first forward, and each replica's wait for that forward."""
        if not (self.job.training and self.job.plan.zero):
            return MicroBatchPart({("s",): 0.0}, {}, NOTHING), [0.0] * len(firsts)
        alone_s = [self.part(pack, ALONE).seconds for pack in firsts]
        longest = firsts[alone_s.index(max(alone_s))]
        added = self.part(longest, FIRST) - self.part(longest, ALONE)
        return added, [max(alone_s) - seconds for seconds in alone_s]

    def part(self, pack: Pack, end: str = "") -> MicroBatchPart:
        """A micro-batch, or the part of it that a key of :data:`ENDS` names."""
        key = pack.tokens, pack.ranks, end
        if key not in self._known:
            model = self.job.model
            if len(model.distinct) == 1 and model.layers > LAYERS[-1] and not self._layers_differ:
                less, more = (self._run(pack, end, replace(model, layers=layers)) for layers in LAYERS)
                self._known[key] = more.plus(more - less, model.layers - LAYERS[-1])
            else:
                self._known[key] = self._run(pack, end, model)
        return self._known[key]

    @property
    def _layers_differ(self) -> bool:
        plan = self.job.plan
        return bool(plan.recomputed or plan.offload_layers or plan.offload_weights)

    def _run(self, pack: Pack, end: str, model: object) -> MicroBatchPart:
        job = replace(self.job, model=model)
        places = {0, max(pack.ranks, job.plan.token_shards) - 1}
        programs = [self._program(job, pack._replace(position=place), end) for place in sorted(places)]
        program = max(programs, key=self._kernels_s)
        if all(isinstance(instruction, Compute) for instruction, _ in program.counted()):
            return self._of_kernels(program)
        before, behind = split_after_layers(program) if end == LAST else (program, None)
        part = self._of_ranks(before)
        return part if behind is None else part + self._of_ranks(behind)

    def _of_ranks(self, program: Program) -> MicroBatchPart:
        roles = np.zeros(int(self.mesh.ranks.max()) + 1, dtype=np.int64)
        assignment = Assignment(self.mesh, (program,), roles)
        return part_of(execute(self.cluster, self.cost, assignment, interference=self.interference))

    def _program(self, job: Job, pack: Pack, end: str) -> Program:
        """The program of one micro-batch, taken from three equal ones: the first, the middle or the last."""
        shards = job.plan.token_shards
        place = {job.plan.token_axis: pack.position} if pack.ranks == shards > 1 else {}
        whole = replace(job, beside=(pack,) * 3)
        writer = Writer(self.scheme, whole, place)
        tasks = [task for task in writer.whole.tasks(0) if task.micro_batch == ENDS.get(end, 1)]
        if end == LAST:
            whole.step.write(writer, tasks)
        else:
            writer.do([task for task in tasks if not end or task.kind == FORWARD])
        return writer.builder.program()

    def _seconds(self, compute: Compute) -> Iterator[tuple[str, float]]:
        for operator in compute.operators:
            if operator not in self._costs:
                self._costs[operator] = self.cost(operator)
            yield operator.kind, self._costs[operator]

    def _kernels_s(self, program: Program) -> float:
        kernels = ((instruction, times) for instruction, times in program.counted() if isinstance(instruction, Compute))
        return sum(times * seconds for kernel, times in kernels for _, seconds in self._seconds(kernel))

    def _of_kernels(self, program: Program) -> MicroBatchPart:
        """Kernels that wait for no other rank, one after the other."""
        numbers: Numbers = {("s",): 0.0, ("flops",): 0.0, ("hbm",): 0.0}
        for kernel, times in program.counted():
            assert isinstance(kernel, Compute)
            for kind, seconds in self._seconds(kernel):
                numbers["compute", kind] = numbers.get(("compute", kind), 0.0) + times * seconds
                numbers["s",] += times * seconds
            numbers["flops",] += times * sum(operator.flops for operator in kernel.operators)
            numbers["hbm",] += times * sum(operator.hbm_bytes for operator in kernel.operators)
        return MicroBatchPart(numbers, {}, NOTHING)

    def _links(
        self,
        replicas: Sequence[Sequence[Pack]],
        every: Sequence[Sequence[MicroBatchPart]],
        ends: Sequence[MicroBatchPart],
    ) -> dict[int, float]:
        """Bytes over links: a part counts with the share of replicas that had such a micro-batch."""
        often: Counter[int] = Counter()
        parts: dict[int, MicroBatchPart] = {}
        for part in (part for listed in every for part in listed):
            often[id(part)] += 1
            parts[id(part)] = part
        carried: dict[int, float] = {}
        shares = [(parts[number], times / len(replicas)) for number, times in often.items()]
        for part, share in (*shares, *((part, 1.0) for part in ends)):
            for link, size in part.links.items():
                carried[link] = carried.get(link, 0.0) + share * size
        return carried

    def _written(
        self, rows: Sequence[Sequence[tuple[str, MicroBatchPart]]], links: Mapping[int, float], widest: System
    ) -> Submission:
        groups = self.mesh.positions["dp"]
        gpus = np.sort(self.mesh.ranks.reshape(-1))
        size = len(gpus) // len(rows)
        ranks, times = [], []
        until_s = max(sum(part.seconds for _, part in listed[:-1]) for listed in rows)
        for replica, listed in enumerate(rows):
            first = int(gpus[np.flatnonzero(groups[gpus] == replica)[0]])
            labels, start_s, end_s = columns(listed, until_s)
            program = Program(f"replica {replica}")
            unnamed = LoweredProgram(program, IssuedItems((), (), ()), labels, (), InstructionCosts())
            every = np.arange(len(labels), dtype=np.int32)
            layers = np.array([label.layer for label in labels], dtype=np.int32)
            role = knowing(unnamed, labels=Labels(labels, every, layers))
            ranks.append(SimulatedRank(Rank(SimulatedDevice(first, size)), role, size))
            times.append((start_s, end_s))
        submission = Submission(
            simpy.Environment(), JoinedSystem(ranks, [], note=NOTE, widest=widest, bytes_over=links), 0
        )
        submission.replace_result(ranks, times)
        return submission


#: The first forward of a step, a later forward, and the last micro-batch: index among three equal micro-batches.
FIRST, ALONE, LAST = "first", "alone", "last"
ENDS = {FIRST: 0, ALONE: 1, LAST: 2}
NOTHING = System([], [])


def run_apart(cluster: Cluster, cost: Cost, mesh: Mesh, job: Job, interference: Interference) -> Submission:
    """Simulate the micro-batches of a step alone and join them (:func:`too_long_to_run_whole`).

    Returns
    -------
    Submission
        Has a row for the kernels of each micro-batch of each replica, one per kind of communication waited for, and
        one of zero length per kind of bytes received.
    """
    return Apart(cluster, cost, mesh, job, interference).submission()


def part_of(submission: Submission) -> MicroBatchPart:
    """The result of a run, mean over its ranks."""
    parts = metrics.breakdown(submission)
    numbers: Numbers = {("s",): submission.makespan_s, ("flops",): 0.0, ("hbm",): 0.0}
    numbers |= {("compute", kind): seconds for kind, seconds in parts.compute_s.items()}
    numbers |= {("exposed", kind): seconds for kind, seconds in parts.exposed_s.items()}
    numbers["exposed", ON_HOST] = parts.host_s
    numbers["exposed",] = sum(parts.exposed_s.values())
    timeline = submission.timeline
    sizes = {simulated.rank.number: simulated.size for simulated in submission.ranks}
    size = np.zeros(max(sizes) + 1)
    size[list(sizes)] = list(sizes.values())
    rank, layered = timeline.columns()["rank"], timeline.layers() >= 0
    labels, which = timeline.kinds()
    whole = size[rank] / sum(sizes.values())
    for inside in (False, True):
        often = np.bincount(which, weights=np.where(layered == inside, whole, 0.0), minlength=len(labels)).tolist()
        for label, times in zip(labels, often, strict=True):
            if label.is_compute:
                numbers["flops",] += times * label.flops
                numbers["hbm",] += times * label.size_bytes
            elif label.size_bytes * times > 0.0:
                key = "bytes", label.part, label.kind, label.axis, "layer" if inside else ""
                numbers[key] = numbers.get(key, 0.0) + times * label.size_bytes
    link, carried, copies = submission.system.link_loads()
    return MicroBatchPart(
        numbers, dict(zip(link.tolist(), (carried * copies).tolist(), strict=True)), submission.system
    )


def columns(listed: Sequence[tuple[str, MicroBatchPart]], until_s: float) -> tuple[list[Label], Floats, Floats]:
    """Labels, starts and ends of one replica's rows; its last part begins at ``until_s``, when all are ready."""
    rows: list[tuple[Label, float, float]] = []
    now_s = 0.0
    for index, (name, part) in enumerate(listed):
        at_s = now_s = until_s if index == len(listed) - 1 else now_s
        numbers = part.numbers
        families = tuple((key[1], value) for key, value in numbers.items() if key[0] == "compute" and value > 0.0)
        if families:
            kernels_s, most = sum(seconds for _, seconds in families), max(families, key=lambda family: family[1])[0]
            work = numbers["hbm",], numbers["flops",]
            label = Label("compute", name, most, "", -1, *work, name, kernels_s, families, is_compute=True)
            rows.append((label, at_s, at_s + kernels_s))
            at_s += kernels_s
        for key, value in numbers.items():
            if key[0] == "exposed" and len(key) > 1 and value > 0.0:
                label = Label("communication", name, key[1], "waited for", -1, 0.0, 0.0, name)
                rows.append((label, at_s, at_s + value))
                at_s += value
            elif key[0] == "bytes" and value > 0.0:
                _, where, kind, axis, layered = key
                label = Label("communication", name, kind, where, 0 if layered else -1, value, 0.0, name, axis=axis)
                rows.append((label, at_s, at_s))
        now_s = max(at_s, now_s + part.seconds)
    labels, start_s, end_s = zip(*rows, strict=True)
    return list(labels), np.array(start_s), np.array(end_s)


def title(pack: Pack) -> str:
    """Name of a micro-batch in a timeline."""
    count = len(pack.tokens)
    what = f"{count:,} sequences of {sum(pack.tokens):,} tokens" if count > 1 else f"{pack.tokens[0]:,} tokens"
    return f"{what} over {pack.ranks} ranks" if pack.ranks > 1 else what
