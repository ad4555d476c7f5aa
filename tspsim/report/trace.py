"""Timelines as Chrome trace JSON, the format that Perfetto and chrome://tracing open.

A process is a plan and a thread is a stream of a rank. Every instruction is a complete event (``ph`` "X") with its
times in microseconds. See "Trace Event Format" (Google, 2016), object form. For a fleet a process is the cluster, a
thread is a node (or one GPU of a node that jobs share), and the events are its jobs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tspsim.step.result import PlanResult, Result

from .node_slots import slots

if TYPE_CHECKING:
    from tspsim.fleet import FleetAnswer

_CHUNK = 4096


def chunks(result: Result) -> Iterator[str]:
    """The file in pieces, so that a million events are never in memory as one text."""
    yield '{"displayTimeUnit":"ms","otherData":' + _json({"scenario": str(result.scenario.get("name", ""))})
    yield ',"traceEvents":['
    separator = "\n"
    jobs = result.scenario.get("jobs")
    plans = [] if jobs else [plan for plan in result.plans if plan.timeline is not None]
    pieces = [_fleet(cast("FleetAnswer", result))] if jobs else []
    for own in (*pieces, *(_plan(process, plan) for process, plan in enumerate(plans, start=1))):
        for piece in own:
            yield separator + piece
            separator = ",\n"
    yield "\n]}\n"


def _plan(process: int, plan: PlanResult) -> Iterator[str]:
    """The names first, then the events in pieces, sorted by rank, stream and start."""
    assert plan.timeline is not None
    labels = plan.timeline.labels
    columns = plan.timeline.columns()
    computing = {label.stream for label in labels if label.is_compute}
    streams = sorted(dict.fromkeys(label.stream for label in labels), key=lambda name: name not in computing)
    number = np.array([streams.index(label.stream) for label in labels], dtype=np.int64)
    thread = columns["rank"].astype(np.int64) * len(streams) + number[columns["label"]]
    sizes = {group.representative: group for group in plan.classes}
    yield _metadata(process, 0, "process_name", {"name": plan.name})
    yield _metadata(process, 0, "process_sort_index", {"sort_index": process})
    for index in np.unique(thread):
        rank, stream = int(index) // len(streams), streams[int(index) % len(streams)]
        group = sizes.get(rank)
        meant = f" ({group.role}, stands for {group.size})" if group is not None and group.size > 1 else ""
        yield _metadata(process, int(index), "thread_name", {"name": f"rank {rank} {stream}{meant}"})
        yield _metadata(process, int(index), "thread_sort_index", {"sort_index": int(index)})
    # All events of a label share this text.
    fixed = [
        _json({"name": label.name, "cat": label.kind, "ph": "X", "pid": process})[:-1]
        + ',"args":'
        + _json(
            {
                "part": label.part,
                "layer": label.layer,
                "shape": label.shape,
                "bytes": label.size_bytes,
                "flops": label.flops,
                **({"alone_us": [[kind, round(own * 1e6, 4)] for kind, own in label.parts_s]} if label.parts_s else {}),
            }
        )
        for label in labels
    ]
    order = np.lexsort((columns["end_s"], columns["start_s"], thread))
    for begin in range(0, len(order), _CHUNK):
        rows = order[begin : begin + _CHUNK]
        start_us = columns["start_s"][rows] * 1e6
        length_us = (columns["end_s"][rows] - columns["start_s"][rows]) * 1e6
        values = zip(
            columns["label"][rows].tolist(), thread[rows].tolist(), start_us.tolist(), length_us.tolist(), strict=True
        )
        yield ",\n".join(
            f'{fixed[label]},"tid":{tid},"ts":{ts:.4f},"dur":{dur:.4f}}}' for label, tid, ts, dur in values
        )


def _fleet(answer: FleetAnswer) -> Iterator[str]:
    """One thread per node, one event per job on it.

    Events of one thread must not overlap. Jobs that share a node are on threads of their own, by their first GPU there.
    """
    facts = answer.facts
    times, part = facts.times, slots(facts)
    yield _metadata(1, 0, "process_name", {"name": str(answer.scenario.get("name", "fleet"))})
    first = {spell: own[0] if own else 0 for spell, own in part.items()}
    threads = {(node, first.get(spell, 0)) for spell, nodes in enumerate(times.spell_nodes) for node in nodes}
    for order, (node, slot) in enumerate(sorted(threads)):
        thread = node + slot * facts.nodes
        yield _metadata(1, thread, "thread_name", {"name": f"node {node}" + (f", from GPU {slot}" if slot else "")})
        yield _metadata(1, thread, "thread_sort_index", {"sort_index": order})
    for spell, nodes in enumerate(times.spell_nodes):
        job = facts.jobs[int(times.spell_job[spell])]
        fixed = _json({"name": job.name, "cat": job.kind, "ph": "X", "pid": 1})[:-1]
        details = _json({"nodes": len(nodes), "gpus": job.gpus, "user": job.user, "ended": times.spell_why[spell]})
        start_us, end_us = (float(at[spell]) * 1e6 for at in (times.spell_start_s, times.spell_end_s))
        own = first.get(spell, 0) * facts.nodes
        for node in nodes:
            yield f'{fixed},"args":{details},"tid":{node + own},"ts":{start_us:.1f},"dur":{end_us - start_us:.1f}}}'


def _metadata(process: int, thread: int, name: str, arguments: dict[str, Any]) -> str:
    return _json({"name": name, "ph": "M", "pid": process, "tid": thread, "args": arguments})


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
