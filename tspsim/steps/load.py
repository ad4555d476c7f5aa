"""The work of a step: rows of query tokens over contexts, in batches; and the load of a serving step as stated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from pydantic import Field, StrictBool

from ..base.strict import refuse, section
from ..base.units import PositiveCount, several
from ..model import Architecture
from ..model.attention import MOST_DECODED


class Row(NamedTuple):
    """``sequences`` equal sequences: each passes ``query_tokens`` through the model, over ``context_tokens`` whose keys
    and values are cached."""

    query_tokens: int
    context_tokens: int = 0
    sequences: int = 1

    @property
    def tokens(self) -> int:
        """Query tokens of all its sequences."""
        return self.query_tokens * self.sequences

    def pairs_per_token(self, causal: bool) -> float:
        """Keys that a query attends, mean over the row: the whole context, and the query tokens (half when causal).

        0 for rows that pad a pass (negative context).
        """
        if self.context_tokens < 0:
            return 0.0
        return self.context_tokens + (self.query_tokens / 2 if causal else self.query_tokens)


def round_robin(rows: Iterable[tuple[int, int, int]], parts: int, part: int = 0) -> tuple[Row, ...]:
    """The rows of one part when sequences ``(queries, context, sequences)`` are dealt round-robin, longest first.

    Part 0 has most.

    >>> [tuple(row) for row in round_robin(((1, 4096, 3), (1, 8192, 2)), 2)]
    [(1, 8192, 1), (1, 4096, 2)]
    >>> [tuple(row) for row in round_robin(((1, 4096, 3), (1, 8192, 2)), 2, 1)]
    [(1, 8192, 1), (1, 4096, 1)]
    """
    mine, before = [], 0
    for queries, context, sequences in sorted(rows, key=lambda row: -row[1]):
        after = before + sequences
        count = -(-(after - part) // parts) - -(-(before - part) // parts)
        before = after
        if count:
            mine.append(Row(queries, context, count))
    return tuple(mine)


@dataclass(frozen=True)
class Batch:
    """The work of a pass; rows may be plain tuples. ``outputs``: tokens that go through the LM head; None: all.

    Examples
    --------
    Two prompts of 1,024 tokens, and eight sequences that each decode one token over a context of 4,096:

    >>> batch = Batch(((1024, 0, 2), (1, 4096, 8)))
    >>> batch.tokens, batch.pairs
    (2056, 1081348.0)
    """

    rows: Sequence[tuple[int, int, int]]
    causal: bool = True
    outputs: int | None = None

    @property
    def _rows(self) -> tuple[Row, ...]:
        return tuple(Row(*row) for row in self.rows)

    @property
    def tokens(self) -> int:
        """Tokens that pass through the model."""
        return sum([queries * sequences for queries, _, sequences in self.rows])

    @property
    def sequences(self) -> int:
        """How many sequences."""
        return sum([sequences for _, _, sequences in self.rows])

    @property
    def head_tokens(self) -> int:
        """Tokens that go through the language-model head."""
        return self.tokens if self.outputs is None else self.outputs

    @property
    def halves(self) -> tuple[Batch, Batch]:
        """Two batches of half the sequences each; rows with an odd number give the extra one to either in turn."""
        rows: tuple[list[Row], list[Row]] = ([], [])
        more = 0
        for row in self._rows:
            larger = row.sequences - row.sequences // 2
            for half, count in ((more, larger), (1 - more, row.sequences - larger)):
                if count:
                    rows[half].append(row._replace(sequences=count))
            more ^= row.sequences % 2
        first = round(self.head_tokens * sum(row.sequences for row in rows[0]) / self.sequences)
        return (Batch(tuple(rows[0]), self.causal, first), Batch(tuple(rows[1]), self.causal, self.head_tokens - first))

    @property
    def pairs(self) -> float:
        """Query–key pairs, without attention windows."""
        return sum(row.tokens * row.pairs_per_token(self.causal) for row in self._rows)

    def layer_flops_per_token(self, model: Architecture, kept: float = 1.0) -> float:
        """FLOPs of a token's forward through one block, mean over blocks and tokens.

        ``kept``: share of its visits to experts that are not dropped.
        """
        return self._mean(
            lambda row: model.layer_forward_flops_per_token(
                row.query_tokens if row.context_tokens >= 0 else 0, self.causal, kept, before=max(0, row.context_tokens)
            )
        )

    def forward_flops_per_token(self, model: Architecture, outputs: int, kept: float = 1.0) -> float:
        """FLOPs of a token's forward if ``outputs`` of the batch's tokens go through the LM head."""
        head = 2.0 * model.hidden * model.vocab * (outputs / self.tokens)
        return model.layers * self.layer_flops_per_token(model, kept) + head

    def _mean(self, of: Callable[[Row], float]) -> float:
        """Mean over tokens; exact for a batch of one row."""
        first, *others = self._rows
        if not others:
            return of(first)
        return sum(row.tokens * of(row) for row in self._rows) / self.tokens


# --- the load of a serving step ---------------------------------------------------------------------------------

Row3 = tuple[int, int, int]


@dataclass(frozen=True)
class Speculation:
    """Speculative decoding: drafts that a step verifies.

    Attributes
    ----------
    tokens
        k: drafted tokens per sequence; a step verifies k + 1 positions.
    accepted
        Mean tokens that a sequence advances in a step: its own and the drafts accepted before the first rejection,
        1 + Σ_{i ≤ k} a^i for a constant acceptance rate a (Leviathan et al. 2023, arXiv:2211.17192, §3.1).
    draft
        A registered name of :mod:`tspsim.parallel.draft`.
    tree
        Drafts at every depth, which add up to k; empty: one per depth.
    model
        The draft model; None: no model of its own drafts.
    """

    tokens: int
    accepted: float
    draft: str = "mtp"
    tree: tuple[int, ...] = ()
    model: Architecture | None = None


@dataclass(frozen=True)
class Streams:
    """Streams that decode together for one sequence, over one copy of the weights.

    Attributes
    ----------
    count
        P, streams per sequence.
    shared_cache
        False: each stream has its own cache, and all streams together output one token (ParScale, Chen et al. 2025,
        arXiv:2505.10475, §2: P learned prefixes; last hidden states are summed with learned weights). True: all write
        and read one cache, and each outputs a token (Hogwild! Inference, Rodionov et al. 2025, arXiv:2504.06261, §3).
    branch
        The last ``branch`` tokens of each cache belong to one stream; the context before them is shared by all and
        read once per step, and each stream outputs a token (ParaThinker, Wen et al. 2025, arXiv:2509.04475: paths
        behind one prompt). None: nothing is shared.

    If memory traffic decides, with W bytes of weights and k bytes of keys and values per token, over C context tokens:

        time(P) / time(1) = (W + k·read(P)) / (W + k·C),    read = P·C (ParScale), C (Hogwild!), C − b + P·b (branches)
    """

    __pydantic_config__ = section("Streams that decode together for every sequence.")

    count: Annotated[PositiveCount, Field(le=1024, description="streams of a sequence")]
    shared_cache: Annotated[
        StrictBool,
        Field(
            description="true: all read and write one cache and each puts out a token; false: each has its own, "
            "and all together put out one"
        ),
    ] = False
    branch: Annotated[
        PositiveCount | None,
        Field(
            description="tokens of each stream's own behind a context that all share and a step reads once; then "
            "each puts out a token"
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.branch is not None and self.shared_cache:
            raise refuse("branch and shared_cache are two forms of streams; leave one out")

    @property
    def caches(self) -> int:
        """Caches per sequence."""
        return 1 if self.shared_cache else self.count

    @property
    def queries(self) -> int:
        """Query tokens over each cache in a step."""
        return self.count if self.shared_cache else 1

    @property
    def branches(self) -> bool:
        """Whether several streams share a context and continue it with tokens of their own."""
        return self.branch is not None and self.count > 1

    @property
    def outputs(self) -> int:
        """Tokens that a step outputs per sequence."""
        return self.count if self.shared_cache or self.branches else 1

    def read(self, context: int) -> int:
        """Cached tokens that a step reads for a sequence of ``context`` tokens."""
        return sum(tokens * count for tokens, count in self.kept(context))

    def kept(self, context: int) -> tuple[tuple[int, int], ...]:
        """``(tokens, count)`` of the caches of a sequence of ``context`` tokens.

        >>> Streams(8, branch=512).kept(4096), Streams(8, branch=512).read(4096)
        (((3584, 1), (512, 8)), 7680)
        """
        if self.branch is None or self.count == 1:
            return ((context, self.caches),)
        return ((context - self.branch, 1), (self.branch, self.count))

    def apart(self, rows: tuple[tuple[int, int, int], ...]) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
        """Split rows of branches into rows over each stream's own tokens and rows over the shared contexts.

        A row over a shared context joins the queries of as many streams as a decode kernel takes at once.

        >>> Streams(8, branch=512).apart(((1, 4095, 16),))[1]
        (Row(query_tokens=8, context_tokens=3576, sequences=2),)
        """
        own, shared = [], []
        for queries, context, sequences in rows:
            before = max(0, context + queries - (self.branch or 0))
            groups = -(-self.count * queries // MOST_DECODED)
            together = -(-self.count // groups) * queries
            own.append(Row(queries, context - before, sequences))
            if before > together:
                shared.append(Row(together, before - together, groups * -(-sequences // self.count)))
        return tuple(own), tuple(shared)


ONE_STREAM = Streams(1)


class PromptChunk(NamedTuple):
    """A chunk of a prompt: ``query_tokens`` after ``context_tokens`` in the cache. ``ends``: it ends the prompt, so
    that its last token is sampled from."""

    query_tokens: int
    context_tokens: int
    ends: bool = True


@dataclass(frozen=True)
class Load:
    """The load of one replica.

    Attributes
    ----------
    prompts, prompt, cached, chunk
        ``prompts`` prompts of ``prompt`` tokens each, over ``cached`` tokens, in chunks of ``chunk``.
    batch, contexts
        ``batch`` decoding sequences, spread evenly over ``contexts`` (cached tokens of each); if that is uneven, the
        longer contexts have one more.
    speculation, streams
        Drafts to verify; streams per decoding sequence.
    prompt_chunks
        Chunks of prompts as a scheduler combines them, in place of equal ``prompts``.
    expert_share
        Mean tokens of the replicas that share experts with this one, over its own tokens.
    pads_prompts
        Chunks that are short enough for decode kernels are padded to one token more, since prefill kernels take less.
    """

    prompts: int = 0
    prompt: int = 0
    cached: int = 0
    chunk: int | None = None
    batch: int = 0
    contexts: tuple[int, ...] = ()
    speculation: Speculation | None = None
    prompt_chunks: tuple[PromptChunk, ...] = ()
    streams: Streams = ONE_STREAM
    expert_share: float = 1.0
    pads_prompts: bool = False

    @property
    def in_words(self) -> str:
        """The load, for people."""
        said = []
        if self.prompt_chunks:
            tokens = sum(chunk.query_tokens for chunk in self.prompt_chunks)
            said.append(f"{tokens:,} tokens of {several(len(self.prompt_chunks), 'prompt')}")
        elif self.prompts:
            behind = f" behind {self.cached:,} cached" if self.cached else ""
            chunks = f" in chunks of {self.chunk:,}" if self.chunk else ""
            said.append(f"{self.prompts} × {self.prompt:,} prompt tokens{behind}{chunks}")
        if self.batch:
            contexts = sorted(set(self.contexts))
            length = f"{contexts[0]:,}" + (f" to {contexts[-1]:,}" if len(contexts) > 1 else "")
            drafts = f", {self.speculation.tokens} drafts each" if self.speculation else ""
            streams = f" in {self.streams.count} streams each" if self.streams.count > 1 else ""
            streams += f", the last {self.streams.branch:,} tokens apart," if self.streams.branch and streams else ""
            said.append(f"{several(self.batch, 'sequence')}{streams} at {length} tokens{drafts}")
        return " and ".join(said)

    @property
    def queries(self) -> int:
        """Query tokens per decoding cache: verified positions, or streams that share it."""
        return self.streams.queries + (self.speculation.tokens if self.speculation else 0)

    @property
    def advance(self) -> float:
        """Mean tokens that a decoding sequence gains in a step."""
        return self.speculation.accepted if self.speculation else float(self.streams.outputs)

    def decoding(self, parts: int = 1) -> tuple[Row, ...]:
        """Rows of the decoding sequences, longest first; of ``parts`` round-robin parts, the one with most."""
        whole, more = divmod(self.batch, max(1, len(self.contexts)))
        contexts = sorted(self.contexts, reverse=True)
        kinds = Counter(contexts)
        if (whole, more) != (1, 0):
            kinds = Counter({context: whole * count for context, count in kinds.items()})
            kinds.update(contexts[:more])
        caches, queries = self.streams.caches, self.queries
        return round_robin([(queries, context, caches * count) for context, count in kinds.items()], parts)

    def chunks(self) -> list[tuple[Row, bool]]:
        """Rows of the prompts' chunks in order, each with whether it ends its prompts."""
        if self.prompt_chunks:
            return [(Row(queries, context), ends) for queries, context, ends in self.prompt_chunks]
        rows, start = [], 0
        while start < self.prompt:
            size = min(self.chunk or self.prompt, self.prompt - start)
            rows.append((Row(size, self.cached + start, self.prompts), start + size == self.prompt))
            start += size
        return rows

    def caches(self) -> tuple[Row, ...]:
        """Caches of decoding sequences at the end of the step; a context that branches share counts once."""
        rows = self.decoding()
        if not self.streams.branches:
            return rows
        own, shared = self.streams.apart(rows)
        once = -(-self.streams.count // MOST_DECODED)
        return (*own, *(Row(0, context + queries, count // once) for queries, context, count in shared))

    @property
    def short_prompts(self) -> bool:
        """Whether some chunk of a prompt is short enough for decode kernels."""
        return any(row.query_tokens <= MOST_DECODED for row, _ in self.chunks())

    def padded(self, rows: Sequence[Row3]) -> tuple[Row3, ...]:
        """Rows of a pass, prompts first, with short chunks of prompts padded if :attr:`pads_prompts`."""
        if not self.pads_prompts:
            return tuple(rows)
        prompts = len(rows) - len(self.decoding())
        longer = [(max(queries, MOST_DECODED + 1), context, count) for queries, context, count in rows[:prompts]]
        return *longer, *rows[prompts:]

    @property
    def kept(self) -> tuple[Row, ...]:
        """Rows of the prompts at the end of the step: tokens read, tokens before them, number of prompts."""
        if self.prompt_chunks:
            return tuple(Row(queries, context) for queries, context, _ in self.prompt_chunks)
        return (Row(self.prompt, self.cached, self.prompts),) if self.prompts else ()

    def drafting(self, number: int, queries: int = 1) -> Load:
        """The load of pass ``number`` of a drafter with ``queries`` query tokens per sequence.

        The first pass takes all chunks of prompts, later ones the last token of those that have ended.
        """
        speculation = replace(self.speculation, tokens=queries - 1, model=None) if self.speculation else None
        if not number:
            return replace(self, speculation=speculation)
        ended = tuple(PromptChunk(1, queries + context - 1) for queries, context, ends in self.prompt_chunks if ends)
        prompts = len(ended) if self.prompt_chunks else self.prompts
        return replace(self, speculation=speculation, prompt_chunks=ended, prompts=prompts, pads_prompts=False)
