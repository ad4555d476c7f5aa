"""How long a fleet of many jobs takes: seconds of a processor and memory, by the number of jobs.

``python benchmarks/fleet.py`` asks 10^4 and 10^5 jobs on 2,048 nodes under EASY backfill, 10^5 over half a year and
fewer over less, so that the load stays; ``--jobs 1000000`` asks others, ``--scheduler`` other policies.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

import numpy as np

from tspsim.fleet import JOB_SCHEDULERS, PLACEMENTS
from tspsim.fleet.clock import Fleet
from tspsim.fleet.jobs import FleetJob
from tspsim.fleet.nodes import Nodes

NODES, LEAF, GPUS, HALF_A_YEAR_S, LOAD = 2048, 32, 8, 182 * 86_400.0, 0.9


def jobs(count: int) -> list[FleetJob]:
    """Sizes of 1 to 128 nodes, log-normal durations, users who ask for up to four times what they need; the cluster is
    asked for nine tenths of its time."""
    random = np.random.default_rng(0)
    span_s = HALF_A_YEAR_S * count / 1e5
    submit, wide = np.sort(random.uniform(0.0, span_s, count)), 2 ** random.integers(0, 8, count)
    runs = random.lognormal(0.0, 1.5, count)
    runs *= LOAD * NODES * span_s / float((runs * wide).sum())
    says = runs * random.uniform(1.0, 4.0, count)
    rows = zip(submit.tolist(), wide.tolist(), runs.tolist(), says.tolist(), strict=True)
    return [
        FleetJob(number, f"job-{number}", "log", f"user {number % 20}", 0, at_s, (nodes,), (runs_s,), says_s)
        for number, (at_s, nodes, runs_s, says_s) in enumerate(rows)
    ]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--jobs", type=int, nargs="+", default=[10_000, 100_000])
    options.add_argument("--scheduler", default="easy")
    options.add_argument("--placement", default="packed")
    told = options.parse_args()
    for count in told.jobs:
        before_s = time.process_time()
        fleet = Fleet(
            jobs(count),
            Nodes([range(begin, begin + LEAF) for begin in range(0, NODES, LEAF)], GPUS),
            JOB_SCHEDULERS.get(told.scheduler)(),
            PLACEMENTS.get(told.placement)(),
            random=np.random.default_rng(1),
        )
        fleet.run()
        took_s = time.process_time() - before_s
        gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        starts = np.array([life.started_s for life in fleet.lives])
        wait_h = float((starts - np.array([job.submit_s for job in fleet.jobs])).mean()) / 3600.0
        sys.stdout.write(f"{count:,} jobs: {took_s:.1f} s, {gib:.2f} GiB at most so far; mean wait {wait_h:.2f} h\n")


if __name__ == "__main__":
    main()
