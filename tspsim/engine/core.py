"""The engine: it prepares and launches programs, SimPy runs them, and the result is a timeline."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import simpy
from numpy.typing import NDArray

from ..base.errors import TspsimError
from ..base.memo import Itself
from ..base.quick import no_collection
from ..network import Cluster
from .instances import Assignment, Cost
from .ranks import Machine, process_of
from .system import Partition, Prepared, SimulatedRank, System
from .timeline import Label, Labels, Timeline

if TYPE_CHECKING:
    from ..hardware import Device
    from ..parallel import Job

Floats = NDArray[np.float64]


class DeadlockError(TspsimError):
    """Programs wait for each other, because a scheme is wrong (exit code 1)."""


@dataclass(frozen=True)
class Interference:
    """Factors (≥ 1) on the time of a kernel while its device moves data, and of a transfer while a device computes."""

    compute: float = 1.0
    communication: float = 1.0

    @classmethod
    def of(cls, job: Job, device: Device) -> Interference:
        """That of a job's stack on a device."""
        stack, interleaved = job.work.stack, job.interleaves
        return cls(stack.slowdown(device), stack.communication_slowdown(device, interleaved=interleaved))


class SimulationEngine:
    """One machine on one clock; everything launched on it shares its links and devices.

    :meth:`prepare` costs an assignment once. :meth:`launch` starts it any number of times, before :meth:`run` or from a
    process on :attr:`env` during it. ``cost`` maps an operator to seconds.

    >>> engine = SimulationEngine(cluster, cost)  # doctest: +SKIP
    >>> iteration = engine.prepare(assignment)                                  # doctest: +SKIP
    >>> def serve():                                                            # doctest: +SKIP
    ...     for _ in range(1000):
    ...         yield engine.launch(iteration).done
    >>> engine.env.process(serve()); engine.run()                               # doctest: +SKIP
    """

    def __init__(
        self, cluster: Cluster, cost: Cost, *, interference: Interference | None = None, every_rank: bool = False
    ) -> None:
        interference = interference or Interference()
        self.cluster = cluster
        self.cost = cost
        #: Run every rank, not one for each class of equal ones.
        self.every_rank = every_rank
        #: The clock, which other SimPy processes may use too.
        self.env = simpy.Environment()
        self.machine = Machine(
            self.env, compute_slowdown=interference.compute, communication_slowdown=interference.communication
        )
        self._partition = Partition(cluster, every_rank=every_rank)
        self._prepared: dict[Hashable, Prepared] = {}
        self._known: dict[Itself, Prepared] = {}
        self._in_flight: dict[Submission, Prepared] = {}
        self._launches = count()

    def prepare(self, assignment: Assignment) -> Prepared:
        """Prepare an assignment; equal assignments give the same object.

        Ranks are folded at the next launch, together with those of all that is prepared. So prepare everything that
        runs at the same time before the first launch.
        """
        prepared = self._known.get(Itself(assignment))
        if prepared is None:
            key = assignment.key
            prepared = self._prepared.get(key)
            if prepared is None:
                prepared = self._prepared[key] = self._partition.prepare(assignment, self.cost)
                self._known[Itself(assignment)] = prepared
        return prepared

    def system(self, prepared: Prepared) -> System:
        """Simulated ranks and channels of an assignment."""
        if not self._partition.stable:
            self._partition.settle(self._in_flight.values())
            self.machine.fluid.reshare(self._partition.solutions)
        assert prepared.system is not None
        return prepared.system

    def launch(self, prepared: Prepared, at_s: float = 0.0) -> Submission:
        """Start every stream of an assignment, now or ``at_s`` on the clock if that is later.

        Raises
        ------
        TspsimError
            Something prepared since would split a class of ranks in a submission in flight.
        """
        first_use = next(self._launches) << MOST_USES_BITS
        submission = Submission(self.env, self.system(prepared), first_use)
        self._in_flight[submission] = prepared
        submission.done.callbacks.append(lambda _event: self._in_flight.__delitem__(submission))
        if at_s > self.env.now:
            self.env.timeout(at_s - self.env.now).callbacks.append(lambda _event: submission.start(self.machine))
        else:
            submission.start(self.machine)
        return submission

    def run(self) -> None:
        """Run until no event is left."""
        with no_collection():
            self.env.run()


#: A program uses a channel fewer than 2^MOST_USES_BITS times, so that uses of submissions are disjoint.
MOST_USES_BITS = 32


class Submission:
    """One launch of an assignment, and its timeline."""

    def __init__(self, env: simpy.Environment, system: System, first_use: int) -> None:
        ranks = [
            replace(simulated, rank=simulated.rank.launched(len(simulated.role.labels), first_use))
            for simulated in system.ranks
        ]
        self.system = replace(system, ranks=ranks)
        #: SimPy event of the end of the last instruction.
        self.done = env.event()
        #: Processes of all streams of all simulated ranks; empty before the start.
        self.processes: Sequence[simpy.Process] = ()
        self._timeline: Timeline | None = None

    @property
    def ranks(self) -> Sequence[SimulatedRank]:
        """Simulated ranks, one for each class of equal ones."""
        return self.system.ranks

    @property
    def instructions(self) -> int:
        """Number of instructions of all simulated ranks."""
        return sum(len(simulated.role.labels) for simulated in self.system.ranks)

    @property
    def timeline(self) -> Timeline:
        """Timeline of the instructions done so far."""
        if self._timeline is not None:
            return self._timeline
        rows = [np.flatnonzero(np.frombuffer(simulated.rank.done, dtype=np.uint8)) for simulated in self.ranks]
        times = [
            (np.array(simulated.rank.start_s)[done], np.array(simulated.rank.end_s)[done])
            for simulated, done in zip(self.ranks, rows, strict=True)
        ]
        timeline = timeline_of(self.ranks, rows, times)
        if len(timeline) == self.instructions:
            self._timeline = timeline
        return timeline

    @property
    def makespan_s(self) -> float:
        """Seconds from the first start to the last end; raises DeadlockError if an instruction never ran."""
        timeline = self.timeline
        if len(timeline) != self.instructions:
            stuck = next(
                simulated.role.labels[step.number].name
                for simulated in self.ranks
                for stream in simulated.role.streams.values()
                for step in stream
                if not simulated.rank.done[step.number]
            )
            raise DeadlockError(f"programs wait for each other: '{stuck}' never ran")
        if not len(timeline):
            return 0.0
        columns = timeline.columns()
        return float(columns["end_s"].max()) - float(columns["start_s"].min())

    def start(self, machine: Machine) -> None:
        """Register a SimPy process for every stream of every rank, compute streams first."""
        streams = [(simulated.rank, stream) for simulated in self.ranks for stream in simulated.role.streams.values()]
        streams.sort(key=lambda entry: not entry[1][0].is_compute)
        self.processes = [machine.env.process(process_of(machine, rank, stream)) for rank, stream in streams]
        machine.env.all_of(self.processes).callbacks.append(self.done.trigger)

    def replace_result(self, ranks: Sequence[SimulatedRank], times: Sequence[tuple[Floats, Floats]]) -> None:
        """Replace the result by that of ``ranks``, whose instructions ran at ``times``: (starts, ends) in seconds."""
        self.system = replace(self.system, ranks=ranks)
        rows = [np.arange(len(simulated.role.labels)) for simulated in ranks]
        self._timeline = timeline_of(ranks, rows, times)


def timeline_of(
    ranks: Sequence[SimulatedRank], rows: Sequence[NDArray[np.int64]], times: Sequence[tuple[Floats, Floats]]
) -> Timeline:
    """Timeline of the instructions ``rows`` of every rank; ranks of a role share labels."""
    distinct: list[Label] = []
    which: list[NDArray[np.int32]] = []
    layer: list[NDArray[np.int32]] = []
    first: dict[int, int] = {}
    length = 0
    for simulated in ranks:
        labels = simulated.role.labels
        if id(simulated.role) not in first:
            first[id(simulated.role)] = length
            length += len(labels)
            which.append(labels.which + np.int32(len(distinct)))
            layer.append(labels.layer)
            distinct += labels.distinct
    timeline = Timeline()
    if not ranks:
        return timeline
    number = zip(ranks, rows, strict=True)
    timeline.rank = np.concatenate(
        [np.full(len(done), simulated.rank.number, dtype=np.int32) for simulated, done in number]
    )
    number = zip(ranks, rows, strict=True)
    timeline.label = np.concatenate([(done + first[id(simulated.role)]).astype(np.int32) for simulated, done in number])
    timeline.start_s = np.concatenate([start for start, _ in times])
    timeline.end_s = np.concatenate([end for _, end in times])
    timeline.labels = Labels(distinct, np.concatenate(which), np.concatenate(layer))
    return timeline
