"""The engine: programs are submitted, SimPy runs them, a timeline comes out."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import simpy

from ..errors import TspsimError
from ..network import Cluster
from .assignment import Assignment, Cost
from .ranks import Machine
from .system import SimulatedRank, System, build_system
from .timeline import Timeline


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

    def submit(self, assignment: Assignment, at_s: float = 0.0) -> Submission:
        """Prepare an assignment and start its ranks' streams ``at_s`` on the clock."""
        system = build_system(self.cluster, assignment, self.cost, every_rank=self.every_rank)
        timeline = Timeline()
        timeline.labels = system.labels
        machine = Machine(
            self.env,
            timeline,
            compute_slowdown=self.interference.compute,
            communication_slowdown=self.interference.communication,
        )
        submission = Submission(system, timeline, machine)
        if at_s > self.env.now:
            self.env.timeout(at_s - self.env.now).callbacks.append(lambda _event: submission.start())
        else:
            submission.start()
        return submission

    def run(self) -> None:
        """Run until nothing is left to happen."""
        # Millions of short-lived events and no garbage cycles: the collector would only look for what is not there.
        enabled = gc.isenabled()
        gc.disable()
        try:
            self.env.run()
        finally:
            if enabled:
                gc.enable()


class Submission:
    """One assignment under way: its ranks, channels and timeline."""

    def __init__(self, system: System, timeline: Timeline, machine: Machine) -> None:
        self.system = system
        self.timeline = timeline
        self._machine = machine

    @property
    def ranks(self) -> list[SimulatedRank]:
        return self.system.ranks

    @property
    def instructions(self) -> int:
        return sum(len(simulated.role.labels) for simulated in self.system.ranks)

    @property
    def makespan_s(self) -> float:
        """From the first start to the last end; raises DeadlockError if an instruction never ran."""
        if len(self.timeline) != self.instructions:
            stuck = next(
                self.timeline.labels[steps[0].label].name
                for simulated in self.ranks
                for stream in simulated.role.streams.values()
                for steps in [[step for step in stream if not simulated.rank.done[step.number]]]
                if steps
            )
            raise DeadlockError(f"programs wait for each other: '{stuck}' never ran")
        return max(self.timeline.end_s, default=0.0) - min(self.timeline.start_s, default=0.0)

    def start(self) -> None:
        for simulated in self.system.ranks:
            for steps in simulated.role.streams.values():
                self._machine.add_stream(simulated.rank, steps)
