"""The answer of plans as components: headline, table, reasons of each number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import html

from ...base.units import compact, digits, duration, gib, percent
from .parts import capital, explained, heads, prose, region, sources
from .plan_figures import figures
from .sort import Figure

Plan = Mapping[str, Any]


def parts(document: Mapping[str, Any], facts: Mapping[str, Any]) -> list[Any]:
    """The answer of a question.

    Parameters
    ----------
    document
        The JSON that ``tspsim run --json`` writes.
    facts
        Further facts from the worker (:func:`tspsim.studio.work.answer`).
    """
    plans = document["plans"]
    best = next((plan for plan in plans if plan["name"] == facts["best"]), None)
    cluster = document["cluster"]
    machine = f"{cluster['gpus']:,} × {cluster['device']['name'].upper()}"
    shown: list[Any] = [html.P(f"{document['scenario']['name']} on {machine}", className="kicker")]
    if best is None:
        shown.append(html.P(facts["refused"], className="headline refused"))
    else:
        shown += _headline(best, len(plans))
    if facts["searched"]:
        shown.append(html.P(prose(facts["searched"])))
    return [*shown, table(document, best)]


def _headline(best: Plan, count: int) -> list[Any]:
    shown = figures(best)
    low, high = best["range"]["low"], best["range"]["high"]
    fastest = " is best" if count > 1 else ""
    return [
        html.P(
            [html.Strong(f"{best['name']}{fastest}: "), html.Span(f"{shown[0].text} tokens/s", id="rate")],
            className="headline",
        ),
        html.P(
            f"Nine times of ten {compact(low)} to {compact(high)} tokens/s. {capital(best['bottleneck'])}.",
            className="sub",
        ),
    ]


def table(document: Mapping[str, Any], best: Plan | None, caption: str = "Plans and their figures") -> Any:
    """A row per plan, a column per figure, each with its reasons."""
    plans = document["plans"]
    keys: dict[str, str] = {}
    for plan in plans:
        keys |= {figure.key: figure.name for figure in figures(plan)}
    several = sum("error" not in plan for plan in plans) > 1
    head = heads(["plan", *keys.values()])
    if several:
        head.insert(2, html.Th("against the best", scope="col"))
    rows = []
    for plan in plans:
        present = {figure.key: figure for figure in figures(plan)}
        refused = "error" in plan
        cells: list[Any] = [
            html.Td(_cell(document, plan, present[key])) if key in present else html.Td("–") for key in keys
        ]
        if several:
            ratio = "–" if refused or best is None else f"{plan['tokens_per_s'] / best['tokens_per_s']:.2f}×"
            cells.insert(1, html.Td(ratio))
        state = "refused" if refused else "best" if plan is best else ""
        rows.append(html.Tr([html.Th(plan["name"], scope="row"), *cells], className=state))
        if refused:
            rows.append(html.Tr(html.Td(f"refused: {plan['error']}", colSpan=len(head), className="error")))
    return region(caption, head, rows)


def _cell(document: Mapping[str, Any], plan: Plan, figure: Figure) -> list[Any]:
    reasons = why(document, plan, figure.key)
    return explained(figure, plan["name"], reasons)


def why(document: Mapping[str, Any], plan: Plan, key: str) -> list[str]:
    """The reasons of a figure: its parts, its range, its sources."""
    memory = plan["memory"]
    if key == "memory":
        parts = sorted(memory["parts"].items(), key=lambda pair: -pair[1])
        shown = ", ".join(f"{name.replace('_', ' ')} {gib(size)}" for name, size in parts if size > 0)
        return [f"Of {gib(memory['capacity_bytes'])} that a program may use: {shown}.", *sources(document, "memory")]
    if "error" in plan:
        return []
    if key == "tokens_per_s":
        low, high, basis = (plan["range"][part] for part in ("low", "high", "basis"))
        return [
            f"Nine times of ten {compact(low)} to {compact(high)}: {basis}.",
            f"{capital(plan['bottleneck'])}.",
            *(plan["notes"][:3]),
        ]
    if key in ("step_time_s", "mfu"):
        spent = plan.get("breakdown_s", {})
        exposed = sum(spent.get("exposed_communication", {}).values())
        named = {"compute": spent.get("compute", 0.0), "exposed communication": exposed}
        named |= {"bubble": spent.get("bubble", 0.0), "idle": spent.get("idle", 0.0)}
        seconds_of = ", ".join(f"{name} {duration(seconds)}" for name, seconds in named.items() if seconds)
        kinds = ", ".join(
            f"{kind.replace('_', ' ')} {duration(seconds)}" for kind, seconds in plan["compute_by_kind_s"].items()
        )
        peak = [f"MFU: the model's FLOPs over the dense peak; {percent(plan['mfu'])}."] if key == "mfu" else []
        return [
            *peak,
            f"Mean over ranks: {seconds_of}.",
            f"Of compute: {kinds}.",
            *sources(document, "peak" if peak else ""),
        ]
    if key == "usd":
        return [
            ", ".join(f"{name}: {_money(value)}" for name, value in plan["cost"].items()),
            *sources(document, "price"),
        ]
    if "project" in plan and key in _PROJECT:
        return [*_run(plan["project"]["run"]), *sources(document, "price" if key == "project_usd" else "")]
    spread = plan["range"].get(key.removesuffix("_p99"))
    rows = (
        [f"Nine times of ten {duration(spread['low'])} to {duration(spread['high'])}."]
        if isinstance(spread, Mapping)
        else []
    )
    return [*rows, f"Rests on: {plan['range']['basis']}."]


_PROJECT = ("days", "project_goodput", "project_usd")


def _run(run: Mapping[str, Any]) -> list[str]:
    """The effect of failures on a run."""
    return [
        f"Work of {duration(run['work_s'])} takes {duration(run['elapsed_s'])}: {digits(run['failures'])} failures are "
        f"expected, one in {duration(run['mtbf_s'])} of the whole machine (`project.failures`).",
        f"A checkpoint every {duration(run['interval_s'])} of work, the interval that loses least.",
    ]


def _money(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {digits(number)}" for name, number in value.items() if number is not None)
    return digits(value) if isinstance(value, float | int) else str(value)
