"""What a worker does with fleets: answer some of them, every distinct step of their jobs simulated once a process.

A fleet's key is a hash of what its answer depends on: its keys with all defaults filled in, but for names, words and
what is asked of ``compare``; the contents of its cluster, of its logs, of the catalog of failures, and of every job's
own scenario; and the version of this package.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._version import __version__
from ..answer.kinds import simulate
from ..base.collector import seldom_collecting
from ..base.errors import InfeasibleError, InputError, shorten
from ..fleet import FleetAnswer, FleetQuestion, own_scenario
from ..fleet import answer as answer_fleet
from ..fleet.answer import cluster_of
from ..fleet.paces import of_job
from ..hardware import load_device
from ..scenario import Scenario
from ..step.cells import Cell
from ..step.result import Result
from .query import Library, cluster_content, content_of, device_content
from .worker import Answer, StrangerError

#: Distinct steps that a process remembers; then it begins afresh.
MOST_STEPS = 2_000
#: Keys of a question that its answer does not depend on.
WORDS = ("name", "description", "source", "needs", "offers")


@dataclass(frozen=True)
class FleetQuery:
    """A fleet; ``key`` names its content."""

    key: str
    question: FleetQuestion


def key_of(question: FleetQuestion, library: Library) -> str:
    """The content of a fleet, as 64 hexadecimal digits; raises InputError where a job's own scenario is wrong."""
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
        "components": {name: each.model_dump(mode="json") for name, each in failures.items()},
    }
    return content_of(document)


class JobSteps:
    """Scenarios of jobs, each simulated once."""

    def __init__(self) -> None:
        self._known: dict[str, Result] = {}

    def __call__(self, scenario: Scenario) -> Result:
        """The answer of one job alone."""
        key = json.dumps(scenario.to_dict(), sort_keys=True, default=str)
        if key not in self._known:
            if len(self._known) >= MOST_STEPS:
                self._known.clear()
            self._known[key] = simulate(scenario)
        return self._known[key]


_library, _steps = Library(), JobSteps()


def answer(questions: Sequence[FleetQuery]) -> list[Answer]:
    """Answer some fleets in their order; ``text`` is JSON: a fleet's numbers under flat names, or ``error``.

    Raises
    ------
    StrangerError
        The content of a question is not the same here.
    """
    with seldom_collecting():
        return [_answer(question) for question in questions]


def _answer(asked: FleetQuery) -> Answer:
    begin_s = time.perf_counter()
    _familiar(asked)
    try:
        document = cells_of(answer_fleet(asked.question, _steps))
    except (InputError, InfeasibleError) as error:
        document = {"error": str(error)}
    except Exception as error:  # a bug that one question meets must not end a sweep
        told = f"{type(error).__name__}: {shorten(error, 200)}"
        return Answer(asked.key, "", time.perf_counter() - begin_s, told)
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    _library.tidy()
    return Answer(asked.key, text, time.perf_counter() - begin_s)


def _familiar(asked: FleetQuery) -> None:
    try:
        same = key_of(asked.question, _library) == asked.key
    except (InputError, OSError) as error:
        raise StrangerError(f"a worker cannot look up what this process can: {error}") from None
    if not same:
        raise StrangerError(
            "a worker reads another catalog or log, or runs another version of tspsim, than this process; give all "
            "workers the same files and version"
        )


def cells_of(found: FleetAnswer) -> dict[str, Any]:
    """A fleet's numbers under flat names."""
    facts = found.facts
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
