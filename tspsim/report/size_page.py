"""The page of ``tspsim size``: offers side by side, cheapest first, why one machine less is too few, launches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tspsim.base.files import atomic_write
from tspsim.base.units import digits, share_beside

from .numbers import seconds
from .page import render_sections
from .plan_page import HEADLINE, LIST, TABLE

if TYPE_CHECKING:
    from tspsim.studies.sizing import Sized, Sizing

COLUMNS = (
    "Offer", "Nodes", "GPUs", "Plan", "Replicas", "Router", "$ an hour", "Within bounds", "First token", "Output token",
    "Requests/s of one machine",
)  # fmt: skip
LAUNCHES = """
{% for name, text in launches %}<details><summary>{{ name }}</summary><pre><code>{{ text }}</code></pre></details>
{% endfor %}
"""


def page(sizing: Sizing, plotly_js: str = "inline") -> str:
    """The whole page."""
    launches = {size.offer: size.launch for size in sizing.sized if size.launch}
    served = [size for size in sizing.sized if not size.error]
    sentences = [size.in_words() for size in sizing.sized]
    sections: list[tuple[str, str, str, dict[str, Any]]] = [
        ("answer", "", HEADLINE, {
            "kicker": f"Machines for {sizing.question_in_words}", "title": sizing.scenario.name,
            "description": sizing.scenario.description, "opening": "", "headline": headline(sizing),
            "spread": basis(sizing), "sentences": [], "searched": "",
            "yaml": _keys(served[0]) if served else "",
        }),
        ("offers", "The offers", TABLE, {
            "caption": "The offers, cheapest first", "columns": COLUMNS, "table": [row(size) for size in served],
            "refused": [f"{size.offer}: {size.error}" for size in sizing.sized if size.error],
        }),
        ("why", "Why this many", LIST, {"sentences": sentences}),
    ]  # fmt: skip
    if launches:
        sections.append(("launches", "Launches", LAUNCHES, {"launches": list(launches.items())}))
    return render_sections(sections, {}, title=f"{sizing.scenario.name}, machines", plotly_js=plotly_js)


def headline(sizing: Sizing) -> str:
    """The cheapest offer that serves the trace."""
    served = [size for size in sizing.sized if not size.error]
    if not served:
        return "No offer keeps the bounds."
    best = served[0]
    usd = best.usd_per_hour
    price = f" at ${digits(usd)} an hour" if usd is not None else ""
    lead = "is cheapest" if len(served) > 1 and usd is not None else "serves it"
    return f"{best.offer} {lead}: {best.size_in_words}{price}"


def basis(sizing: Sizing) -> str:
    """The price basis that ranks the offers."""
    rates = next((size.rates for size in sizing.sized if size.rates is not None and size.rates.usd), None)
    return f"price basis {rates.basis}" if rates is not None else ""


def row(sized: Sized) -> tuple[str, ...]:
    """An offer as cells of :data:`COLUMNS`."""
    assert sized.plan is not None and sized.served is not None
    bounds, usd, tokens = sized.served["bounds"], sized.usd_per_hour, sized.served["tpot_s"]
    return (
        sized.offer,
        f"{sized.nodes:,}",
        f"{sized.gpus:,}",
        sized.plan.name,
        ", ".join(sized.replicas_in_words),
        sized.router,
        digits(usd) if usd is not None else "–",
        share_beside(bounds["share"], bounds["wanted"]),
        _waits(sized.served["ttft_s"]),
        _waits(tokens) if tokens else "–",
        digits(sized.requests_per_s_each),
    )


def _waits(wait: Mapping[str, Any]) -> str:
    """The mean of a wait, and its 99th percentile."""
    last = wait.get("p99")
    return seconds(wait["mean"]) + (f", p99 {seconds(last)}" if last else "")


def _keys(sized: Sized) -> str:
    from tspsim.studies.planner.written import keys_text

    assert sized.plan is not None
    return keys_text({"name": sized.plan.name, **sized.plan.keys})


def write_page(sizing: Sizing, path: Path) -> None:
    """Write the page, whole or not at all; raises InputError where the file cannot be written."""
    atomic_write(Path(path), page(sizing))
