"""Writes the tables of docs/validation-training.md and docs/validation-experts.md.

    python docs/generate_training_validation.py ROWS

ROWS is the folder that ``tspsim validate --data DIR --rows ROWS`` wrote.

A configuration counts once: of the metrics of one run the step time, else the rate, else what there is. Errors are of
the metric, bias is of the rate: above zero where the prediction is faster. Runs whose degrees or batch were completed
(``predicted_taken``) count in the table by GPU alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pages import rewrite

from tspsim.validation.frameworks import stack_in_words, stack_of
from tspsim.validation.nanotron import TWINS, after_repair, turns_s, versions

PAGE, EXPERTS = (Path(__file__).with_name(f"validation-{name}.md") for name in ("training", "experts"))
#: Metrics of a run in the order in which they are looked for.
METRICS = ("step_time_s", "tokens/s/gpu", "TFLOP/s/gpu", "MFU", "HFU")
#: Columns that tell one configuration of training.csv from another.
PLAN = [
    "source_url", "model", "seq_len", "gpu", "n_gpus", "tp", "cp", "pp", "vpp", "ep", "dp", "sp", "zero_stage", "mbs",
    "gbs", "precision", "recompute",
]  # fmt: skip
#: What of a stack is fitted on rows of these tables (docs/stacks.md).
FITTED = {
    "megatron-core": "none; `kernel`, on five runs that no table has",
    "nanotron": "130 of 418 runs",
    "nanotron@polling": "one number on 120 runs",
    "nanotron@unmended": "one number on 10 runs",
    "llm-foundry": "45 of 88 runs",
    "internevo": "30 of 55 runs",
    "megatron-plain": "these 20 runs",
}
#: GPUs on whose rows a stack's numbers are fitted.
FITTED_ON = {
    "H100": "in part", "A100-40GB": "in part", "A100-80GB": "in part", "B200": "in part",
}  # fmt: skip
KINDS = ("dense", "experts", "adapters")
#: GPUs of the bar on models with experts.
BARRED = ("H100", "H200", "B200", "GB200")
#: Tables of one framework each: file, measured column, software, GPU, title.
OTHERS = (
    ("training_vtrain_a100", "iteration time (ms)", "megatron-2022@2021", "A100-80GB", "vTrain, A100"),
    ("training_megatron_a100", "seconds", "megatron-2022", "A100-80GB", "Megatron 22B to 1T, A100"),
    ("training_simumax_b200", "real_ms", "megatron-plain", "B200", "SimuMax, B200"),
)
ERRORS = ("runs", "median / mean, %", "bias, %", "in range, %")
Runs = dict[str, pd.DataFrame]
Bars = tuple[float, float]


def share(value: float, digits: int = 1) -> str:
    return "–" if not np.isfinite(value) else f"{100 * value:.{digits}f}"


def markdown(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; columns of numbers stand to the right."""
    right = {*ERRORS, "scored"}
    lines = [f"| {' | '.join(columns)} |", f"|{'|'.join('---:' if each in right else '---' for each in columns)}|"]
    lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join(lines)


@dataclass(frozen=True)
class Errors:
    """Of some runs."""

    runs: int
    median: float
    mean: float
    #: Mean of predicted over measured rate, less one.
    bias: float
    inside: float

    def cells(self, bars: Bars | None = None) -> list[str]:
        """As :data:`ERRORS` names them; in bold what is beyond its bar in per cent."""
        told = [
            share(value) if bar is None or round(100 * value, 1) <= bar else f"**{share(value)}**"
            for value, bar in zip((self.median, self.mean), bars or (None, None), strict=True)
        ]
        return [f"{self.runs:,}", " / ".join(told), f"{100 * self.bias:+.1f}", share(self.inside, 0)]


def errors(runs: pd.DataFrame) -> Errors:
    """Of runs with ``predicted``, ``measured``, ``rate`` (predicted over measured) and ``inside``."""
    off = (runs["predicted"] / runs["measured"] - 1.0).abs()
    of_rate, inside = float(runs["rate"].mean() - 1.0), float(runs["inside"].mean())
    return Errors(len(runs), float(off.median()), float(off.mean()), of_rate, inside)


def ends(runs: pd.DataFrame) -> str:
    """Between which factors of the measured rate the predicted ones lie."""
    low, high = runs["rate"].min(), runs["rate"].max()
    return f"{low:.2f} to {high:.2f}" if len(runs) > 1 else f"{low:.2f}"


def scored(rows: pd.DataFrame, column: str, *, time: bool | pd.Series) -> pd.DataFrame:
    """Rows with both values, and how far they lie apart; ``time``: lower is better."""
    rows = rows.assign(measured=pd.to_numeric(rows[column], errors="coerce"))
    rows = rows.assign(
        rate=np.where(time, rows["measured"] / rows["predicted"], rows["predicted"] / rows["measured"]),
        inside=(rows["low"] <= rows["measured"]) & (rows["measured"] <= rows["high"]),
    )
    return rows[rows["predicted"].notna() & (rows["measured"] > 0.0)]


def published(rows: Path) -> pd.DataFrame:
    """Every scored row of training.csv with its software and kind."""
    table = pd.read_csv(rows / "published/training.csv", low_memory=False)
    table = scored(table, "value", time=table["metric"] == "step_time_s")
    adapters = table["model"].str.contains("lora", case=False)
    kinds = np.where(adapters, "adapters", np.where(table["moe"].notna(), "experts", "dense"))
    return table.assign(software=table["source_url"].map(stack_of), kind=kinds)


def configurations(table: pd.DataFrame) -> pd.DataFrame:
    """One row a configuration of training.csv that states its degrees and batch."""
    stated = table[table["predicted_taken"].isna()]
    order = stated["metric"].map({metric: place for place, metric in enumerate(METRICS)})
    return stated.assign(order=order).sort_values("order", kind="stable").drop_duplicates(PLAN)


def frameworks(rows: Path) -> pd.DataFrame:
    """Every scored row of training_frameworks.csv."""
    table = pd.read_csv(rows / "published/training_frameworks.csv")
    words = table[["note", "group", "source"]].fillna("")
    software = [stack_in_words(*map(str, row)) for row in words.itertuples(index=False)]
    group = table["group"].str
    kind = np.where(group.contains("MoE"), "experts", np.where(group.contains("LoRA"), "adapters", "dense"))
    return scored(table.assign(software=software, kind=kind), "published", time=table["unit"] == "s")


def nanotron(rows: Path) -> pd.DataFrame:
    """Every scored row of nanotron's sweep."""
    table = scored(pd.read_csv(rows / "published/training_nanotron_h100.csv"), "tokens_per_s_per_gpu", time=False)
    software = "nanotron" + versions(table).map(lambda version: f"@{version}" if version else "")
    return table.assign(software=software, later=after_repair(table), kind="dense", gpu="H100")


def by_software(runs: Runs) -> str:
    """Every stack, and what models it ran."""
    every = pd.concat([runs[each] for each in ("training", "frameworks", "nanotron", *(title for *_, title in OTHERS))])
    parts = [
        (f"`{software}`", kind, FITTED.get(software, "none"), *errors(part).cells())
        for software in sorted(every["software"].unique())
        for kind in KINDS
        if len(part := every[(every["software"] == software) & (every["kind"] == kind)])
    ]
    return markdown(("software", "models", "fitted on", *ERRORS), parts)


def by_source(runs: Runs) -> str:
    """Groups of configurations that a reader may know."""
    stated, plain = runs["training"], runs["frameworks"]
    address, precision, gpu = stated["source_url"], stated["precision"].astype(str).str.upper(), stated["gpu"]
    cloud = address.str.contains("dgxc-benchmarking") & stated["vpp"].notna() & (stated["kind"] == "dense")
    whole, experts, barred = stated["kind"] != "adapters", stated["kind"] == "experts", gpu.isin(BARRED)
    amd = gpu.str.startswith("MI")
    lora = pd.concat([stated, plain])
    groups: list[tuple[str, pd.DataFrame, Bars | None]] = [
        ("H100 to GB200, without adapters", stated[barred & whole], None),
        ("… dense", stated[barred & whole & ~experts], None),
        ("… with `cp` above 1", stated[barred & whole & (stated["cp"] > 1)], None),
        ("… with experts", stated[barred & experts], (8, 12)),
        ("B300 and GB300, with experts", stated[gpu.isin(["B300", "GB300"]) & experts], None),
        ("with adapters (LoRA), all GPUs, both tables", lora[lora["kind"] == "adapters"], (10, 12)),
        ("DGX Cloud, dense, vpp stated, bf16", stated[cloud & precision.str.startswith("BF16")], None),
        ("DGX Cloud, dense, vpp stated, fp8", stated[cloud & precision.str.contains("FP8")], None),
        ("MLPerf, all GPUs", stated[address.str.contains("mlcommons")], None),
        ("Instinct, dense and adapters", stated[amd & ~experts], None),
        ("Instinct, with experts", stated[amd & experts], None),
        ("plain PyTorch (training_frameworks.csv), dense", plain[plain["kind"] == "dense"], (10, 14)),
        ("… with experts", plain[plain["kind"] == "experts"], None),
        *((title, runs[title], None) for *_, title in OTHERS),
    ]
    rows = [
        (title, *errors(part).cells(bars), "–" if bars is None else f"{bars[0]} / {bars[1]}")
        for title, part, bars in groups
        if len(part)
    ]
    return markdown(("rows", *ERRORS, "bars"), rows)


def by_gpu(runs: Runs) -> str:
    """All metrics of training.csv as ``validate`` scores them; first GPUs that no stack is fitted on."""
    every = runs["metrics"]
    counts = every.groupby("gpu").size()
    order = sorted(counts.index, key=lambda gpu: (gpu in FITTED_ON, -counts[gpu], gpu))
    rows = [(gpu, FITTED_ON.get(gpu, "none"), *errors(every[every["gpu"] == gpu]).cells()) for gpu in order]
    return markdown(("GPU", "rows in a stack's fit", *ERRORS), [*rows, ("all", "", *errors(every).cells((8, 12)))])


def by_framework(runs: Runs) -> str:
    """Groups of training_frameworks.csv: nothing is fitted on any."""
    table = runs["frameworks"]
    rows = [
        (group, f"`{software}`", *errors(part).cells(), ends(part))
        for (group, software), part in table.groupby(["group", "software"])
    ]
    rest = table[table["kind"] != "experts"]
    rows.append(("all but models with experts", "", *errors(rest).cells((10, 14)), ends(rest)))
    return markdown(("group", "stack", *ERRORS, "predicted over measured rate"), rows)


def with_experts(runs: Runs) -> str:
    """Models with experts, one by one."""
    table = pd.concat([runs["training"], runs["frameworks"]])
    table = table[table["kind"] == "experts"]
    name = table["model"].str.replace("_", "-").str.split(" \\(").str[0]
    rows = [
        (f"`{software}`", gpu, model, *errors(part).cells(), ends(part))
        for (software, gpu, model), part in table.groupby(["software", table["gpu"].str.upper(), name])
    ]
    return markdown(("software", "GPU", "model", *ERRORS, "predicted over measured rate"), rows)


def order_of_plans(table: pd.DataFrame, predicted: str = "predicted", least: int = 4) -> tuple[float, float, float]:
    """Rank correlation over the plans of one model on as many nodes, of groups of ``least`` runs and more: its median,
    its mean weighted by runs, its mean."""
    groups = [group for _, group in table.groupby(["hidden_size", "num_layers", "nodes"]) if len(group) >= least]
    if not groups:
        return np.nan, np.nan, np.nan
    ranks = [group[predicted].rank().corr(group["measured"].rank()) for group in groups]
    return float(np.median(ranks)), float(np.average(ranks, weights=list(map(len, groups)))), float(np.mean(ranks))


def disagreement(table: pd.DataFrame) -> float:
    """Least root mean square, in log, by which runs of the same plan miss every time that obeys the laws of a turn.

    The laws are those of :func:`tspsim.validation.nanotron.contradicted`: with the logarithm of a turn they are a cone,
    and the nearest point of it (Dykstra's projection) is no farther from what was measured than the truth.
    """
    turns, misses = turns_s(table), []
    for _, twins in table.groupby(list(TWINS)):
        if len(twins) > 1:
            measured = np.log(turns[twins.index].to_numpy(dtype=float))
            misses += list(measured - lawful(measured, twins["mbs"].to_numpy(dtype=float)))
    return float(np.sqrt(np.mean(np.square(misses)))) if misses else np.nan


def lawful(turns: NDArray[np.float64], sequences: NDArray[np.float64], rounds: int = 300) -> NDArray[np.float64]:
    """The nearest logarithms of turns that do not fall with ``sequences``, nor grow faster than they do."""
    pairs = [(a, b) for a in range(len(turns)) for b in range(len(turns)) if a != b and sequences[a] <= sequences[b]]
    laws = [law for a, b in pairs for law in ((a, b, 0.0), (b, a, float(np.log(sequences[b] / sequences[a]))))]
    near, kept = turns.copy(), np.zeros(len(laws))
    for _ in range(rounds):
        for place, (more, less, most) in enumerate(laws):
            before = kept[place]
            over = max(0.0, (near[more] - near[less] - most) / 2.0 + before)
            near[more] += before - over
            near[less] -= before - over
            kept[place] = over
    return near


def order_with_noise(table: pd.DataFrame, spread: float, draws: int = 30) -> float:
    """Rank correlation by runs, mean of draws, of measured times that differ from what is known by a log-normal factor
    of a spread."""
    drawn = np.random.default_rng(0)
    orders = []
    for _ in range(draws):
        truth = table["measured"] * np.exp(spread * drawn.standard_normal(len(table)))
        orders.append(order_of_plans(table.assign(truth=truth), "truth")[1])
    return float(np.mean(orders))


def of_nanotron(runs: Runs) -> str:
    """Errors and order of nanotron's plans, and what their runs allow."""
    table, every = runs["nanotron"], runs["memory"]
    later, old = table[table["later"]], table[table["software"] == "nanotron@polling"]
    mended = later[later["software"] == "nanotron"]
    parts = (
        (f"labelled as after its repair, of these {len(later) - len(mended)} asked as before it", later),
        ("… without those", mended),
        ("before its repair, pipelines", old[~old["later"]]),
        ("before its repair, no pipeline", table[table["software"] == "nanotron@unmended"]),
    )
    rows: list[tuple[str, ...]] = [
        (title, *errors(part).cells(), "; ".join(f"{each:.3f}" for each in order_of_plans(part)))
        for title, part in parts
        if len(part)
    ]
    spread = disagreement(mended)
    if np.isfinite(spread):
        best = f"{order_with_noise(mended, spread):.3f}"
        title = f"without those, if all were met but for a spread of {share(spread)} %, in which twins differ at least"
        rows.append((title, f"{len(mended):,}", "", "", "", f"by runs {best}"))
    right = float((every["predicted_status"] == every["status"]).mean())
    rows.append(("fits or out of memory, all runs", f"{len(every):,}", f"{share(right)} right", "", "", ""))
    return markdown(("nanotron's runs", *ERRORS, "order of plans: median; by runs; mean"), rows)


TABLES: dict[str, Callable[[Runs], str]] = {
    "training software": by_software,
    "training sources": by_source,
    "training gpus": by_gpu,
    "training frameworks": by_framework,
    "training experts": with_experts,
    "training nanotron": of_nanotron,
}


def page_of(table: str) -> Path:
    """The page in which a table stands."""
    return EXPERTS if table == "training experts" else PAGE


def read(rows: Path) -> Runs:
    """What the tables are made of."""
    metrics = published(rows)
    memory = pd.read_csv(rows / "published/training_nanotron_h100.csv")
    runs = {
        "metrics": metrics, "training": configurations(metrics), "frameworks": frameworks(rows),
        "nanotron": nanotron(rows), "memory": memory[memory["status"].isin(["Success", "OOM"])],
    }  # fmt: skip
    for name, column, software, gpu, title in OTHERS:
        table = scored(pd.read_csv(rows / f"published/{name}.csv"), column, time=True)
        runs[title] = table.assign(software=software, gpu=gpu, kind="dense")
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    runs = read(parser.parse_args().rows)
    for page in (PAGE, EXPERTS):
        rewrite(page, {name: table(runs) for name, table in TABLES.items() if page_of(name) == page})


if __name__ == "__main__":
    main()
