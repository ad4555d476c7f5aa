"""Parallel plans: the rank mesh, one file per scheme and per context method, memory of a rank.

A *scheme* spreads a replica over its ranks: it writes the parts of a pass, and states bytes, memory and constraints. A
*context method* is how sequence shards attend each other's K and V. Each is one file with one object that registers
itself (docs/extending.md has an example); :func:`write_program` joins a scheme's parts.
"""

from __future__ import annotations

# isort: off
# These imports register objects; registries and features keep their order.
from . import plan_keys
from .state import weight_peers, weight_offload, checkpoint  # noqa: F401
from . import unequal_checks, checks, context, expert_shards  # noqa: F401
from .experts import fused, expert, expert_fused  # noqa: F401
from .schemes import folded_choice
from . import decode, mesh, residual  # noqa: F401
from .decode import expert_pool, host_caches, sharing  # noqa: F401
from .schemes import folded_form  # noqa: F401
from .decode import draft_pool, host_attention  # noqa: F401
from .state import shard_levels, wires, data, offload  # noqa: F401

# isort: on
from . import balances, dispatches, dualpipe, folded_orders, interleavings  # noqa: F401
from .adapters import Adapters
from .balance import BALANCES, Balance
from .choice import Choice
from .choices import options_of
from .context import ContextMethod, method_of
from .context.method import CONTEXT_METHODS
from .decode.exchange import DECODE_EXCHANGES
from .decode.index_exchange import INDEX_EXCHANGES
from .job import Job
from .lengths import BATCH_ASSIGNMENTS, Unequal
from .mesh import build_mesh, located
from .plan import SWITCHES, Plan, mesh_axes, scheme_axes
from .registries import Option
from .residency import Residency
from .residual import RESIDUALS
from .routing import ExpertRouting
from .scheme import SCHEMES, Received, Scheme, choices_of, scheme_of, switches_of
from .schemes import folded, folded_decode, tensor
from .schemes.folded_form import DECODE_FORMS
from .schemes.transport import WEIGHT_TRANSPORTS
from .search_rule import SEARCH_RULES, SearchRule
from .serving_engine import Captured, ServingEngine
from .stack import IDEAL, Stack
from .stack_spec import StackSpec, load_stack
from .state.checkpoint import CHECKPOINTS
from .state.memory import peak_bytes, peak_memory
from .step import axes_of, write_program
from .work import OPTIMIZERS, Optimizer, Work

__all__ = [
    "BALANCES",
    "BATCH_ASSIGNMENTS",
    "CHECKPOINTS",
    "CONTEXT_METHODS",
    "DECODE_EXCHANGES",
    "DECODE_FORMS",
    "IDEAL",
    "INDEX_EXCHANGES",
    "OPTIMIZERS",
    "RESIDUALS",
    "SCHEMES",
    "SEARCH_RULES",
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
    "SearchRule",
    "ServingEngine",
    "Stack",
    "StackSpec",
    "Unequal",
    "Work",
    "axes_of",
    "balances",
    "build_mesh",
    "checks",
    "choices_of",
    "context",
    "dispatches",
    "dualpipe",
    "expert",
    "expert_shards",
    "folded",
    "folded_choice",
    "folded_decode",
    "folded_orders",
    "load_stack",
    "located",
    "mesh_axes",
    "method_of",
    "options_of",
    "peak_bytes",
    "peak_memory",
    "plan_keys",
    "scheme_axes",
    "scheme_of",
    "switches_of",
    "tensor",
    "write_program",
]
