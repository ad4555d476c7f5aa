"""Parallel plans: the rank mesh, one file a scheme and a context method, memory a rank.

A *scheme* spreads a replica over its ranks: it writes the pieces of a pass, and answers whatever others ask about it. A
*context method* is how sequence shards see each other's K and V. Each is one file with one object that registers itself
(docs/extending.md walks through one); :func:`write_program` joins a scheme's pieces.
"""

from __future__ import annotations

from . import balances, context, dispatches, dualpipe, folded, folded_decode, tensor
from .adapters import Adapters
from .balance import BALANCES, Balance
from .checkpoint import CHECKPOINTS
from .choice import Choice, Option
from .choices import choices_of, options_of, switches_of
from .context import ContextMethod, method_of, usual_method
from .job import Job
from .lengths import DEALS, Unequal
from .memory import Residency, peak_bytes, peak_memory
from .mesh import build_mesh, located
from .plan import SWITCHES, Plan
from .registries import (
    CONTEXT_METHODS,
    DECODE_EXCHANGES,
    DECODE_FORMS,
    INDEX_EXCHANGES,
    SCHEMES,
    WEIGHT_TRANSPORTS,
    mesh_axes,
    scheme_axes,
)
from .residual import RESIDUALS
from .routing import ExpertRouting
from .scheme import Received, Scheme, scheme_of
from .serving_engine import Captured, ServingEngine
from .sought import SOUGHT, Sought
from .stack import IDEAL, Stack
from .stack_spec import StackSpec, load_stack
from .step import axes_of, write_program
from .work import Optimizer, Work

__all__ = [
    "BALANCES",
    "CHECKPOINTS",
    "CONTEXT_METHODS",
    "DEALS",
    "DECODE_EXCHANGES",
    "DECODE_FORMS",
    "IDEAL",
    "INDEX_EXCHANGES",
    "RESIDUALS",
    "SCHEMES",
    "SOUGHT",
    "SWITCHES",
    "WEIGHT_TRANSPORTS",
    "Adapters",
    "Balance",
    "Captured",
    "Choice",
    "ContextMethod",
    "ExpertRouting",
    "Job",
    "Optimizer",
    "Option",
    "Plan",
    "Received",
    "Residency",
    "Scheme",
    "ServingEngine",
    "Sought",
    "Stack",
    "StackSpec",
    "Unequal",
    "Work",
    "axes_of",
    "balances",
    "build_mesh",
    "choices_of",
    "context",
    "dispatches",
    "dualpipe",
    "folded",
    "folded_decode",
    "load_stack",
    "located",
    "mesh_axes",
    "method_of",
    "options_of",
    "peak_bytes",
    "peak_memory",
    "scheme_axes",
    "scheme_of",
    "switches_of",
    "tensor",
    "usual_method",
    "write_program",
]
