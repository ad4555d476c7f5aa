"""Writes the tables of docs/validation-served.md: ``python docs/generate_serving_validation.py JSON``, where
JSON is what ``tspsim validate --data DIR --json JSON`` wrote."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("validation-served.md")
MARK = "<!-- serving: docs/generate_serving_validation.py -->"
END = "<!-- end of serving -->"
#: Group → bars of the time per output token, median and mean, and of the time to the first, per cent.
BARS: dict[str, tuple[float | None, float | None, float | None] | None] = {
    "dense vLLM and TensorRT-LLM": (6, 9, 18),
    "vLLM experts": (9, 12, 20),
    "SGLang experts": (12, 16, 30),
    "TensorRT-LLM experts": (12, 16, 30),
    "dense SGLang": None,
    "disaggregated": (18, 22, 40),
    "MI355X ATOM": (12, 15, 22),
    "MI355X plug-in": (18, 22, 40),
    "drafts": (18, 22, 40),
    "MI300X and MI325X": None,
    "offline": (15, None, None),
}
TPOT, TTFT = "TPOT mean ms", "TTFT mean ms"
#: Share of measurements that a range is to hold.
RANGE = (0.85, 0.97)


NONE = (None, None, None)


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def met(found: float, bar: float | None) -> str:
    """A figure, marked where it is beyond its bar (in per cent)."""
    return percent(found) if bar is None or round(100 * found, 1) <= bar else f"**{percent(found)}**"


def held(found: float, bar: object) -> str:
    """The share that ranges hold, marked where it is not between RANGE and there is a bar."""
    return percent(found) if bar is None or RANGE[0] <= round(found, 3) <= RANGE[1] else f"**{percent(found)}**"


def told(bar: tuple[float | None, ...] | None) -> str:
    """Bars of a group as its table names them."""
    return "–" if bar is None else " / ".join("–" if each is None else f"{each}" for each in bar)


def silicon(tables: dict[str, Any]) -> list[str]:
    """Lines of the table of serving_silicon.csv."""
    by = tables["published/serving_silicon.csv"]["by"]["group, fitted"]
    lines = [
        "| `serving_silicon.csv`, not fitted on | rows | TPOT median / mean | 90 % | bias | in range | TTFT median | "
        "bars |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for group, bar in BARS.items():
        found = by.get(f"{group}, not fitted")
        if found is None or not found["scored"]:
            continue
        first = found["further"]["silicon_ttft_ms"]
        lines.append(
            f"| {group} | {found['scored']} | {met(found['median_ape'], (bar or NONE)[0])} / "
            f"{met(found['mape'], (bar or NONE)[1])} | {percent(found['p90_ape'])} | {percent(found['bias'])} | "
            f"{held(found['in_range'], bar)} | {met(first['median_ape'], (bar or NONE)[2])} | {told(bar)} |"
        )
    return lines


def bars_of(group: str, metric: str) -> tuple[float | None, float | None] | None:
    """Of a metric of the second table, median and mean; None where it has none."""
    bars = BARS[group]
    if bars is None:
        return None
    if metric == TTFT:
        return bars[2], None
    return (bars[0], bars[1]) if metric == TPOT or group == "offline" else None


def published(tables: dict[str, Any]) -> list[str]:
    """Lines of the table of inference.csv."""
    by = tables["published/inference.csv"]["by"]["group, metric, fitted"]
    lines = [
        "| `inference.csv`, not fitted on | metric | rows | median / mean | in range | bars |",
        "|---|---|---:|---:|---:|---|",
    ]
    for group in BARS:
        for key, found in by.items():
            rest, kind = key.rsplit(", ", 1)
            name, metric = rest.split(", ", 1)
            if name == group and kind == "not fitted" and found["scored"]:
                bar = bars_of(group, metric)
                range_bar = bar if metric != TTFT else None
                lines.append(
                    f"| {group} | {metric} | {found['scored']} | {met(found['median_ape'], (bar or NONE)[0])} / "
                    f"{met(found['mape'], (bar or NONE)[1])} | {held(found['in_range'], range_bar)} | {told(bar)} |"
                )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes the tables of docs/validation-served.md.")
    parser.add_argument("json", type=Path)
    tables = json.loads(parser.parse_args().json.read_text(encoding="utf-8"))["tables"]
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(MARK)
    after = after.split(END, 1)[-1] if END in after else after
    middle = "\n".join([MARK, "", *silicon(tables), "", *published(tables), "", END])
    PAGE.write_text(before + middle + ("" if after.startswith("\n") else "\n") + after, encoding="utf-8")


if __name__ == "__main__":
    main()
