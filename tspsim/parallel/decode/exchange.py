"""The contract of a decode exchange, and their registry.

Ranks that hold parts of a batch's contexts attend them; an exchange merges the partial results to whole outputs. It
states the bytes that a rank receives (closed form) and its buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...base.memo import once
from ...base.registry import Registry
from ...model.attention.base import tokens_of
from ...model.layer import ServingLayer
from ...operators import MemoryBound, Operator, Role, Rows, TopK
from ..builder import ProgramBuilder
from ..job import Job
from ..pipeline import Refusal
from ..registries import ContextShare, Option
from ..search_rule import decodes, rule_for_objects
from .index_exchange import IndexExchange, index_exchange_of

#: Bytes of a log-sum-exp, and of an element of a numerator or denominator.
FP32 = 4.0


@dataclass(frozen=True)
class Partial:
    """Attention of decoding rows in one layer, each rank over its part of their contexts.

    Symbols: n query tokens, m query heads that a rank attends, q and d widths of a head's query and output, p ranks.
    """

    share: ContextShare
    layer: ServingLayer
    rows: Rows
    #: How ranks agree on the tokens that an indexer selects.
    index: IndexExchange

    @once
    def ranks(self) -> int:
        return self.share.ranks

    @once
    def tokens(self) -> int:
        return tokens_of(self.rows)

    @once
    def heads(self) -> int:
        """m."""
        return self.layer.model.heads // self.share.attended

    @once
    def own_heads(self) -> int:
        """Heads of this rank's output projection."""
        return self.layer.model.heads // self.share.own

    @once
    def widths(self) -> tuple[int, int]:
        return self.layer.attention_kind.merged(self.layer.model)

    @property
    def query_width(self) -> int:
        return self.widths[0]

    @property
    def width(self) -> int:
        """d."""
        return self.widths[1]

    @property
    def element(self) -> float:
        """Bytes of an element of a query or an output."""
        return self.layer.activation_bytes

    def rows_of(self, heads: int, element: float) -> float:
        """Bytes of n·d elements of ``heads`` heads."""
        return self.tokens * heads * self.width * element

    def numbers(self, heads: int) -> float:
        """Bytes of one fp32 number per token and head."""
        return self.tokens * heads * FP32

    @once
    def attending(self) -> ServingLayer:
        """The layer with the attended heads, over this rank's part of the contexts."""
        keys = 1 if self.index.whole else self.ranks
        apart = self.index.apart
        return replace(
            self.layer, shards=self.share.attended, context_shards=self.ranks, index_shards=keys, selects_apart=apart
        )

    def attend(self) -> tuple[Operator, ...]:
        """Attention kernels over this rank's part, of the tokens that :meth:`select` selected."""
        return self.layer.attention_kind.attend_selected(self.attending, self.rows)

    @property
    def topk(self) -> int:
        """k: tokens that the layer's indexer selects per query; 0 without an indexer."""
        return self.layer.attention_kind.index_topk(self.layer.model, self.layer.composition)

    @property
    def candidates(self) -> float:
        """Bytes of the p·n·k candidates of all ranks."""
        return self.ranks * self.tokens * self.topk * self.index.candidate_bytes

    def select(self, builder: ProgramBuilder, after: list[int]) -> list[int]:
        """Score the local index keys and select the best of all ranks' tokens; nothing in layers without an indexer."""
        kernels = self.layer.attention_kind.select(self.attending, self.rows)
        if not kernels:
            return after
        scored = builder.compute("indexer over a part" if not self.index.whole else "indexer", *kernels, after=after)
        if not self.candidates:
            return [scored]
        axis, name = self.share.axis, "gather candidates"
        gathered = builder.collective("all_gather", axis, self.candidates, name, after=[scored])
        best = TopK(self.tokens, self.ranks * self.topk, self.topk, self.index.candidate_bytes)
        return [builder.compute("best of all", best, after=[gathered])]

    def combine_kernel(self, size_bytes: float, name: str) -> MemoryBound:
        """A kernel that rescales or sums partial outputs."""
        return MemoryBound("add", size_bytes, self.tokens, name=name, role=Role.MERGE)

    # --- before attention ---------------------------------------------------------------------------------------

    @once
    def entries(self) -> float:
        """Bytes of cache entries that a rank's heads produce for ranks with other heads."""
        layer, share = self.layer, self.share
        model = layer.model
        use = layer.attention_kind.cache(model, layer.composition, layer.formats.cache)
        if min(share.projected, use.heads) <= min(share.attended, use.heads):
            return 0.0
        elements = layer.attention_kind.cache_elements(model, layer.composition) / min(share.projected, use.heads)
        return self.tokens * elements * self.element

    @once
    def gathered(self) -> float:
        """Bytes of gathered queries of all attended heads, and of new cache entries that other ranks produced."""
        queries = self.tokens * self.heads * self.query_width * self.element if self.share.gathers else 0.0
        return queries + self.entries * self.ranks

    @property
    def away(self) -> float:
        """(p − 1)/p."""
        return (self.ranks - 1) / self.ranks

    def gather(self, builder: ProgramBuilder, after: list[int]) -> list[int]:
        """Gather the queries of all heads, and agree on the selected tokens."""
        selected = after if self.index.beside else self.select(builder, after)
        ready = selected
        if self.gathered:
            name = "gather queries"
            ready = [builder.collective("all_gather", self.share.axis, self.gathered, name, after=selected)]
        return [*ready, *self.select(builder, after)] if self.index.beside else ready


#: (builder, partial attention, dependencies) → the instructions that complete the outputs of a rank's own heads.
Merge = Callable[[ProgramBuilder, Partial, list[int]], list[int]]


@dataclass(frozen=True)
class DecodeExchange:
    """How ranks with parts of the contexts merge their partial attention to whole outputs."""

    #: Its name in a plan's ``decode_exchange``, and a line for the catalogue.
    name: str
    summary: str
    #: Writes the attention of decoding rows and its exchanges.
    attend: Merge
    #: Partial attention → payload bytes that a rank receives in one layer.
    received_bytes: Callable[[Partial], float]
    #: Partial attention → bytes of buffered queries, partial outputs and others' cache on a rank.
    buffer_bytes: Callable[[Partial], float]
    #: (job, share) → the key of the plan that does not fit and why; None if all fit.
    check: Callable[[Job, ContextShare], Refusal] = lambda job, share: None
    #: Who published it.
    source: str = ""
    #: Why a search over plans skips it; empty: it does not.
    why_not: str = ""

    @property
    def searched(self) -> bool:
        return not self.why_not


DECODE_EXCHANGES: Registry[DecodeExchange] = Registry("decode exchange", "tspsim.decode_exchanges", DecodeExchange)


def exchange_of(job: Job) -> DecodeExchange:
    """The exchange that a job's plan states, or its context share's default."""
    return DECODE_EXCHANGES.get(job.plan.options.get("decode_exchange") or job.scheme.context(job.plan).usual)


def partials(job: Job, rows: Rows) -> list[Partial]:
    """The partial attention of decoding rows, one for each kind of layer with shared contexts."""
    share, attended = job.scheme.context(job.plan), []
    for block in dict.fromkeys(job.model.blocks):
        layer = job.layer(share.projected, block)
        assert isinstance(layer, ServingLayer)
        if rows and share.ranks > 1 and layer.attention_kind.divides_context:
            attended.append(Partial(share, layer, rows, index_exchange_of(job.plan)))
    return attended


def shares_contexts(job: Job) -> bool:
    """Whether ranks attend parts of a context."""
    return decodes(job.model, job.work) and job.scheme.context(job.plan).ranks > 1


OPTION = Option(
    "decode_exchange",
    DECODE_EXCHANGES,
    None,
    "how ranks that share contexts merge partial attention",
    rule_for_objects(lambda work: DECODE_EXCHANGES.values(), of=decodes, used=shares_contexts),
)
