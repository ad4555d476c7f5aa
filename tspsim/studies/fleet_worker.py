"""A worker for fleets: it answers some of them, and simulates every distinct step of their jobs once per process.

A fleet's key is a hash of everything that its answer depends on: its keys with all defaults, without names, texts and
the keys of ``compare``; the contents of its cluster, its logs, the catalog of failures, and every job's own scenario;
and the version of this package.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._version import __version__
from ..answer.kinds import simulate
from ..base.errors import InfeasibleError, InputError, shorten
from ..base.memo import BoundedCache
from ..base.quick import seldom_collecting
from ..fleet import FleetAnswer, FleetQuestion, own_scenario
from ..fleet import answer as answer_fleet
from ..fleet.answer import cluster_of
from ..fleet.paces import of_job
from ..hardware import load_device
from ..scenario import Scenario
from ..step.cells import Cell
from ..step.result import Result
from .query import Library, Query, cluster_content, content_of, device_content
from .worker import Answer, StrangerError

#: Distinct steps in a process's cache.
MOST_STEPS = 2_000
#: Keys of a question that do not change its answer.
WORDS = ("name", "description", "source", "needs", "offers")


def key_of(question: FleetQuestion, library: Library) -> str:
    """The hash of a fleet's content, as 64 hexadecimal digits; raises InputError where a job is wrong."""
    document = question.to_dict()
    for word in WORDS:
        document.pop(word, None)
    own: list[list[str]] = []
    for job in question.jobs:
        own.append([])
        for nodes in (job.nodes or (1,)) if job.workload is not None else ():
            alone = own_scenario(question, job, nodes)
            try:
                own[-1].append(library.key(library.look_up(alone)))
            except InputError as error:
                raise of_job(error, job) from None
    failures = question.failures.all_components() if question.failures is not None else {}
    cluster = cluster_of(question)
    document |= {
        "own": own,
        "machine": [cluster_content(cluster), device_content(load_device(cluster.device_name))],
        "version": __version__,
        "logs": [hashlib.sha256(Path(job.file).read_bytes()).hexdigest() for job in question.jobs if job.file],
        "components": {name: component.model_dump(mode="json") for name, component in failures.items()},
    }
    return content_of(document)


_library, _steps = Library(), BoundedCache(MOST_STEPS)


def _step(scenario: Scenario) -> Result:
    """A job's own scenario, simulated once for all fleets of this process."""
    key = json.dumps(scenario.to_dict(), sort_keys=True, default=str)
    return _steps.once(key, lambda: simulate(scenario))


def answer(questions: Sequence[Query[FleetQuestion]]) -> list[Answer]:
    """Answer some fleets in their order; ``text`` is JSON: a fleet's numbers under flat names, or ``error``.

    Raises
    ------
    StrangerError
        The content of a question differs here.
    """
    with seldom_collecting():
        return [_answer(question) for question in questions]


def _answer(query: Query[FleetQuestion]) -> Answer:
    begin_s = time.perf_counter()
    _familiar(query)
    try:
        document = cells_of(answer_fleet(query.question, _step))
    except (InputError, InfeasibleError) as error:
        document = {"error": str(error)}
    except Exception as error:  # one question's bug must not end a sweep
        reason = f"{type(error).__name__}: {shorten(error, 200)}"
        return Answer(query.key, "", time.perf_counter() - begin_s, reason)
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    _library.tidy()
    return Answer(query.key, text, time.perf_counter() - begin_s)


def _familiar(query: Query[FleetQuestion]) -> None:
    try:
        same = key_of(query.question, _library) == query.key
    except (InputError, OSError) as error:
        raise StrangerError(f"a worker cannot look up what this process can: {error}") from None
    if not same:
        raise StrangerError(
            "a worker reads another catalog or log, or runs another version of tspsim, than this process; give all "
            "workers the same files and version"
        )


def cells_of(fleet: FleetAnswer) -> dict[str, Any]:
    """A fleet's numbers under flat names."""
    facts = fleet.facts
    waits = facts.waits_s()
    half, most = (float(np.quantile(waits, share)) if len(waits) else None for share in (0.5, 0.95))
    cells: dict[str, Cell] = {
        "nodes": facts.nodes,
        "gpus": facts.gpus,
        "jobs": len(facts.jobs),
        "done": sum(job.state == "done" for job in facts.jobs),
        "horizon_s": facts.horizon_s,
        "allocated": facts.allocated,
        "productive": facts.productive,
        "mean_wait_s": float(waits.mean()) if len(waits) else None,
        "p50_wait_s": half,
        "p95_wait_s": most,
        "restarts": sum(job.restarts for job in facts.jobs),
        **{f"lost_{part}_gpu_hours": hours for part, hours in facts.lost_gpu_hours.items()},
        "energy_kwh": facts.energy_kwh,
        "cost_usd": facts.cost_usd,
    }
    return cells
