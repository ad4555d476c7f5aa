"""The cost of failures in a long run: the interval of checkpoints, and the time that the run then takes.

Failures are a Poisson process: with node MTBF m on n nodes the machine fails every M = m/n. Work is done in segments of
τ seconds, each followed by a checkpoint of δ; a failure loses the current segment and costs an outage R: detection of
the failure, diagnosis of the node, restart of the work (what C4D shortens: arXiv 2406.04594). The
expected time of T seconds of work is then exactly (Daly 2006, §3.2: failures during restarts and checkpoints as well)

    E(τ) = M · e^(R/M) · (e^((τ+δ)/M) − 1) · T/τ.

δ is stated by the project. For a plan with ``checkpoint`` keys it is the time by which a checkpoint delays the
simulated step: nearly nothing where copies are hidden. Two checkpoints are then at least a step apart, and the writing
of a file.

References
----------
J. W. Young, A first order approximation to the optimum checkpoint interval, Communications of the ACM 17 (1974).
J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation Computer
Systems 22 (2006).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...scenario.project import Failures
from ...step.result import PlanResult


def young_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """√(2δM), Young's first-order optimum.

    >>> young_interval_s(50.0, 10_000.0)
    1000.0
    """
    return math.sqrt(2.0 * checkpoint_s * mtbf_s)


def daly_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Daly's higher-order optimum: √(2δM)·[1 + ⅓·√(δ/2M) + ⅑·δ/2M] − δ for δ < 2M, else M.

    Daly's own examples, δ = 5 min: 117 min at M = 24 h, 57 min at 6 h.

    >>> [round(daly_interval_s(300.0, hours * 3600.0) / 60.0) for hours in (24, 6)]
    [117, 57]
    """
    if checkpoint_s >= 2.0 * mtbf_s:
        return mtbf_s
    ratio = checkpoint_s / (2.0 * mtbf_s)
    return young_interval_s(checkpoint_s, mtbf_s) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - checkpoint_s


def expected_s(work_s: float, interval_s: float, checkpoint_s: float, restart_s: float, mtbf_s: float) -> float:
    """Seconds from begin to end of ``work_s`` of work, with checkpoints, lost work and restarts; may be infinite."""
    try:
        stretch = math.exp(restart_s / mtbf_s) * math.expm1((interval_s + checkpoint_s) / mtbf_s)
    except OverflowError:
        return math.inf
    return mtbf_s * stretch * work_s / interval_s


@dataclass(frozen=True)
class CheckpointSchedule:
    """The checkpoints of a run, and the time that it takes with them."""

    work_s: float
    elapsed_s: float
    #: Mean time between failures of the whole machine.
    mtbf_s: float
    #: Work between two checkpoints.
    interval_s: float
    #: Expected number of failures in the run.
    failures: float
    #: Work over time, in (0, 1].
    goodput: float


@dataclass(frozen=True)
class CheckpointCost:
    """The cost of a plan's checkpoints to a run."""

    #: Seconds that one checkpoint delays a step when the file before it is written: simulated for the plan, or stated
    #: by the project.
    checkpoint_s: float
    #: Least interval of two checkpoints: a step, and copy and file of the one before.
    least_interval_s: float
    #: Rate of steps without a checkpoint.
    tokens_per_s: float

    @classmethod
    def of(cls, plan: PlanResult, failures: Failures) -> CheckpointCost:
        """The cost for a simulated plan."""
        simulated = plan.checkpoint
        if not simulated:
            return cls(failures.checkpoint, 0.0, plan.tokens_per_s)
        step_s = simulated["step_without_s"]
        least_s = max(step_s, simulated["copy_s"] + simulated["file_s"])
        return cls(simulated["stall_s"] - simulated["back_pressure_s"], least_s, plan.tokens_per_step / step_s)

    def schedule(self, work_s: float, nodes: int, failures: Failures) -> CheckpointSchedule:
        """The schedule of ``work_s`` seconds of steps without checkpoints."""
        return schedule(work_s, nodes, failures, self.checkpoint_s, self.least_interval_s)

    def run(self, tokens: float, nodes: int, failures: Failures) -> CheckpointSchedule:
        """The schedule of ``tokens``."""
        return self.schedule(tokens / self.tokens_per_s, nodes, failures)


def schedule(
    work_s: float, nodes: int, failures: Failures, checkpoint_s: float | None = None, least_interval_s: float = 0.0
) -> CheckpointSchedule:
    """A run with Daly's interval, or the least possible one; ``checkpoint_s`` replaces the project's."""
    mtbf_s = failures.node_mtbf / nodes
    held_s = failures.checkpoint if checkpoint_s is None else checkpoint_s
    interval_s = max(least_interval_s, daly_interval_s(held_s, mtbf_s))
    elapsed_s = expected_s(work_s, interval_s, held_s, failures.outage_s, mtbf_s)
    return CheckpointSchedule(work_s, elapsed_s, mtbf_s, interval_s, elapsed_s / mtbf_s, work_s / elapsed_s)
