"""Jobs as a fleet runs them: nodes, seconds of work, and what the seconds are made of. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from ..step.result import PlanResult


@dataclass(frozen=True)
class JobPace:
    """What running at one size is like.

    Attributes
    ----------
    step_s, tokens_per_step
        Of one step without checkpoints; 0 where no workload is known.
    exposed
        Share of a step in communication that no kernel hides, in [0, 1].
    every_s, stall_s, read_s
        Seconds of work between two checkpoints, seconds that one holds the work up, seconds to read one back;
        ``every_s`` is infinite where none is written.
    start_s
        Seconds from its nodes to its work at the first start.
    plan
        The simulated step that says so.
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
        """Share of the time that checkpoints hold the work up."""
        return self.stall_s / (self.every_s + self.stall_s) if self.stall_s else 0.0


#: Of a job whose log says GPUs and a duration alone.
UNKNOWN = JobPace()


@dataclass(frozen=True, slots=True)
class FleetJob:
    """One job, looked up.

    Attributes
    ----------
    number
        In order of submission.
    name, kind, user
        ``kind`` is the class that it is counted with.
    sizes
        Nodes that it can run on, the preferred number first; (1,) of a job on part of a node.
    gpus
        Of one node, of a job that takes a part; 0: whole nodes.
    work_s
        Seconds it takes at each of ``sizes``, alone and without failures, checkpoints included.
    limit_s
        What it is expected to take at its preferred size, as schedulers are told.
    after
        The entry of the scenario that it waits for, all of whose jobs have to be done.
    paces
        One a size.
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
        """At its preferred size."""
        return self.sizes[0]

    def gpus_at(self, nodes: int, of_a_node: int) -> int:
        """GPUs that it has on ``nodes`` nodes."""
        return self.gpus or nodes * of_a_node
