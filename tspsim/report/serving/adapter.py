"""A serving result as its pages read it: runs with their arrays, bounds, and where typical steps spend their time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tspsim.base.errors import TspsimError
from tspsim.report.sections.answer import project_basis
from tspsim.report.view import View
from tspsim.serving.log import StepLog
from tspsim.serving.runs import ServingRun
from tspsim.step.result import PlanResult, Result

from .published import published_of
from .steps import shares_of
from .view import EngineView, Floats, Ints, LoadRun, PutBack, Requests, ServedView, ServingView, StepRuns, Transfers

#: What the point of a curve is told by in a closed loop; else it has a rate.
CLOSED = "concurrency"


def view_of(result: Result) -> ServingView:
    """What figures and sentences read."""
    ran = [plan for plan in result.plans if plan.ran]
    labels = [run.label for plan in ran for run in plan.runs]
    return ServingView(
        tuple(ServedView(plan, runs_of(plan, project_basis(View(result))), _shares(result, plan)) for plan in ran),
        [plan for plan in result.plans if not plan.ran],
        all(CLOSED in label for label in labels),
        bounds_of(result),
        published_of(result),
    )


def _shares(result: Result, plan: PlanResult) -> tuple[Any, ...]:
    try:
        return shares_of(result, plan)
    except TspsimError:  # files that the question names are gone
        return ()


def bounds_of(result: Result) -> dict[str, float]:
    """Seconds by wait; those of the protocol where the scenario states none."""
    asked = result.asked
    if asked is not None and asked.traffic is not None:
        return asked.traffic.bounds(asked.workload.model)
    stated = (result.scenario.get("traffic") or {}).get("slo") or {}
    return {name: float(stated[name]) for name in ("ttft", "tpot", "e2e") if isinstance(stated.get(name), int | float)}


def runs_of(plan: PlanResult, basis: str = "") -> tuple[LoadRun, ...]:
    """A plan's runs, by ascending load; of a result that was read from a file only the figures are there.

    Parameters
    ----------
    basis
        Of prices, that ranks.
    """
    if plan.runs:
        found = [run_of(run, plan) for run in plan.runs]
    else:
        found = [bare(point) for point in plan.curve or (plan.serving,)]
    based = [replace(run, basis=basis) for run in found]
    return tuple(sorted(based, key=lambda run: run.load if not np.isnan(run.load) else -1.0))


def load_of(label: Mapping[str, Any]) -> float:
    """Requests at once, or requests/s; nan where neither is stated."""
    return float(next((label[key] for key in (CLOSED, "rate") if label.get(key) is not None), float("nan")))


def bare(point: Mapping[str, Any]) -> LoadRun:
    """A point of a curve without its requests and logs."""
    ends = point.get("range") or {}
    ranges = {name: (float(each["low"]), float(each["high"])) for name, each in ends.items() if isinstance(each, dict)}
    return LoadRun(load_of(point), point, ranges)


def run_of(run: ServingRun, plan: PlanResult) -> LoadRun:
    """A run with its arrays."""
    waits = run.waits
    order = np.argsort(waits.sent_s, kind="stable")
    requests = Requests(
        waits.sent_s[order], waits.scheduled_s[order], waits.first_token_s[order], waits.end_s[order],
        waits.prompt_tokens[order], waits.output_tokens[order], waits.preemptions[order], waits.cached_tokens[order],
    )  # fmt: skip
    lanes = int(plan.settings.get("attention_replicas") or 1)
    room = None if run.capacity_tokens is None else float(run.capacity_tokens) * lanes
    engines = tuple(EngineView(name, steps_of(log), room) for name, log in zip(run.names, run.logs, strict=True))
    return LoadRun(
        load_of(run.label), run.metrics, run.ranges, requests, engines, transfers_of(run), put_back_of(run, order),
        answered_by(requests, engines), front_end_s=run.front_end_s,
    )  # fmt: skip


def steps_of(log: StepLog) -> StepRuns:
    """A replica's log as arrays."""

    def column(name: str, kind: Any) -> Any:
        return np.asarray(log.column(name), dtype=kind)

    whole = np.int64
    return StepRuns(
        column("start_s", float), column("end_s", float), column("steps", whole), column("kind", np.int8),
        column("sequences", whole), column("chunk_tokens", whole), column("waiting", whole),
        column("used_tokens", float),
    )  # fmt: skip


def transfers_of(run: ServingRun) -> Transfers | None:
    """Caches that went over links; ``request`` are numbers, which are places where all requests count."""
    sent = run.transfers
    if not sent:
        return None
    between = [(each.source, each.destination) for each in sent]
    ways = tuple(dict.fromkeys(between))
    place = {way: number for number, way in enumerate(ways)}
    return Transfers(
        np.array([each.request for each in sent]), np.array([each.start_s for each in sent]),
        np.array([each.end_s for each in sent]), ways, np.array([place[way] for way in between]),
        np.array([each.size_bytes for each in sent]), np.array([each.exposed_s for each in sent]),
    )  # fmt: skip


def put_back_of(run: ServingRun, order: Ints) -> PutBack | None:
    """Preemptions of requests that count; numbers are places where all do.

    Parameters
    ----------
    order
        Number of the request at each place.
    """
    if not run.logs:
        return None
    lost = [np.concatenate([np.array(log.preemptions[part]) for log in run.logs]) for part in range(3)]
    if not len(lost[0]):
        return None
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(len(order))
    known = lost[0] < len(order)
    return PutBack(places[lost[0][known].astype(np.int64)], lost[1][known], lost[2][known])


def answered_by(requests: Requests, engines: Sequence[EngineView]) -> Ints:
    """Which engine put out each request's tokens; −1 where several may have, or none.

    It is the one that alone ended a step at the moment of the last token. A run of equal steps is one row of a log,
    which hides the ends within it; so next comes who ended a step at the first token, a prompt's own step. The only
    engine that decodes at all answers everybody.
    """
    decoding = [place for place, engine in enumerate(engines) if (engine.steps.sequences > 0).any()]
    if len(decoding) == 1:
        return np.full(len(requests), decoding[0], dtype=np.int64)
    found = alone_at(requests.end_s, engines, decoding)
    return np.where(found >= 0, found, alone_at(requests.first_token_s, engines, decoding))


def alone_at(moments: Floats, engines: Sequence[EngineView], places: Sequence[int]) -> Ints:
    """The place of the only engine that ended a step at each moment; −1 where none did, or several."""
    ended = np.array([np.isin(moments, engines[place].steps.end_s) for place in places]).reshape(-1, len(moments))
    which = np.asarray(places, dtype=np.int64)[ended.argmax(axis=0)] if len(places) else np.zeros(len(moments), int)
    return np.where(ended.sum(axis=0) == 1, which, -1)


def kicker(result: Result) -> str:
    """What was asked of which machine, in one line."""
    cluster, workload = result.cluster, result.scenario.get("workload") or {}
    device, nodes = str(cluster.get("device", {}).get("name", "GPU")).upper(), cluster.get("nodes", 1)
    machine = f"{cluster.get('gpus', 0):,} × {device}" + (f" in {nodes:,} nodes" if nodes > 1 else "")
    parts = [machine, str(workload.get("model", "")), str(workload.get("stack", "")), traffic_in_words(result)]
    return " · ".join(filter(None, parts))


def traffic_in_words(result: Result) -> str:
    """When requests come and how long they are; empty where the question is not at hand."""
    traffic = result.asked.traffic if result.asked is not None else None
    if traffic is None:
        return ""
    lengths = {"prompts": traffic.prompt, "outputs": traffic.output}
    told = [f"{what} {each.in_words()}" for what, each in lengths.items() if each is not None]
    return " · ".join([traffic.arrivals.in_words(), *told])
