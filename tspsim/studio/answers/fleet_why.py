"""The reasons behind a fleet's figures, in sentences: lost hours, waiting jobs, costs; taken from the answer, not
computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...base.units import digits, duration, percent
from .parts import sources
from .sort import Document

#: Jobs that are named, at most.
MOST_JOBS = 3
Job = Mapping[str, Any]


def of_whole(document: Document) -> list[str]:
    """GPU-hours of the cluster without lasting work, by cause, and the sources of prices."""
    fleet = document["fleet"]
    lost = sorted(
        ((name, hours) for name, hours in fleet["lost_gpu_hours"].items() if hours > 0), key=lambda loss: -loss[1]
    )
    losses = ", ".join(f"{name.replace('_', ' ')} {digits(hours)}" for name, hours in lost)
    return [
        f"GPU-hours without lasting work: {losses or 'none'}.",
        *sources(document, "price"),
        *sources(document, "power"),
    ]


def of_class(document: Document, name: str, key: str) -> list[str]:
    """The jobs behind a figure of their class."""
    jobs = [job for job in document["fleet"]["jobs"] if job["class"] == name]
    if key == "done":
        states = Counter(job["state"] for job in jobs)
        return [f"Jobs at the end of the period: {', '.join(f'{state} {n:,}' for state, n in states.items())}."]
    if key == "gpu_hours":
        return _largest("GPU-hours", jobs, key, lambda job: f"{job[key]:,.0f} on {job['gpus']:,} GPUs")
    if key == "restarts":
        kept = _largest("Restarts", jobs, key, lambda job: f"{job[key]:,}, {percent(job['ettr'])} of its time worked")
        return kept or ["No job began again."]
    if key.endswith("wait_s"):
        return _largest("Waited longest", jobs, "wait_s", lambda job: duration(job["wait_s"])) or ["No job waited."]
    return []


def _largest(title: str, jobs: Sequence[Job], key: str, words: Callable[[Job], str]) -> list[str]:
    """The jobs with the largest values; empty where no job has any."""
    most = sorted((job for job in jobs if job[key]), key=lambda job: -job[key])[:MOST_JOBS]
    jobs_in_words = "; ".join(f"{job['name']} {words(job)}" for job in most)
    return [f"{title}: {jobs_in_words}."] if most else []
