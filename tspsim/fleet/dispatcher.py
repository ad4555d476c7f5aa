"""A scheduler's view of a fleet: it starts waiting jobs and preempts running ones."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from math import inf

from ..base.errors import TspsimError
from .jobs import FleetJob
from .nodes import Nodes
from .running_job import RunningJob
from .waiting import Waiting


class JobDispatcher:
    """The interface of a scheduler, which is called once after every instant in which something changed.

    Attributes
    ----------
    now_s
        The time.
    queue
        Waiting jobs in the scheduler's order.
    running
        Number of a job → the running job.
    """

    def __init__(
        self,
        nodes: Nodes,
        queue: Waiting,
        launch: Callable[[FleetJob, int], RunningJob],
        halt: Callable[[RunningJob], None],
    ) -> None:
        self.now_s = 0.0
        self.nodes, self.queue = nodes, queue
        self.running: dict[int, RunningJob] = {}
        self._launch, self._halt = launch, halt
        #: (expected end, number, nodes) of jobs on whole nodes, by end.
        self._ends: list[tuple[float, int, int]] = []
        #: Shared node → number → (expected end, GPUs).
        self._small: dict[int, dict[int, tuple[float, int]]] = {}
        #: A further condition for a start: power.
        self.allows: Callable[[FleetJob, int], bool] | None = None
        #: Node → when it should be back.
        self.back_s: dict[int, float] = {}

    @property
    def free(self) -> int:
        """Number of empty nodes."""
        return self.nodes.empty_count

    @property
    def total(self) -> int:
        """Number of nodes of the cluster, down ones too."""
        return self.nodes.count

    def fits(self, job: FleetJob, size: int = 0) -> bool:
        """Whether the job could start now at the ``size``-th of its sizes."""
        if self.allows is not None and not self.allows(job, size):
            return False
        if job.gpus:
            return self.nodes.empty_count > 0 or self.nodes.tightest(job.gpus) is not None
        return job.sizes[size] <= self.nodes.empty_count

    def start(self, job: FleetJob, size: int = 0) -> None:
        """Starts a waiting job that fits, at the ``size``-th of its sizes.

        Raises
        ------
        TspsimError
            It does not wait or does not fit: the scheduler is wrong.
        """
        if not self.fits(job, size):
            raise TspsimError(f"job {job.name} was started on {job.sizes[size]} nodes, and {self.free} are empty: the "
                              "scheduler is wrong")  # fmt: skip
        try:
            self.queue.remove(job)
        except KeyError:
            raise TspsimError(f"job {job.name} was started and does not wait: the scheduler is wrong") from None
        self._enter(self._launch(job, size))

    def stop(self, running: RunningJob) -> None:
        """Preempts a preemptible job: it waits again, and continues from its last checkpoint.

        Raises
        ------
        TspsimError
            It does not run, or is not preemptible: the scheduler is wrong.
        """
        if self.running.get(running.job.number) is not running or not running.job.preemptible:
            raise TspsimError(f"job {running.job.name} was stopped and may not be: the scheduler is wrong")
        self._halt(running)

    def reservation(self, job: FleetJob) -> tuple[float, int]:
        """When the job will fit at its preferred size if all running jobs end as expected, and the nodes left over
        then."""
        if job.gpus:
            return self._part_reservation(job), 0
        free = self.nodes.empty_count
        if free >= job.nodes:
            return self.now_s, free - job.nodes
        at_s = inf
        for end_s, nodes in self.releases():
            # Nodes that become empty at the same instant are left over too.
            if end_s > at_s:
                break
            free += nodes
            if free >= job.nodes:
                at_s = end_s
        return (at_s, free - job.nodes) if at_s < inf else (inf, 0)

    def _releases(self) -> list[tuple[float, int, int]]:
        """(expected end, number, nodes) of everything that becomes empty, by end: jobs, shared nodes, nodes that are
        down."""
        others = [(max(end for end, _ in jobs.values()), -1, 1) for jobs in self._small.values()]
        others += [(back_s, -2, 1) for back_s in self.back_s.values()]
        return sorted(self._ends + others) if others else self._ends

    def releases(self) -> Iterator[tuple[float, int]]:
        """Expected times at which nodes become empty, with their number; by time."""
        for end_s, _, nodes in self._releases():
            yield max(self.now_s, end_s), nodes

    def _part_reservation(self, job: FleetJob) -> float:
        if self.fits(job):
            return self.now_s
        soonest = min((end for end, _, _ in self._ends), default=inf)
        for node, jobs in self._small.items():
            free = self.nodes.parts.get(node, 0)
            for end_s, gpus in sorted(jobs.values()):
                free += gpus
                if free >= job.gpus:
                    soonest = min(soonest, end_s)
                    break
        return max(self.now_s, soonest)

    def holds_until(self, node: int) -> float:
        """Expected time at which a shared node is empty."""
        return max((end for end, _ in self._small.get(node, {}).values()), default=self.now_s)

    # Calls of the clock.

    def _enter(self, running: RunningJob) -> None:
        job = running.job
        self.running[job.number] = running
        if job.gpus:
            self._small.setdefault(running.nodes[0], {})[job.number] = (running.expected_s, job.gpus)
        else:
            insort(self._ends, (running.expected_s, job.number, len(running.nodes)))

    def left(self, running: RunningJob) -> None:
        """A job has left its nodes."""
        job = running.job
        del self.running[job.number]
        if job.gpus:
            jobs = self._small[running.nodes[0]]
            del jobs[job.number]
            if not jobs:
                del self._small[running.nodes[0]]
            return
        entry = (running.expected_s, job.number, len(running.nodes))
        del self._ends[bisect_left(self._ends, entry)]
