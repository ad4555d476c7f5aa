"""Serving runs made without the simulator: a batch that grows and shrinks step by step, and what a page reads of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tspsim.report.serving.view import (
    DECODE,
    MIXED,
    PREFILL,
    EngineView,
    LoadRun,
    Preemptions,
    Requests,
    ServedView,
    ServingView,
    StepRuns,
    StepShare,
)  # fmt: skip
from tspsim.step.result import Memory, PlanResult, Range, Result

GIB = 2.0**30
GPUS = 8


def batched(
    arrivals_s: Sequence[float], *, prompt: int = 2048, output: int = 64, most: int = 64, token_s: float = 8e-3,
    chunk: int = 2048, seed: int = 0,
) -> tuple[Requests, StepRuns]:  # fmt: skip
    """An engine that reads a chunk of one prompt beside all that decode; lengths vary by a fifth."""
    draw = np.random.default_rng(seed)
    count = len(arrivals_s)
    prompts = draw.integers(int(0.8 * prompt), prompt + 1, count)
    outputs = np.maximum(1, draw.integers(int(0.8 * output), output + 1, count))
    scheduled, first, end = (np.full(count, np.nan) for _ in range(3))
    queue, running, left = deque(range(count)), {}, {}
    rows: list[tuple[float, float, int, int, int, int, int, float]] = []
    clock, reading = 0.0, None
    while queue or running or reading is not None:
        if reading is None and queue and arrivals_s[queue[0]] <= clock and len(running) < most:
            reading = queue.popleft()
            left[reading] = int(prompts[reading])
            scheduled[reading] = clock
        if reading is None and not running:
            clock = max(clock, arrivals_s[queue[0]])
            continue
        piece = min(chunk, left[reading]) if reading is not None else 0
        begin, decoding = clock, len(running)
        clock += token_s + 1e-4 * decoding + 2e-5 * piece
        for number in list(running):
            running[number] -= 1
            if not running[number]:
                del running[number]
                end[number] = clock
        if reading is not None:
            left[reading] -= piece
            if not left[reading]:
                first[reading] = clock
                if outputs[reading] > 1:
                    running[reading] = int(outputs[reading]) - 1
                else:
                    end[reading] = clock
                reading = None
        kind = (MIXED if decoding else PREFILL) if piece else DECODE
        waiting = sum(arrivals_s[number] <= begin for number in queue)
        rows.append((begin, clock, 1, kind, decoding, piece, waiting, 1.1 * prompt * (decoding + 1)))
    columns = list(zip(*rows, strict=True))
    steps = StepRuns(*(np.array(column) for column in columns))
    none = np.zeros(count, dtype=np.int64)
    arrival = np.array(arrivals_s, dtype=float)
    return Requests(arrival, scheduled, first, end, prompts, outputs, none, none.copy()), steps


def percentiles(values: np.ndarray[Any, Any]) -> dict[str, float] | None:
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    return {"mean": float(values.mean()), **{f"p{p}": float(np.percentile(values, p)) for p in (50, 90, 99)}}


def metrics(requests: Requests, limit: tuple[float, float] | None = None) -> dict[str, Any]:
    """The entry ``serving`` of the contract."""
    wall = float(np.nanmax(requests.end_s) - requests.arrival_s[0])
    rate = float(requests.output_tokens.sum()) / wall
    tpot = percentiles(requests.tpot_s)
    good = None
    if limit is not None:
        good = float(np.sum((requests.ttft_s <= limit[0]) & ~(requests.tpot_s > limit[1]))) / wall
    return {
        "ttft_s": percentiles(requests.ttft_s), "tpot_s": tpot, "itl_s": tpot, "e2e_s": percentiles(requests.e2e_s),
        "output_tokens_per_s": rate, "output_tokens_per_s_per_gpu": rate / GPUS,
        "requests_per_s": len(requests) / wall, "goodput_requests_per_s": good,
        "tokens_per_s_per_user": None if tpot is None else 1.0 / tpot["mean"],
        "usd_per_million_output_tokens": {"neocloud": 16.0 / 3600 / rate * 1e6, "rental": 20.0 / 3600 / rate * 1e6},
        "usd_per_million_tokens": {"neocloud": 1.6 / 3600 / rate * 1e6, "rental": 2.0 / 3600 / rate * 1e6},
        "kv": {"capacity_tokens": 400_000, "peak_share": 0.61, "sessions": 180}, "preemptions": 0,
        "prefix_hit_share": 0.0, "wall_s": wall, "requests": len(requests),
    }  # fmt: skip


def run(load: int, *, count: int = 0, limit: tuple[float, float] | None = None, **engine: Any) -> LoadRun:
    """A closed loop, told as a burst: all are sent at once, ``load`` of them run."""
    requests, steps = batched([0.0] * (count or 4 * load), most=load, **engine)
    found = metrics(requests, limit)
    rate, ttft = found["output_tokens_per_s"], found["ttft_s"]["mean"]
    ranges = {"output_tokens_per_s": (0.8 * rate, 1.2 * rate), "ttft_s": (0.7 * ttft, 1.5 * ttft)}
    if found["tpot_s"]:
        ranges["tpot_s"] = (0.9 * found["tpot_s"]["mean"], 1.1 * found["tpot_s"]["mean"])
    return LoadRun(float(load), found, ranges, requests, (EngineView("TP8", steps, 400_000.0),))


def plan(name: str, **more: Any) -> PlanResult:
    memory = Memory({"weights": 70 * GIB, "kv_cache": 90 * GIB, "activations": 4 * GIB}, 192 * GIB)
    entry = PlanResult(
        name, {"tp": 8}, memory, step_time_s=0.02, tokens_per_step=64, gpus=GPUS, range=Range(1.0, 2.0, "made up"),
        bottleneck="weights are read for every token",
    )  # fmt: skip
    return replace(entry, **more)


def shares() -> tuple[StepShare, ...]:
    return (
        StepShare("decode of 1", {"products": 4e-3, "attention": 2e-4, "all_reduce": 1e-3, "host": 5e-4}),
        StepShare("decode of 64", {"products": 9e-3, "attention": 3e-3, "all_reduce": 2e-3, "host": 5e-4}),
    )


def served(
    name: str, loads: Sequence[int] = (1, 8, 32), limit: tuple[float, float] | None = None, **engine: Any
) -> ServedView:  # fmt: skip
    return ServedView(plan(name), tuple(run(load, limit=limit, **engine) for load in loads), shares())


def view(loads: Sequence[int] = (1, 8, 32), limit: tuple[float, float] | None = None) -> ServingView:
    """Two plans and a refused one: A is quick for one, B does more of many."""
    refused = plan("TP1", error="needs 402.1 GiB of 192.0 GiB", step_time_s=0.0)
    plans = (served("A", loads, limit, token_s=6e-3, chunk=512), served("B", loads, limit, token_s=8e-3, chunk=4096))
    slo = {} if limit is None else {"ttft": limit[0], "tpot": limit[1]}
    return ServingView(plans, (refused,), True, slo)


def put_back(requests: Requests, steps: StepRuns, place: int) -> tuple[Requests, Preemptions]:
    """A request that lost its cache for some steps between its tokens."""
    counts = requests.preemptions.copy()
    counts[place] = 1
    first, end = float(requests.first_token_s[place]), float(requests.end_s[place])
    inside = steps.end_s[(steps.end_s > first) & (steps.end_s < end)]
    since, until = float(inside[len(inside) // 3]), float(inside[2 * len(inside) // 3])
    return replace(requests, preemptions=counts), Preemptions(np.array([place]), np.array([since]), np.array([until]))


def result(shown: ServingView, name: str = "made-up") -> Result:
    """A result around a view, for what a page says of machine and sources."""
    scenario = {"name": name, "description": "A made-up run.", "workload": {"model": "llama-3.1-70b"}}
    plans = (*(each.plan for each in shown.served), *shown.refused)
    source = {"what": "hbm", "value": "8 TB/s", "source": "vendor", "basis": "stated"}
    cluster = {"device": {"name": "mi355x"}, "gpus": 8, "nodes": 1}
    return Result(scenario, cluster, plans, (source,), ("FCFS.",), ("Noise.",))
