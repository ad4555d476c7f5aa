"""How far whole training runs lie from what is simulated, framework by framework left out: the ``spread`` of stacks of
plain PyTorch.

    tspsim validate --data DIR --rows ROWS            DIR/published/training_frameworks.csv
    tspsim validate --data benchmarks/unseen --rows UNSEEN
    python benchmarks/between_frameworks.py {ROWS,UNSEEN}/published/training_frameworks.csv

Dense runs alone. A framework is the first word of a row's group. Of each one left out, the range is that of the others:
5 and 95 % of measured over simulated time, a framework weighing as one, drawn a number of times as far from the median.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

#: What a range is to hold of a framework that it has not seen.
HELD = 0.9
WIDER = np.arange(1.0, 3.05, 0.1)


def runs_of(files: Iterable[Path]) -> pd.DataFrame:
    """Framework, and the logarithm of measured over simulated time, of every dense run that was predicted."""
    rows = pd.concat([pd.read_csv(file) for file in files])
    rows = rows[rows["predicted"].notna() & ~rows["group"].str.contains("MoE")]
    time = np.log(rows["predicted"] / rows["published"])
    return pd.DataFrame({"framework": rows["group"].str.split().str[0], "time": time})


def span(runs: pd.DataFrame, wider: float) -> tuple[float, float]:
    """Between which logarithms nine of ten runs lie, drawn ``wider`` times as far from the median."""
    weights = (1.0 / runs.groupby("framework")["time"].transform("size")).to_numpy()
    times = runs["time"].to_numpy()
    order = np.argsort(times)
    shares: NDArray[np.float64] = np.cumsum(weights[order]) - weights[order] / 2.0
    low, middle, high = np.interp((0.05, 0.5, 0.95), shares / weights.sum(), times[order])
    return middle + (low - middle) * wider, middle + (high - middle) * wider


def held(runs: pd.DataFrame, wider: float) -> dict[str, float]:
    """Share of each framework's runs within the range of the others."""
    shares = {}
    for framework, own in runs.groupby("framework"):
        low, high = span(runs[runs["framework"] != framework], wider)
        shares[str(framework)] = float(own["time"].between(low, high).mean())
    return shares


def main() -> None:
    runs = runs_of(Path(name) for name in sys.argv[1:])
    wider = next((w for w in WIDER if np.mean(list(held(runs, w).values())) >= HELD), WIDER[-1])
    for factor in sorted({1.0, wider}):
        shares = held(runs, factor)
        words = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        low, high = np.exp(span(runs, factor))
        mean = np.mean(list(shares.values()))
        print(f"{factor:.1f} times as far: left out {mean:.0%} in the mean ({words}); all {low:.2f} to {high:.2f}")
        inside = runs["time"].between(*span(runs, factor)).mean()
        print(f"    {len(runs)} runs, {inside:.0%} of them inside")


if __name__ == "__main__":
    main()
