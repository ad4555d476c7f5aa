"""Steady-state iterations: a repetition is run a few times, and the other iterations are written into the timeline.

A program repeats layers, and micro-batches of layers. All times of a run are whole ticks (:class:`.fluid.Calendar`), so
sums and differences of times are exact, and the future of a run depends only on its state: what is done, and what moves
for how much longer. If the state at one time equals that at an earlier one, everything between the two repeats to the
bit while the programs repeat. So :data:`SIMULATED_ITERATIONS` of each repetition are run. It is in its steady state if

- every instruction of every iteration except the first and the last ran exactly one period T after the iteration before
  it, on all ranks that can affect each other, and
- these iterations cover two periods in which nothing else ran on these ranks.

(The ends of transfers determine what moves at a time, and the ends of instructions what waits.) Then the state had
period T, and the iterations left out follow each other at intervals of T. The result equals that of the whole run to
the bit. If a repetition is not steady, more iterations are run, and finally all. Pipelines, whose ranks do different
things at one time, are run in full.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..base.quick import replace
from ..network import Cluster
from ..program import Program
from ..program.excerpts import Excerpt, RepetitionCut, excerpt_of, iteration_of
from ..program.instructions import length_of
from .classes import joined
from .core import Interference, SimulationEngine, Submission
from .instances import Assignment, Cost
from .system import SimulatedRank, System

Floats = NDArray[np.float64]
Times = tuple[Floats, Floats]

#: Iterations run of a repetition: one to reach the steady state, four to prove it, and the last one.
SIMULATED_ITERATIONS = 6
#: Runs of an excerpt, each with the repetitions in full that were not steady before; then everything is run.
ATTEMPTS = 3
#: Programs of fewer instructions are run in full: looking for iterations would take as long.
LEAST_INSTRUCTIONS = 4096


def execute(
    cluster: Cluster,
    cost: Cost,
    assignment: Assignment,
    *,
    interference: Interference | None = None,
    every_rank: bool = False,
    every_iteration: bool = False,
) -> Submission:
    """Run an assignment alone on a cluster, from time 0 to its end.

    Parameters
    ----------
    cost
        Operator → seconds on the cluster's devices.
    interference
        Slowdown of kernels and transfers that run together; None: none.
    every_rank
        Run every rank, not one for each class of equal ones.
    every_iteration
        Run every iteration of every repetition; the result is the same.

    Raises
    ------
    DeadlockError
        Programs wait for each other; raised when the makespan is read.
    """

    def run(programs: tuple[Program, ...]) -> tuple[Submission, float]:
        engine = SimulationEngine(cluster, cost, interference=interference, every_rank=every_rank)
        prepared = engine.prepare(replace(assignment, programs=programs))
        tick_s = tick_of(engine.system(prepared), assignment)
        engine.machine.calendar.tick(tick_s)
        submission = engine.launch(prepared)
        engine.run()
        return submission, tick_s

    lengths = np.array([sum(map(length_of, program.items)) for program in assignment.programs])
    issued = int(lengths[assignment.role_of[assignment.mesh.ranks]].sum() if every_rank else lengths.sum())
    refused: set[RepetitionCut] = set()
    for _ in range(0 if every_iteration or issued < LEAST_INSTRUCTIONS else ATTEMPTS):
        excerpt = excerpt_of(assignment.programs, refused, SIMULATED_ITERATIONS)
        if excerpt is None:
            break
        submission, tick_s = run(excerpt.programs)
        unsteady = write_out(submission, assignment, excerpt, exact_until_s=2.0**53 * tick_s)
        if not unsteady:
            return submission
        refused |= unsteady
    return run(assignment.programs)[0]


def tick_of(system: System, assignment: Assignment) -> float:
    """Tick of a run in seconds: a power of two, of which a double holds all multiples up to the end of the run.

    ``system`` may be that of an excerpt; the tick suits the whole programs. Times are exact in runs of up to
    :data:`MARGIN` times the sum of the first rank's instructions; the tick is about 10⁻¹⁴ of that sum.
    """
    first = system.ranks[0]
    program = assignment.programs[int(assignment.role_of[first.rank.number])]
    horizon_s = MARGIN * system.horizon_s(replace(first.role, program=program))
    return 2.0 ** (math.frexp(horizon_s)[1] - 52) if horizon_s > 0.0 else 0.0


#: Longest run with exact times, over the sum of the first rank's instructions.
MARGIN = 64.0


def write_out(
    submission: Submission, assignment: Assignment, excerpt: Excerpt, *, exact_until_s: float
) -> set[RepetitionCut]:
    """Write the cut iterations into the submission if every repetition was steady; return the cuts that were not.

    Times up to ``exact_until_s`` on the clock are exact.
    """
    ranks = submission.ranks
    times = [(np.array(simulated.rank.start_s), np.array(simulated.rank.end_s)) for simulated in ranks]
    if not all(all(simulated.rank.done) for simulated in ranks):
        return {*excerpt.inner, *excerpt.outer}
    roles = [int(assignment.role_of[simulated.rank.number]) for simulated in ranks]
    together = components(ranks, submission)
    for cuts, programs in ((excerpt.inner, excerpt.programs), (excerpt.outer, excerpt.between)):
        unsteady = set()
        for cut in reversed(cuts):
            iterations = {number: Iterations.of(programs[number], cut) for number in set(roles)}
            placed = [[(index, iterations[roles[index]]) for index in component] for component in together]
            periods = [steady(component, times) for component in placed]
            for component, period in zip(placed, periods, strict=True):
                if period is None:
                    unsteady.add(cut)
                    continue
                for index, where in component:
                    times[index] = inserted(times[index], where, cut, *period)
        if unsteady:
            return unsteady
    if max(float(end.max(initial=0.0)) for _, end in times) > exact_until_s:
        return {*excerpt.inner, *excerpt.outer}
    whole = {}
    for simulated, number in zip(ranks, roles, strict=True):
        if number not in whole:
            whole[number] = simulated.role.written_out(assignment.programs[number])
    full = [replace(simulated, role=whole[number]) for simulated, number in zip(ranks, roles, strict=True)]
    submission.replace_result(full, times)
    return set()


@dataclass(frozen=True)
class Iterations:
    """Kept iterations of a cut: position of the first in a program, instructions of one, and these by stream."""

    first: int
    length: int
    streams: tuple[NDArray[np.int64], ...]

    @classmethod
    def of(cls, program: Program, cut: RepetitionCut) -> Iterations:
        first, names = iteration_of(program, cut)
        places: dict[str, list[int]] = {}
        for index, name in enumerate(names):
            places.setdefault(name, []).append(index)
        return cls(first, len(names), tuple([np.array(indices) for indices in places.values()]))


def components(ranks: Sequence[SimulatedRank], submission: Submission) -> list[list[int]]:
    """Groups of ranks that can affect each other: they share channels, or have channels that share links."""
    place: dict[object, int] = {simulated.rank.device: index for index, simulated in enumerate(ranks)}
    first_of_region: dict[int, int] = {}
    places = ((place[device], channel.region) for channel in submission.system.channels for device in channel.devices)
    return joined(len(ranks), ((index, first_of_region.setdefault(region, index)) for index, region in places))


def steady(component: Sequence[tuple[int, Iterations]], times: Sequence[Times]) -> tuple[float, float] | None:
    """(period, end of the proven steady state) of the kept iterations on these ranks, in seconds; None: not steady."""
    period_s: float | None = None
    begin_s, end_s = -np.inf, np.inf
    for index, where in component:
        for column in times[index]:
            kept = kept_iterations(column, where)
            steps = np.diff(kept[1:-1], axis=0)
            period_s = float(steps[0, 0]) if period_s is None else period_s
            if not (steps == period_s).all():
                return None
        start, end = (kept_iterations(column, where) for column in times[index])
        for stream in where.streams:
            begin_s = max(begin_s, float(start[1, stream].min()))
            end_s = min(end_s, float(end[-2, stream].max()))
    if period_s is None or period_s <= 0.0 or end_s - begin_s < 2.0 * period_s:
        return None
    for index, where in component:
        start, end = (np.concatenate(outside(column, where)) for column in times[index])
        if bool(((end > begin_s) & (start < end_s)).any()):
            return None
    return period_s, end_s


def kept_iterations(column: Floats, where: Iterations) -> Floats:
    """Times of the kept iterations, shape (iterations, instructions)."""
    rows = SIMULATED_ITERATIONS, where.length
    return column[where.first : where.first + rows[0] * rows[1]].reshape(rows)


def outside(column: Floats, where: Iterations) -> tuple[Floats, Floats]:
    """Times of the instructions before and after the kept iterations in the program."""
    return column[: where.first], column[where.first + SIMULATED_ITERATIONS * where.length :]


def inserted(times: Times, where: Iterations, cut: RepetitionCut, period_s: float, until_s: float) -> Times:
    """Times of a rank with the iterations that were cut; instructions outside them that ran after ``until_s`` move to
    later times."""
    more = cut.total - SIMULATED_ITERATIONS
    later_s = more * period_s
    late = [part >= until_s for part in outside(times[0], where)]
    new_s = period_s * np.arange(1, more + 1)[:, None]
    result = []
    for column in times:
        kept = kept_iterations(column, where)
        before, after = (part + later_s * shifted for part, shifted in zip(outside(column, where), late, strict=True))
        iterations = np.concatenate([kept[:-1], kept[-2] + new_s, kept[-1:] + later_s])
        result.append(np.concatenate([before, iterations.reshape(-1), after]))
    return result[0], result[1]
