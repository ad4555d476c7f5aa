"""Tensor parallelism in serving steps: how ranks share contexts, and keys of decode steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...base.units import PositiveCount
from ...model.layer import LayerShard
from ...steps import STEPS, Step
from ..builder import ProgramBuilder
from ..context.method import CONTEXT_METHODS
from ..decode import ContextShare, exchange, index_exchange
from ..decode.exchange import DECODE_EXCHANGES
from ..decode.layer import serve_layer
from ..decode.sharing import refused_exchange
from ..feature import features_of
from ..job import Job
from ..pipeline import Refusal
from ..plan import Plan
from ..registries import Option
from ..sought import Sought, decodes
from .sampling import sampled_head


def serve(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int) -> list[int]:
    """A layer of a serving step, with all tokens on every rank of ``tp``."""
    return serve_layer(builder, job, layer, "tp")


def head_served(builder: ProgramBuilder, job: Job, layer: LayerShard) -> None:
    """The head of a serving step."""
    sampled_head(builder, job, layer, "tp")


def context(plan: Plan) -> ContextShare:
    """How contexts of a serving step are shared: heads over ``tp``; tokens over ``sp``, over groups of ``dcp``
    neighbours of ``tp`` that gather their queries, or over groups of ``kvp`` that all compute the queries of their
    heads (Helix)."""
    heads, dcp, kvp = plan.tp, plan.options.get("dcp", 1), plan.options.get("kvp", 1)
    keys = index_exchange.KEY in plan.options and index_exchange.index_exchange_of(plan).whole
    if kvp > 1:
        return ContextShare("kvp", kvp, heads // kvp, heads // kvp, heads, usual="all_to_all", whole_keys=keys)
    if dcp > 1:
        return ContextShare("dcp", dcp, heads, heads // dcp, heads, whole_keys=keys)
    copies: float = plan.ep if plan.dispatch.everywhere else 1
    share = ContextShare("sp" if plan.sp > 1 else "", plan.sp, heads, heads, heads, copies=copies, whole_keys=keys)
    for feature in features_of(plan):
        share = feature.context(plan, share)
    return share


def check_groups(job: Job) -> Refusal:
    """Why keys of decode steps do not fit."""
    plan = job.plan
    stated = [name for name in ("dcp", "kvp") if plan.options.get(name, 1) > 1]
    own = [option.name for option in SERVING_OPTIONS if option.name in plan.options]
    if own and not job.step.serves:
        serving = ", ".join(step.name for step in STEPS.values() if step.serves)
        return own[0], f"is of steps that serve: {serving}"
    if not job.step.serves or (context(plan).ranks == 1 and index_exchange.KEY not in plan.options):
        return None
    return (_group(job, stated) if stated else None) or refused_exchange(job)


def _group(job: Job, stated: Sequence[str]) -> Refusal:
    """Why groups of ``tp`` that share contexts do not fit."""
    plan = job.plan
    key, value = stated[0], plan.options[stated[0]]
    if len(stated) > 1:
        return "kvp", f"{plan.options['kvp']} and dcp {plan.options['dcp']} both divide contexts over tp; leave one out"
    if "kvp" in stated and job.work.load.prompts:
        return "kvp", f"{value} is of steps that decode alone; prompts take dcp, or sp"
    if plan.sp > 1:
        return key, f"{value} and sp {plan.sp} both divide contexts by tokens; leave one out"
    if plan.tp % value:
        divisors = [str(degree) for degree in range(1, plan.tp + 1) if plan.tp % degree == 0]
        return key, f"{value} does not divide tp = {plan.tp}; use one of {', '.join(divisors)}"
    return None


def serving_variants(step: Step, keys: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Context methods for prompts, or ways to share contexts."""
    tp, sp = keys.get("tp", 1), keys.get("sp", 1)
    exchanges = [exchange.name for exchange in DECODE_EXCHANGES.values() if exchange.searched]
    if step.shards_tokens:
        yield from ({"exchange": name} for name in CONTEXT_METHODS) if sp > 1 else ({},)
        return
    if sp > 1:
        yield from ({"decode_exchange": name} for name in exchanges)
        return
    yield {}
    for ranks in range(2, tp + 1):
        if tp % ranks == 0:
            yield from ({"dcp": ranks, "decode_exchange": name} for name in exchanges)
            yield {"kvp": ranks}


#: Keys of decode steps.
SERVING_OPTIONS = (
    Option(
        "dcp",
        PositiveCount,
        None,
        "decode context parallelism: ranks of tp that share a context by its tokens",
        Sought(of=decodes),
    ),
    Option(
        "kvp",
        PositiveCount,
        None,
        "Helix: ranks of tp that share a context, each with all its queries",
        Sought(of=decodes),
    ),
    exchange.OPTION,
    index_exchange.OPTION,
)
