"""The planner's answer on every offer: on the terminal, and as a page with a linked page per offer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tspsim.base.files import atomic_write
from tspsim.base.units import compact

from .comparison import slug
from .numbers import seconds
from .page import _bundle, render_sections
from .plan import best_table, kicker, sure
from .plan_page import LIST, page
from .tables import add_row, empty_table
from .view import price_range

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tspsim.studies.planner import OffersPlanned

COLUMNS = ("Offer", "Best plan", "GPUs", "Tokens/s", "Per GPU", "Step", "$/M tokens")

TABLE = """
<p class="kicker">{{ kicker }}</p>
<h1>{{ title }}</h1>
{% if description %}<p class="description">{{ description }}</p>{% endif %}
<div class="scroll"><table class="plans left"><caption class="hidden">The best plan of every offer</caption>
<thead><tr>{% for column in columns %}<th scope="col">{{ column }}</th>{% endfor %}</tr></thead>
<tbody>{% for link, row in table %}<tr><th scope="row"><a href="{{ link }}">{{ row[0] }}</a></th>
{% for cell in row[1:] %}<td data-label="{{ columns[loop.index] }}">{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody>
</table></div>
<p class="note">An offer's name opens its own page: reasons, the front, what fits.</p>
{% if refused %}<ul class="verdicts">{% for text in refused %}<li class="refused">{{ text }}</li>{% endfor %}</ul>
{% endif %}
"""


def rows(answer: OffersPlanned) -> list[tuple[str, ...]]:
    """Cells of :data:`COLUMNS` for every offer with a plan."""
    table: list[tuple[str, ...]] = []
    for name, planned in answer.answered:
        best = planned.best[0]
        rates = compact(best.result.tokens_per_s), compact(best.result.tokens_per_s_per_gpu)
        cells = seconds(best.step_s), price_range(best.result) or "–"
        table.append((name, best.candidate.name, f"{best.result.gpus:,}", *rates, *cells))
    return table


def refused(answer: OffersPlanned) -> list[str]:
    """Offers without a plan, with the reasons."""
    return [f"{offer.name}: {offer.error}" for offer in answer.offers if offer.planned is None]


def summary(answer: OffersPlanned, width: int = 160) -> list[RenderableType]:
    """The best plan of every offer side by side, then the best few of each offer and its search."""
    from rich.padding import Padding
    from rich.text import Text

    table = empty_table(())
    for number, column in enumerate(COLUMNS):
        table.add_column(column.lower() if number < 2 else column, justify="left" if number < 2 else "right")
    for row in rows(answer):
        add_row(table, row)
    parts: list[RenderableType] = [table, "", *(Text(text, "yellow") for text in refused(answer))]
    for name, planned in answer.answered:
        parts += [Text(f"{name}: {kicker(planned)}", style="bold"), "", best_table(planned, width), ""]
        parts += [*(Padding(Text(sentence), (0, 0, 0, 2)) for sentence in sure(planned)[:2]), ""]
    return parts


def write_page(answer: OffersPlanned, path: Path) -> None:
    """The page, and the pages of the offers in the folder ``NAME-offers`` beside it.

    Raises
    ------
    InputError
        A file cannot be written.
    """
    path = Path(path)
    folder = path.with_name(f"{path.stem}-offers")
    links = []
    for number, (name, planned) in enumerate(answer.answered):
        file = f"{number + 1:02d}-{slug(name)}.html"
        atomic_write(folder / file, page(planned, "plotly.min.js"))
        links.append(f"{folder.name}/{file}")
    atomic_write(folder / "plotly.min.js", _bundle())
    scenario = answer.scenario
    values = {
        "kicker": f"The best plan of each of {len(answer.offers)} offers",
        "title": scenario.name,
        "description": scenario.description,
        "columns": COLUMNS,
        "table": list(zip(links, rows(answer), strict=True)),
        "refused": refused(answer),
    }
    sentences = [f"{name}: {sentence}" for name, planned in answer.answered for sentence in sure(planned)[:2]]
    sections: list[tuple[str, str, str, dict[str, Any]]] = [
        ("answer", "", TABLE, values),
        ("search", "The search", LIST, {"sentences": sentences}),
    ]
    atomic_write(path, render_sections(sections, {}, title=f"{scenario.name}, plans", plotly_js="inline"))
