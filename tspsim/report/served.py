"""Columns of tables, and sentences, for the plans of a serving step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tspsim.base.units import compact, digits, gib, percent, several
from tspsim.step.result import PlanResult

from .numbers import seconds
from .view import View

#: Keys of waits in the entry ``inference``.
FIRST, TOKEN = "time_to_first_token_s", "time_per_output_token_s"


@dataclass(frozen=True)
class PlanColumn:
    """``long`` and ``short`` headings; ``cell`` gives a plan's value and the small text beside it."""

    long: str
    short: str
    cell: Callable[[PlanResult], tuple[str, str]]
    #: Only on a wide terminal.
    wide: bool = False


def columns(view: View) -> tuple[PlanColumn, ...]:
    """The columns with values for the step of ``view``."""
    keys = {key for plan in view.ran for key in plan.inference}
    load = view.load
    assert load is not None
    shown = [
        PlanColumn(view.rate_words, "tok/s", rate),
        PlanColumn(f"{view.rate_words} per GPU", "per GPU", lambda plan: each_gpu(view, plan)),
    ]
    if FIRST in keys:
        shown.append(PlanColumn("First token", "first", lambda plan: (timed(plan, FIRST), "")))
    if TOKEN in keys:
        shown.append(PlanColumn("Output token", "token", lambda plan: (timed(plan, TOKEN), "")))
        shown.append(PlanColumn("Tokens/s per user", "per user", user))
    if load.speculation or (load.prompts and load.batch):
        shown.append(PlanColumn("Step", "step", lambda plan: (seconds(plan.step_time_s), ""), wide=True))
    if load.prompts:
        shown.append(PlanColumn("MFU", "MFU", lambda plan: (percent(plan.mfu), ""), wide=True))
    return (
        *shown,
        PlanColumn("Exposed communication", "exp.", exposed, wide=True),
        PlanColumn("Sessions", "sess.", sessions),
        PlanColumn("Memory per GPU", "GiB", memory),
    )


def rate(plan: PlanResult) -> tuple[str, str]:
    spread = "" if plan.range is None else f"{compact(plan.range.low)} – {compact(plan.range.high)}"
    return compact(plan.tokens_per_s), spread


def each_gpu(view: View, plan: PlanResult) -> tuple[str, str]:
    best = view.best
    share = "best" if best is None or plan is best else f"{plan.tokens_per_s / best.tokens_per_s:.2f}× the best"
    return compact(plan.tokens_per_s_per_gpu), share


def timed(plan: PlanResult, key: str) -> str:
    """A time of the entry ``inference``; a dash where the step has none."""
    return seconds(plan.inference[key]) if key in plan.inference else "–"


def user(plan: PlanResult) -> tuple[str, str]:
    seen = plan.inference.get("tokens_per_s_per_user")
    return ("–" if seen is None else digits(seen)), ""


def exposed(plan: PlanResult) -> tuple[str, str]:
    parts = plan.breakdown_s.get("exposed_communication", {})
    share = float(sum(parts.values())) / plan.step_time_s if plan.step_time_s else 0.0
    return percent(share), "of the step"


def sessions(plan: PlanResult) -> tuple[str, str]:
    """Sessions of all replicas, each as long as the step's longest sequence."""
    room = plan.inference.get("capacity", {})
    if not room:
        return "–", ""
    return whole(held(plan)), f"of {room['context']:,} tokens"


def held(plan: PlanResult) -> float:
    """Resident sessions on the whole machine: whole ones of every replica."""
    per_replica, replicas = plan.inference["capacity"]["sessions"], plan.degrees.get("dp", 1)
    return float(replicas * (int(per_replica) if per_replica < 1e6 else per_replica))


def whole(count: float) -> str:
    """The whole part of a count.

    >>> whole(442.7), whole(2.5e6)
    ('442', '2.50 M')
    """
    return f"{int(count):,}" if count < 1e6 else compact(count)


def memory(plan: PlanResult) -> tuple[str, str]:
    return gib(plan.memory.peak_bytes), f"fits in {gib(plan.memory.capacity_bytes)}"


def headline(view: View, best: PlanResult) -> str:
    """The best plan and its rate, in the words of the step."""
    load, alone = view.load, len(view.ran) == 1
    assert load is not None
    first = timed(best, FIRST)
    token = timed(best, TOKEN)
    lead = "is the only plan that runs" if alone and view.refused else "runs" if alone else ""
    if not load.batch:
        if lead or quickest(view, FIRST) is best:
            return f"{best.name} {lead or 'is fastest'}: first token after {first}"
        return f"{best.name} reads most: {compact(best.tokens_per_s, 'prompt tokens/s')}, first token after {first}"
    if load.prompts:
        rate_ = compact(best.tokens_per_s, "tokens/s")
        output = f"{rate_} read and put out, first tokens after {first}, then one every {token}"
        return f"{best.name} {lead or 'does most'}: {output}"
    return f"{best.name} {lead or 'puts out most'}: {compact(best.tokens_per_s, 'tokens/s')}, a token every {token}"


def quickest(view: View, key: str) -> PlanResult:
    """The plan with the shortest wait; the best one where no other is shorter by a hundredth."""
    best = view.best
    assert best is not None
    quick = min(view.ran, key=lambda plan: plan.inference.get(key, float("inf")))
    return quick if quick.inference.get(key, float("inf")) < 0.99 * best.inference.get(key, float("inf")) else best


def sentences(view: View, best: PlanResult) -> Iterator[str]:
    """Rates of users, and the use of caches."""
    load, seen = view.load, best.inference
    assert load is not None
    if not load.batch:
        yield (
            f"That is {compact(best.tokens_per_s)} prompt tokens/s, {compact(best.tokens_per_s_per_gpu)} per GPU, at "
            f"{percent(best.mfu)} of peak."
        )
        quick = quickest(view, FIRST)
        if quick is not best:
            yield f"For one prompt {quick.name} is quickest: first token after {timed(quick, FIRST)}."
    else:
        seen_by_user = f"Each user sees {digits(seen['tokens_per_s_per_user'])} tokens/s"
        replicas = best.degrees.get("dp", 1)
        whose = several(load.batch, "sequence") + (f" on each of {replicas} replicas" if replicas > 1 else "")
        verb = "makes" if load.batch == 1 and replicas == 1 else "make"
        rate_of_gpu = f"{verb} {compact(seen['output_tokens_per_s'] / best.gpus)} per GPU"
        yield f"{seen_by_user}; {whose} {rate_of_gpu}{', beside the prompts that are read' if load.prompts else ''}."
        quick = quickest(view, TOKEN)
        if quick is not best:
            yield f"For a user {quick.name} is quickest: a token every {timed(quick, TOKEN)}."
    room = seen.get("capacity", {})
    if room:
        used, free = best.memory.parts.get("kv_cache", 0.0), room["cache_bytes"]
        taken = f"Caches take {gib(used)} of the {gib(free)} that a GPU has for them"
        whose = "a replica" if best.degrees.get("dp", 1) > 1 else "together they"
        yield (
            f"{taken}: {whose} can hold {whole(room['sessions'])} sessions of {room['context']:,} tokens, or one of "
            f"{length(room['longest_context'])}."
        )


def length(tokens: int) -> str:
    """Tokens of a context; "any length" where caches do not grow."""
    return "any length" if tokens >= 2**39 else f"{tokens:,} tokens" if tokens < 1e6 else compact(tokens, "tokens")


def tiles(view: View, best: PlanResult) -> list[dict[str, str]]:
    """The main figures."""
    load, seen = view.load, best.inference
    assert load is not None
    shown = []

    def tile(what: str, value: str, more: str) -> None:
        shown.append({"what": what, "value": value, "more": more})

    if FIRST in seen:
        chunks = len(load.chunks())
        how = f"in {chunks} chunks" if chunks > 1 else "of a prompt"
        tile("First token", timed(best, FIRST), how)
    if load.batch:
        accepted = f"{load.speculation.accepted:.3g} tokens a step" if load.speculation else "time between two"
        tile("Output token", timed(best, TOKEN), accepted)
        tile("A user", digits(seen["tokens_per_s_per_user"]), "tokens/s")
    tile("Per GPU", compact(best.tokens_per_s_per_gpu), f"{view.rate_words.lower()}; {best.gpus:,} GPUs")
    if load.speculation or not load.batch:
        tile("Step", seconds(best.step_time_s), f"{percent(best.mfu)} of dense peak")
    room = seen.get("capacity", {})
    if room:
        longest = length(room["longest_context"])
        tile("Sessions", whole(held(best)), f"of {room['context']:,} tokens; the longest alone: {longest}")
    tile("Memory", gib(best.memory.peak_bytes), f"of {gib(best.memory.capacity_bytes)} per GPU")
    return shown


def facts(plan: PlanResult) -> Iterator[tuple[str, Any]]:
    """The entry ``inference`` for a table of facts."""
    room = plan.inference.get("capacity", {})
    if room:
        low, high = room["sessions_range"]
        yield "bytes for caches, per GPU", gib(room["cache_bytes"])
        if low != high:
            yield "sessions, nine times of ten", f"{digits(low)} – {digits(high)}"
        yield "longest context", length(room["longest_context"])
