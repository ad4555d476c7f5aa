"""One plan under one load, with its steady part."""

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
from .traffic import Clients, RequestTable
from .waits import Waits, kept_share

Progress = Callable[[float], None]
#: Growth of waits per arrival time above which a queue grows without end.
GROWS = 0.1
#: MOST_REQUESTS: most requests of a run lengthened for its steady part; MOST_LONGER: most times.
MOST_REQUESTS, MOST_LONGER = 20_000, 3
#: With this number of requests, more show nothing new about a growing queue.
ENOUGH_TO_GROW = 2000


@dataclass(frozen=True)
class LoadedRun:
    """A run, its typical steps, and whether it was interrupted."""

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
        Factor on the seconds of every step.
    front_end_s
        Front-end time instead of the stack's.

    Raises
    ------
    InputError
        A request is longer than the model's positions, or a trace is wrong.
    """
    costs = deployment.costs
    requests = traffic.draw(deployment.question.model)
    clients = Clients(requests, costs.front_end_s if front_end_s is None else front_end_s, costs.process)
    outcome = Service(clients, deployment.dispatcher(factor), every_step=every_step, progress=progress).run()
    return Waits.of(clients.table), outcome


def whole(deployment: Deployment, traffic: TrafficSpec, **keys: Any) -> Waits:
    """All requests of a point, for results that need the whole run; keywords are those of :func:`serve`.

    Raises
    ------
    KeyboardInterrupt
        The run was interrupted.
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
    """One point of a curve with its ranges and, by default, its steady part."""
    waits, outcome = serve(deployment, traffic, every_step=every_step, progress=progress)
    label = dict(traffic.arrivals.label)
    typical = Typical.of(waits, outcome.logs, deployment.dp_size)
    metrics = measured(deployment, traffic, waits, outcome)
    metrics["engine_s"] = engine_s(typical, waits, outcome)
    metrics |= steady_entries(deployment, traffic, waits, longer=steady and not outcome.interrupted)
    intervals: dict[str, tuple[float, float]] = {}
    if ranges and len(waits) and not outcome.interrupted:
        intervals = ranges_of(deployment, traffic, metrics, typical)
        if traffic.seeds > 1:
            metrics["seeds"] = drawn = other_draws(deployment, traffic, metrics)
            intervals = {name: widened(ends, metrics, name, drawn) for name, ends in intervals.items()}
    run = ServingRun(
        label,
        metrics,
        intervals,
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
    metrics = measure(
        waits,
        outcome.logs,
        gpus=deployment.gpus,
        bill=deployment.bill,
        cache=deployment.cache(max(1, length)),
        bounds=bounds,
        tokens_a_gap=drafts.accepted if drafts else 1.0,
    )
    if bounds and traffic.protocol.apart:
        metrics["kept_share"] = kept_share(waits, bounds, apart=True)
    if not traffic.prefix.calls_tools or not isinstance(outcome.requests, RequestTable):
        return metrics
    prices = deployment.bill.usd_per_gpu_hour
    task_metrics = tasks(outcome.requests, traffic.prefix.tool_workers, deployment.gpus, prices)
    return metrics | ({"tasks": task_metrics} if task_metrics else {})


def steady_entries(deployment: Deployment, traffic: TrafficSpec, waits: Waits, longer: bool = True) -> dict[str, Any]:
    """The entries ``steady`` and ``bounds`` of ``serving``: null without a steady part, or without bounds."""
    bounds = traffic.bounds(deployment.question.scenario.workload.model)
    if not len(waits):
        return {"steady": None, "bounds": None}
    steady, measured_ = lasting(deployment, traffic, waits, longer)
    rate = rate_of(traffic)
    kept = None
    if bounds:
        grows = rate is not None and served_rate(measured_, rate) is not None
        kept = kept_of(measured_, steady, bounds, traffic.share, traffic.protocol.apart, grows).to_json()
    entry = steady.to_json(deployment.gpus, deployment.bill) if steady is not None else None
    return {"steady": entry, "bounds": kept}


def lasting(
    deployment: Deployment, traffic: TrafficSpec, waits: Waits, longer: bool = True
) -> tuple[Steady | None, Waits]:
    """The steady part of a run, and the run that has it; a too short run is repeated longer with the same traffic.

    A trace cannot be lengthened, and requests that are all sent at once have no steady part.
    """
    bounds = traffic.bounds(deployment.question.scenario.workload.model)
    rate = rate_of(traffic)
    steady = steady_of(waits, bounds, rate)
    for _ in range(MOST_LONGER if longer else 0):
        wanted = longer_by(traffic, waits)
        if steady is not None or wanted is None:
            break
        if rate is not None and served_rate(waits, rate) is not None:
            # A growing queue has no steady part; in a short run it may only seem to grow.
            wanted = min(wanted, ENOUGH_TO_GROW)
            if wanted <= len(waits):
                break
        waits = whole(deployment, traffic.model_copy(update={"requests": wanted}))
        steady = steady_of(waits, bounds, rate)
    return steady, waits


def longer_by(traffic: TrafficSpec, waits: Waits) -> int | None:
    """Requests of a long enough run; None where there are no more, or more would change nothing."""
    trace = traffic.arrivals.trace()
    most = MOST_REQUESTS if trace is None else min(MOST_REQUESTS, len(trace))
    at_once = waits.last_sent_s <= waits.first_s
    if at_once or len(waits) >= most:
        return None
    return min(most, max(2 * len(waits), enough(waits)))


def rate_of(traffic: TrafficSpec) -> float | None:
    """Requests/s of open arrivals of single requests; None otherwise."""
    arrivals = traffic.arrivals
    if arrivals.closed or arrivals.searches or arrivals.most is not None or traffic.prefix.turns_each > 1:
        return None
    return arrivals.mean_rate or None


def engine_s(typical: Typical, waits: Waits, outcome: Outcome) -> dict[str, float]:
    """Seconds of an engine by task, mean over engines; they add up to the wall where every request counts."""
    engines = max(1, len(outcome.logs))
    busy = {kind: seconds / engines for kind, seconds in typical.seconds.items()}
    return busy | {"idle": max(0.0, waits.wall_s - sum(busy.values()))}


def ranges_of(
    deployment: Deployment, traffic: TrafficSpec, metrics: Mapping[str, Any], typical: Typical
) -> dict[str, tuple[float, float]]:
    """(low, high) of the mean latencies and of the rate, from runs with faster and slower steps.

    Of many requests only the first are served again, and their relative change is applied to all.
    """
    low, high = factors(deployment.costs, typical)
    front_end = deployment.question.work.stack.engine.front_end
    count = int(metrics["requests"])
    again = traffic if count <= MOST_AGAIN else traffic.model_copy(update={"requests": MOST_AGAIN})
    base = _means(metrics) if count <= MOST_AGAIN else _means_of(whole(deployment, again))
    faster = _means_of(whole(deployment, again, factor=low, front_end_s=front_end.low))
    slower = _means_of(whole(deployment, again, factor=high, front_end_s=front_end.high))
    intervals = {}
    for name, value in _means(metrics).items():
        ends = sorted((faster.get(name, 0.0), slower.get(name, 0.0)))
        if value > 0.0 and base.get(name):
            share = value / base[name]
            intervals[name] = (min(value, ends[0] * share), max(value, ends[1] * share))
    return intervals


#: Standard deviations of the 90 % interval of a normal distribution.
NINE_OF_TEN = 1.645


def other_draws(deployment: Deployment, traffic: TrafficSpec, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The spread over seeds: mean and standard deviation of the means over all draws."""
    seeds = range(traffic.seed + 1, traffic.seed + traffic.seeds)
    others = (whole(deployment, traffic.model_copy(update={"seed": seed})) for seed in seeds)
    every = [_means(metrics), *map(_means_of, others)]
    by_metric: dict[str, Any] = {"count": traffic.seeds}
    for name in every[0]:
        values = np.array([means[name] for means in every if name in means])
        by_metric[name] = {"mean": float(values.mean()), "std": float(values.std(ddof=1)) if len(values) > 1 else 0.0}
    return by_metric


def widened(
    ends: tuple[float, float], metrics: Mapping[str, Any], name: str, drawn: Mapping[str, Any]
) -> tuple[float, float]:
    """A range widened by the spread over draws, independently."""
    value, half = _means(metrics)[name], NINE_OF_TEN * drawn[name]["std"]
    return max(0.0, value - float(np.hypot(value - ends[0], half))), value + float(np.hypot(ends[1] - value, half))


def _means(metrics: Mapping[str, Any]) -> dict[str, float]:
    waits = {name: metrics[name]["mean"] for name in ("ttft_s", "tpot_s") if metrics[name]}
    return waits | {"output_tokens_per_s": metrics["output_tokens_per_s"]}


def _means_of(waits: Waits) -> dict[str, float]:
    wall_s, tpot = waits.wall_s, waits.tpot_s
    means = {"ttft_s": float(waits.ttft_s.mean())} if len(waits) else {}
    if np.isfinite(tpot).any():
        means["tpot_s"] = float(np.nanmean(tpot))
    return means | {"output_tokens_per_s": float(waits.output_tokens.sum()) / wall_s if wall_s else 0.0}


def served_rate(waits: Waits, rate: float) -> float | None:
    """The saturation rate where requests come faster, so that waits grow steadily; None where they do not.

    With r requests/s sent and m served, the wait of a request at time t is t·(r/m − 1).
    """
    few = max(1, len(waits) // 20)
    if len(waits) < 40:
        return None
    first, last = waits.ends(few)
    span_s = float(last.arrival_s[-1] - first.arrival_s[0])
    if span_s <= 0.0:
        return None
    growth = float(np.median(last.ttft_s) - np.median(first.ttft_s)) / span_s
    return rate / (1.0 + growth) if growth > GROWS else None
