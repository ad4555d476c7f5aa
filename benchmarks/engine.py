"""What the engine costs beside bare SimPy: ``python benchmarks/engine.py [--repeats N] [--json FILE]``.

TSP8-published and TP8 of ``tsp-vs-tpsp-1024-mi300x`` run with every rank (1,024 ranks, 32 layers) and every iteration
and, in the same process and turn by turn, a SimPy loop with nothing but the same number of processes, timeouts and
joins:

    processes   one a stream of every rank
    timeouts    one a kernel of every rank, one a transfer and one for its latency, one each time an end moves
    joins       one each time an instruction waits, for a rendezvous and its transfer or for another stream

An end moves when a rate changes: a kernel beside which data begins or ceases to move, a transfer that gets another
share. The cheapest that bare SimPy has for it is another timeout (an interrupt costs several). A join of the bare loop
is the cheapest SimPy knows too: a plain event that is triggered and yielded. Medians of the repeats are printed, of the
wall's clock and of the processor's; the ratio is of the processor's, which a busy machine disturbs less, and each is
taken between an engine run and the bare run right after it. Beside it stands the ratio to a loop in which no end ever
moves and no transfer has a latency. Then: every rank with steady iterations written out instead of run, and folded
ranks with both.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import simpy

import tspsim
from tspsim.engine.core import Submission
from tspsim.hardware import Costs
from tspsim.network.fluid import Calendar
from tspsim.parallel import Plan, build_mesh
from tspsim.step.simulation import Question, look_up, run

SCENARIO = "tsp-vs-tpsp-1024-mi300x"
PLANS = ("TSP8-published", "TP8")


@dataclass(frozen=True)
class Counts:
    """What a simulation had to do, in SimPy's terms."""

    processes: int
    timeouts: int
    joins: int
    #: Of the timeouts: latencies of transfers, and ends that moved.
    latencies: int = 0
    moves: int = 0

    def unmoved(self) -> Counts:
        """The same without moved ends and latencies."""
        return Counts(self.processes, self.timeouts - self.latencies - self.moves, self.joins)


class Seconds(NamedTuple):
    """Of one run, by the clock on the wall and by the processor's."""

    wall: float
    processor: float


@dataclass(frozen=True)
class Measurement:
    """Medians over the repeats of one plan; ``first_folded_s`` is of the run that found no kernel or route costed."""

    plan: str
    instructions: int
    counts: Counts
    engine_s: Seconds
    bare_s: Seconds
    ratio: float
    unmoved_ratio: float
    steady_s: Seconds
    first_folded_s: Seconds
    folded_s: Seconds

    def __str__(self) -> str:
        counts = self.counts
        return "\n".join(
            [
                f"{self.plan}: {self.instructions:,} instructions; {counts.processes:,} processes, "
                f"{counts.timeouts:,} timeouts (of which {counts.moves:,} moved ends), {counts.joins:,} joins",
                f"  every rank  {self.engine_s.wall:7.3f} s  (processor {self.engine_s.processor:.3f} s, "
                f"{self.instructions / self.engine_s.processor / 1e3:.0f} thousand instructions/s)",
                f"  bare SimPy  {self.bare_s.wall:7.3f} s  (processor {self.bare_s.processor:.3f} s)",
                f"  ratio       {self.ratio:7.2f}  ({self.unmoved_ratio:.2f} to a loop in which no end moves)",
                f"  every rank, steady iterations written out  {self.steady_s.processor:.3f} s of processor",
                f"  folded too  {self.folded_s.processor:7.3f} s of processor  (the first time "
                f"{self.first_folded_s.processor:.3f} s)",
            ]
        )


def simulate(question: Question, plan: Plan, *, every_rank: bool, every_iteration: bool = False) -> Submission:
    """From a plan to its finished timeline: programs, mesh, channels and the run."""
    cluster = question.cluster
    mesh = build_mesh(plan, cluster.gpus, cluster.gpus_per_node)
    costs = Costs(question.device)
    return run(question, mesh, question.job(plan), costs, every_rank=every_rank, every_iteration=every_iteration)


def count(submission: Submission) -> Counts:
    """Count what every rank did: read from the folded run, whose ranks stand for ``size`` each."""
    columns = submission.timeline.columns()
    processes = kernels = joins = 0
    for simulated in submission.ranks:
        mine = columns["rank"] == simulated.rank.number
        end_s = dict(zip(columns["label"][mine].tolist(), columns["end_s"][mine].tolist(), strict=True))
        first = int(columns["label"][mine].min())
        waits = 0
        for steps in simulated.role.streams.values():
            ready_s = 0.0
            for step in steps:
                for other in step.after:
                    if end_s[first + other] > ready_s:
                        ready_s = end_s[first + other]
                        waits += 1
                kernels += simulated.size * step.is_compute
                waits += bool(step.meets)
                ready_s = end_s[first + step.number]
        joins += simulated.size * waits
        processes += simulated.size * len(simulated.role.streams)
    return Counts(processes, kernels, joins)


def transfers(submission: Submission) -> int:
    """How many transfers a run with every rank made."""
    return sum(submission.system.uses().values())


def moved_ends(question: Question, plan: Plan) -> int:
    """How often an end moved in a run with every rank."""
    moved, move = [0], Calendar.move

    def counted(*arguments: Any) -> None:
        moved[0] += 1
        move(*arguments)

    with patch.object(Calendar, "move", counted):
        simulate(question, plan, every_rank=True, every_iteration=True)
    return moved[0]


def bare(counts: Counts) -> None:
    """SimPy and nothing else."""
    env = simpy.Environment()

    def stream(timeouts: int, joins: int, delay_s: float) -> Generator[simpy.Event, None, None]:
        # Timeouts and joins in turn, as kernels and waits are.
        for turn in range(max(timeouts, joins)):
            if turn < timeouts:
                yield env.timeout(delay_s)
            if turn < joins:
                join = env.event()
                join.succeed()
                yield join

    for process in range(counts.processes):
        timeouts, joins = (share(total, counts.processes, process) for total in (counts.timeouts, counts.joins))
        # Ranks of a real run are not in step to the last digit, so neither are these.
        env.process(stream(timeouts, joins, 1e-3 * (1.0 + process / counts.processes)))
    env.run()


def share(total: int, parts: int, index: int) -> int:
    """``total`` in ``parts`` as equal as whole numbers allow."""
    return total * (index + 1) // parts - total * index // parts


def timed(work: Callable[[], object]) -> Seconds:
    """Seconds of one run, without the collector, as the engine itself runs."""
    gc.collect()
    gc.disable()
    try:
        begin = Seconds(time.perf_counter(), time.process_time())
        work()
        return Seconds(time.perf_counter() - begin.wall, time.process_time() - begin.processor)
    finally:
        gc.enable()


def median(runs: Sequence[Seconds]) -> Seconds:
    return Seconds(statistics.median(run.wall for run in runs), statistics.median(run.processor for run in runs))


def measure(question: Question, plan: Plan, repeats: int) -> Measurement:
    """Engine and bare loop turn by turn, so that both meet the same weather."""
    first = timed(lambda: simulate(question, plan, every_rank=False))
    counts = count(simulate(question, plan, every_rank=False, every_iteration=True))
    folded = [timed(lambda: simulate(question, plan, every_rank=False)) for _ in range(repeats)]
    steady = [timed(lambda: simulate(question, plan, every_rank=True)) for _ in range(repeats)]
    submission = simulate(question, plan, every_rank=True)
    instructions = len(submission.timeline)
    latencies, moves = transfers(submission), moved_ends(question, plan)
    counts = replace(counts, timeouts=counts.timeouts + 2 * latencies + moves, latencies=latencies, moves=moves)
    del submission
    engine, loop, unmoved = [], [], []
    for _ in range(repeats):
        engine.append(timed(lambda: simulate(question, plan, every_rank=True, every_iteration=True)))
        loop.append(timed(lambda: bare(counts)))
        unmoved.append(timed(lambda: bare(counts.unmoved())))
    ratios = [
        statistics.median(bare.processor / own.processor for bare, own in zip(loops, engine, strict=True))
        for loops in (loop, unmoved)
    ]
    rest = (median(steady), first, median(folded))
    return Measurement(plan.name, instructions, counts, median(engine), median(loop), *ratios, *rest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    measured = []
    for name in PLANS:
        question = look_up(tspsim.load(SCENARIO))
        plan = next(plan for plan in question.plans if plan.name == name)
        found = measure(question, plan, arguments.repeats)
        measured.append(found)
        print(found, flush=True)
    unit = 1 if sys.platform == "darwin" else 1024
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
    print(f"peak RSS {peak_gb:.2f} GB")
    if arguments.json:
        document = {
            "scenario": SCENARIO,
            "plans": [vars(found) | {"counts": asdict(found.counts)} for found in measured],
            "peak_rss_gb": peak_gb,
        }
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
