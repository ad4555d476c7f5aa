"""Requests over steps: from arrivals to latencies and cost."""

from ..steps import PromptChunk
from .engine import Engine
from .policies import POLICIES, Policy
from .replay import replay
from .replica import Replica
from .requests import Request
from .work import AffineCost, CalledCost, StepCost, StepWork

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
