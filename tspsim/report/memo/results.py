"""The memo of plans of one machine, or of scenarios without a purchase: the fastest plan, and its certainty."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tspsim.base.units import compact, gib, percent
from tspsim.report import requests, served
from tspsim.report.memo.sheet import Memo
from tspsim.report.memo.words import plan_in_words, precision, stack, work
from tspsim.report.numbers import seconds
from tspsim.report.sections.answer import kicker
from tspsim.report.view import View, price_range
from tspsim.step.result import PlanResult, Result
from tspsim.studies.uncertainty import likely_ratio, priced_plan_of

COLUMNS = ("Plan", "Machine", "In words", "Tokens/s", "Step", "Memory per GPU", "$/M tokens", "× the first")


def memo_of(results: Sequence[Result], title: str = "", description: str = "") -> Memo:
    """The sheet of one result, or of several side by side."""
    several = len(results) > 1
    ran = sorted(
        ((result, plan) for result in results for plan in result.plans if plan.ran),
        key=lambda pair: pair[1].merit,
        reverse=True,
    )
    refused = [plan for result in results for plan in result.plans if not plan.ran]
    first = ran[0] if ran else None
    level = [plan.name for _, plan in ran[1:] if first is not None and _tied(first[1], plan)]
    standing, verdict = _headline(first, level, several)
    view = View(first[0] if first else results[0])
    return Memo(
        title=title or " · ".join(str(result.scenario["name"]) for result in results[:4]),
        kicker=f"Decision memo · {kicker(view)}" if not several else f"Decision memo · {len(results)} scenarios",
        question=description or str(view.result.scenario.get("description", "")),
        verdict=verdict,
        standing=standing,
        reasons=list(_reasons(view, first[1])) if first else [],
        tiles=list(figures(first[1])) if first else [],
        what="Plans, the fastest first",
        columns=COLUMNS,
        rows=[_cells(result, plan, first[1] if first else plan, several) for result, plan in ran],
        lists=[
            ("How sure", list(_sure(first[1], [plan for _, plan in ran[1:]])) if first else []),
            ("To know before signing", [*(first[1].notes if first else ()), *_refusals(refused)]),
        ],
        terms=list(_terms(results, first)),
    )


def _headline(first: tuple[Result, PlanResult] | None, level: Sequence[str], several: bool) -> tuple[str, str]:
    if first is None:
        return "open", "No plan fits or can run."
    result, plan = first
    name = f"{plan.name} of {result.scenario['name']}" if several else plan.name
    if level:
        return "tie", f"{name} and {', '.join(level[:3])} tie: the difference lies within its range."
    if plan.serving:
        return "sure", requests.headline(plan)
    return "sure", f"{name}: {compact(plan.tokens_per_s, 'tokens/s')}."


def _reasons(view: View, plan: PlanResult) -> Iterator[str]:
    if plan.serving:
        yield from requests.sentences(plan)
        return
    if view.load is not None:
        yield from served.sentences(view, plan)
    yield f"{plan.bottleneck[:1].upper()}{plan.bottleneck[1:]}."


def figures(plan: PlanResult) -> Iterator[tuple[str, str, str]]:
    """A plan's main figures: name, value, and the small text below."""
    spread = plan.range
    yield "Tokens/s", compact(plan.tokens_per_s), f"{compact(spread.low)} – {compact(spread.high)}" if spread else ""
    if plan.serving:
        for key, what in (("ttft_s", "First token"), ("tpot_s", "Output token")):
            if plan.serving.get(key):
                yield what, seconds(plan.serving[key]["mean"]), f"99 % within {seconds(plan.serving[key]['p99'])}"
    else:
        yield "Step", seconds(plan.step_time_s), f"MFU {percent(plan.mfu)}" if plan.mfu else ""
        yield "Memory per GPU", gib(plan.memory.peak_bytes), f"of {gib(plan.memory.capacity_bytes)}"
    if price_range(plan):
        yield "$/M tokens", price_range(plan), "the cheapest to the dearest basis"


def _cells(result: Result, plan: PlanResult, first: PlanResult, several: bool) -> list[str]:
    machine = f"{plan.gpus:,} {str(result.cluster['device']['name']).upper()}" if several else ""
    spread = f"\n{compact(plan.range.low)} – {compact(plan.range.high)}" if plan.range is not None else ""
    against = "first"
    if plan is not first:
        span = None if first.serving else ends(first, plan)
        against = f"{plan.tokens_per_s / first.tokens_per_s:.2f}" + (", tie" if _tied(first, plan) else "")
        against += f"\n{1 / span[1]:.2f} – {1 / span[0]:.2f}" if span else ""
    return [
        plan.name,
        machine,
        plan_in_words(plan),
        compact(plan.tokens_per_s) + spread,
        "–" if plan.serving else seconds(plan.step_time_s),
        gib(plan.memory.peak_bytes),
        price_range(plan) or "–",
        against,
    ]


def ends(first: PlanResult, other: PlanResult) -> tuple[float, float] | None:
    """The range of the ratio of two rates; None where the answers lack it."""
    ours, theirs = priced_plan_of(first), priced_plan_of(other)
    return None if ours is None or theirs is None else likely_ratio(ours, theirs)


def _tied(first: PlanResult, other: PlanResult) -> bool:
    span = None if first.serving else ends(first, other)
    return span is not None and span[0] <= 1.0 <= span[1]


def _sure(first: PlanResult, others: Sequence[PlanResult]) -> Iterator[str]:
    for other in [] if first.serving else others[:4]:
        span = ends(first, other)
        if span is not None:
            ratio = first.tokens_per_s / other.tokens_per_s
            likely = f"nine times of ten {span[0]:.2f} to {span[1]:.2f}"
            yield f"{first.name} over {other.name}: {ratio:.2f} times, {likely}."
    if first.range is not None:
        yield f"The rate's range: {first.range.basis}."


def _refusals(refused: Sequence[PlanResult]) -> list[str]:
    return [f"{plan.name} is refused: {str(plan.error).rstrip('.')}." for plan in refused]


def _terms(results: Sequence[Result], first: tuple[Result, PlanResult] | None) -> Iterator[tuple[str, str]]:
    shown = first[0] if first else results[0]
    yield "Work", work(shown)
    if first is not None:
        yield "Plan", f"{first[1].name}: {plan_in_words(first[1])}."
    yield "Precision", precision(shown)
    yield "Stack", stack(results)
    hour: Any = first[1].cost.get("usd_per_gpu_hour") if first is not None else None
    if isinstance(hour, dict) and hour:
        yield "Prices", "$ per GPU hour: " + ", ".join(f"{basis} {usd:g}" for basis, usd in hour.items())
    yield "Left out", "staff, storage, failures and negotiation; the page lists what the model does not explain."
