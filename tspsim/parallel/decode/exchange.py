"""What a decode exchange is to everybody else: one object that registers itself.

Ranks that hold parts of a batch's contexts each attend theirs; an exchange makes whole outputs of it. It answers for
the bytes that a rank receives, in closed form, and for what it keeps meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...base.memo import once
from ...base.registry import Registry
from ...model.attention.base import Rows, tokens_of
from ...model.layer import ServingLayer
from ...operators import MemoryBound, Operator, Role, TopK
from ..builder import ProgramBuilder
from ..job import Job
from ..pipeline import Refusal
from ..registries import ContextShare, Option
from ..sought import decodes, sought_objects
from .index_exchange import IndexExchange, index_exchange_of

#: Of a log-sum-exp, and of an element of a numerator or denominator, as ranks sum them.
FP32 = 4.0


@dataclass(frozen=True)
class Partial:
    """Attention of some decoding rows, each rank over its part of their contexts, in one layer.

    Letters: n query tokens, m query heads that a rank attends, q and d widths of a head's query and output, p ranks.
    """

    share: ContextShare
    layer: ServingLayer
    rows: Rows
    #: How the ranks agree on what an indexer chooses.
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
        """Heads that this rank's output projection takes."""
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
        """Bytes of n·d elements of some heads."""
        return self.tokens * heads * self.width * element

    def numbers(self, heads: int) -> float:
        """Bytes of one fp32 number a token and head."""
        return self.tokens * heads * FP32

    @once
    def attending(self) -> ServingLayer:
        """The layer with the heads that are attended, over this rank's part of the contexts."""
        keys = 1 if self.index.whole else self.ranks
        apart = self.index.apart
        return replace(
            self.layer, shards=self.share.attended, context_shards=self.ranks, index_shards=keys, chooses_apart=apart
        )

    def attend(self) -> tuple[Operator, ...]:
        """The kernels over this rank's part, of what :meth:`choose` chose."""
        return self.layer.attention_kind.attend_chosen(self.attending, self.rows)

    @property
    def topk(self) -> int:
        """k: entries that the layer's indexer chooses a query; 0 where it has none."""
        return self.layer.attention_kind.index_topk(self.layer.model, self.layer.kind)

    @property
    def candidates(self) -> float:
        """Bytes of the candidates of all ranks, p·n·k of them."""
        return self.ranks * self.tokens * self.topk * self.index.candidate_bytes

    def choose(self, builder: ProgramBuilder, after: list[int]) -> list[int]:
        """Scores of the keys that are here, and the best of all; in layers that take another's choice, nothing."""
        kernels = self.layer.attention_kind.choose(self.attending, self.rows)
        if not kernels:
            return after
        scored = builder.compute("indexer over a part" if not self.index.whole else "indexer", *kernels, after=after)
        if not self.candidates:
            return [scored]
        axis, name = self.share.axis, "gather candidates"
        gathered = builder.collective("all_gather", axis, self.candidates, name, after=[scored])
        best = TopK(self.tokens, self.ranks * self.topk, self.topk, self.index.candidate_bytes)
        return [builder.compute("best of all", best, after=[gathered])]

    def pass_over(self, size_bytes: float, name: str) -> MemoryBound:
        """A kernel that rescales or sums partial outputs."""
        return MemoryBound("add", size_bytes, self.tokens, name=name, role=Role.MERGE)

    # --- what comes before --------------------------------------------------------------------------------------

    @once
    def entries(self) -> float:
        """Bytes of what a rank's heads add to the cache that ranks with other heads keep."""
        layer, share = self.layer, self.share
        model = layer.model
        use = layer.attention_kind.cache(model, layer.kind, layer.formats.cache)
        if min(share.projected, use.heads) <= min(share.attended, use.heads):
            return 0.0
        elements = layer.attention_kind.cache_elements(model, layer.kind) / min(share.projected, use.heads)
        return self.tokens * elements * self.element

    @once
    def gathered(self) -> float:
        """Bytes of the queries of all heads that are attended, and of new entries of the cache, where other ranks made
        them."""
        queries = self.tokens * self.heads * self.query_width * self.element if self.share.gathers else 0.0
        return queries + self.entries * self.ranks

    @property
    def away(self) -> float:
        """(p − 1)/p."""
        return (self.ranks - 1) / self.ranks

    def gather(self, builder: ProgramBuilder, after: list[int]) -> list[int]:
        """Queries of all heads to all ranks, and what says which tokens they attend."""
        chosen = after if self.index.beside else self.choose(builder, after)
        ready = chosen
        if self.gathered:
            name = "gather queries"
            ready = [builder.collective("all_gather", self.share.axis, self.gathered, name, after=chosen)]
        return [*ready, *self.choose(builder, after)] if self.index.beside else ready


#: (builder, what is attended, what to wait for) → what to wait for then: whole outputs of a rank's own heads.
Merge = Callable[[ProgramBuilder, Partial, list[int]], list[int]]


@dataclass(frozen=True)
class DecodeExchange:
    """How ranks with parts of the contexts come to whole outputs."""

    #: What a plan's ``decode_exchange`` calls it, and a line for the catalogue.
    name: str
    summary: str
    #: Writes the attention of decoding rows and its exchanges.
    attend: Merge
    #: What is attended → payload that a rank receives in one layer.
    received_bytes: Callable[[Partial], float]
    #: What is attended → bytes of queries, partial outputs and others' cache on a rank meanwhile.
    buffer_bytes: Callable[[Partial], float]
    #: (job, share) → the key of the plan that does not go with it and why; None where all do.
    check: Callable[[Job, ContextShare], Refusal] = lambda job, share: None
    #: Who published it.
    source: str = ""
    #: Why a search over plans does not try it; empty: it does.
    why_not: str = ""

    @property
    def searched(self) -> bool:
        return not self.why_not


DECODE_EXCHANGES: Registry[DecodeExchange] = Registry("decode exchange", "tspsim.decode_exchanges", DecodeExchange)


def exchange_of(job: Job) -> DecodeExchange:
    """The exchange of a job's plan, or the usual one of its share."""
    return DECODE_EXCHANGES.get(job.plan.options.get("decode_exchange") or job.scheme.context(job.plan).usual)


def partials(job: Job, rows: Rows) -> list[Partial]:
    """Of decoding rows in each kind of layer whose contexts are shared."""
    share, attended = job.scheme.context(job.plan), []
    for block in dict.fromkeys(job.model.blocks):
        layer = job.layer(share.projected, block)
        assert isinstance(layer, ServingLayer)
        if rows and share.ranks > 1 and layer.attention_kind.divides_context:
            attended.append(Partial(share, layer, rows, index_exchange_of(job.plan)))
    return attended


def shares_contexts(job: Job) -> bool:
    """Ranks attend parts of a context."""
    return decodes(job.model, job.work) and job.scheme.context(job.plan).ranks > 1


OPTION = Option(
    "decode_exchange",
    DECODE_EXCHANGES,
    None,
    "how ranks that share contexts merge partial attention",
    sought_objects(lambda work: DECODE_EXCHANGES.values(), of=decodes, used=shares_contexts),
)
