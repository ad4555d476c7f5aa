"""The engine: programs are submitted, SimPy runs them, a timeline comes out."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import simpy
from numpy.typing import NDArray

from ..errors import TspsimError
from ..network import Cluster
from ..program import Program
from .assignment import Assignment, Cost
from .ranks import Machine
from .system import SimulatedRank, System, build_system
from .timeline import Label, Labels, Timeline

Floats = NDArray[np.float64]


class DeadlockError(TspsimError):
    """Programs wait for each other: a scheme is wrong (exit code 1)."""


@dataclass(frozen=True)
class Interference:
    """How much a kernel (and a transfer) slows while the device also moves (computes): factors ≥ 1."""

    compute: float = 1.0
    communication: float = 1.0


class Engine:
    """Runs assignments on one cluster and one clock.

    ``submit`` may be called before :meth:`run` or, from a process on :attr:`env`, while it runs; each submission has
    its own channels. ``cost`` maps an operator to seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        cost: Cost,
        *,
        interference: Interference | None = None,
        every_rank: bool = False,
    ) -> None:
        self.cluster = cluster
        self.cost = cost
        self.interference = interference or Interference()
        self.every_rank = every_rank
        self.env = simpy.Environment()

    def submit(
        self, assignment: Assignment, at_s: float = 0.0, *, stands_for: Sequence[Program] | None = None
    ) -> Submission:
        """Prepare an assignment and start its ranks' streams ``at_s`` on the clock.

        ``stands_for`` are the programs of which the assignment's are an excerpt, or themselves: the clock then ticks in
        steps that suit those, so that times are exact (:mod:`tspsim.engine.steady`).
        """
        system = build_system(self.cluster, assignment, self.cost, every_rank=self.every_rank)
        tick_s = tick_of(system, assignment, stands_for) if stands_for else 0.0
        machine = Machine(
            self.env,
            tick_s=tick_s,
            compute_slowdown=self.interference.compute,
            communication_slowdown=self.interference.communication,
        )
        submission = Submission(system, machine, tick_s)
        if at_s > self.env.now:
            self.env.timeout(at_s - self.env.now).callbacks.append(lambda _event: submission.start())
        else:
            submission.start()
        return submission

    def run(self) -> None:
        """Run until nothing is left to happen."""
        with no_collection():
            self.env.run()


@contextmanager
def no_collection() -> Iterator[None]:
    """Millions of small objects and no garbage cycles: the collector would only look for what is not there."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def tick_of(system: System, assignment: Assignment, programs: Sequence[Program]) -> float:
    """A power of two of which all times of a run are multiples that a double can hold.

    A run may take :data:`MARGIN` times as long as the instructions of its first rank one after the other; beyond that,
    times are rounded as doubles are. A tick is 10⁻¹⁴ of that sum.
    """
    first = system.ranks[0]
    program = programs[int(assignment.role_of[first.rank.number])]
    horizon_s = MARGIN * system.horizon_s(replace(first.role, program=program))
    return 2.0 ** (math.frexp(horizon_s)[1] - 52) if horizon_s > 0.0 else 0.0


MARGIN = 64.0


class Submission:
    """One assignment under way, and afterwards what its ranks did.

    Until ``exact_until_s`` on the clock no time was rounded to more than a tick.
    """

    def __init__(self, system: System, machine: Machine, tick_s: float) -> None:
        self.system = system
        self.exact_until_s = 2.0**53 * tick_s
        self._machine = machine
        self._timeline: Timeline | None = None

    @property
    def ranks(self) -> list[SimulatedRank]:
        return self.system.ranks

    @property
    def instructions(self) -> int:
        return sum(len(simulated.role.labels) for simulated in self.system.ranks)

    @property
    def timeline(self) -> Timeline:
        """What has been done so far."""
        if self._timeline is not None:
            return self._timeline
        rows = [np.flatnonzero(np.frombuffer(each.rank.done, dtype=np.uint8)) for each in self.ranks]
        times = [
            (np.array(each.rank.start_s)[done], np.array(each.rank.end_s)[done])
            for each, done in zip(self.ranks, rows, strict=True)
        ]
        timeline = written(self.ranks, rows, times)
        if len(timeline) == self.instructions:
            self._timeline = timeline
        return timeline

    @property
    def makespan_s(self) -> float:
        """From the first start to the last end; raises DeadlockError if an instruction never ran."""
        timeline = self.timeline
        if len(timeline) != self.instructions:
            stuck = next(
                simulated.role.labels[steps[0].number].name
                for simulated in self.ranks
                for stream in simulated.role.streams.values()
                for steps in [[step for step in stream if not simulated.rank.done[step.number]]]
                if steps
            )
            raise DeadlockError(f"programs wait for each other: '{stuck}' never ran")
        if not len(timeline):
            return 0.0
        columns = timeline.columns()
        return float(columns["end_s"].max()) - float(columns["start_s"].min())

    def start(self) -> None:
        for simulated in self.system.ranks:
            for steps in simulated.role.streams.values():
                self._machine.add_stream(simulated.rank, steps)

    def replaced(self, ranks: list[SimulatedRank], times: Sequence[tuple[Floats, Floats]]) -> None:
        """Let the submission stand for the programs of ``ranks``, whose every instruction ran at ``times``."""
        self.system.ranks = ranks
        for simulated in ranks:
            uses = simulated.role.uses()
            for key, channel in simulated.rank.channels.items():
                if key % 2 == 0:
                    channel.uses = uses[key]
        rows = [np.arange(len(simulated.role.labels)) for simulated in ranks]
        self._timeline = written(ranks, rows, times)


def written(
    ranks: Sequence[SimulatedRank], rows: Sequence[NDArray[np.int64]], times: Sequence[tuple[Floats, Floats]]
) -> Timeline:
    """The timeline of some instructions (``rows``) of every rank; roles have their labels once."""
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
    timeline.rank = np.concatenate([np.full(len(done), each.rank.number, dtype=np.int32) for each, done in number])
    number = zip(ranks, rows, strict=True)
    timeline.label = np.concatenate([(done + first[id(each.role)]).astype(np.int32) for each, done in number])
    timeline.start_s = np.concatenate([start for start, _ in times])
    timeline.end_s = np.concatenate([end for _, end in times])
    timeline.labels = Labels(distinct, np.concatenate(which), np.concatenate(layer))
    return timeline
