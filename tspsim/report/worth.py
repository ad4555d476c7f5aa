"""A page of the gallery: the gain of each scheme of the literature, from the table of docs/schemes-worth.md.

``docs/generate_schemes.py`` writes the table as Markdown. Its columns are a scheme, its question, a cell per device
(``gain over the naive rival · gain over the best plan without it (that plan)``), the published gain, the part of it
that physics explains, and what the scheme needs. Nothing is simulated here.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..base.files import atomic_write

NAME = "schemes-worth"
#: A cell with both gains and the best rival's name.
GAINS = re.compile(r"^(?P<naive>[\d.]+|does not fit) · (?P<best>[\d.]+) \((?P<rival>.*)\)$")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
DESCRIPTION = (
    "What the papers' schemes are worth on four machines: gain over the naive rival, and over the best plan without "
    "them. Below 1 a scheme loses."
)


class Gain(NamedTuple):
    """A scheme's gains on a device: over the naive rival (None: it does not fit), and over the best plan without it."""

    scheme: str
    device: str
    naive: float | None
    best: float
    rival: str


class WorthTable(NamedTuple):
    """The table: the titles of its columns, and its rows."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def gains(self) -> tuple[Gain, ...]:
        gains = []
        for row in self.rows:
            for title, cell in zip(self.titles, row, strict=True):
                match = GAINS.match(cell)
                if match is not None:
                    naive = None if match["naive"] == "does not fit" else float(match["naive"])
                    gains.append(Gain(row[0], title, naive, float(match["best"]), match["rival"]))
        return tuple(gains)


def read(markdown: str) -> WorthTable:
    """The table from its Markdown, without links and emphasis.

    >>> read("| scheme | H100 |\\n| --- | ---: |\\n| **A** | 2.0 · 1.5 (B) |").gains
    (Gain(scheme='A', device='H100', naive=2.0, best=1.5, rival='B'),)
    """
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    cells = [tuple(plain(cell) for cell in line.strip().strip("|").split("|")) for line in lines]
    return WorthTable(cells[0], tuple(cells[2:]))


def plain(cell: str) -> str:
    return LINK.sub(r"\1", cell.strip()).replace("**", "").replace("`", "")


def write(markdown: str, folder: Path, further: Mapping[str, str] | None = None) -> WorthTable:
    """Write the page and its numbers into a gallery's folder; ``further`` Markdown tables, by title, follow."""
    import pandas as pd
    from markupsafe import Markup

    from .page import _asset, _environment

    worth = read(markdown)
    tables = {title: read(text) for title, text in (further or {}).items()}
    page = _environment().from_string(_PAGE)
    text = page.render(style=Markup(_asset("page.css")), worth=worth, said=DESCRIPTION, further=tables)
    atomic_write(folder / "pages" / f"{NAME}.html", text)
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame(worth.gains)
    frame.to_csv(folder / "tables" / f"{NAME}.csv", index=False, lineterminator="\n")
    frame.to_parquet(folder / "tables" / f"{NAME}.parquet", index=False)
    return worth


def most(gains: Sequence[Gain]) -> tuple[Gain, ...]:
    """Each scheme's largest gain over the best plan without it, the largest first."""
    best: dict[str, Gain] = {}
    for gain in gains:
        if gain.scheme not in best or gain.best > best[gain.scheme].best:
            best[gain.scheme] = gain
    return tuple(sorted(best.values(), key=lambda gain: -gain.best))


def gains_in(folder: Path) -> Sequence[Gain]:
    """The gains of the page in a gallery's folder; none where the folder has no page."""
    path = folder / "tables" / f"{NAME}.csv"
    if not path.is_file():
        return ()
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Gain(
                row["scheme"],
                row["device"],
                float(row["naive"]) if row["naive"] else None,
                float(row["best"]),
                row["rival"],
            )
            for row in csv.DictReader(file)
        ]


_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>What the papers' schemes are worth · tspsim</title>
<style>{{ style }}
.words th, .words td { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 7.5em; }</style>
</head>
<body>
<header class="top"><span class="brand">tspsim</span></header>
<main>
<section>
<h1>What the papers' schemes are worth</h1>
<p>{{ said }} The best plan without a scheme stands in brackets; a dash is a plan that does not fit there, or a device
without measured kernels for it. Published ratios are of their own machines and baselines.</p>
<div class="scroll"><table>
<thead><tr>{% for title in worth.titles %}<th>{{ title }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in worth.rows %}
<tr><th scope="row">{{ row[0] }}</th>{% for cell in row[1:] %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
<p class="small">Numbers: <a href="../tables/schemes-worth.csv">CSV</a>,
<a href="../tables/schemes-worth.parquet">Parquet</a></p>
</section>
{% for title, table in further.items() %}
<section>
<h2>{{ title }}</h2>
<div class="scroll"><table class="words">
<thead><tr>{% for heading in table.titles %}<th>{{ heading }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in table.rows %}
<tr><th scope="row">{{ row[0] }}</th>{% for cell in row[1:] %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
</section>
{% endfor %}
</main>
</body>
</html>
"""
