"""A question of many jobs: one line per class of jobs, and the cluster's GPU-hours; taken from the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ... import api
from ...api import Progress
from .fleet_figures import of_class, whole
from .plans import of_cluster
from .sort import Bought, Document, Figure, Pinned

#: Name of the cluster's own line.
WHOLE = "all jobs"


def entries(question: Any) -> list[tuple[str, str, str | None]]:
    entries = of_cluster(question.cluster)
    for job in question.jobs:
        for key, kind in (("model", "models"), ("stack", "stacks")):
            name = (job.workload or {}).get(key)
            if isinstance(name, str) and all(name != other for _, _, other in entries):
                entries.append((f"jobs.{job.name}.workload.{key}", kind, name))
    return entries


def facts(question: Any, result: Any) -> dict[str, Any]:
    return {"refused": "", "best": None, "doubts": {}, "drawn": api.fleet_figures(result)}


def lines(document: Document, facts: Mapping[str, Any]) -> dict[str, list[Figure]]:
    fleet = document["fleet"]
    return {WHOLE: whole(fleet), **{kind["class"]: of_class(kind) for kind in fleet["classes"]}}


def pinned(document: Document, facts: Mapping[str, Any]) -> Pinned | None:
    fleet = document["fleet"]
    waits = [
        Figure(f"{kind['class']} {figure.key}", f"{kind['class']}: {figure.name}", figure.value, figure.text)
        for kind in fleet["classes"]
        for figure in of_class(kind)
        if figure.key in ("mean_wait_s", "p95_wait_s")
    ]
    return Pinned(WHOLE, [*whole(fleet), *waits], None)


def parts(document: Document, facts: Mapping[str, Any]) -> list[Any]:
    from .fleet_parts import parts

    return parts(document, facts)


def bought(question: Any, progress: Progress) -> Bought:
    sizes = api.fleet_sizes(question, progress=progress)
    names = [size.offer for size in sizes.sizes]
    return Bought(
        words=[*filter(None, (sizes.verdict,)), *sizes.in_words()],
        columns=sizes.COLUMNS,
        rows=sizes.rows(),
        best=names.index(sizes.cheapest.offer) if sizes.cheapest is not None else None,
    )


def alone(question: Any) -> bool:
    return True
