"""Served requests on the terminal: one row per point of every plan's curve."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tspsim.base.units import compact, digits, percent, share_beside
from tspsim.serving.bounds import kept_in_words
from tspsim.serving.steady import figures, interval, tied
from tspsim.step.result import PlanResult, Result

from .numbers import seconds
from .tables import add_refused, add_row, empty_table
from .view import in_dollars

if TYPE_CHECKING:
    from rich.table import Table

#: Columns of a terminal that shows the whole table.
WIDE = 130
Point = Mapping[str, Any]
#: Labels of points of a curve, and their headings.
LABELS = {"concurrency": "clients", "rate": "requests/s"}


def serves(results: Sequence[Result]) -> bool:
    """Whether the results are of served requests."""
    return any(plan.serving for result in results for plan in result.plans) or any(
        result.scenario.get("traffic") for result in results
    )


def points(plan: PlanResult) -> list[Point]:
    """The points of a plan: of its curve, or the only one, with its range."""
    if plan.curve:
        return list(plan.curve)
    return [{**plan.serving, "range": plan.range.to_json() if plan.range else {}}]


def wait(key: str, which: str = "mean") -> Callable[[Point], str]:
    """The cell of a wait."""
    return lambda point: seconds(point[key][which]) if point.get(key) else "–"


def rate(point: Point) -> str:
    """Output tokens/s of the whole run with their range."""
    ends = point.get("range", {}).get("output_tokens_per_s")
    text = compact(point["output_tokens_per_s"])
    return f"{text} ({compact(ends['low'])} – {compact(ends['high'])})" if ends else text


def lasting(name: str) -> Callable[[Point], str]:
    """The cell of a rate that verdicts rest on: of the steady part, where there is one."""
    return lambda point: compact(figures(point)[name])


def price(point: Point) -> str:
    """Dollars per million output tokens, the cheapest and the dearest basis."""
    return in_dollars(figures(point)["usd_per_million_output_tokens"].values()) or "–"


def good(point: Point) -> str:
    """Requests/s within bounds, with their share, and the required share where it is missed."""
    value, bounds = figures(point)["goodput_requests_per_s"], point.get("bounds")
    if value is None or bounds is None:
        return "–"
    share, wanted = share_beside(bounds["share"], bounds["wanted"]), share_beside(bounds["wanted"], bounds["share"])
    missed = "" if bounds["kept"] else " < " + wanted if bounds["share"] < bounds["wanted"] else ", queue grows"
    return f"{digits(value)} ({share}{missed})"


def user(point: Point) -> str:
    value = point["tokens_per_s_per_user"]
    return "–" if value is None else digits(value)


def full(point: Point) -> str:
    share = point["kv"]["peak_share"]
    return "–" if share is None else percent(share, decimals=0)


#: Wide and narrow heading, cell, and whether a narrow terminal shows it.
Column = tuple[str, str, Callable[[Point], str], bool]


def columns(shown: Sequence[Point]) -> Iterator[Column]:
    """The columns with values for the points."""
    if any(point.get("steady") for point in shown):
        yield "output\ntokens/s", "tok/s", lasting("output_tokens_per_s"), True
        yield "per GPU", "per GPU", lasting("output_tokens_per_s_per_gpu"), True
        yield "with ramp and drain", "whole run", rate, False
    else:
        yield "output tokens/s", "tok/s", rate, True
        yield "per GPU", "per GPU", lasting("output_tokens_per_s_per_gpu"), True
    yield "TTFT", "TTFT", wait("ttft_s"), True
    yield "99 %", "99 %", wait("ttft_s", "p99"), False
    yield "TPOT", "TPOT", wait("tpot_s"), True
    yield "tokens/s\nper user", "per user", user, True
    if any(point["goodput_requests_per_s"] is not None for point in shown):
        yield "good\nrequests/s", "good/s", good, True
    yield "cache", "KV", full, False
    if any(point["usd_per_million_output_tokens"] for point in shown):
        yield "$/M\noutput tokens", "$/M", price, True


def table(results: Sequence[Result], width: int = 160) -> Table:
    """Every plan of every result, point by point; the reasons of refused plans stand below.

    Parameters
    ----------
    width
        Columns of the terminal; below 130 headings are short, and range, tails and caches are left out.
    """
    wide = width >= WIDE
    ran = [plan for result in results for plan in result.plans if plan.ran]
    every = [point for plan in ran for point in points(plan)]
    shown = [column for column in columns(every) if wide or column[3]]
    labels = [key for key in LABELS if any(key in point for point in every)]
    answer = empty_table(("scenario",) if len(results) > 1 else (), padding=(0, 1))
    answer.add_column("plan", no_wrap=True, max_width=24 if wide else 14)
    for heading in (*(LABELS[key] for key in labels), *(column[0] if wide else column[1] for column in shown)):
        answer.add_column(heading, justify="right", no_wrap=True)
    best = max(ran, key=lambda plan: plan.merit, default=None)
    refused = []
    for result in results:
        answer.add_section()
        for plan in result.plans:
            start = [str(result.scenario["name"]), plan.name] if len(results) > 1 else [plan.name]
            if not plan.ran:
                add_row(answer, [*start, "refused"], "yellow")
                refused.append(f"{': '.join(start)} is refused: {plan.error}")
                continue
            for number, point in enumerate(points(plan)):
                names = start if number == 0 else [""] * len(start)
                cells = [f"{point[key]:g}" if key in point else "" for key in labels]
                values = [column[2](point) for column in shown]
                if not wide:
                    values[0] = lasting("output_tokens_per_s")(point)
                add_row(answer, [*names, *cells, *values], "bold" if plan is best else "")
    add_refused(answer, refused)
    return answer


def headline(plan: PlanResult, others: Sequence[PlanResult] = ()) -> str:
    """The best plan and its rate, in a sentence; of ``others`` the ones that tie with it."""
    point = plan.serving
    even = [other for other in others if other.ran and _even(point, other.serving)]
    level = [other.name for other in even]
    lead = "serves best" if point["goodput_requests_per_s"] is not None else "puts out most"
    lead = f"ties with {' and '.join(level)}, and" if level else lead if others else "serves"
    load = next((f" with {point['concurrency']:g} clients" for key in point if key == "concurrency"), "")
    load = load or next((f" at {point['rate']:g} requests/s" for key in point if key == "rate"), "")
    kept = point.get("bounds")
    if kept and not kept["kept"]:
        return f"No plan keeps the bounds; {plan.name} comes nearest{load}: {kept_in_words(kept)}."
    lasts = figures(point)
    rate_s = compact(lasts["output_tokens_per_s"], "output tokens/s")
    text = f"{plan.name} {lead}{load}{' puts out' if level else ':'} {rate_s}"
    if lasts["goodput_requests_per_s"] is not None:
        text += f", {digits(lasts['goodput_requests_per_s'])} requests/s within the bounds"
    return f"{text}{within(point)}{_sooner(point, even)}."


def _sooner(point: Point, even: Sequence[PlanResult]) -> str:
    """The plan that ties with the first and ends a request sooner, in words; empty where there is none."""
    ended = {other.name: float(other.serving["e2e_s"]["mean"]) for other in even if other.serving.get("e2e_s")}
    name = min(ended, key=lambda name: ended[name], default="")
    if not name or not point.get("e2e_s") or ended[name] >= point["e2e_s"]["mean"]:
        return ""
    return f"; {name} ends a request sooner, after {seconds(ended[name])} against {seconds(point['e2e_s']['mean'])}"


def _even(point: Point, other: Point) -> bool:
    """Whether two points differ by no more than the drawn requests allow, in the rate that ranks plans."""
    names = {_ranked_by(load_point) for load_point in (point, other)}
    kept = {bool((load_point.get("bounds") or {}).get("kept", True)) for load_point in (point, other)}
    if len(names) > 1 or len(kept) > 1 or not (point.get("steady") and other.get("steady")):
        return False
    name = names.pop()
    mine, theirs = ((float(figures(load_point)[name]), *interval(load_point, name)) for load_point in (point, other))
    return tied(mine, theirs)


def _ranked_by(point: Point) -> str:
    return "output_tokens_per_s" if point["goodput_requests_per_s"] is None else "goodput_requests_per_s"


def within(point: Point) -> str:
    """The interval of the rate by the drawn requests; empty for a run without a steady part."""
    if not point.get("steady"):
        return ""
    low, high = interval(point, _ranked_by(point))
    return f" (steady, {digits(low)} to {digits(high)} nine times of ten)"


def sentences(plan: PlanResult) -> Iterator[str]:
    """Waits of users, use of caches, cost, and the bottleneck."""
    point = plan.serving
    if "highest_rate_requests_per_s" in point:
        over = point.get("lowest_rate_over_bounds_requests_per_s")
        more = f"; {digits(over)} are too many" if over else ""
        yield f"The highest rate within the bounds is {digits(point['highest_rate_requests_per_s'])} requests/s{more}."
    if point["ttft_s"]:
        text = f"First tokens come after {wait('ttft_s')(point)} (99 % within {wait('ttft_s', 'p99')(point)})"
        if point["tpot_s"]:
            text += f", then one every {wait('tpot_s')(point)}: {user(point)} tokens/s per user"
        yield f"{text}."
    room = point["kv"]["capacity_tokens"]
    if room:
        sessions = f", {digits(point['kv']['sessions'])} sessions as long as these" if point["kv"]["sessions"] else ""
        yield f"Caches hold {compact(room, 'tokens')}{sessions}; at most {full(point)} are used."
    if point["prefix_hit_share"]:
        yield f"{percent(point['prefix_hit_share'], decimals=1)} of prompt tokens were in a cache."
    if point.get("tasks"):
        yield of_tasks(point["tasks"])
    if plan.cost.get("usd_per_million_tokens"):
        yield f"A million output tokens cost ${price(point)}."
    yield f"{plan.bottleneck[:1].upper()}{plan.bottleneck[1:]}."


def of_tasks(tasks: Mapping[str, Any]) -> str:
    """Times of agents' tasks, and their parts."""
    if "depth" in tasks:
        shape = f"{_mean(tasks['turns'])} calls, {_mean(tasks['depth'])} one after the other,"
        way = f"models {seconds(tasks['path_model_s'])} of it on the longest path"
        last = f"the last call's first token comes after {seconds(tasks['last_call_ttft_s']['mean'])}"
        return f"A task of {shape} takes {seconds(tasks['task_s']['mean'])}: {way}; {last}."
    parts = {"models": tasks["model_s"], "tools": tasks["tool_s"], "waits for workers": tasks["tool_wait_s"]}
    where = ", ".join(f"{name} {seconds(part_s)}" for name, part_s in parts.items() if part_s)
    busy = f"; workers are busy {percent(tasks['worker_share'], decimals=0)}" if tasks["worker_share"] else ""
    return f"A task of {tasks['turns']} turns takes {seconds(tasks['task_s']['mean'])}: {where}{busy}."


def _mean(number: float) -> str:
    """A count that is the same for all, or a mean."""
    return f"{number:,}" if isinstance(number, int) else f"{number:,.1f}"
