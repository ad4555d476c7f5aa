"""The answer of a fleet as components: jobs' share of the cluster, the table of classes, lost GPU-hours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import dcc, html

from ...base.units import duration, percent
from . import fleet_why
from .fleet_figures import of_class
from .parts import AXIS, LOOKS, explained, folded, heads, region


def parts(document: Mapping[str, Any], facts: Mapping[str, Any]) -> list[Any]:
    """The answer of a fleet, the cluster first.

    Parameters
    ----------
    document
        The JSON that ``tspsim run --json`` writes.
    facts
        Further facts from the worker (:func:`tspsim.studio.work.answer`).
    """
    fleet, device = document["fleet"], document["cluster"]["device"]["name"].upper()
    kicker = (
        f"{document['scenario']['name']}: {len(fleet['jobs']):,} jobs on {fleet['nodes']:,} nodes, "
        f"{fleet['gpus']:,} × {device}, {duration(fleet['horizon_s'])}"
    )
    spent = [f"{fleet[key]:,.0f} {unit}" for key, unit in _SPENT if fleet[key] is not None]
    classes = fleet["classes"]
    rows = []
    for kind in classes:
        name = kind["class"]
        cells = [
            html.Td(explained(figure, name, fleet_why.of_class(document, name, figure.key)))
            for figure in of_class(kind)
        ]
        rows.append(html.Tr([html.Th(name, scope="row"), *cells]))
    columns = ["class", *(figure.name for figure in of_class(classes[0]))] if classes else []
    return [
        html.P(kicker, className="kicker"),
        html.P(
            [
                html.Span(percent(fleet["productive"]), id="rate"),
                " of all GPU-hours do work that lasts; jobs have ",
                percent(fleet["allocated"]),
                ".",
                folded("why of all GPU-hours", fleet_why.of_whole(document)),
            ],
            className="headline",
        ),
        *([html.P(f"{' and '.join(spent)} for the period.", className="sub")] if spent else []),
        region("Classes of jobs", heads(columns), rows),
        *(_drawn(*figure) for figure in facts["drawn"]),
    ]


_SPENT = (("cost_usd", "USD"), ("energy_kwh", "kWh"))


def _drawn(title: str, figure: Mapping[str, Any], caption: str) -> Any:
    """A figure of the report."""
    layout = {**figure["layout"], **LOOKS}
    layout |= {name: {**AXIS, **axis} for name, axis in layout.items() if name.startswith(("xaxis", "yaxis"))}
    layout.pop("meta", None)
    graph = dcc.Graph(figure={"data": figure["data"], "layout": layout}, config={"displayModeBar": False})
    return html.Details([html.Summary(title), html.P(caption, className="doc"), graph], open=True)
