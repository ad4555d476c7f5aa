"""The answer of a serving run in sentences: the best plan and its lead, waits, costs, and limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np

from tspsim.base.units import compact, digits, percent, several
from tspsim.report.numbers import seconds
from tspsim.serving.bounds import kept_in_words
from tspsim.serving.steady import tied

from .engines import busy
from .view import DECODE, MIXED, PREFILL, LoadRun, Merit, ServedView, ServingView

#: Ratios below this count as no difference.
TIE = 1.01
#: Shares from which a cache counts as full, and an engine as waiting for requests.
FULL, IDLE = 0.97, 0.1
#: Least share of the queue in the wait for a first token that is reported.
QUEUED = 0.3


def headline(view: ServingView) -> str:
    """The best plan and its rate."""
    best = view.ranked[0]
    run = best.best
    alone = len(view.served) == 1
    lead = "is the only plan that runs" if alone and view.refused else "serves" if alone else "serves most"
    load = view.load_in_words(run.load)
    at = "" if np.isnan(run.load) else f", {load}" if view.closed else f" at {load}"
    level = [
        f" (a tie with {rival.name}{', which ends a request sooner' * (rival.best.mean('e2e_s') < run.mean('e2e_s'))})"
        for rival in view.ranked[1:2]
        if ties(run, rival.best)
    ]
    lead += "".join(level)
    if not run.kept:
        misses = kept_in_words(run.metrics["bounds"])
        return f"No plan keeps the limits at any load; {best.name} comes nearest{at}: {misses}"
    if not np.isnan(run.goodput):
        return f"{best.name} {lead}: {digits(run.goodput)} requests/s within the limits{at}"
    per_gpu = compact(run.lasting("output_tokens_per_s_per_gpu"))
    return f"{best.name} {lead}: {compact(run.lasting('output_tokens_per_s'))} tokens/s ({per_gpu} per GPU){at}"


def ties(a: LoadRun, b: LoadRun) -> bool:
    """Whether two runs differ by no more than the drawn requests allow, in the rate that ranks them."""
    if a.kept != b.kept:
        return False
    bounded = not np.isnan(a.goodput) and a.goodput > 0 and not np.isnan(b.goodput)
    key = "goodput_requests_per_s" if bounded else "output_tokens_per_s"
    steady = all(run.metrics.get("steady") for run in (a, b))
    return steady and tied(a.between(key), b.between(key))


def spread(run: LoadRun) -> str:
    """The range of the rate, which is of the whole run."""
    bounds = run.ranges.get("output_tokens_per_s")
    if bounds is None:
        return ""
    likely = f"likely {compact(bounds[0])} to {compact(bounds[1])}"
    if run.metrics.get("steady"):  # the headline has the steady part's rate
        return f"with ramp and drain {compact(run.rate('output_tokens_per_s'))} output tokens/s, {likely}"
    return f"{likely} output tokens/s"


def ratios(view: ServingView) -> list[dict[str, str]]:
    """The best plan over each other one, in the rate that ranks them."""
    best = view.ranked[0].best
    ratios_ = []
    for rival in view.ranked[1:]:
        mine, other = comparable(best, rival.best)
        times = f"{mine / other:.2f}×" if other > 0 else "∞"
        if not rival.best.kept and best.kept:
            times = "misses the limits"
        ratios_.append({"name": rival.name, "times": f"{times}, a tie" if ties(best, rival.best) else times})
    return ratios_


def comparable(a: LoadRun, b: LoadRun) -> tuple[float, float]:
    """Both runs in the rate that ranks them."""
    if not np.isnan(a.goodput) and a.goodput > 0 and not np.isnan(b.goodput):
        return a.goodput, b.goodput
    return a.lasting("output_tokens_per_s_per_gpu"), b.lasting("output_tokens_per_s_per_gpu")


def sentences(view: ServingView) -> Iterator[str]:
    """The further sentences of the answer."""
    best = view.ranked[0]
    run = best.best
    yield users(run)
    yield from lone(view)
    yield from leaders(view)
    cost = dollars(run)
    if cost:
        yield f"That is {cost} per million output tokens."
    yield from cheapest(view)
    yield from limits(best, run)


def users(run: LoadRun) -> str:
    """Waits of a user."""
    first, last = run.mean("ttft_s"), run.mean("ttft_s", "p99")
    text = f"The first token comes after {seconds(first)}"
    asides = [] if np.isnan(last) else [f"99 of 100 within {seconds(last)}"]
    asides += _likely(run, "ttft_s")
    text += f" ({'; '.join(asides)})" if asides else ""
    token = run.mean("tpot_s")
    if np.isnan(token):
        return f"{text}."
    asides = _likely(run, "tpot_s")
    likely = f" ({asides[0]})" if asides else ""
    per_user = digits(run.rate("tokens_per_s_per_user"))
    return f"{text}, then one every {seconds(token)}{likely}: {per_user} tokens/s per user."


def _likely(run: LoadRun, key: str) -> list[str]:
    bounds = run.ranges.get(key)
    return [] if bounds is None else [f"likely {seconds(bounds[0])} to {seconds(bounds[1])}"]


def lone(view: ServingView) -> Iterator[str]:
    """The fastest plan for one user, where it is not the best plan."""
    if not view.curve or len(view.served) < 2:
        return
    least = view.loads[0]
    answering = [(plan, run) for plan in view.served if (run := plan.at(least)) and not np.isnan(run.mean("tpot_s"))]
    if not answering:
        return
    quick, run = min(answering, key=lambda pair: pair[1].mean("tpot_s"))
    best = view.ranked[0]
    token = run.mean("tpot_s")
    fastest = f"With {view.load_in_words(least)} {quick.name} is quickest: a token every {seconds(token)}"
    mine = best.at(least)
    if quick is best or mine is None:
        yield f"{fastest}, the first after {seconds(run.mean('ttft_s'))}."
    elif mine.mean("tpot_s") > TIE * token:
        yield f"{fastest}, where {best.name} takes {seconds(mine.mean('tpot_s'))}."


def leaders(view: ServingView) -> Iterator[str]:
    """The leading plans by load, where the lead changes."""
    if not view.curve or len(view.served) < 2:
        return
    firsts: list[tuple[str, float]] = []
    for load in view.loads:
        answering = [(plan, run) for plan in view.served if (run := plan.at(load)) is not None]
        if len(answering) > 1:
            firsts.append((max(answering, key=lambda pair: Merit.of(pair[1]))[0].name, load))
    spans = in_a_row(firsts)
    if len(spans) < 2:
        return
    what = "within the limits" if view.slo else "of outputs"
    yield f"Most {what}, by {'requests at once' if view.closed else 'requests/s sent'}: {', '.join(spans)}."


def in_a_row(firsts: Sequence[tuple[str, float]]) -> list[str]:
    """The spans of loads with the same leader, in words.

    >>> in_a_row([("TP8", 1), ("TP8", 4), ("DP8", 16)])
    ['TP8 from 1 to 4', 'DP8 at 16']
    """
    spans = []
    for name, loads in groupby(firsts, key=lambda pair: pair[0]):
        at = [f"{load:,.4g}" for _, load in loads]
        spans.append(f"{name} at {at[0]}" if at[0] == at[-1] else f"{name} from {at[0]} to {at[-1]}")
    return spans


def dollars(run: LoadRun) -> str:
    """Prices per million output tokens, by basis; empty without prices."""
    prices = run.prices("usd_per_million_output_tokens")
    return ", ".join(f"${digits(value)}{f' ({basis})' if basis else ''}" for basis, value in prices.items())


def cheapest(view: ServingView) -> Iterator[str]:
    """The plan with the cheapest tokens, where it is not the best plan: machines differ in price."""
    priced = [(plan.best.price(), plan) for plan in view.served if not np.isnan(plan.best.price())]
    if len(priced) < 2:
        return
    priced = [(usd, plan) for usd, plan in priced if plan.best.kept] or priced
    least, cheap = min(priced, key=lambda pair: pair[0])
    best = view.ranked[0]
    mine = best.best.price()
    if cheap is not best and mine > TIE * least:
        yield f"{cheap.name} is cheaper: ${digits(least)} per million output tokens, {mine / least:.2f} times less."


def limits(best: ServedView, run: LoadRun) -> Iterator[str]:
    """The plan's bottleneck, and the limits that the run itself shows."""
    if best.plan.bottleneck:
        text = best.plan.bottleneck
        yield f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
    else:
        yield from engaged(run)
    yield from queued(run)
    yield from full(run)


def queued(run: LoadRun) -> Iterator[str]:
    """The queue's share of the wait for a first token."""
    requests = run.requests
    if requests is None or not requests.ended.any():
        return
    wait = run.queued_s(requests)[requests.ended]
    ttft = requests.ttft_s[requests.ended]
    if np.isfinite(wait).all() and ttft.sum() > 0 and wait.sum() / ttft.sum() >= QUEUED:
        share = float(wait.sum() / ttft.sum())
        yield f"{percent(share, decimals=0)} of the wait for a first token is in the queue."


def full(run: LoadRun) -> Iterator[str]:
    """A cache that was full, and the consequences."""
    kv = run.metrics.get("kv") or {}
    peak, preemptions = kv.get("peak_share"), run.metrics.get("preemptions") or 0
    count = run.metrics.get("requests") or 0
    if preemptions:
        count_in_words = f" of {int(count):,} requests" if count else ""
        yield (
            f"Caches ran full: {int(preemptions):,} preemption{'s' * (preemptions > 1)}{count_in_words}, "
            "whose prompts were recomputed."
        )
    elif peak is not None and peak >= FULL:
        yield f"Caches were full ({percent(float(peak))} at the peak): later requests had to wait."
    elif peak is not None and kv.get("sessions"):
        yield f"Caches were at most {percent(float(peak))} full; they hold {digits(kv['sessions'])} such requests."


def engaged(run: LoadRun) -> Iterator[str]:
    """Times of the engines by kind of step."""
    end_s = run.end_s
    engines = [engine for engine in run.engines if len(engine.steps)]
    if not engines or end_s <= 0:
        return
    mean = {kind: float(np.mean([busy(e.steps, kind) for e in engines])) / end_s for kind in (PREFILL, MIXED, DECODE)}
    idle = 1.0 - sum(mean.values())
    reading = mean[PREFILL] + mean[MIXED]
    text = f"Engines read prompts in {percent(reading, decimals=0)} of the time"
    if mean[MIXED] > 0.0 and mean[PREFILL] < 0.5 * reading:
        text += ", mostly beside decoding"
    yield f"{text}, and were idle for {percent(idle, decimals=0)}." if idle >= IDLE else f"{text}."


def tiles(view: ServingView) -> list[dict[str, str]]:
    """Main figures of the best plan."""
    best = view.ranked[0]
    run = best.best
    shown: list[dict[str, str]] = []

    def tile(what: str, value: str, more: str) -> None:
        shown.append({"what": what, "value": value, "more": more})

    tile("First token", seconds(run.mean("ttft_s")), _tail(run, "ttft_s"))
    if not np.isnan(run.mean("tpot_s")):
        tile("Output token", seconds(run.mean("tpot_s")), _tail(run, "tpot_s"))
        tile("A user", digits(run.rate("tokens_per_s_per_user")), "tokens/s")
    tile(
        "Per GPU",
        compact(run.lasting("output_tokens_per_s_per_gpu")),
        f"output tokens/s; {several(best.plan.gpus, 'GPU')}",
    )
    if not np.isnan(run.goodput):
        tile("Goodput", digits(run.goodput), f"requests/s with {slo_in_words(view.slo)}")
    prices = run.prices("usd_per_million_output_tokens")
    if prices:
        (basis, price), *others = prices.items()
        named = f" ({basis})" if basis else ""
        further = "".join(f"; ${digits(other)} {name}" for name, other in others)
        tile("Cost", f"${digits(price)}", f"per million output tokens{named}{further}")
    kv = run.metrics.get("kv") or {}
    if kv.get("peak_share") is not None:
        sessions = f"room for {digits(kv['sessions'])} requests" if kv.get("sessions") else "of the room, at the peak"
        tile("Caches", percent(float(kv["peak_share"])), f"at the peak; {sessions}")
    return shown


def _tail(run: LoadRun, key: str) -> str:
    last = run.mean(key, "p99")
    return "mean" if np.isnan(last) else f"mean; 99 of 100 within {seconds(last)}"


def slo_in_words(slo: Mapping[str, float]) -> str:
    """Limits in words.

    >>> slo_in_words({"ttft": 2.0, "tpot": 0.05})
    'the first token within 2.00 s and a token every 50.0 ms'
    """
    words = {"ttft": "the first token within {}", "tpot": "a token every {}", "e2e": "the answer within {}"}
    limits_in_words = [words[key].format(seconds(value)) for key, value in slo.items() if key in words]
    return " and ".join(limits_in_words) if limits_in_words else "no limit"
