"""Many jobs on one cluster: they are submitted, wait, get nodes, slow each other, fail and end.

A question is a scenario with ``jobs``; :func:`load` reads it, :func:`tspsim.simulate` answers it. tspsim's own
simulation gives the step time of every distinct job once. Schedulers and placements register themselves
(:data:`JOB_SCHEDULERS`, :data:`PLACEMENTS`).
"""

from __future__ import annotations

from .answer import answer
from .autoscalers import AUTOSCALERS, Autoscaler
from .durations import DURATIONS, Durations
from .loading import is_fleet, load, load_text
from .logs import LOG_FORMS, LogForm, Logged
from .paces import own_scenario
from .placements import PLACEMENTS, Placement
from .question import FleetQuestion, JobKeys
from .result import FleetAnswer, FleetFacts, FleetTimes, JobAnswer
from .schedulers import JOB_SCHEDULERS, JobScheduler

__all__ = [
    "AUTOSCALERS",
    "DURATIONS",
    "JOB_SCHEDULERS",
    "LOG_FORMS",
    "PLACEMENTS",
    "Autoscaler",
    "Durations",
    "FleetAnswer",
    "FleetFacts",
    "FleetQuestion",
    "FleetTimes",
    "JobAnswer",
    "JobKeys",
    "JobScheduler",
    "LogForm",
    "Logged",
    "Placement",
    "answer",
    "is_fleet",
    "load",
    "load_text",
    "own_scenario",
]
