"""Requests over steps: from arrivals to what users wait for and what it costs."""

from .engine import Engine
from .policies import POLICIES, Policy
from .replay import replay
from .replica import Replica
from .requests import Request
from .work import AffineCost, CalledCost, PromptChunk, StepCost, StepWork

__all__ = [
    "POLICIES",
    "AffineCost",
    "CalledCost",
    "Engine",
    "Policy",
    "PromptChunk",
    "Replica",
    "Request",
    "StepCost",
    "StepWork",
    "replay",
]
