"""Parallel plans: the rank mesh, one file a scheme, memory a rank.

A *scheme* turns a job into one program for every position on its token axis, and says what it keeps in memory.
A new scheme is one file with a :class:`Scheme` and its entry in :data:`SCHEMES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..program import Program
from . import folded, tensor
from .memory import Residency, peak_memory
from .mesh import Mesh, build_mesh
from .plan import AXES, Job, Optimizer, Plan, Work

__all__ = [
    "AXES",
    "SCHEMES",
    "Job",
    "Mesh",
    "Optimizer",
    "Plan",
    "Residency",
    "Scheme",
    "Work",
    "build_mesh",
    "peak_memory",
    "scheme_of",
]


@dataclass(frozen=True)
class Scheme:
    """A way to spread one replica.

    Attributes
    ----------
    forward
        ``(job, position on the token axis) → program``.
    residency
        What stays in memory.
    """

    name: str
    forward: Callable[[Job, int], Program]
    residency: Residency


SCHEMES: dict[str, Scheme] = {
    "tensor": Scheme("tensor and sequence", tensor.forward, tensor.RESIDENCY),
    "folded": Scheme("folded tensor and sequence (TSP)", folded.forward, folded.RESIDENCY),
}


def scheme_of(plan: Plan) -> Scheme:
    """The scheme a plan's degrees ask for."""
    return SCHEMES["folded" if plan.tsp > 1 else "tensor"]
