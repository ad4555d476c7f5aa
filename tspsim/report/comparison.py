"""Several results side by side: on the terminal, as CSV, and as one HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .files import atomic_write
from .numbers import GIB, compact, percent, seconds
from .view import dollars_per_million_tokens, price_range

if TYPE_CHECKING:
    from rich.table import Table

    from tspsim.result import PlanResult, Result


@dataclass(frozen=True)
class Row:
    """One plan of scenario ``number``, and its rate over that of the first plan that ran (None: refused)."""

    number: int
    scenario: str
    gpus: int
    device: str
    plan: PlanResult
    ratio: float | None

    @property
    def hardware(self) -> str:
        return f"{self.gpus:,} {self.device}"


def rows(results: Iterable[Result]) -> list[Row]:
    """Every plan in order of scenarios, then of plans."""
    every = [(number, result, plan) for number, result in enumerate(results) for plan in result.plans]
    first = next((plan.tokens_per_s for _, _, plan in every if plan.ran), None)
    return [
        Row(
            number,
            _one_line(result.scenario["name"]),
            result.cluster["gpus"],
            _one_line(result.cluster["device"]["name"]),
            plan,
            plan.tokens_per_s / first if first and plan.ran else None,
        )
        for number, result, plan in every
    ]


def table(results: Sequence[Result]) -> Table:
    """Side by side on the terminal; a refused plan says why."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    shown.add_column("scenario", overflow="fold")
    shown.add_column("GPUs")
    shown.add_column("plan", no_wrap=True)
    for heading in ("tokens/s", "ratio", "step", "MFU", "memory, GiB", "$ a million tokens"):
        shown.add_column(heading, justify="right")
    every = rows(results)
    best = max((row.ratio for row in every if row.ratio is not None), default=None)
    refused = []
    previous = -1
    for row in every:
        if row.number != previous:
            shown.add_section()
        start = ("", "") if row.number == previous else (row.scenario, row.hardware)
        previous = row.number
        cells = [Text(cell) for cell in (*start, row.plan.name, *_cells(row))]
        style = "yellow" if row.ratio is None else "bold" if row.ratio == best else ""
        shown.add_row(*cells, style=style)
        if not row.plan.ran:
            refused.append(f"{row.scenario}, {row.plan.name}: refused, {row.plan.error}")
    if refused:
        shown.caption = Text("\n".join(refused), "yellow")
        shown.caption_justify = "left"
    return shown


def _cells(row: Row) -> list[str]:
    plan = row.plan
    memory = f"{plan.memory.peak_bytes / GIB:.1f}"
    if row.ratio is None:
        return ["refused", "", "", "", memory, ""]
    return [
        compact(plan.tokens_per_s),
        f"{row.ratio:.3f}",
        seconds(plan.step_time_s),
        percent(plan.mfu),
        memory,
        price_range(plan) or "–",
    ]


_CSV = (
    "scenario",
    "gpus",
    "device",
    "plan",
    "tokens_per_s",
    "tokens_per_s_low",
    "tokens_per_s_high",
    "ratio_to_first",
    "tokens_per_s_per_gpu",
    "block_forward_tokens_per_s",
    "step_time_s",
    "mfu",
    "memory_peak_bytes",
    "memory_capacity_bytes",
    "usd_per_million_tokens_low",
    "usd_per_million_tokens_high",
    "error",
)


def csv(results: Sequence[Result]) -> str:
    """The rows of :func:`table` with full digits and a header; rates of a refused plan are empty."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV)
    for row in rows(results):
        plan = row.plan
        prices = list(dollars_per_million_tokens(plan).values())
        rates: list[object] = [""] * 8
        if plan.ran:
            low, high = (plan.range.low, plan.range.high) if plan.range else ("", "")
            rates = [plan.tokens_per_s, low, high, row.ratio, plan.tokens_per_s_per_gpu]
            rates += [plan.block_forward_tokens_per_s, plan.step_time_s, plan.mfu]
        memory = [plan.memory.peak_bytes, plan.memory.capacity_bytes]
        cost = [prices[0], prices[-1]] if prices else ["", ""]
        start = [row.scenario, row.gpus, row.device, plan.name]
        writer.writerow([*map(_cell, start), *rates, *memory, *cost, _cell(plan.error or "")])
    return text.getvalue()


def _cell(value: object) -> object:
    """Text from YAML that a spreadsheet would take for a formula is quoted as text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t")) else value


def _one_line(text: object) -> str:
    """Text from YAML that cannot steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(str(text).split()))


def write_comparison(results: Sequence[Result], path: Path) -> None:
    """One offline HTML page: all plans ranked by tokens/s with bars, and the table.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    from importlib import resources

    from jinja2 import Environment

    assets = resources.files("tspsim.report") / "assets"
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    every = rows(results)
    fastest = max((row.plan.tokens_per_s for row in every if row.plan.ran), default=0.0)
    ran = sorted((row for row in every if row.plan.ran), key=lambda row: -row.plan.tokens_per_s)
    page = environment.from_string(_PAGE).render(
        css=(assets / "page.css").read_text(encoding="utf-8"),
        names=list(dict.fromkeys(row.scenario for row in every)),
        bars=[(row, compact(row.plan.tokens_per_s), 100.0 * row.plan.tokens_per_s / fastest) for row in ran],
        rows=[(row, _cells(row)) for row in every],
        refused=[row for row in every if not row.plan.ran],
        first=next((row for row in every if row.plan.ran), None),
    )
    atomic_write(Path(path), page)


_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ names | join(", ") }} – comparison by tspsim</title>
<style>{{ css | safe }}
.bar { display: grid; grid-template-columns: minmax(8rem, 22rem) 1fr 6rem; gap: .75rem }
.bar { align-items: center; margin: .35rem 0 }
.bar span:last-child { text-align: right; font-variant-numeric: tabular-nums }
.bar i { display: block; height: 1rem; border-radius: 2px; background: var(--accent) }
.scroll { overflow-x: auto }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
</style>
</head>
<body>
<main>
<h1>{{ names | join(" · ") }}</h1>
{% if bars %}
{% set best = bars[0][0] %}
<p>Fastest: <strong>{{ best.plan.name }}</strong> of {{ best.scenario }} on {{ best.hardware }}, \
{{ bars[0][1] }} tokens/s, {{ "%.2f" | format(best.ratio) }} times \
{{ first.plan.name }} of {{ first.scenario }}. {{ best.plan.bottleneck }}.</p>
<h2>Tokens a second</h2>
{% for row, rate, share in bars %}
<div class="bar"><span>{{ row.plan.name }} · {{ row.scenario }}</span>\
<span><i style="width: {{ "%.2f" | format(share) }}%"></i></span><span>{{ rate }}</span></div>
{% endfor %}
{% else %}
<p>No plan fits or can run.</p>
{% endif %}
<h2>All plans</h2>
<div class="scroll"><table>
<thead><tr><th>scenario</th><th>GPUs</th><th>plan</th>\
<th class="number">tokens/s</th><th class="number">ratio</th>\
<th class="number">step</th><th class="number">MFU</th><th class="number">memory, GiB</th>\
<th class="number">$ a million tokens</th></tr></thead>
<tbody>
{% for row, cells in rows %}
<tr><td>{{ row.scenario }}</td><td>{{ row.hardware }}</td><td>{{ row.plan.name }}</td>\
{% for cell in cells %}<td class="number">{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% if refused %}
<h2>Refused</h2>
<ul>
{% for row in refused %}
<li>{{ row.plan.name }} of {{ row.scenario }}: {{ row.plan.error }}</li>
{% endfor %}
</ul>
{% endif %}
<p>Ratios are to the first plan that ran. A scenario's own report (<code>tspsim run</code>) says where its \
time goes and what was assumed.</p>
</main>
</body>
</html>
"""
