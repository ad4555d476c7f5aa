"""What a search for the best plan takes, from the scenario to its JSON, beside that of another checkout; and what it is
worth, on clusters for models with experts, against plans drawn at random.

    python benchmarks/planner.py [OLD] [--repeats 3] [--scenario NAME]...
    python benchmarks/planner.py --experts [NAME]... [--budget 40] [--random 200] [--refused 30]

Each search is a process of its own, imports included; the figure is its processor time, the least of some repeats, turn
by turn where there are two checkouts: a busy machine lengthens both. With OLD (a folder with another version of this
project) it also says whether the answers are the same. With --experts a line a cluster: budget, processor time, peak of
memory, the answer and its gap, and the best of those random legal plans that may be faster by their bounds, which beats
no answer by more than 1 %; and of the first others, which are simulated too where that is quick: a bound that is wrong
shows there, as a plan that beats the answer or is faster than its own bound.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
SCENARIOS = ("plan-70b-8k-1024-mi355x", "plan-70b-128k-1024-mi355x")
#: Seconds of processor time that a search may take.
BAR_S = 10.0
#: Clusters for models with experts: model, device, nodes, fabric, sequences of 4Ki tokens a step.
EXPERTS = {
    "v2-lite-8-h200": ("deepseek-v2-lite", "h200", 1, None, 64),
    "v2-lite-16-b200": ("deepseek-v2-lite", "b200", 2, "rail-optimised-400g", 64),
    "v2-lite-32-mi355x": ("deepseek-v2-lite", "mi355x", 4, "rails-400g", 128),
    "qwen3-30b-32-h200": ("qwen3-30b-a3b", "h200", 4, "rail-optimised-400g", 256),
    "gpt-oss-120b-64-mi300x": ("gpt-oss-120b", "mi300x", 8, "rails-400g", 256),
    "mixtral-128-mi300x": ("mixtral-8x22b", "mi300x", 16, "rails-400g", 512),
    "qwen3-235b-512-b200": ("qwen3-235b-a22b", "b200", 64, "rail-optimised-400g", 2048),
    "qwen3-235b-512-mi355x": ("qwen3-235b-a22b", "mi355x", 64, "rails-400g", 2048),
    "qwen3-235b-512-h200": ("qwen3-235b-a22b", "h200", 64, "rail-optimised-400g", 2048),
    "v3-1024-h200": ("deepseek-v3", "h200", 128, "rail-optimised-400g", 4096),
    "kimi-k2-2048-b200": ("kimi-k2", "b200", 256, "rail-optimised-400g", 4096),
}
#: Seconds up to which a simulation of what the bounds rule out is begun: some pipelines take minutes and gigabytes.
QUICK_S = 4.0
#: By what share a random plan may beat an answer.
TOLERANCE = 0.01


def searched(checkout: Path, scenario: str) -> tuple[float, str]:
    """Seconds of processor time of one search, and its JSON."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "tspsim", "plan", scenario, "--json", "-"],
        env=os.environ | {"PYTHONPATH": str(checkout)},
        cwd=checkout,
        check=True,
        capture_output=True,
        text=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def worth(name: str, budget_s: float, count: int, refused: int) -> None:
    """Print a line of one cluster with experts."""
    import itertools

    import tspsim
    from tspsim.step.simulation import run_plan
    from tspsim.studies.planner import Planner
    from tspsim.studies.planner.sample import drawn
    from tspsim.studies.planner.workers import scenario_of

    model, device, nodes, fabric, batch = EXPERTS[name]
    cluster = {"device": device, "nodes": nodes} | ({"fabric": fabric} if fabric else {})
    workload = {"model": model, "pass": "training", "sequence": "4Ki", "global_batch": batch}
    source = {"name": name, "cluster": cluster, "workload": workload, "plans": [{"name": "any"}]}
    begin_s = time.process_time()
    planner = Planner(tspsim.load(source), stated=False, jobs=1, budget_s=budget_s)
    planned = planner.only_best()
    took_s, best = time.process_time() - begin_s, planned.best[0]
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    search, fastest, rate, may = planner.search_at(planner.question.cluster.nodes), "", 0.0, 0
    behind: list[float] = []
    tight: list[float] = []
    wrong = 0
    for candidate in itertools.islice(drawn(search.shapes, search.capacity_bytes), count):
        bound_s = search.bound.step_s(candidate.job, candidate.mesh)
        admitted = bound_s < best.step_s  # whatever else there is of others, they are slower than the answer
        if not admitted:
            slow = search.bound.simulation_s(candidate.job, candidate.mesh) > QUICK_S
            if slow or len(behind) >= refused:
                continue
        may += admitted
        asked = planner.library.look_up(scenario_of(planned.scenario, candidate))
        result = run_plan(asked, asked.plans[0])
        if not result.ran:
            continue
        wrong += result.step_time_s < bound_s * (1 - 1e-9)
        if not admitted:
            behind.append(result.tokens_per_s / best.result.tokens_per_s)
            tight.append(bound_s / result.step_time_s)
        if result.tokens_per_s > rate:
            fastest, rate = candidate.name, result.tokens_per_s
    ratio = rate / best.result.tokens_per_s
    told = f"the best of those simulated {ratio:.3f} of it ({fastest})" if fastest else "none simulated"
    if behind:
        told += (
            f"; of {len(behind)} that may not the best {max(behind):.3f}, bounds {statistics.median(tight):.2f} of the "
            "steps in the median"
        )
    if wrong:
        told += f"; {wrong} FASTER THAN THEIR BOUND"
    print(
        f"{name}: budget {budget_s:g} s, {took_s:.1f} s of one processor, {peak_mb:.0f} MB; {best.candidate.name} "
        f"{best.result.tokens_per_s:,.0f} tokens/s, gap {100 * planned.gap:.1f} %, {planned.simulated} simulated; of "
        f"{count} random plans {may} may be faster by their bounds, {told}"
        f"{'' if ratio <= 1.0 + TOLERANCE else ' BEATEN'}",
        flush=True,
    )


def main() -> None:
    """Print a line a scenario."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="?", type=Path, help="another checkout")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scenario", action="append", help=f"in the place of {' and '.join(SCENARIOS)}")
    parser.add_argument("--experts", nargs="*", choices=[*EXPERTS, []], help="clusters with experts; none named: all")
    parser.add_argument("--budget", type=float, default=40.0, help="work of a search with --experts, in seconds")
    parser.add_argument("--random", type=int, default=200, help="plans drawn at random with --experts")
    parser.add_argument("--refused", type=int, default=30, help="so many of those that their bounds rule out run too")
    asked = parser.parse_args()
    if asked.experts is not None:
        for name in asked.experts or EXPERTS:
            worth(name, asked.budget, asked.random, asked.refused)
        return
    checkouts = [HERE] if asked.old is None else [asked.old.resolve(), HERE]
    for scenario in asked.scenario or SCENARIOS:
        took: dict[Path, list[float]] = {checkout: [] for checkout in checkouts}
        told: dict[Path, object] = {}
        for _ in range(asked.repeats):
            for checkout in checkouts:
                seconds, text = searched(checkout, scenario)
                took[checkout].append(seconds)
                told[checkout] = json.loads(text)
        least = [min(took[checkout]) for checkout in checkouts]
        line = f"{scenario}: {least[-1]:.1f} s of one processor (bar {BAR_S:.0f})"
        if asked.old is not None:
            same = "the same answer" if told[checkouts[0]] == told[HERE] else "ANOTHER ANSWER"
            line += f", {least[-1] / least[0]:.2f} of the {least[0]:.1f} s of {asked.old}, {same}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
