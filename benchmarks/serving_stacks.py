"""What served runs say of an engine's numbers: ``python benchmarks/serving_stacks.py DATA ROWS``.

DATA is a folder of measured tables, ROWS what ``tspsim validate --data DATA --rows ROWS`` wrote about it. Times per
output token of a third of the configurations (:func:`tspsim.validation.served.groups.fitted`) are fitted by

    predicted + (d step + d sequence · sequences + d layer · layers + d routed · layers with experts
                 + d skew · 2 · layers · log2(ranks)) / tokens a step

soft-L1 over the logarithm, each increment pulled to zero by a prior of its own: what is printed is what the stacks'
numbers should change by, near zero where they are the fit's own. Beside it errors on the other two thirds, and on every
GPU and every model that was left out of the fit.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from tspsim.model import load_model
from tspsim.validation.run import read
from tspsim.validation.served import published, silicon
from tspsim.validation.served.groups import fitted
from tspsim.validation.served.replayed import drafting
from tspsim.validation.served.run import ServedRun

NAMES = ("step ms", "sequence us", "layer us", "routed us", "skew us, Hopper", "skew us, others")
#: How far from zero an increment costs as much as an error of a factor e.
PRIOR = np.array([1.0, 33.0, 16.0, 33.0, 10.0, 10.0])
#: Increments that an engine's fit has.
FREE = {
    "vllm": (1, 3, 4), "sglang": (0, 1, 2, 3, 4, 5), "sglang@0.5.6": (0, 1, 2, 3, 4, 5), "trtllm": (1, 3),
    "trtllm@1.0": (0, 3, 4), "atom": (0, 1, 2, 3, 5),
}  # fmt: skip
#: An error beyond this share counts by its size, not its square.
SOFT = 0.08
HOPPER = ("h100", "h200")


def rows_of(data: Path, rows: Path) -> pd.DataFrame:
    """One line a measured run: the measured and the predicted time per output token, and what increments act on."""
    found = []
    for name, mend, column in (
        ("published/serving_silicon.csv", silicon.mend, "silicon_tpot_ms"),
        ("published/inference.csv", published.mend, "value"),
    ):
        table, predicted = read(data / name), read(rows / name)
        for place, run in enumerate(mend(table).runs):
            tpot = name.endswith("silicon.csv") or table["metric"][place] == "TPOT mean ms"
            value, measured = predicted["predicted"][place], table[column][place]
            if isinstance(run, ServedRun) and tpot and value and measured and run.concurrency is not None:
                found.append(_line(run, float(measured), float(value)))
    return pd.DataFrame(found)


def _line(run: ServedRun, measured: float, predicted: float) -> dict[str, object]:
    plan, model = run.plan, load_model(run.plan.model)
    assert run.concurrency is not None
    ranks = max(plan.tp, plan.ep)
    engine = plan.stack.removesuffix("@0.19").removesuffix("@0.17")
    waits = 2e-3 * model.layers * np.log2(ranks)
    tokens = drafting(plan).served(plan.model).speculation().accepted if plan.drafts else 1.0
    acts = np.array(
        [
            1.0,
            1e-3 * run.concurrency / (plan.dp * run.replicas),
            1e-3 * model.layers,
            1e-3 * sum(block.experts for block in model.blocks),
            waits if plan.device in HOPPER else 0.0,
            0.0 if plan.device in HOPPER else waits,
        ]
    )
    return {
        "engine": engine, "device": plan.device, "model": plan.model, "measured": measured, "predicted": predicted,
        "acts": acts / tokens, "fitted": fitted(run), "plain": not plan.drafts and run.prefill is None,
    }  # fmt: skip


def fit(rows: pd.DataFrame, free: tuple[int, ...]) -> np.ndarray:
    """Increments of NAMES; those that are not free stay zero."""
    chosen = list(free)
    acts = np.stack(list(rows["acts"]))[:, chosen]
    measured, predicted = rows["measured"].to_numpy(), rows["predicted"].to_numpy()

    def residuals(increments: np.ndarray) -> np.ndarray:
        found = np.maximum(predicted + acts @ increments, 1e-2)
        return np.concatenate([np.log(found / measured), increments / PRIOR[chosen]])

    answer = np.zeros(len(NAMES))
    answer[chosen] = least_squares(residuals, np.zeros(len(chosen)), loss="soft_l1", f_scale=SOFT).x
    return answer


def errors(rows: pd.DataFrame, increments: np.ndarray) -> str:
    """Median and mean of the error, per cent."""
    if rows.empty:
        return "no rows"
    found = rows["predicted"].to_numpy() + np.stack(list(rows["acts"])) @ increments
    error = 100.0 * np.abs(found / rows["measured"].to_numpy() - 1.0)
    return f"{len(rows):4d} rows, {np.median(error):5.1f} median, {error.mean():5.1f} mean"


def main() -> None:
    parser = argparse.ArgumentParser(description="What served runs say of an engine's numbers.")
    parser.add_argument("data", type=Path)
    parser.add_argument("rows", type=Path)
    asked = parser.parse_args()
    every = rows_of(asked.data, asked.rows)
    for engine, rows in every[every["plain"]].groupby("engine"):
        free = FREE[str(engine)]
        mine, others = rows[rows["fitted"]], rows[~rows["fitted"]]
        increments = fit(mine, free)
        told = ", ".join(f"{NAMES[index]} {increments[index]:+.2f}" for index in free)
        print(f"{engine}: {told}")
        print(f"  as they are, not fitted on   {errors(others, np.zeros(len(NAMES)))}")
        print(f"  changed so, not fitted on    {errors(others, increments)}")
        for kind in ("device", "model"):
            for name, left in rows.groupby(kind):
                rest = mine[mine[kind] != name]
                if len(rest) >= 2 * len(free) and len(left) >= 4:
                    print(f"  {name} left out of the fit   {errors(left, fit(rest, free))}")


if __name__ == "__main__":
    main()
