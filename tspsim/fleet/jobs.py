"""Jobs of a fleet as plain data: nodes, seconds of work, and the composition of these seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from ..step.result import PlanResult


@dataclass(frozen=True)
class JobPace:
    """The pace of a job at one size.

    Attributes
    ----------
    step_s, tokens_per_step
        One step without checkpoints; 0 without a workload.
    exposed
        Share of a step in communication that no kernel hides, in [0, 1].
    every_s, stall_s, read_s
        Seconds of work between two checkpoints, seconds that one stops the work, seconds to read one back;
        ``every_s`` is infinite without checkpoints.
    start_s
        Seconds from its nodes to its work at the first start.
    plan
        The simulated step.
    """

    step_s: float = 0.0
    tokens_per_step: float = 0.0
    exposed: float = 0.0
    every_s: float = inf
    stall_s: float = 0.0
    read_s: float = 0.0
    start_s: float = 0.0
    plan: PlanResult | None = field(default=None, repr=False, compare=False)

    @property
    def stalled(self) -> float:
        """Share of the time that checkpoints stop the work."""
        return self.stall_s / (self.every_s + self.stall_s) if self.stall_s else 0.0


#: The pace of a job whose log has only GPUs and a duration.
UNKNOWN = JobPace()


@dataclass(frozen=True, slots=True)
class FleetJob:
    """One job, resolved.

    Attributes
    ----------
    number
        Number in order of submission.
    name, kind, user
        ``kind`` is its class in statistics.
    sizes
        Numbers of nodes that it can run on, the preferred one first; (1,) for part of a node.
    gpus
        GPUs of a job on part of a node; 0: whole nodes.
    work_s
        Seconds at each of ``sizes``, alone and without failures, with checkpoints.
    limit_s
        Expected seconds at its preferred size, for schedulers.
    after
        The scenario entry that it waits for: all its jobs must be done.
    paces
        One pace per size.
    """

    number: int
    name: str
    kind: str
    user: str
    entry: int
    submit_s: float
    sizes: tuple[int, ...]
    work_s: tuple[float, ...]
    limit_s: float
    gpus: int = 0
    priority: int = 0
    preemptible: bool = False
    deadline_s: float | None = None
    after: int | None = None
    paces: tuple[JobPace, ...] = (UNKNOWN,)

    @property
    def nodes(self) -> int:
        """Nodes at its preferred size."""
        return self.sizes[0]

    def gpus_at(self, nodes: int, of_a_node: int) -> int:
        """GPUs that it takes on ``nodes`` nodes."""
        return self.gpus or nodes * of_a_node
