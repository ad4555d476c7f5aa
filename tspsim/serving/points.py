"""One plan under one load, with what its steady part gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..scenario.traffic import TrafficSpec
from .bounds import kept_of
from .deployment import Deployment
from .metrics import measure
from .runs import ServingRun
from .service import Outcome, Service
from .spread import MOST_AGAIN, Typical, factors
from .steady import Steady, enough, steady_of
from .tasks import tasks
from .traffic import Book, Clients
from .waits import Waits, kept_share

Progress = Callable[[float], None]
#: Growth of waits over the time in which requests come, from which on a queue only grows.
GROWS = 0.1
#: Requests of a run that is made longer for its steady part, at most, and so many times.
MOST_REQUESTS, MOST_LONGER = 20_000, 3
#: Requests of a run whose queue grows, from which on more of them show nothing else.
ENOUGH_TO_GROW = 2000


@dataclass(frozen=True)
class LoadedRun:
    """A run, what its steps were like, and whether somebody interrupted it."""

    run: ServingRun
    typical: Typical
    interrupted: bool = False


def serve(
    deployment: Deployment,
    traffic: TrafficSpec,
    *,
    factor: float = 1.0,
    front_end_s: float | None = None,
    every_step: bool = False,
    progress: Progress | None = None,
) -> tuple[Waits, Outcome]:
    """Serve the requests of one point.

    Parameters
    ----------
    factor
        On the seconds of every step.
    front_end_s
        Instead of the stack's.

    Raises
    ------
    InputError
        A request is longer than the model's positions, or a trace is wrong.
    """
    costs = deployment.costs
    asked = traffic.draw(deployment.question.model)
    clients = Clients(asked, costs.front_end_s if front_end_s is None else front_end_s)
    outcome = Service(clients, deployment.desk(factor), every_step=every_step, progress=progress).run()
    return Waits.of(clients.book), outcome


def whole(deployment: Deployment, traffic: TrafficSpec, **keys: Any) -> Waits:
    """What came of all requests of a point, for what means nothing in part; keywords are those of :func:`serve`.

    Raises
    ------
    KeyboardInterrupt
        Somebody did not wait for them.
    """
    waits, outcome = serve(deployment, traffic, **keys)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return waits


def point(
    deployment: Deployment,
    traffic: TrafficSpec,
    *,
    every_step: bool = False,
    ranges: bool = True,
    steady: bool = True,
    progress: Progress | None = None,
) -> LoadedRun:
    """One point of a curve, with its ranges, and unless it is left out with its steady part."""
    waits, outcome = serve(deployment, traffic, every_step=every_step, progress=progress)
    label = dict(traffic.arrivals.label)
    typical = Typical.of(waits, outcome.logs, deployment.lanes)
    metrics = measured(deployment, traffic, waits, outcome)
    metrics["engine_s"] = engine_s(typical, waits, outcome)
    metrics |= steady_entries(deployment, traffic, waits, longer=steady and not outcome.interrupted)
    found: dict[str, tuple[float, float]] = {}
    if ranges and len(waits) and not outcome.interrupted:
        found = ranges_of(deployment, traffic, metrics, typical)
        if traffic.seeds > 1:
            metrics["seeds"] = drawn = other_draws(deployment, traffic, metrics)
            found = {name: widened(ends, metrics, name, drawn) for name, ends in found.items()}
    run = ServingRun(
        label,
        metrics,
        found,
        waits,
        outcome.names,
        outcome.logs,
        outcome.transfers,
        deployment.engine.kv_tokens,
        deployment.costs.front_end_s,
    )
    return LoadedRun(run, typical, outcome.interrupted)


def measured(deployment: Deployment, traffic: TrafficSpec, waits: Waits, outcome: Outcome) -> dict[str, Any]:
    """The entry ``serving`` of a run."""
    tokens = waits.total(lambda piece: piece.prompt_tokens) + waits.total(lambda piece: piece.output_tokens)
    length = int(tokens / len(waits)) if len(waits) else 1
    drafts = deployment.drafts
    bounds = traffic.bounds(deployment.question.scenario.workload.model)
    told = measure(
        waits,
        outcome.logs,
        gpus=deployment.gpus,
        bill=deployment.bill,
        cache=deployment.cache(max(1, length)),
        bounds=bounds,
        tokens_a_gap=drafts.accepted if drafts else 1.0,
    )
    if bounds and traffic.protocol.apart:
        told["kept_share"] = kept_share(waits, bounds, apart=True)
    if not traffic.prefix.calls_tools or not isinstance(outcome.requests, Book):
        return told
    prices = deployment.bill.usd_per_gpu_hour
    found = tasks(outcome.requests, traffic.prefix.tool_workers, deployment.gpus, prices)
    return told | ({"tasks": found} if found else {})


def steady_entries(deployment: Deployment, traffic: TrafficSpec, waits: Waits, longer: bool = True) -> dict[str, Any]:
    """The entries ``steady`` and ``bounds`` of ``serving``: null where a run has no steady part, or no bounds."""
    bounds = traffic.bounds(deployment.question.scenario.workload.model)
    if not len(waits):
        return {"steady": None, "bounds": None}
    found, measured_ = lasting(deployment, traffic, waits, longer)
    rate = rate_of(traffic)
    kept = None
    if bounds:
        grows = rate is not None and served_rate(measured_, rate) is not None
        kept = kept_of(measured_, found, bounds, traffic.share, traffic.protocol.apart, grows).to_json()
    steady = found.to_json(deployment.gpus, deployment.bill) if found is not None else None
    return {"steady": steady, "bounds": kept}


def lasting(
    deployment: Deployment, traffic: TrafficSpec, waits: Waits, longer: bool = True
) -> tuple[Steady | None, Waits]:
    """The steady part of a run, and the run that has it: where this one is too short, a longer one of the same traffic.

    A trace is no longer than it is, and requests that are all sent at once have no steady part.
    """
    bounds = traffic.bounds(deployment.question.scenario.workload.model)
    rate = rate_of(traffic)
    found = steady_of(waits, bounds, rate)
    for _ in range(MOST_LONGER if longer else 0):
        wanted = longer_by(traffic, waits)
        if found is not None or wanted is None:
            break
        if rate is not None and served_rate(waits, rate) is not None:
            # A queue that grows has nothing steady; in a short run it may only look so.
            wanted = min(wanted, ENOUGH_TO_GROW)
            if wanted <= len(waits):
                break
        waits = whole(deployment, traffic.model_copy(update={"requests": wanted}))
        found = steady_of(waits, bounds, rate)
    return found, waits


def longer_by(traffic: TrafficSpec, waits: Waits) -> int | None:
    """Requests of a run that is long enough; None where there are no more, or more of them would change nothing."""
    trace = traffic.arrivals.trace()
    most = MOST_REQUESTS if trace is None else min(MOST_REQUESTS, len(trace))
    at_once = waits.last_sent_s <= waits.first_s
    if at_once or len(waits) >= most:
        return None
    return min(most, max(2 * len(waits), enough(waits)))


def rate_of(traffic: TrafficSpec) -> float | None:
    """Requests/s that come at times of their own, each of them alone; None of others."""
    arrivals = traffic.arrivals
    if arrivals.closed or arrivals.searches or arrivals.most is not None or traffic.prefix.turns_each > 1:
        return None
    return arrivals.mean_rate or None


def engine_s(typical: Typical, waits: Waits, outcome: Outcome) -> dict[str, float]:
    """Seconds of an engine by what it does, mean over engines; they add up to the wall where every request counts."""
    engines = max(1, len(outcome.logs))
    busy = {kind: seconds / engines for kind, seconds in typical.seconds.items()}
    return busy | {"idle": max(0.0, waits.wall_s - sum(busy.values()))}


def ranges_of(
    deployment: Deployment, traffic: TrafficSpec, metrics: Mapping[str, Any], typical: Typical
) -> dict[str, tuple[float, float]]:
    """(low, high) of the means of waits and of the rate, from runs with faster and slower steps.

    Of many requests the first are served again, and how their waits change is taken for all.
    """
    low, high = factors(deployment.costs, typical)
    front_end = deployment.question.work.stack.engine.front_end
    count = int(metrics["requests"])
    again = traffic if count <= MOST_AGAIN else traffic.model_copy(update={"requests": MOST_AGAIN})
    base = _means(metrics) if count <= MOST_AGAIN else _means_of(whole(deployment, again))
    faster = _means_of(whole(deployment, again, factor=low, front_end_s=front_end.low))
    slower = _means_of(whole(deployment, again, factor=high, front_end_s=front_end.high))
    found = {}
    for name, value in _means(metrics).items():
        ends = sorted((faster.get(name, 0.0), slower.get(name, 0.0)))
        if value > 0.0 and base.get(name):
            share = value / base[name]
            found[name] = (min(value, ends[0] * share), max(value, ends[1] * share))
    return found


#: Standard deviations of a normal distribution that nine of ten lie within.
NINE_OF_TEN = 1.645


def other_draws(deployment: Deployment, traffic: TrafficSpec, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What the same question gives where requests are drawn anew: mean and standard deviation over all seeds."""
    seeds = range(traffic.seed + 1, traffic.seed + traffic.seeds)
    others = (whole(deployment, traffic.model_copy(update={"seed": seed})) for seed in seeds)
    every = [_means(metrics), *map(_means_of, others)]
    found: dict[str, Any] = {"count": traffic.seeds}
    for name in every[0]:
        values = np.array([each[name] for each in every if name in each])
        found[name] = {"mean": float(values.mean()), "std": float(values.std(ddof=1)) if len(values) > 1 else 0.0}
    return found


def widened(
    ends: tuple[float, float], metrics: Mapping[str, Any], name: str, drawn: Mapping[str, Any]
) -> tuple[float, float]:
    """A range with what the draw does beside, independent."""
    value, half = _means(metrics)[name], NINE_OF_TEN * drawn[name]["std"]
    return max(0.0, value - float(np.hypot(value - ends[0], half))), value + float(np.hypot(ends[1] - value, half))


def _means(metrics: Mapping[str, Any]) -> dict[str, float]:
    waits = {name: metrics[name]["mean"] for name in ("ttft_s", "tpot_s") if metrics[name]}
    return waits | {"output_tokens_per_s": metrics["output_tokens_per_s"]}


def _means_of(waits: Waits) -> dict[str, float]:
    wall_s, tpot = waits.wall_s, waits.tpot_s
    found = {"ttft_s": float(waits.ttft_s.mean())} if len(waits) else {}
    if np.isfinite(tpot).any():
        found["tpot_s"] = float(np.nanmean(tpot))
    return found | {"output_tokens_per_s": float(waits.output_tokens.sum()) / wall_s if wall_s else 0.0}


def served_rate(waits: Waits, rate: float) -> float | None:
    """The rate that is served where requests come faster, so that waits grow as long as they come; None where not.

    With r requests/s sent and m served, the wait of one that comes at t is t·(r/m − 1).
    """
    few = max(1, len(waits) // 20)
    if len(waits) < 40:
        return None
    first, last = waits.ends(few)
    span_s = float(last.sent_s[-1] - first.sent_s[0])
    if span_s <= 0.0:
        return None
    growth = float(np.median(last.ttft_s) - np.median(first.ttft_s)) / span_s
    return rate / (1.0 + growth) if growth > GROWS else None
