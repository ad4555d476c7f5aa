"""How ranks with parts of a context agree on the tokens that an indexer selects: the contract, and the registry.

DeepSeek Sparse Attention attends the ``topk`` best of *all* tokens (DeepSeek-AI 2025, DeepSeek-V3.2, §2.1), and with
shared contexts a rank has every p-th key. In a layer with an indexer, for n queries:

    exact       a rank scores its keys and keeps the best k; scores and positions are gathered, and every rank selects
                k of p·k candidates and attends those that it holds
    scores      scores alone are gathered: their place in the result tells a candidate's rank; queries are gathered
                meanwhile
    replicated  every rank has all keys, and scores and selects alone: no exchange
    union       every rank attends the best k of its own part: no exchange, and up to p·k tokens are attended

Layers without an indexer use the last selection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...base.registry import Registry
from ...model import Architecture
from ..job import Job
from ..pipeline import Refusal
from ..reasons import CHANGES_NUMBERS
from ..registries import Option
from ..search_rule import decodes, rule_for_objects

#: The key of a plan, and its default: as in vLLM and ATOM.
KEY, USUAL = "index_exchange", "exact"


@dataclass(frozen=True)
class IndexExchange:
    """How ranks that each hold a part of a context determine the best tokens of all.

    Attributes
    ----------
    name, summary
        Its name in a plan's ``index_exchange``, and a line for the catalogue.
    candidate_bytes
        Bytes of an exchanged candidate (score, position); 0: none is exchanged.
    whole
        Every rank keeps and scores the keys of all tokens.
    apart
        A rank attends the best of its own part, not its share of the best of all.
    beside
        Queries are gathered while keys are scored; otherwise after the selection.
    source
        Who runs it.
    why_not
        Why a search over plans skips it; empty: it does not.
    """

    name: str
    summary: str
    candidate_bytes: float = 0.0
    whole: bool = False
    apart: bool = False
    beside: bool = False
    source: str = ""
    why_not: str = ""
    check: Callable[[Job], Refusal] = lambda job: None


INDEX_EXCHANGES: Registry[IndexExchange] = Registry("index exchange", "tspsim.index_exchanges", IndexExchange)


#: Plan → its index exchange.
index_exchange_of = INDEX_EXCHANGES.named_by(KEY, USUAL)


def selects(job: Job) -> bool:
    """Whether ranks attend parts of a context of which a layer selects tokens."""
    return job.scheme.context(job.plan).ranks > 1 and any(
        job.model.attention_of(block).selects for block in job.model.distinct
    )


def variants(model: Architecture, keys: Mapping[str, Any], shares: Callable[[], bool]) -> Iterator[Mapping[str, Any]]:
    """Keys that a search adds to a plan whose ranks share contexts: every exchange with the same result."""
    yield {}
    if KEY not in keys and any(model.attention_of(block).selects for block in model.distinct) and shares():
        others = (
            exchange.name for exchange in INDEX_EXCHANGES.values() if not exchange.why_not and exchange.name != USUAL
        )
        yield from ({KEY: name} for name in others)


def refused_choice(job: Job) -> Refusal:
    """Why a plan cannot state an index exchange; None if it can."""
    if KEY not in job.plan.options:
        return None
    if not any(job.model.attention_of(block).selects for block in job.model.distinct):
        return KEY, f"is of models with an indexer, and {job.model.name} has none; leave it out"
    if job.token_shards > 1:
        return KEY, "is of steps that decode, or mix; prompts on shards of tokens gather the keys themselves"
    return INDEX_EXCHANGES.get(job.plan.options[KEY]).check(job)


EXACT = INDEX_EXCHANGES.register(
    IndexExchange(
        name="exact",
        summary="the best of every part, scores with places, gathered and chosen among",
        candidate_bytes=8.0,
        source="vLLM #46076; ROCm ATOM #1832",
    )
)
SCORES = INDEX_EXCHANGES.register(
    IndexExchange(
        name="scores",
        summary="the same with scores alone, while queries are gathered",
        candidate_bytes=4.0,
        beside=True,
        source="ROCm ATOM #2087, aiter #5123; the overlap is derived",
    )
)
REPLICATED = INDEX_EXCHANGES.register(
    IndexExchange(
        name="replicated",
        summary="keys of the indexer whole on every rank: nothing travels",
        whole=True,
        beside=True,
        source="SGLang #39330",
    )
)
UNION = INDEX_EXCHANGES.register(
    IndexExchange(
        name="union",
        summary="every rank attends the best of its own part: more tokens, nothing travels",
        apart=True,
        source="vLLM #45426",
        why_not=CHANGES_NUMBERS,
    )
)
OPTION = Option(
    KEY,
    INDEX_EXCHANGES,
    None,
    "how ranks that share contexts agree on what an indexer chooses",
    rule_for_objects(
        lambda work: INDEX_EXCHANGES.values(),
        of=lambda model, work: decodes(model, work) and any(model.attention_of(b).selects for b in model.distinct),
        used=selects,
    ),
)
