"""What choosing a schedule costs beside one simulation of it: ``python benchmarks/tuning.py [--repeats N]``.

For every question the tuner runs with nothing remembered, and then the plan that it chose is simulated, turn by turn in
one process. Medians of the processor's seconds; the ratio is of each pair.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import tspsim
from tspsim.step.simulation import look_up, run_plan
from tspsim.step.tuning import tuned

#: Name, scenario, and what is changed of it.
QUESTIONS = (
    ("forward, 8 ranks", "tsp-vs-tpsp-1024-mi300x", ("plans=[{name: TSP8, tsp: 8}]",)),
    ("forward, 16 ranks on two nodes", "tsp-vs-tpsp-1024-mi300x", ("plans=[{name: TSP16, tsp: 16}]",)),
    ("training, 8 ranks", "tsp-memory-8x-mi300x", ("plans=[{name: TSP8, tsp: 8, recomputation: full}]",)),
    (
        "70B training, 16 nodes",
        "plan-70b-128k-1024-mi355x",
        ("cluster.nodes=16", "plans=[{name: TSP8, tsp: 8, zero: 1}]"),
    ),
    ("ring exchange", "tsp-vs-tpsp-1024-mi300x", ("plans=[{name: SP8, sp: 8, exchange: ring}]",)),
)


def seconds(work: Callable[[], object]) -> float:
    """Of the processor."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description="What choosing a schedule costs.")
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    print(f"{'question':32} {'tuner, s':>9} {'run, s':>9} {'ratio':>7}")
    for name, scenario, overrides in QUESTIONS:
        pairs = []
        for _ in range(repeats):
            question = look_up(tspsim.load(scenario, overrides))
            (plan,) = question.plans
            job = question.job(plan)
            tuner_s = seconds(lambda: tuned(job, question.cluster, question.device))  # noqa: B023
            pairs.append((tuner_s, seconds(lambda: run_plan(question, plan))))  # noqa: B023
        tuner_s, run_s = (statistics.median(each) for each in zip(*pairs, strict=True))
        ratio = statistics.median([a / b for a, b in pairs])
        print(f"{name:32} {tuner_s:9.3f} {run_s:9.3f} {ratio:7.2f}")


if __name__ == "__main__":
    main()
