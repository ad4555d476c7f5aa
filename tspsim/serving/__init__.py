"""Requests over steps: from arrivals to what users wait for and what it costs."""

from .engine import Engine
from .policies import POLICIES, Policy
from .replay import replay
from .replica import Replica
from .requests import Request
from .work import AffineCost, CalledCost, Chunk, StepCost, Work

__all__ = [
    "POLICIES",
    "AffineCost",
    "CalledCost",
    "Chunk",
    "Engine",
    "Policy",
    "Replica",
    "Request",
    "StepCost",
    "Work",
    "replay",
]
