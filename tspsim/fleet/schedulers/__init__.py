"""Which jobs start: one registered class a file."""

from __future__ import annotations

from . import conservative, easy, elastic, fair_share, fcfs, priority
from .base import JobScheduler, shorthand

JOB_SCHEDULERS = JobScheduler.registry

__all__ = [
    "JOB_SCHEDULERS",
    "JobScheduler",
    "conservative",
    "easy",
    "elastic",
    "fair_share",
    "fcfs",
    "priority",
    "shorthand",
]
