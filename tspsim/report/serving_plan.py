"""The planner's answer about a serving step, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tspsim.base.units import GIB, compact, gib

from .figures import ACCENT, value_axis
from .fronts import front_figure, front_line, marks
from .numbers import label, seconds
from .searched import SearchedView
from .served import sessions, user
from .view import price_range

if TYPE_CHECKING:
    from tspsim.studies.planner import ServingPlanned
    from tspsim.studies.planner.limit import Limit
    from tspsim.studies.planner.serving import ServedStep

COLUMNS = (
    "Plan", "Batch a replica", "Tokens/s", "Per GPU", "First token", "Output token", "Per user", "Sessions",
    "Memory free", "$/M tokens", "Limit",
)  # fmt: skip
#: Names of limits in words; the value follows.
LIMITED = {"tpot": "time an output token", "ttft": "time to the first token", "step": "time of a step",
           "memory_free": "memory free per GPU"}  # fmt: skip


def view_of(planned: ServingPlanned) -> SearchedView:
    """The answer in words."""
    from tspsim.studies.planner.written import keys_text

    best = planned.best[0]
    return SearchedView(
        scenario=planned.scenario,
        kicker=headline(planned),
        headline=f"{best.name}: {best.result.in_a_line().rpartition(', ')[0]}",
        sentences=sure(planned),
        keys=keys_text(best.keys),
        columns=COLUMNS,
        rows=rows(planned),
        best=len(planned.best),
        refused=planned.refused,
        front=drawn_front(planned),
        caption="Simulated plans: tokens/s per GPU over tokens/s of one user. The line joins the Pareto-optimal plans.",
        wide=COLUMNS[-1:],
    )


def rows(planned: ServingPlanned) -> list[tuple[str, ...]]:
    """The best plans, the rest of the front, and the stated ones, as cells of :data:`COLUMNS`."""
    shown = [*planned.best, *(plan for plan in planned.front if plan not in planned.best)]
    others = [plan for plan in planned.stated if plan not in shown]
    return [*(cells(plan) for plan in shown), *(cells(plan, " (stated)") for plan in others)]


def cells(served: ServedStep, mark: str = "") -> tuple[str, ...]:
    result, seen = served.result, served.result.inference
    free = (result.memory.capacity_bytes - result.memory.peak_bytes) / GIB
    first, token = seen.get("time_to_first_token_s"), seen.get("time_per_output_token_s")
    return (
        served.name + mark,
        "–" if served.batch is None else f"{served.batch:,}",
        compact(result.tokens_per_s),
        compact(result.tokens_per_s_per_gpu),
        seconds(first) if first else "–",
        seconds(token) if token else "–",
        user(result)[0],
        sessions(result)[0],
        f"{free:.1f} GiB",
        price_range(result) or "–",
        result.bottleneck,
    )


def sure(planned: ServingPlanned) -> list[str]:
    """The extent of the search, and what it leaves open."""
    said = [
        f"{planned.bounded:,} plans bounded, {planned.simulated:,} simulated; searched: {', '.join(planned.searched)}."
    ]
    if planned.limits:
        said.append(f"Limits: {', '.join(map(limit_in_words, planned.limits))}.")
    if planned.interrupted:
        said.append("Interrupted: the best so far.")
    elif not planned.complete:
        said.append("The budget ran out (--budget): plans that were not bounded may be better.")
    return said


def limit_in_words(limit: Limit) -> str:
    """A limit in words."""
    from tspsim.studies.planner.limit import LIMITS

    value = gib(limit.value) if LIMITS[limit.name].unit == "bytes" else seconds(limit.value)
    end = "at most" if limit.compare == "<=" else "at least"
    return f"{LIMITED.get(limit.name, limit.name)} {end} {value}"


def headline(planned: ServingPlanned) -> str:
    """The machine and the work of the plans."""
    work, cluster = planned.question.work, planned.question.cluster
    nodes = f" in {cluster.nodes:,} nodes" if cluster.nodes > 1 else ""
    machine = f"{cluster.gpus:,} {planned.question.device.name.upper()}{nodes}"
    free = "batch" in planned.searched
    load = replace(work.load, batch=0) if free else work.load
    amount = load.in_words or f"at {replace(work.load, batch=1).in_words.partition(' at ')[2]}"
    return f"Plans for {machine}: {work.step.title} of {planned.question.model.name}, {amount}"


def drawn_front(planned: ServingPlanned) -> dict[str, Any]:
    """Rate per GPU over the rate of a user, or over the wait for the first token."""
    decodes = any("tokens_per_s_per_user" in plan.result.inference for plan in planned.contenders)
    key = "tokens_per_s_per_user" if decodes else "time_to_first_token_s"
    title = "tokens/s per user" if decodes else "time to the first token, s"

    def trace(name: str, colour: str, chosen: Sequence[ServedStep]) -> dict[str, Any]:
        rates = [plan.result.tokens_per_s_per_gpu for plan in chosen]
        said = [f"{compact(rate)} tokens/s per GPU" for rate in rates]
        texts = [f"<b>{label(plan.name, 60)}</b><br>{rate}" for plan, rate in zip(chosen, said, strict=True)]
        return marks(name, colour, [plan.result.inference[key] for plan in chosen], rates, texts)

    others = [plan for plan in planned.contenders if plan not in planned.best]
    traces = [trace("best", ACCENT, planned.best), *([trace("simulated", "#8a94a6", others)] if others else [])]
    joined = sorted((float(e.result.inference[key]), e.result.tokens_per_s_per_gpu) for e in planned.front)
    return front_figure(
        [*traces, front_line("front", joined, "vh")], value_axis(title, rangemode="normal"), "tokens/s per GPU"
    )
