"""Parallel plans: the rank mesh, one file a scheme, memory a rank.

A *scheme* writes the pieces of a pass for every position on its token axis and says what it keeps in memory; a new
scheme is one file with a :class:`Scheme` and its entry in :data:`SCHEMES`. :func:`write_program` joins the pieces.
"""

from __future__ import annotations

from . import folded, tensor
from .adapters import Adapters
from .choices import CHOICES, options_of
from .memory import Residency, peak_memory
from .mesh import build_mesh, located
from .plan import AXES, Job, Plan
from .routing import Routing
from .stack import IDEAL, Stack
from .stack_spec import StackSpec, load_stack
from .step import Scheme, axes_of, write_program
from .work import Optimizer, Work

__all__ = [
    "AXES",
    "CHOICES",
    "IDEAL",
    "SCHEMES",
    "Adapters",
    "Job",
    "Optimizer",
    "Plan",
    "Residency",
    "Routing",
    "Scheme",
    "Stack",
    "StackSpec",
    "Work",
    "axes_of",
    "build_mesh",
    "load_stack",
    "located",
    "options_of",
    "peak_memory",
    "scheme_of",
    "write_program",
]


SCHEMES: dict[str, Scheme] = {"tensor": tensor.SCHEME, "folded": folded.SCHEME}


def scheme_of(plan: Plan) -> Scheme:
    """The scheme a plan's degrees ask for."""
    return SCHEMES["folded" if plan.tsp > 1 else "tensor"]
