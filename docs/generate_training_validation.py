"""Writes the tables of docs/validation.md about training runs: ``python docs/generate_training_validation.py ROWS``,
where ROWS is the folder that ``tspsim validate --data DIR --rows ROWS`` wrote.

A configuration counts once: of the metrics of one run the step time, else the rate, else what there is. Errors are of
the metric, bias is of the rate: above zero where the prediction is faster. Runs whose degrees or batch were completed
(``predicted_taken``) are counted apart.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from pages import rewrite

from tspsim.validation.frameworks import stack_in_words, stack_of

PAGE = Path(__file__).with_name("validation.md")
#: Metrics of a run in the order in which they are looked for; lower is better of the first.
METRICS = ("step_time_s", "tokens/s/gpu", "TFLOP/s/gpu", "MFU", "HFU")
#: Columns that tell one configuration of training.csv from another.
PLAN = (
    "source_url", "model", "seq_len", "gpu", "n_gpus", "tp", "cp", "pp", "vpp", "ep", "dp", "sp", "zero_stage", "mbs",
    "gbs", "precision", "recompute",
)  # fmt: skip
#: What of a stack is fitted on rows of these tables (docs/stacks.md).
FITTED = {
    "megatron-core": "`expert`, on runs of Qwen3, DeepSeek, Moonlight",
    "nanotron": "130 of 418 runs",
    "nanotron@unmended": "one number on 10 runs",
    "llm-foundry": "45 of 88 runs",
    "internevo": "30 of 55 runs",
    "megatron-plain": "these 20 runs",
}
#: GPUs on whose rows a stack's numbers are fitted.
FITTED_ON = {
    "H100": "in part", "A100-40GB": "in part", "A100-80GB": "in part", "B200": "in part", "GB200": "in part",
    "B300": "`expert` of models with experts", "GB300": "`expert` of models with experts",
}  # fmt: skip
KINDS = ("dense", "experts", "adapters")
#: Kind → bars of median and mean, per cent, of runs under any framework (the issue that asked for these tables).
BARS = {"dense, plain PyTorch": (10, 14), "adapters": (10, 12), "experts, H100 to GB200": (8, 12)}
BLACKWELL = ("H100", "H200", "B200", "GB200")
PLAIN = ("torchtitan", "torchtitan-eager", "fsdp1", "fsdp2", "kempnerforge", "automodel", "hf-trainer", "deepspeed")
#: Runs of nanotron that take so many times as long as simulated are looked at apart.
STRAY = 1.9


def share(value: float, digits: int = 1) -> str:
    return "–" if not np.isfinite(value) else f"{100 * value:.{digits}f}"


@dataclass(frozen=True)
class Errors:
    """Of some runs."""

    runs: int
    median: float
    mean: float
    #: Mean of predicted over measured rate, less one.
    bias: float
    inside: float

    def cells(self, bars: tuple[float, float] | None = None) -> str:
        """Of a table's row; in bold what is beyond its bar."""
        middle = [
            share(value) if bar is None or round(100 * value, 1) <= bar else f"**{share(value)}**"
            for value, bar in zip((self.median, self.mean), bars or (None, None), strict=True)
        ]
        return f"{self.runs:,} | {middle[0]} / {middle[1]} | {100 * self.bias:+.1f} | {share(self.inside, 0)}"


def errors(runs: pd.DataFrame) -> Errors:
    """Of runs with ``predicted``, ``measured``, ``rate`` (predicted over measured) and ``inside``."""
    off = (runs["predicted"] / runs["measured"] - 1.0).abs()
    return Errors(
        len(runs), float(off.median()), float(off.mean()), float(runs["rate"].mean() - 1.0), float(runs["inside"].mean())
    )


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
    return stated.assign(order=order).sort_values("order", kind="stable").drop_duplicates(list(PLAN))


def frameworks(rows: Path) -> pd.DataFrame:
    """Every scored row of training_frameworks.csv."""
    table = pd.read_csv(rows / "published/training_frameworks.csv")
    words = table[["note", "group", "source"]].fillna("").itertuples(index=False)
    table = scored(table, "published", time=table["unit"] == "s")
    software = pd.Series([stack_in_words(*map(str, row)) for row in words]).reindex(table.index)
    kind = np.where(
        table["group"].str.contains("MoE"), "experts", np.where(table["group"].str.contains("LoRA"), "adapters", "dense")
    )
    return table.assign(software=software, kind=kind)


def nanotron(rows: Path) -> pd.DataFrame:
    """Every scored row of nanotron's sweep."""
    table = scored(pd.read_csv(rows / "published/training_nanotron_h100.csv"), "tokens_per_s_per_gpu", time=False)
    mended = table["after_pp_fix"].astype(str) != "False"
    return table.assign(software=np.where(mended, "nanotron", "nanotron@unmended"), kind="dense", gpu="H100")


def others(rows: Path) -> Iterable[pd.DataFrame]:
    """Tables of one framework each."""
    for name, column, software, gpu in (
        ("training_vtrain_a100", "iteration time (ms)", "megatron-2022", "A100-80GB"),
        ("training_megatron_a100", "seconds", "megatron-2022", "A100-80GB"),
        ("training_simumax_b200", "real_ms", "megatron-plain", "B200"),
    ):
        table = scored(pd.read_csv(rows / f"published/{name}.csv"), column, time=True)
        yield table.assign(software=software, gpu=gpu, kind="dense", source=name)


SOURCES = {
    "training_vtrain_a100": "vTrain, A100 (recomputation taken as full)",
    "training_megatron_a100": "Megatron 22B to 1T, A100",
    "training_simumax_b200": "SimuMax, B200",
}
Rule = Callable[[pd.DataFrame], "pd.Series[bool]"]


def by_software(runs: dict[str, pd.DataFrame]) -> str:
    """Every stack, and what models it ran: the first table."""
    every = pd.concat([runs["training"], runs["frameworks"], runs["nanotron"], *runs["others"]])
    lines = ["| software | models | fitted on | runs | median / mean, % | bias, % | in range, % |", "|---|---|---|---:|---:|---:|---:|"]
    for software in sorted(every["software"].unique()):
        own = every[every["software"] == software]
        for kind in KINDS:
            part = own[own["kind"] == kind]
            if len(part):
                lines.append(f"| `{software}` | {kind} | {FITTED.get(software, 'none')} | {errors(part).cells()} |")
    return "\n".join(lines)


def of_kind(*names: str) -> Rule:
    return lambda table: table["kind"].isin(names)


def by_source(runs: dict[str, pd.DataFrame]) -> str:
    """Groups of configurations that a reader may know."""
    stated, plain = runs["training"], runs["frameworks"]
    address = stated["source_url"].fillna("")
    cloud = address.str.contains("dgxc-benchmarking") & stated["vpp"].notna() & (stated["kind"] == "dense")
    precision = stated["precision"].astype(str).str.upper()
    modern = stated["gpu"].isin(BLACKWELL)
    both = pd.concat([stated, plain])
    groups: list[tuple[str, pd.DataFrame, str]] = [
        ("H100 to GB200, without adapters", stated[modern & (stated["kind"] != "adapters")], ""),
        ("… dense", stated[modern & (stated["kind"] == "dense")], ""),
        ("… with `cp` above 1", stated[modern & (stated["kind"] != "adapters") & (stated["cp"] > 1)], ""),
        ("… with experts", stated[modern & (stated["kind"] == "experts")], "experts, H100 to GB200"),
        ("B300 and GB300, with experts", stated[stated["gpu"].isin(["B300", "GB300"]) & (stated["kind"] == "experts")], ""),
        ("with adapters (LoRA), all GPUs, both tables", both[both["kind"] == "adapters"], "adapters"),
        ("DGX Cloud, dense, vpp stated, bf16", stated[cloud & precision.str.startswith("BF16")], ""),
        ("DGX Cloud, dense, vpp stated, fp8", stated[cloud & precision.str.contains("FP8")], ""),
        ("MLPerf, all GPUs", stated[address.str.contains("mlcommons")], ""),
        ("Instinct, dense and adapters", stated[stated["gpu"].str.startswith("MI") & (stated["kind"] != "experts")], ""),
        ("Instinct, with experts", stated[stated["gpu"].str.startswith("MI") & (stated["kind"] == "experts")], ""),
        ("plain PyTorch of training_frameworks.csv, dense", plain[plain["kind"] == "dense"], "dense, plain PyTorch"),
        ("… with experts", plain[plain["kind"] == "experts"], ""),
        *((SOURCES[table["source"].iloc[0]], table, "") for table in runs["others"] if len(table)),
    ]  # fmt: skip
    lines = ["| rows | runs | median / mean, % | bias, % | in range, % | bars |", "|---|---:|---:|---:|---:|---|"]
    for title, part, bar in groups:
        if len(part):
            bars = BARS.get(bar)
            said = "–" if bars is None else f"{bars[0]} / {bars[1]}"
            lines.append(f"| {title} | {errors(part).cells(bars)} | {said} |")
    return "\n".join(lines)


def by_gpu(runs: dict[str, pd.DataFrame]) -> str:
    """All metrics of training.csv as ``validate`` scores them."""
    every = runs["metrics"]
    lines = ["| GPU | rows in a stack's fit | scored | median / mean, % | bias, % | in range, % |", "|---|---|---:|---:|---:|---:|"]
    order = every.groupby("gpu").size().sort_values(ascending=False, kind="stable").index
    for gpu in sorted(order, key=lambda name: (name in FITTED_ON, list(order).index(name))):
        lines.append(f"| {gpu} | {FITTED_ON.get(gpu, 'none')} | {errors(every[every['gpu'] == gpu]).cells()} |")
    lines.append(f"| all | | {errors(every).cells((8, 12))} |")
    return "\n".join(lines)


def by_framework(runs: dict[str, pd.DataFrame]) -> str:
    """Groups of training_frameworks.csv: nothing is fitted on any."""
    table = runs["frameworks"]
    lines = ["| group | stack | runs | median / mean, % | bias, % | in range, % | predicted over measured |", "|---|---|---:|---:|---:|---:|---|"]
    for (group, software), part in table.groupby(["group", "software"]):
        ends = f"{part['rate'].min():.2f} to {part['rate'].max():.2f}" if len(part) > 1 else f"{part['rate'].iloc[0]:.2f}"
        lines.append(f"| {group} | `{software}` | {errors(part).cells()} | {ends} |")
    dense = table[table["kind"] != "experts"]
    lines.append(f"| all but models with experts | | {errors(dense).cells((10, 14))} | {dense['rate'].min():.2f} to {dense['rate'].max():.2f} |")
    return "\n".join(lines)


def with_experts(runs: dict[str, pd.DataFrame]) -> str:
    """Models with experts, one by one."""
    both = pd.concat([runs["training"], runs["frameworks"]])
    table = both[both["kind"] == "experts"]
    table = table.assign(model=table["model"].str.replace("_", "-").str.split(" \\(").str[0])
    lines = ["| software | GPU | model | runs | median / mean, % | bias, % | in range, % | predicted over measured |", "|---|---|---|---:|---:|---:|---:|---|"]
    for (software, gpu, model), part in table.groupby(["software", "gpu", "model"]):
        ends = f"{part['rate'].min():.2f} to {part['rate'].max():.2f}" if len(part) > 1 else f"{part['rate'].iloc[0]:.2f}"
        lines.append(f"| `{software}` | {str(gpu).upper()} | {model} | {errors(part).cells()} | {ends} |")
    return "\n".join(lines)


def order_of_plans(table: pd.DataFrame, predicted: str = "predicted", least: int = 4) -> tuple[int, float, float, float]:
    """Rank correlation over the plans of one model on as many nodes, of groups of ``least`` runs and more: groups, its
    median, its mean weighted by runs, its mean."""
    ranks, weights = [], []
    for _, group in table.groupby(["hidden_size", "num_layers", "nodes"]):
        if len(group) >= least:
            ranks.append(group[predicted].rank().corr(group["measured"].rank()))
            weights.append(len(group))
    return len(ranks), float(np.median(ranks)), float(np.average(ranks, weights=weights)), float(np.mean(ranks))


def of_nanotron(runs: dict[str, pd.DataFrame]) -> str:
    """Errors and order of nanotron's plans, with and without the runs that stray."""
    table, every = runs["nanotron"], runs["memory"]
    mended, unmended = table[table["software"] == "nanotron"], table[table["software"] != "nanotron"]
    strays = mended["rate"] > STRAY
    lines = ["| nanotron's runs | runs | median / mean, % | bias, % | in range, % | order: median; weighted by runs; mean |", "|---|---:|---:|---:|---:|---|"]
    perfect = mended.assign(ideal=np.where(strays, mended["predicted"], mended["measured"]))
    for title, part, column in (
        ("after its repair", mended, "predicted"),
        (f"… without {int(strays.sum())} that took {STRAY:g} times as long as simulated and more", mended[~strays], "predicted"),
        ("… as if all but these were met to the last digit", perfect, "ideal"),
        ("before its repair, no pipeline", unmended, "predicted"),
    ):
        if not len(part):
            continue
        count, median, weighted, mean = order_of_plans(part, column) if len(part) > 1 else (0, np.nan, np.nan, np.nan)
        cells = errors(part).cells() if column == "predicted" else f"{len(part)} | | | "
        lines.append(f"| {title} | {cells} | {median:.3f}; {weighted:.3f}; {mean:.3f} ({count} models and node counts) |")
    right = (every["predicted_status"] == every["status"]).mean()
    lines.append(f"| fits or out of memory, all runs | {len(every):,} | {share(right)} right | | | |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[dict[str, pd.DataFrame]], str]] = {
    "training software": by_software,
    "training sources": by_source,
    "training gpus": by_gpu,
    "training frameworks": by_framework,
    "training experts": with_experts,
    "training nanotron": of_nanotron,
}


def read(rows: Path) -> dict[str, pd.DataFrame]:
    """What the tables are made of."""
    metrics = published(rows)
    memory = pd.read_csv(rows / "published/training_nanotron_h100.csv")
    memory = memory[memory["status"].isin(["Success", "OOM"])]
    return {
        "metrics": metrics, "training": configurations(metrics), "frameworks": frameworks(rows),
        "nanotron": nanotron(rows), "memory": memory, "others": list(others(rows)),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    runs = read(parser.parse_args().rows)
    rewrite(PAGE, {name: table(runs) for name, table in TABLES.items()})


if __name__ == "__main__":
    main()
