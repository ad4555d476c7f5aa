"""A serving result in the form of its pages: runs with their arrays, bounds, and the time of typical steps by part."""

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
from .view import EngineView, Floats, Ints, LoadRun, Preemptions, Requests, ServedView, ServingView, StepRuns, Transfers

#: Key of a load in a closed loop; else it has a rate.
CLOSED = "concurrency"


def view_of(result: Result) -> ServingView:
    """The data of figures and sentences."""
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
    except TspsimError:  # files of the question are gone
        return ()


def bounds_of(result: Result) -> dict[str, float]:
    """Bounds in seconds by wait; those of the protocol where the scenario states none."""
    question = result.source_scenario
    if question is not None and question.traffic is not None:
        return question.traffic.bounds(question.workload.model)
    stated = (result.scenario.get("traffic") or {}).get("slo") or {}
    return {name: float(stated[name]) for name in ("ttft", "tpot", "e2e") if isinstance(stated.get(name), int | float)}


def runs_of(plan: PlanResult, basis: str = "") -> tuple[LoadRun, ...]:
    """A plan's runs, by ascending load; a result from a file has their figures only.

    Parameters
    ----------
    basis
        The price basis that ranks.
    """
    if plan.runs:
        runs = [run_of(run, plan) for run in plan.runs]
    else:
        runs = [bare(point) for point in plan.curve or (plan.serving,)]
    based = [replace(run, basis=basis) for run in runs]
    return tuple(sorted(based, key=lambda run: run.load if not np.isnan(run.load) else -1.0))


def load_of(label: Mapping[str, Any]) -> float:
    """Concurrent requests, or requests/s; nan where neither is stated."""
    return float(next((label[key] for key in (CLOSED, "rate") if label.get(key) is not None), float("nan")))


def bare(point: Mapping[str, Any]) -> LoadRun:
    """A point of a curve without its requests and logs."""
    ends = point.get("range") or {}
    ranges = {name: (float(span["low"]), float(span["high"])) for name, span in ends.items() if isinstance(span, dict)}
    return LoadRun(load_of(point), point, ranges)


def run_of(run: ServingRun, plan: PlanResult) -> LoadRun:
    """A run with its arrays."""
    waits = run.waits
    order = np.argsort(waits.arrival_s, kind="stable")
    requests = Requests(
        waits.arrival_s[order], waits.first_scheduled_s[order], waits.first_token_s[order], waits.end_s[order],
        waits.prompt_tokens[order], waits.output_tokens[order], waits.preemptions[order], waits.cached_tokens[order],
    )  # fmt: skip
    replicas = int(plan.settings.get("attention_replicas") or 1)
    room = None if run.capacity_tokens is None else float(run.capacity_tokens) * replicas
    engines = tuple(EngineView(name, steps_of(log), room) for name, log in zip(run.names, run.logs, strict=True))
    return LoadRun(
        load_of(run.label), run.metrics, run.ranges, requests, engines, transfers_of(run), preemptions_of(run, order),
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
    """Caches that were sent over links; ``request`` is a place in the table where all requests count."""
    sent = run.transfers
    if not sent:
        return None
    between = [(transfer.source, transfer.destination) for transfer in sent]
    ways = tuple(dict.fromkeys(between))
    place = {way: number for number, way in enumerate(ways)}
    return Transfers(
        np.array([transfer.request for transfer in sent]), np.array([transfer.start_s for transfer in sent]),
        np.array([transfer.end_s for transfer in sent]), ways, np.array([place[way] for way in between]),
        np.array([transfer.size_bytes for transfer in sent]), np.array([transfer.exposed_s for transfer in sent]),
    )  # fmt: skip


def preemptions_of(run: ServingRun, order: Ints) -> Preemptions | None:
    """Preemptions of counted requests; their numbers are places where all requests count.

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
    counted = lost[0] < len(order)
    return Preemptions(places[lost[0][counted].astype(np.int64)], lost[1][counted], lost[2][counted])


def answered_by(requests: Requests, engines: Sequence[EngineView]) -> Ints:
    """The engine that put out each request's tokens; −1 where several may have, or none.

    It is the only engine that ended a step at the time of the last token. A run of equal steps is one row of a log,
    which hides the ends within it. For those it is the engine that ended a step at the first token, where the prompt's
    own step ends. A single engine that decodes answers everybody.
    """
    decoding = [place for place, engine in enumerate(engines) if (engine.steps.sequences > 0).any()]
    if len(decoding) == 1:
        return np.full(len(requests), decoding[0], dtype=np.int64)
    which = alone_at(requests.end_s, engines, decoding)
    return np.where(which >= 0, which, alone_at(requests.first_token_s, engines, decoding))


def alone_at(moments: Floats, engines: Sequence[EngineView], places: Sequence[int]) -> Ints:
    """The place of the only engine that ended a step at each time; −1 where none did, or several."""
    ended = np.array([np.isin(moments, engines[place].steps.end_s) for place in places]).reshape(-1, len(moments))
    which = np.asarray(places, dtype=np.int64)[ended.argmax(axis=0)] if len(places) else np.zeros(len(moments), int)
    return np.where(ended.sum(axis=0) == 1, which, -1)


def kicker(result: Result) -> str:
    """The machine and the work, in one line."""
    cluster, workload = result.cluster, result.scenario.get("workload") or {}
    device, nodes = str(cluster.get("device", {}).get("name", "GPU")).upper(), cluster.get("nodes", 1)
    machine = f"{cluster.get('gpus', 0):,} × {device}" + (f" in {nodes:,} nodes" if nodes > 1 else "")
    parts = [machine, str(workload.get("model", "")), str(workload.get("stack", "")), traffic_in_words(result)]
    return " · ".join(filter(None, parts))


def traffic_in_words(result: Result) -> str:
    """Arrivals and lengths of requests; empty without the question."""
    traffic = result.source_scenario.traffic if result.source_scenario is not None else None
    if traffic is None:
        return ""
    lengths = {"prompts": traffic.prompt, "outputs": traffic.output}
    sentences = [f"{what} {length.in_words()}" for what, length in lengths.items() if length is not None]
    return " · ".join([traffic.arrivals.in_words(), *sentences])
