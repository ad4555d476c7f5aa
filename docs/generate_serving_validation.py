"""Writes the tables of docs/validation.md about served runs: ``python docs/generate_serving_validation.py JSON``, where
JSON is what ``tspsim validate --data DIR --json JSON`` wrote."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("validation.md")
MARK = "<!-- serving: docs/generate_serving_validation.py -->"
END = "<!-- end of serving -->"
#: Group → bars of the time per output token, median and mean, and of the time to the first, per cent.
BARS = {
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


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


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
            f"| {group} | {found['scored']} | {percent(found['median_ape'])} / {percent(found['mape'])} | "
            f"{percent(found['p90_ape'])} | {percent(found['bias'])} | {percent(found['in_range'])} | "
            f"{percent(first['median_ape'])} | {'–' if bar is None else f'{bar[0]} / {bar[1]}, {bar[2]}'} |"
        )
    return lines


def published(tables: dict[str, Any]) -> list[str]:
    """Lines of the table of inference.csv."""
    by = tables["published/inference.csv"]["by"]["group, metric, fitted"]
    lines = [
        "| `inference.csv`, not fitted on | metric | rows | median / mean | in range |",
        "|---|---|---:|---:|---:|",
    ]
    for group in BARS:
        for key, found in by.items():
            rest, kind = key.rsplit(", ", 1)
            name, metric = rest.split(", ", 1)
            if name == group and kind == "not fitted" and found["scored"]:
                lines.append(
                    f"| {group} | {metric} | {found['scored']} | {percent(found['median_ape'])} / "
                    f"{percent(found['mape'])} | {percent(found['in_range'])} |"
                )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes the tables of docs/validation.md about served runs.")
    parser.add_argument("json", type=Path)
    tables = json.loads(parser.parse_args().json.read_text(encoding="utf-8"))["tables"]
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(MARK)
    after = after.split(END, 1)[-1] if END in after else after
    middle = "\n".join([MARK, "", *silicon(tables), "", *published(tables), "", END])
    PAGE.write_text(before + middle + ("" if after.startswith("\n") else "\n") + after, encoding="utf-8")


if __name__ == "__main__":
    main()
