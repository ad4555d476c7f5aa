"""Which jobs start: one registered class a file."""

from __future__ import annotations

from . import easy, fcfs
from .base import JobScheduler, shorthand

JOB_SCHEDULERS = JobScheduler.registry

__all__ = ["JOB_SCHEDULERS", "JobScheduler", "easy", "fcfs", "shorthand"]
