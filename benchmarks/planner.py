"""What a search for the best plan takes, from the scenario to its JSON, beside that of another checkout.

    python benchmarks/planner.py [OLD] [--repeats 3] [--scenario NAME]...

Each search is a process of its own, imports included; the figure is its processor time, the least of some repeats, turn
by turn where there are two checkouts: a busy machine lengthens both. With OLD (a folder with another version of this
project) it also says whether the answers are the same.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
SCENARIOS = ("plan-70b-8k-1024-mi355x", "plan-70b-128k-1024-mi355x")
#: Seconds of processor time that a search may take.
BAR_S = 10.0


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


def main() -> None:
    """Print a line a scenario."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="?", type=Path, help="another checkout")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scenario", action="append", help=f"in the place of {' and '.join(SCENARIOS)}")
    asked = parser.parse_args()
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
