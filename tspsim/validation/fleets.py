"""Published figures of clusters with failures: one job on all nodes, and the failure rates of a catalog entry.

The table is ``published/fleets.csv``: ``entry`` is one of ``topologies/failures``, ``job`` and ``failures`` are JSON
objects of keys of a fleet's job and of its ``failures``, and ``metric`` names a figure of the answer. A row
without an entry cannot be simulated; its ``note`` says what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tspsim.answer.kinds import simulate
from tspsim.base.errors import InputError
from tspsim.fleet import FleetAnswer

from .answers import RowAnswers, each_row
from .cells import Row, count_of, number_of
from .devices import named_device
from .plain_frameworks import keys

#: Spare nodes as a share of the job's: the job never waits for a repair, because these figures leave repairs out.
SPARES = 0.02
#: Standard deviations of a 90 % range.
NINETY = 1.645


def question(row: Row) -> dict[str, Any]:
    """The fleet of a row. Raises InputError for a row that cannot be simulated."""
    nodes, days = max(1, count_of(row, "gpus") // 8), number_of(row["days"])
    spares = max(1, math.ceil(SPARES * nodes))
    return {
        "name": "validation",
        "cluster": {"device": named_device(row["gpu"]), "nodes": nodes + spares, "fabric": "rails-400g"},
        "jobs": [{"name": "run", "nodes": nodes, "hours": f"{10 * days} days", **keys(row, "job")}],
        "failures": {"like": str(row["entry"]).strip(), "spares": spares, **keys(row, "failures")},
        "horizon": f"{days} days",
    }


def _interruptions(answer: FleetAnswer) -> int:
    return int(sum(answer.facts.parts["failures"]["interruptions"].values()))


def _between(answer: FleetAnswer) -> tuple[float, float, float]:
    """Mean hours between interruptions, with the range of a Poisson count."""
    count, hours = _interruptions(answer), answer.facts.horizon_s / 3600.0
    if not count:
        raise InputError("nothing failed in so many days")
    spread = NINETY / math.sqrt(count)
    return hours / count, hours / count / (1.0 + spread), hours / count / max(1.0 - spread, 0.05)


def _counted(answer: FleetAnswer) -> tuple[float, float, float]:
    count = _interruptions(answer)
    spread = NINETY * math.sqrt(count)
    return float(count), max(0.0, count - spread), count + spread


def _rate(answer: FleetAnswer) -> tuple[float, float, float]:
    """Failures per 1,000 node-days, over nodes with and without jobs."""
    failures = answer.facts.parts["failures"]
    count, rate = sum(failures["events"].values()), float(failures["per_1000_node_days"])
    spread = NINETY / math.sqrt(max(1, count))
    return rate, rate * (1.0 - spread), rate * (1.0 + spread)


def _effective(answer: FleetAnswer) -> tuple[float, float, float]:
    """Effective training time ratio, with the range that the number of interruptions gives."""
    (job,) = answer.facts.jobs
    if job.ettr is None:
        raise InputError("the job never ran")
    count = max(1, _interruptions(answer))
    lost = (1.0 - job.ettr) * NINETY / math.sqrt(count)
    return job.ettr, job.ettr - lost, min(1.0, job.ettr + lost)


#: Metric → its value in a fleet's answer, with its range.
METRICS: dict[str, Callable[[FleetAnswer], tuple[float, float, float]]] = {
    "hours_between_interruptions": _between,
    "interruptions": _counted,
    "failures_per_1000_node_days": _rate,
    "effective_time": _effective,
}


@each_row
def predict(row: Row, position: int, answers: RowAnswers) -> None:
    """Predict a row's metric by simulating its fleet."""
    if not str(row.get("entry", "")).strip():
        raise InputError(str(row.get("note", "")).strip() or "no entry of topologies/failures is named")
    metric = str(row["metric"]).strip()
    if metric not in METRICS:
        raise InputError(f"no prediction of '{metric}'; known: {', '.join(METRICS)}")
    answer = simulate(question(row))
    assert isinstance(answer, FleetAnswer)
    answers.predict(position, *METRICS[metric](answer))
