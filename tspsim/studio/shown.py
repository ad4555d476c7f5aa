"""Answers as components: headline, table, why each number is what it is, pins side by side."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from dash import html

from ..interface import likely_ratio
from ..units import compact, digits, duration, gib, percent
from .figures import Figure, figures

Plan = Mapping[str, Any]


def answer(document: Mapping[str, Any], told: Mapping[str, Any]) -> list[Any]:
    """The answer of a question.

    Parameters
    ----------
    document
        The JSON that ``tspsim run --json`` writes.
    told
        What the process said beside it (:func:`tspsim.studio.work.answer`).
    """
    plans = document["plans"]
    best = next((plan for plan in plans if plan["name"] == told["best"]), None)
    cluster = document["cluster"]
    machine = f"{cluster['gpus']:,} × {cluster['device']['name'].upper()}"
    parts: list[Any] = [html.P(f"{document['scenario']['name']} on {machine}", className="kicker")]
    if best is None:
        parts.append(html.P(told["refused"], className="headline refused"))
    else:
        parts += _headline(best, len(plans))
    if told["searched"]:
        parts.append(html.P(told["searched"]))
    parts.append(table(document, best))
    parts += _about(document, told)
    return parts


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
            f"Nine times of ten {compact(low)} to {compact(high)} tokens/s. {_capital(best['bottleneck'])}.",
            className="sub",
        ),
    ]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def table(document: Mapping[str, Any], best: Plan | None, caption: str = "Plans and their figures") -> Any:
    """A row a plan, a column a figure, each with its why."""
    plans = document["plans"]
    keys: dict[str, str] = {}
    for plan in plans:
        keys |= {each.key: each.name for each in figures(plan)}
    several = sum("error" not in plan for plan in plans) > 1
    head = [html.Th("plan", scope="col"), *(html.Th(name, scope="col") for name in keys.values())]
    if several:
        head.insert(2, html.Th("against the best", scope="col"))
    rows = []
    for plan in plans:
        told = {each.key: each for each in figures(plan)}
        refused = "error" in plan
        cells: list[Any] = [html.Td(_cell(document, plan, told[key])) if key in told else html.Td("–") for key in keys]
        if several:
            ratio = "–" if refused or best is None else f"{plan['tokens_per_s'] / best['tokens_per_s']:.2f}×"
            cells.insert(1, html.Td(ratio))
        state = "refused" if refused else "best" if plan is best else ""
        rows.append(html.Tr([html.Th(plan["name"], scope="row"), *cells], className=state))
        if refused:
            rows.append(html.Tr(html.Td(f"refused: {plan['error']}", colSpan=len(head), className="error")))
    return _region(caption, head, rows)


def _cell(document: Mapping[str, Any], plan: Plan, figure: Figure) -> list[Any]:
    reasons = why(document, plan, figure.key)
    shown: list[Any] = [html.Span(figure.text, className="figure", **{"data-figure": figure.key})]
    if reasons:
        inside = [html.P(each) for each in reasons]
        label = {"aria-label": f"why {figure.name} of {plan['name']}"}
        shown.append(html.Details([html.Summary("why?", **label), html.Div(inside)], className="why"))
    return shown


def why(document: Mapping[str, Any], plan: Plan, key: str) -> list[str]:
    """What a figure rests on: its parts, its range, where its numbers come from."""
    memory = plan["memory"]
    if key == "memory":
        parts = sorted(memory["parts"].items(), key=lambda pair: -pair[1])
        told = ", ".join(f"{name.replace('_', ' ')} {gib(size)}" for name, size in parts if size > 0)
        return [f"Of {gib(memory['capacity_bytes'])} that a program may use: {told}.", *_sources(document, "memory")]
    if "error" in plan:
        return []
    if key == "tokens_per_s":
        low, high, basis = (plan["range"][part] for part in ("low", "high", "basis"))
        return [
            f"Nine times of ten {compact(low)} to {compact(high)}: {basis}.",
            f"{_capital(plan['bottleneck'])}.",
            *(plan["notes"][:3]),
        ]
    if key in ("step_time_s", "mfu"):
        spent = plan.get("breakdown_s", {})
        exposed = sum(spent.get("exposed_communication", {}).values())
        named = {"compute": spent.get("compute", 0.0), "exposed communication": exposed}
        named |= {"bubble": spent.get("bubble", 0.0), "idle": spent.get("idle", 0.0)}
        told = ", ".join(f"{name} {duration(seconds)}" for name, seconds in named.items() if seconds)
        kinds = ", ".join(
            f"{kind.replace('_', ' ')} {duration(each)}" for kind, each in plan["compute_by_kind_s"].items()
        )
        peak = [f"MFU: the model's FLOPs over the dense peak; {percent(plan['mfu'])}."] if key == "mfu" else []
        return [
            *peak,
            f"Mean over ranks: {told}.",
            f"Of compute: {kinds}.",
            *_sources(document, "peak" if peak else ""),
        ]
    if key == "usd":
        return [
            ", ".join(f"{name}: {_money(value)}" for name, value in plan["cost"].items()),
            *_sources(document, "price"),
        ]
    told = plan["range"].get(key.removesuffix("_p99"))
    rows = (
        [f"Nine times of ten {duration(told['low'])} to {duration(told['high'])}."] if isinstance(told, Mapping) else []
    )
    return [*rows, f"Rests on: {plan['range']['basis']}."]


def _money(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {digits(each)}" for name, each in value.items() if each is not None)
    return digits(value) if isinstance(value, float | int) else str(value)


def _sources(document: Mapping[str, Any], word: str) -> list[str]:
    if not word:
        return []
    rows = [row for row in document["provenance"] if word in row["what"].lower()]
    return [f"{row['what']}: {row['value']} ({row['source']}; {row['basis']})." for row in rows[:3]]


def _about(document: Mapping[str, Any], told: Mapping[str, Any]) -> list[Any]:
    """What was assumed, where numbers come from, what the named entries are."""
    notes: dict[str, list[str]] = {}
    for plan in document["plans"]:
        for note in plan.get("notes", ()):
            notes.setdefault(note, []).append(plan["name"])
    every = len(document["plans"])
    lines = [
        note if every == 1 else f"{'Every plan' if len(names) == every else ', '.join(names)}: {note}"
        for note, names in notes.items()
    ]
    sources = [
        html.Tr([html.Th(row["what"], scope="row"), *(html.Td(row[key]) for key in ("value", "source", "basis"))])
        for row in document["provenance"]
    ]
    facts = [html.Li([html.Code(name), f": {what}"]) for _, name, what in told["facts"]]
    head = [html.Th(word, scope="col") for word in ("what", "value", "source", "basis")]
    return [
        *_details("What the named entries are", [html.Ul(facts)], facts),
        *_details("Worth knowing", [html.Ul([html.Li(each) for each in lines])], lines),
        *_details(
            "Assumed; each can be switched",
            [html.Ul([html.Li(each) for each in document["defaults"]])],
            document["defaults"],
        ),
        *_details(
            "Sources of the numbers",
            [_region("Sources", head, sources)],
            sources,
        ),
    ]


def _details(title: str, inside: list[Any], when: Sequence[Any]) -> list[Any]:
    return [html.Details([html.Summary(f"{title} ({len(when)})"), *inside])] if when else []


# --- load ---------------------------------------------------------------------------------------------------------


def loads(document: Mapping[str, Any]) -> list[str]:
    """What the points of a serving curve are, in their order; none where there is one point."""
    curves = [plan["curve"] for plan in document["plans"] if plan.get("curve")]
    return [_load(point) for point in curves[0]] if curves else []


def _load(point: Mapping[str, Any]) -> str:
    for key in ("concurrency", "rate", "load"):
        if point.get(key) is not None:
            told = point[key]
            return f"{key} {told:g}" if isinstance(told, int | float) else f"{key} {told}"
    return str(point.get("name", ""))


def at_load(document: Mapping[str, Any], index: int) -> Any:
    """The figures of every plan at one point of its curve."""
    plans = []
    for plan in document["plans"]:
        curve = plan.get("curve") or []
        if "error" in plan or index >= len(curve):
            continue
        point = curve[index]
        rate = point.get("output_tokens_per_s", plan["tokens_per_s"])
        told = point.get("range", plan["range"])
        plans.append({**plan, "serving": point, "tokens_per_s": rate, "range": {**plan["range"], **told}, "cost": {}})
    return table({**document, "plans": plans}, None, "Figures at this load") if plans else None


# --- pins ---------------------------------------------------------------------------------------------------------


def pinned(pins: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Answers side by side, the first the one that others are held against."""
    if not pins:
        return [html.P("Nothing is pinned. “Pin this answer” keeps it here, beside the next ones.", className="doc")]
    plans = [pin["plan"] for pin in pins]
    names: dict[str, str] = {}
    for plan in plans:
        names |= {each.key: each.name for each in figures(plan)}
    head = [html.Th("figure", scope="col")]
    for number, pin in enumerate(pins):
        buttons = [_pin_button("open", "reopen", number, pin), _pin_button("remove", "unpin", number, pin)]
        plan_name = html.Div(plans[number]["name"], className="what")
        head.append(html.Th([html.Div(pin["name"]), plan_name, *buttons], scope="col"))
    rows = [_ratios(pins)] if len(pins) > 1 else []
    for key, name in names.items():
        told = [next((each.text for each in figures(plan) if each.key == key), "–") for plan in plans]
        rows.append(html.Tr([html.Th(name, scope="row"), *(html.Td(each) for each in told)]))
    body = html.Table([html.Caption("Pinned answers", className="unseen"), html.Thead(html.Tr(head)), html.Tbody(rows)])
    parts: list[Any] = [
        html.Div(body, className="scroll", tabIndex=0, role="region", **{"aria-label": "Pinned answers"})
    ]
    for pin in pins[1:]:
        lines = difflib.unified_diff(
            pins[0]["text"].splitlines(), pin["text"].splitlines(), pins[0]["name"], pin["name"], "", "", 1, ""
        )
        text = "\n".join(lines) or "the same question"
        parts.append(html.Details([html.Summary(f"What {pin['name']} asks otherwise"), html.Pre(text, tabIndex=0)]))
    return parts


def _pin_button(words: str, kind: str, number: int, pin: Mapping[str, Any]) -> Any:
    label = {"aria-label": f"{_capital(words)} {pin['name']}"}
    return html.Button(words, id={"type": kind, "pin": number}, type="button", **label)


def _region(title: str, head: list[Any], rows: list[Any]) -> Any:
    """A table that scrolls sideways where it is wider than the page; keyboards reach it."""
    body = html.Table([html.Caption(title, className="unseen"), html.Thead(html.Tr(head)), html.Tbody(rows)])
    return html.Div(body, className="scroll", tabIndex=0, role="region", **{"aria-label": title})


def _ratios(pins: Sequence[Mapping[str, Any]]) -> Any:
    cells: list[Any] = [html.Td("1")]
    for pin in pins[1:]:
        ratio, ends = likely_ratio(pin["doubts"], pins[0]["doubts"])
        range_ = f" ({ends[0]:.2f} to {ends[1]:.2f})" if ends else ""
        cells.append(html.Td(f"{ratio:.3f}×{range_}"))
    return html.Tr([html.Th("tokens/s over the first (nine times of ten)", scope="row"), *cells])


# --- offers -------------------------------------------------------------------------------------------------------


def offers(value: Mapping[str, Any]) -> list[Any]:
    """A purchase: the verdict in words, and a row an offer."""
    document = value["document"]
    columns = {
        "name": "offer",
        "device": "device",
        "gpus": "GPUs",
        "plan": "plan",
        "tokens_per_s": "tokens/s",
        "tokens_per_usd": "tokens a dollar",
        "tokens_per_joule": "tokens a joule",
        "limit": "what limits it",
    }
    head = [html.Th(name, scope="col") for name in columns.values()]
    rows = []
    for offer in document["offers"]:
        cells = [_plain(offer.get(key)) for key in columns]
        state = "best" if offer["name"] == document["winner"] else ""
        rows.append(html.Tr([html.Th(cells[0], scope="row"), *(html.Td(cell) for cell in cells[1:])], className=state))
    return [*(html.P(each) for each in value["told"]), _region("Offers", head, rows)]


def _plain(value: Any) -> str:
    if value is None:
        return "–"
    return compact(value) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
