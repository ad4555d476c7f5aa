"""How ranks with parts of a context agree on the tokens that an indexer chooses: one object that registers itself.

DeepSeek Sparse Attention attends the ``topk`` best of *all* tokens (DeepSeek-AI 2025, DeepSeek-V3.2, §2.1), and under
shared contexts a rank has every p-th key. In a layer that owns an indexer, n queries:

    exact       a rank scores its keys and keeps the best k; scores with their places are gathered, and every rank
                chooses k among p·k candidates, of which it attends those that it has
    scores      scores alone travel: which rank has a candidate follows from where it stands in what was gathered;
                queries are gathered meanwhile
    replicated  the keys stand whole on every rank, which scores and chooses alone: nothing travels
    union       every rank attends the best k of its own part: nothing travels, and up to p·k tokens are attended

The places that were chosen stay for the layers that own no indexer.
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
from ..sought import decodes, sought_objects

#: The key of a plan, and what it is where none is stated: what vLLM and ATOM run.
KEY, USUAL = "index_exchange", "exact"


@dataclass(frozen=True)
class IndexExchange:
    """How the best tokens of all are known to ranks that each have some of a context.

    Attributes
    ----------
    name, summary
        What a plan's ``index_exchange`` calls it, and a line for the catalogue.
    candidate_bytes
        Of a candidate on its way to all ranks: its score, and where it is; 0: none travels.
    whole
        Every rank keeps and scores the keys of all tokens.
    apart
        A rank attends the best of its own part, not its share of the best of all.
    beside
        Queries are gathered while keys are scored; otherwise when it is known what is attended.
    source
        Who runs it.
    why_not
        Why a search over plans does not try it; empty: it does.
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


#: The one of a plan.
index_exchange_of = INDEX_EXCHANGES.named_by(KEY, USUAL)


def chooses(job: Job) -> bool:
    """Ranks attend parts of a context of which a layer chooses."""
    return job.scheme.context(job.plan).ranks > 1 and any(
        job.model.attention_of(block).chooses for block in job.model.distinct
    )


def variants(model: Architecture, keys: Mapping[str, Any], shares: Callable[[], bool]) -> Iterator[Mapping[str, Any]]:
    """What a search adds to keys of a plan whose ranks share contexts: every way that computes the same."""
    yield {}
    if KEY not in keys and any(model.attention_of(block).chooses for block in model.distinct) and shares():
        others = (
            exchange.name for exchange in INDEX_EXCHANGES.values() if not exchange.why_not and exchange.name != USUAL
        )
        yield from ({KEY: name} for name in others)


def refused_choice(job: Job) -> Refusal:
    """Why a plan cannot say how tokens are chosen; None where it can."""
    if KEY not in job.plan.options:
        return None
    if not any(job.model.attention_of(block).chooses for block in job.model.distinct):
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
    sought_objects(
        lambda work: INDEX_EXCHANGES.values(),
        of=lambda model, work: decodes(model, work) and any(model.attention_of(b).chooses for b in model.distinct),
        used=chooses,
    ),
)
