"""All keys that a search over plans knows, wherever they are declared, and those of a question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..model import Architecture
from .context.method import CONTEXT_METHODS
from .feature import plan_options
from .job import Job
from .scheme import SCHEMES
from .search_rule import SEARCH_RULES, SearchRule
from .switches import declared
from .work import Work

#: Order of keys in answers, and of searched keys with candidates of their own; keys of packages follow.
ORDER = (
    *("algorithms", "routing", "expert_balance", "expert_dispatch", "expert_overlap", "micro_batch", "schedule", "vpp"),
    *(
        "accumulation",
        "stage_layers",
        "recomputation",
        "weight_peers",
        "offload_weights",
        "offload_weights of training",
    ),
    *("checkpoint", "checkpoint_rate", "checkpoint_every", "dynamic_sp", "rank_tokens", "deal", "padded"),
    *("offload_from", "activation_store", "partition", "exchange", "overlap_by", "context_transport", "expert_shards"),
    *("sequence_regions", "overlap", "fused_transport", "overlap_chunks", "expert_pieces", "weight_transport"),
    *("mlp_pieces", "head_groups", "tsp_schedule", "index_exchange", "decode_exchange", "placement", "residual"),
    *("expert_pool", "host_caches", "dcp", "kvp", "decode_form", "draft_replicas", "draft_turns", "host_attention"),
    *("weight_shard", "weight_wire", "gradient_wire", "zero", "shard_group", "secondary_shard", "offload_layers"),
)


def search_keys() -> dict[str, SearchRule]:
    """All search keys by name: of every plan, of registered schemes and context methods, and separately registered."""
    of_schemes = [option for scheme in SCHEMES.values() for option in plan_options(scheme)]
    options = [*of_schemes, *(option for method in CONTEXT_METHODS.values() for option in method.options)]
    keys = [*declared(), *(replace(option.search, name=option.name) for option in options if option.search)]
    by_name = {key.name: key for key in (*keys, *SEARCH_RULES.values())}
    place = {name: index for index, name in enumerate(ORDER)}
    return dict(sorted(by_name.items(), key=lambda item: place.get(item[0], len(ORDER))))


def searched_keys(model: Architecture, work: Work) -> list[SearchRule]:
    """Keys that a search varies for a question."""
    return [key for key in search_keys().values() if not key.reason(work) and key.of(model, work)]


def not_searched(model: Architecture, work: Work) -> dict[str, list[str]]:
    """Reason → keys that could matter but are kept as stated."""
    reasons: dict[str, list[str]] = {}
    for key in search_keys().values():
        if not key.of(model, work):
            continue
        if key.reason(work):
            reasons.setdefault(key.reason(work), []).append(key.called or key.name)
        for value, reason in key.left(model, work).items():
            reasons.setdefault(reason, []).append(f"{key.called or key.name}: {value}")
    return reasons


def ways_of(job: Job, keys: Sequence[SearchRule]) -> Iterator[Job]:
    """The job itself, then with every combination of candidates of ``keys``; some may not be legal."""
    tried = [key for key in keys if key.ways is not None]
    if not tried:
        yield job
        return
    *others, last = tried
    for first in ways_of(job, others):
        yield first
        assert last.ways is not None
        for value in last.ways(first):
            yield replace(first, plan=first.plan.with_values({last.name: value}))
