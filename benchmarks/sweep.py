"""How fast a sweep is beside single calls: ``python benchmarks/sweep.py [--plans TP8,SP8] [--jobs N] [--json FILE]``.

500 points (20 sequences × 25 cluster sizes) of ``tsp-vs-tpsp-1024-mi300x``, folded, are swept into a store on disk;
starting the workers is part of the time. In the same run every tenth point is asked alone, with ``tspsim.load`` and
``tspsim.simulate`` in this process, and the time of all of them is ten times that. The ratio of the two times is the
figure to look at, for both slow down alike on a busy machine. It is what the workers, the look-ups that remember and
the collector that rests bring together.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import tspsim
from tspsim.studies import Sweep

SCENARIO = "tsp-vs-tpsp-1024-mi300x"
OVER = ("workload.sequence=16Ki..92Ki+4Ki", "cluster.nodes=1..25")
ONE_IN = 10


def measure(plans: str, jobs: int) -> dict[str, float]:
    """Seconds and rates of the sweep and of the single calls."""
    sweep = Sweep(SCENARIO, [*OVER, f"plans=[{plans}]"])
    with tempfile.TemporaryDirectory() as folder:
        begin_s, before_s = time.perf_counter(), processor_s()
        table = sweep.run(store=Path(folder) / "benchmark.sqlite", jobs=jobs)
        sweep_s, busy_s = time.perf_counter() - begin_s, processor_s() - before_s
    assert table.ran == len(table), "every point of the benchmark runs"
    sample = sweep.points[::ONE_IN]
    tspsim.simulate(sweep.scenario_at(sample[0]))  # what is imported once is not measured here
    begin_s = time.perf_counter()
    for point in sample:
        tspsim.simulate(sweep.scenario_at(point))
    single_s = (time.perf_counter() - begin_s) * len(sweep.points) / len(sample)
    return {
        "points": len(sweep.points),
        "plans_a_point": len(table) / len(sweep.points),
        "jobs": jobs,
        "sweep_s": sweep_s,
        "points_per_s": len(sweep.points) / sweep_s,
        "processor_s_a_point": busy_s / len(sweep.points),
        "single_s": single_s,
        "single_points_per_s": len(sweep.points) / single_s,
        "ratio": single_s / sweep_s,
    }


def processor_s() -> float:
    """Processor time of this process and of the workers that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", action="append", help="plans of every point, by name; repeatable")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    measured = {plans: measure(plans, arguments.jobs) for plans in arguments.plans or ["TP8", "TP8,SP8", "TSP8"]}
    for plans, numbers in measured.items():
        print(f"{plans}: {numbers['points_per_s']:.1f} points/s with {arguments.jobs} jobs, "
              f"{1000 * numbers['processor_s_a_point']:.0f} ms of processor a point; single calls "
              f"{numbers['single_points_per_s']:.1f} points/s; {numbers['ratio']:.2f} times as fast")  # fmt: skip
    if arguments.json:
        arguments.json.write_text(json.dumps(measured, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
