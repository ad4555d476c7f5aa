"""What served runs say of an engine's numbers: ``python benchmarks/serving_stacks.py DATA ROWS [DATA ROWS]``.

DATA is a folder of measured tables, ROWS what ``tspsim validate --data DATA --rows ROWS`` wrote about it; further pairs
add rows, such as those that ship with the package. Times per output token of a third of the configurations
(:func:`tspsim.validation.served.groups.fitted`) are fitted by

    predicted + (d step + d sequence · sequences + d layer · layers + d routed · layers with experts
                 + d skew · 2 · layers · log2(ranks)) / tokens a step

soft-L1 over the logarithm, each increment pulled to zero by a prior of its own: what is printed is what the stacks'
numbers should change by, near zero where they are the fit's own. The time to the first token has one number of its own,
the front end's, fitted likewise. Beside it errors on the other two thirds, and on every GPU and every model that was
left out of the fit, an engine's versions together; ``--markdown`` prints these alone, as docs/validation.md has them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from tspsim.model import load_model
from tspsim.parallel.stack_spec import load_stack
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
    "vllm": (1, 3, 4), "sglang": (0, 1, 2, 3, 4, 5), "sglang@0.5.6": (0, 1, 2, 3, 4, 5),
    "sglang@0.5.9": (0, 1, 2, 3, 4, 5), "trtllm": (1, 3),
    "trtllm@1.0": (0, 3, 4), "atom": (0, 1, 2, 3, 5),
}  # fmt: skip
#: The same of the front end, in milliseconds.
FRONT_PRIOR = 100.0
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
        if not (data / name).is_file():
            continue
        table, predicted = read(data / name), read(rows / name)
        runs = mend(table).runs
        firsts = first_tokens(table, predicted, runs)
        for place, run in enumerate(runs):
            tpot = name.endswith("silicon.csv") or table["metric"][place] == "TPOT mean ms"
            value, measured = predicted["predicted"][place], table[column][place]
            if isinstance(run, ServedRun) and tpot and value and measured and run.concurrency is not None:
                found.append(_line(run, float(measured), float(value), firsts.get(run, (np.nan, np.nan))))
    return pd.DataFrame(found)


def first_tokens(
    table: pd.DataFrame, predicted: pd.DataFrame, runs: list[ServedRun | str]
) -> dict[ServedRun, tuple[float, float]]:
    """Measured and predicted time to the first token of every run, in milliseconds."""
    silicon_ = "silicon_ttft_ms" in table
    found = {}
    for place, run in enumerate(runs):
        if not isinstance(run, ServedRun) or not (silicon_ or table["metric"][place] == "TTFT mean ms"):
            continue
        measured = table["silicon_ttft_ms" if silicon_ else "value"][place]
        value = predicted["predicted_silicon_ttft_ms" if silicon_ else "predicted"][place]
        if measured and value:
            found[run] = float(measured), float(value)
    return found


def _line(run: ServedRun, measured: float, predicted: float, first: tuple[float, float]) -> dict[str, object]:
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
        "first measured": first[0], "first predicted": first[1],
        "acts": acts / tokens, "fitted": fitted(run), "plain": not plan.drafts and run.prefill is None,
    }  # fmt: skip


def shipped(stack: str) -> np.ndarray:
    """What the stack has of NAMES, in their units: as much as an increment may take away."""
    engine = load_stack(stack).stack().engine
    assert engine is not None
    seen = 1.0 - engine.hidden
    skews = [engine.on(device).skew.value for device in (HOPPER[0], "b200")]
    host = (1e3 * seen * engine.step.value, 1e6 * seen * engine.sequence.value)
    return np.array([*host, *(1e6 * np.array([engine.layer.value, engine.routed.value, *skews]))])


def fit(rows: pd.DataFrame, stack: str) -> np.ndarray:
    """Increments of NAMES; those that are not free stay zero, and no time becomes negative."""
    chosen = list(FREE[stack])
    acts = np.stack(list(rows["acts"]))[:, chosen]
    measured, predicted = rows["measured"].to_numpy(), rows["predicted"].to_numpy()

    def residuals(increments: np.ndarray) -> np.ndarray:
        found = np.maximum(predicted + acts @ increments, 1e-2)
        return np.concatenate([np.log(found / measured), increments / PRIOR[chosen]])

    answer = np.zeros(len(NAMES))
    bounds = -shipped(stack)[chosen] - 1e-9, np.inf
    answer[chosen] = least_squares(residuals, np.zeros(len(chosen)), bounds=bounds, loss="soft_l1", f_scale=SOFT).x
    return answer


def front_end(rows: pd.DataFrame) -> float:
    """Milliseconds that a front end's time should change by."""
    known = rows.dropna(subset=["first measured"])
    measured, predicted = known["first measured"].to_numpy(), known["first predicted"].to_numpy()

    def residuals(change: np.ndarray) -> np.ndarray:
        return np.concatenate([np.log(np.maximum(predicted + change, 1.0) / measured), change / FRONT_PRIOR])

    return float(least_squares(residuals, np.zeros(1), loss="soft_l1", f_scale=SOFT).x[0]) if len(known) else 0.0


def off(rows: pd.DataFrame, increments: np.ndarray, front_ms: float = 0.0) -> pd.DataFrame:
    """Errors of both times, per cent."""
    found = rows["predicted"].to_numpy() + np.stack(list(rows["acts"])) @ increments
    first = (rows["first predicted"] + front_ms) / rows["first measured"] - 1.0
    return pd.DataFrame({"token": 100.0 * np.abs(found / rows["measured"] - 1.0), "first": 100.0 * first.abs()})


def errors(rows: pd.DataFrame, increments: np.ndarray, front_ms: float = 0.0) -> str:
    """Of both times, in words."""
    if rows.empty:
        return "no rows"
    each = off(rows, increments, front_ms)
    return f"{len(rows):4d} rows, {told(each, ' median, ', ' mean; first token ')} median"


def told(each: pd.DataFrame, *between: str) -> str:
    """Median and mean of the time per output token, and median of that to the first."""
    return f"{each['token'].median():.1f}{between[0]}{each['token'].mean():.1f}{between[1]}{each['first'].median():.1f}"


def left_out(every: pd.DataFrame) -> list[tuple[str, str, str, pd.DataFrame]]:
    """(engine, ``device`` or ``model``, name, errors) of every GPU and model, by fits without it. Versions of an engine
    are fitted each for itself; where one has too few runs without it, its numbers stay, and where all have (a
    GPU that an engine alone ran on) there is nothing to tell."""
    found = []
    plain = every[every["plain"]]
    for engine, versions in plain.groupby(plain["engine"].str.split("@").str[0]):
        for kind in ("device", "model"):
            for name, left in versions.groupby(kind):
                parts, refitted = [], False
                for version, rows in left.groupby("engine"):
                    rest = versions[(versions["engine"] == version) & versions["fitted"] & (versions[kind] != name)]
                    enough = len(rest) >= 2 * len(FREE[str(version)])
                    refitted |= enough
                    increments = fit(rest, str(version)) if enough else np.zeros(len(NAMES))
                    parts.append(off(rows, increments, front_end(rest) if enough else 0.0))
                if refitted and len(left) >= 4:
                    found.append((str(engine), kind, str(name), pd.concat(parts)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="What served runs say of an engine's numbers.")
    parser.add_argument("pairs", type=Path, nargs="+", metavar="DATA ROWS")
    parser.add_argument("--markdown", action="store_true", help="the table of what was left out, alone")
    asked = parser.parse_args()
    if len(asked.pairs) % 2:
        parser.error("takes pairs: a folder of measured tables, and what validate wrote about it")
    pairs = zip(asked.pairs[::2], asked.pairs[1::2], strict=True)
    every = pd.concat([rows_of(data, rows) for data, rows in pairs], ignore_index=True)
    if asked.markdown:
        print("| engine | left out | rows | TPOT median / mean | TTFT median |\n|---|---|---:|---:|---:|")
        for stack, _, name, each in left_out(every):
            print(f"| `{stack}` | {name} | {len(each)} | {told(each, ' / ', ' | ')} |")
        return
    for engine, rows in every[every["plain"]].groupby("engine"):
        free = FREE[str(engine)]
        mine, others = rows[rows["fitted"]], rows[~rows["fitted"]]
        increments = fit(mine, str(engine))
        changes = ", ".join(f"{NAMES[index]} {increments[index]:+.2f}" for index in free)
        print(f"{engine}: {changes}")
        print(f"  as they are, not fitted on   {errors(others, np.zeros(len(NAMES)))}")
        front_ms = front_end(mine)
        print(f"  changed so, front end {front_ms:+.0f} ms   {errors(others, increments, front_ms)}")
    for stack, _, name, each in left_out(every):
        print(f"{stack}, {name} left out   {len(each):4d} rows, {told(each, ' median, ', ' mean; first token ')}")


if __name__ == "__main__":
    main()
