"""Recomputation: what a backward computes again of what its forward did not keep.

    none        everything is kept
    selective   the attention kernel (Korthikanti et al. 2022, §5)
    cheap       norms, products of activations, and heads from their latents (Megatron-Core's modules ``layernorm``,
                ``moe_act`` and ``mla_up_proj``)
    full        the whole layer with its exchanges (written by :mod:`tspsim.parallel.step`)

With sequence regions a backward also gathers inputs of column-split products again
(:mod:`tspsim.parallel.column_inputs`).

A stack may recompute norms or products itself (:attr:`tspsim.parallel.stack.Stack.remakes`), whatever the plan: fused
backward kernels keep the input of a norm or an activation, not its output.
"""

from __future__ import annotations

from dataclasses import replace

from ..model.layer import LayerShard
from ..operators import MemoryBound, Operator, Role
from .job import Job
from .recomputed import CHEAP, FULL

#: What a stack may recompute itself, and the roles of its operators.
NORMS, PRODUCTS = "norms", "products"
ROLES = {NORMS: (Role.NORM,), PRODUCTS: (Role.ACTIVATION, Role.EXPERTS_ACTIVATION)}
#: Roles of the products that read it.
_READ_BY = {
    NORMS: (Role.QKV, Role.LATENT_DOWN, Role.LATENT_QUERIES, Role.LATENT_KEYS_VALUES, Role.GATE_UP),
    PRODUCTS: (Role.DOWN, Role.EXPERTS_DOWN),
}


def recomputed_inputs(job: Job) -> frozenset[Role]:
    """Roles of products whose inputs a backward computes again."""
    return frozenset(role for name in recomputed_groups(job) for role in _READ_BY[name])


def recomputed_groups(job: Job) -> frozenset[str]:
    """Keys of :data:`ROLES` that a layer does not keep."""
    again = job.plan.recomputation
    return frozenset(ROLES) if again == CHEAP else frozenset(() if again == FULL else job.work.stack.remakes)


def keeps_gathered_inputs(job: Job) -> bool:
    """Whether inputs that sequence regions gathered stay whole for the backward. Adapters keep theirs so (NeMo and
    Megatron-Bridge, ``ParallelLinearAdapter``: ``gather_from_sequence_parallel_region``)."""
    return job.regions and (job.column_inputs.whole or job.work.adapters is not None)


def gathers_inputs_again(job: Job) -> bool:
    """Whether a backward gathers inputs of column-split products for their weights' gradient: those of which a rank
    kept its own tokens, or computes these again."""
    if not job.regions or job.work.adapters is not None:
        return False
    return not job.column_inputs.whole or NORMS in recomputed_groups(job)


def recomputed_kernels(job: Job, *operators: Operator) -> tuple[Operator, ...]:
    """Kernels that run again before a backward needs their result: with ``cheap`` all of these, otherwise those that
    the stack recomputes."""
    apart = job.work.stack.norm_tensors is not None
    operators = tuple(_norm_again(operator, apart=apart) for operator in operators)
    if job.work.stack.remakes_in_backward:
        operators = tuple(_beside_backward(job, operator) for operator in operators)
    if job.plan.recomputation == CHEAP or not job.work.stack.remakes:
        return operators if job.plan.recomputation == CHEAP else ()
    roles = [role for name in recomputed_groups(job) for role in ROLES[name]]
    return tuple(operator for operator in operators if operator.role in roles)


def _beside_backward(job: Job, operator: Operator) -> Operator:
    """An activation recomputed inside its backward's kernel: it only adds writes, since its inputs are read anyway."""
    if not isinstance(operator, MemoryBound) or operator.role not in ROLES[PRODUCTS]:
        return operator
    written = 1.0 / (3.0 if job.model.gated else 2.0)
    return replace(operator, size_bytes=written * operator.size_bytes)


def _norm_again(operator: Operator, *, apart: bool) -> Operator:
    """A norm recomputed from its kept sum, which is read and its output written; its forward reads two tensors and
    writes two. ``apart``: norms are kernels of their own."""
    if not isinstance(operator, MemoryBound) or operator.op != "add_rmsnorm":
        return operator
    again = replace(operator, size_bytes=operator.size_bytes / 2.0)
    return replace(again, op="rmsnorm") if apart else again


def recomputed_heads(job: Job, layer: LayerShard, tokens: int) -> tuple[Operator, ...]:
    """Queries, keys and values recomputed from latents, of which the values before their norms are kept."""
    if layer.model.latent is None:
        return ()
    return recomputed_kernels(job, *layer.latent_norms(tokens), *layer.projections(tokens), layer.rope(tokens))
