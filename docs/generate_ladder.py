"""Rewrite the tables of ladder-decoding.md: published rates of three residual streams against max-plus.

    python docs/generate_ladder.py

Rows are of tools/plot-70b.py and plot-405b.py of mayank31398/ladder-residual-inference at ea2e9e4. Nothing is fitted:
A + M and r come from the standard and the bound of the same row, A : M from the model's matrices.
``tests/house/test_ladder_page.py`` holds them.
"""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pages

import tspsim
from tspsim.model import load_model
from tspsim.parallel import RESIDUALS

PAGE = Path(__file__).parent / "ladder-decoding.md"
ROWS = Path(__file__).parent / "ladder-decoding.csv"
LAYERS = 80
#: 405B over 16 GPUs of two nodes: (batch, P2P) → bound and parallel over standard.
LARGE = {
    (1, "on"): (1.521, 1.238), (4, "on"): (1.512, 1.242), (8, "on"): (1.659, 1.286), (16, "on"): (1.632, 1.272),
    (1, "off"): (2.107, 1.397), (4, "off"): (2.275, 1.439), (8, "off"): (2.271, 1.415), (16, "off"): (2.160, 1.399),
}  # fmt: skip


class Row(NamedTuple):
    """Published tokens/s of a prompt of 1,024 and 512 answers, prefill in the time."""

    batch: int
    tp: int
    p2p: str
    standard: float
    parallel: float
    ladder: float
    bound: float

    @property
    def sum_s(self) -> float:
        """One sum, of a layer's share of a token's time."""
        return (self.layer_s(self.standard) - self.layer_s(self.bound)) / 2

    def layer_s(self, rate: float) -> float:
        return self.batch / rate / LAYERS

    def predicted(self, kind: str) -> float:
        """Tokens/s of another residual stream."""
        blocks_s = self.layer_s(self.bound)
        attention_s = attention_share() * blocks_s
        return self.batch / LAYERS / RESIDUALS.get(kind).layer_s(attention_s, blocks_s - attention_s, self.sum_s)

    def error(self, kind: str) -> float:
        """Over the published rate."""
        return self.predicted(kind) / float(getattr(self, kind)) - 1.0


def attention_share() -> float:
    """Of a layer's matrices, those of attention: a decoding step reads them once."""
    model = load_model("llama-3.1-70b")
    attention = model.attention_matrix_parameters_per_layer
    return attention / (attention + model.matrices * model.hidden * model.ffn)


def rows() -> list[Row]:
    with ROWS.open(encoding="utf-8") as file:
        return [
            Row(int(each["batch"]), int(each["tp"]), each["p2p"], *(float(each[kind]) for kind in Row._fields[3:]))
            for each in csv.DictReader(file)
        ]


def decoding() -> str:
    header = (
        "| batch | TP | P2P | r, µs | parallel: published | from standard and bound | | ladder: published | max-plus "
        "| | left a layer, µs |"
    )
    lines = [header, "| ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for row in rows():
        left = 1e6 * (row.layer_s(row.ladder) - row.layer_s(row.predicted("ladder")))
        lines.append(
            f"| {row.batch} | {row.tp} | {row.p2p} | {1e6 * row.sum_s:.1f} "
            f"| {row.parallel:.2f} | {row.predicted('parallel'):.2f} | {100 * row.error('parallel'):+.1f} % "
            f"| {row.ladder:.2f} | {row.predicted('ladder'):.2f} | {100 * row.error('ladder'):+.1f} % | {left:+.1f} |"
        )
    parallel, ladder = ([row.error(kind) for row in rows()] for kind in ("parallel", "ladder"))
    spread = (
        f"Parallel {100 * min(parallel):+.1f} to {100 * max(parallel):+.1f} %, median of the size "
        f"{100 * median(map(abs, parallel)):.1f} %; ladder {100 * min(ladder):+.1f} to {100 * max(ladder):+.1f} %, "
        f"median {100 * median(ladder):+.1f} %."
    )
    return "\n".join([*lines, "", spread])


def large() -> str:
    header = "| batch | P2P | parallel over standard: published | 2/(1 + 1/bound) | |"
    lines = [header, "| ---: | --- | ---: | ---: | ---: |"]
    for (batch, p2p), (bound, parallel) in LARGE.items():
        found = 2.0 / (1.0 + 1.0 / bound)
        lines.append(f"| {batch} | {p2p} | {parallel:.3f} | {found:.3f} | {100 * (found / parallel - 1):+.1f} % |")
    return "\n".join(lines)


def simulated(batch: int) -> dict[str, float]:
    """tspsim's own decoding step over the standard one's rate, TP8 on H100, at the middle of the answers."""
    kinds = ("standard", "parallel", "ladder", "desync")
    work = {"model": "llama-3.1-70b", "pass": "decode", "batch": batch, "context": 1280}
    plans = [{"name": kind, "tp": 8, "residual": kind} for kind in kinds]
    asked = {"name": "ladder", "cluster": {"device": "h100", "nodes": 1}, "workload": work, "plans": plans}
    found = {plan.name: plan.tokens_per_s for plan in tspsim.simulate(asked).plans}
    return {kind: found[kind] / found["standard"] for kind in kinds[1:]}


def own() -> str:
    lines = [
        "| batch | parallel: published, here | ladder: published, here | bound: published, here |",
        "| ---: | ---: | ---: | ---: |",
    ]
    for row in rows():
        if (row.tp, row.p2p) == (8, "on"):
            found = simulated(row.batch)
            pairs = ((row.parallel, "parallel"), (row.ladder, "ladder"), (row.bound, "desync"))
            cells = (f"{rate / row.standard:.2f}, {found[kind]:.2f}" for rate, kind in pairs)
            lines.append(f"| {row.batch} | {' | '.join(cells)} |")
    return "\n".join(lines)


TABLES = {"decoding": decoding, "large": large, "own": own}


def main() -> None:
    """Rewrite every table in place."""
    pages.rewrite(PAGE, {name: table() for name, table in TABLES.items()})


if __name__ == "__main__":
    pages.asked(__doc__)
    main()
