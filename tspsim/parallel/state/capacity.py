"""Cache capacity of a serving plan under its engine's memory rule: tokens, sessions, longest context.

A GPU of a pipeline stage holds its weights, the activations of the largest pass that the engine admits, graphs and the
runtime; the engine's rule (:class:`~tspsim.parallel.engine_memory.MemoryRule`) gives the part of the rest for caches. A
sequence takes whole blocks of tokens on each rank that its cache is divided over, and its states whatever its length.
The stage with the smallest capacity decides.

    sessions = bytes for caches / Σ layers rank_bytes(tokens in whole blocks)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any

from ...base.units import gib
from ...model.attention import CacheUse
from ...steps import PREFILL_STEP, Load, Streams
from ...steps.load import round_robin
from ..engine_memory import Budget, MemoryRule
from ..job import Job
from ..placement import Chunk
from ..registries import ContextShare
from ..scheme import scheme_of
from ..serving_engine import Prior, ServingEngine
from ..unpacked import UNPACKED
from . import served
from .memory import declared, peak

#: Upper limit of contexts, reached if caches do not grow with tokens.
LONGEST = 2**40


@dataclass(frozen=True)
class StageRoom:
    """One pipeline stage: bytes for caches on a GPU, and its layers by what they cache."""

    budget: Budget
    uses: Mapping[CacheUse, int]


@dataclass(frozen=True)
class Capacity:
    """Capacity of one replica's caches."""

    #: Stages of the pipeline in order.
    stages: tuple[StageRoom, ...]
    #: How ranks divide a cache.
    share: ContextShare
    #: Tokens of a block; a sequence takes whole blocks on every token shard.
    block_tokens: int = 1

    @property
    def budget(self) -> Budget:
        """Bytes for caches on a GPU, of the stage with room for the fewest long sequences."""
        return min(self.stages, key=lambda stage: self._sessions(stage, LONGEST, stage.budget.size_bytes)).budget

    def sequence_bytes(self, context: int) -> tuple[float, ...]:
        """Bytes of a sequence of ``context`` tokens on a GPU of every stage."""
        return tuple(self._sequence_bytes(stage, context) for stage in self.stages)

    def sessions(self, context: int) -> float:
        """Resident sequences of ``context`` tokens, not rounded."""
        return min(self._sessions(stage, context, stage.budget.size_bytes) for stage in self.stages)

    def sessions_range(self, context: int) -> tuple[float, float]:
        """90 % interval of :meth:`sessions`."""
        low = min(self._sessions(stage, context, stage.budget.low) for stage in self.stages)
        return low, min(self._sessions(stage, context, stage.budget.high) for stage in self.stages)

    @property
    def has_states(self) -> bool:
        """Whether some layers keep states while others keep tokens."""
        uses = [use for stage in self.stages for use in stage.uses]
        return any(use.sequence_bytes for use in uses) and any(use.grows for use in uses)

    @property
    def has_windows(self) -> bool:
        """Whether some layers keep the latest tokens alone, so that a short sequence takes as much as a longer one."""
        return any(use.window or use.latest for stage in self.stages for use in stage.uses)

    @property
    def without_states(self) -> Capacity:
        """The capacity for tokens if states took no memory."""
        stages = [
            replace(stage, uses={replace(use, sequence_bytes=0.0): count for use, count in stage.uses.items()})
            for stage in self.stages
        ]
        return replace(self, stages=tuple(stages))

    def state_bytes(self, stage: StageRoom) -> float:
        """Bytes of the states of one sequence on a GPU of a stage."""
        return sum(count * served.rank_bytes(self.share, use, 0) for use, count in stage.uses.items())

    @property
    def state_blocks(self) -> int:
        """Blocks that the states of a sequence take, for engines that keep states in blocks."""
        whole = self.block_tokens * self.share.ranks
        pairs = zip(self.stages, self.without_states.stages, strict=True)
        blocks = [(self.state_bytes(stage), self._sequence_bytes(alone, whole)) for stage, alone in pairs]
        return max((ceil(states / block) for states, block in blocks if block), default=1)

    def tokens(self, context: int) -> int:
        """Tokens of whole resident sequences of ``context`` tokens each."""
        return self.whole_sessions(context) * context

    def whole_sessions(self, context: int) -> int:
        """Whole resident sequences of ``context`` tokens, when each rank gets whole ones."""
        kept = [(stage.budget.size_bytes, self._sequence_bytes(stage, context)) for stage in self.stages]
        return min((self.share.sequences * int(room / size) for room, size in kept if size), default=LONGEST)

    def longest_context(self, sequences: int = 1) -> int:
        """Tokens that each of ``sequences`` equal sequences may have; 0: not even one."""
        if not self.holds([(1, sequences)]):
            return 0
        low, high = 1, 2
        while high <= LONGEST and self.holds([(high, sequences)]):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.holds([(middle, sequences)]) else (low, middle)
        return low

    def holds(self, sequences: Iterable[tuple[int, int]]) -> bool:
        """Whether sequences ``(tokens, count)`` fit together."""
        wanted = tuple(sequences)
        return all(self._needed(stage, wanted) <= stage.budget.size_bytes for stage in self.stages)

    def refusal(self, sequences: Iterable[tuple[int, int]], remedy: Callable[[], str] = str) -> str | None:
        """Why sequences ``(tokens, count)`` do not fit, and what would; None if they fit.

        ``remedy`` returns keys of the plan that would make room (empty: none known).
        """
        wanted = tuple((tokens, count) for tokens, count in sequences if count)
        if self.holds(wanted):
            return None
        short = max(self.stages, key=lambda stage: self._needed(stage, wanted) - stage.budget.size_bytes)
        needed, room = self._needed(short, wanted), short.budget.size_bytes
        count, longest = sum(sequences for _, sequences in wanted), max(tokens for tokens, _ in wanted)
        fitting, shorter = self.whole_sessions(longest), self.longest_context(count)
        offers = [f"{fitting} sequences of {longest} tokens"] if fitting else []
        offers += [f"{count} of {shorter}"] if shorter else []
        keys = remedy()
        if offers and keys:
            offers.append(f"all with {keys}")
        if not offers:
            alone = self.longest_context()
            more = f"state {keys}, or take more GPUs" if keys else "take more GPUs or fewer bits a weight"
            offers = [f"one of {alone}"] if alone else [f"no sequence at all: {more}"]
        return (
            f"caches of {count} sequences need {gib(needed)} per GPU, and there is room for {gib(room)}; "
            f"what fits: {', or '.join(offers)}"
        )

    def _needed(self, stage: StageRoom, sequences: Sequence[tuple[int, int]]) -> float:
        rows = tuple((0, tokens, count) for tokens, count in sequences)
        mine = round_robin(rows, self.share.sequences)
        return sum(count * self._sequence_bytes(stage, tokens) for _, tokens, count in mine)

    def _sessions(self, stage: StageRoom, context: int, size_bytes: float) -> float:
        sequence_bytes = self._sequence_bytes(stage, context)
        return self.share.sequences * size_bytes / sequence_bytes if sequence_bytes else float("inf")

    def _sequence_bytes(self, stage: StageRoom, context: int) -> float:
        whole = self.block_tokens * self.share.ranks
        tokens = -(-context // whole) * whole
        kept = (count * served.rank_bytes(self.share, use, tokens) for use, count in stage.uses.items())
        return sum(kept)


def capacity_of(job: Job, visible_bytes: float) -> Capacity:
    """The capacity of a serving job's plan on GPUs with ``visible_bytes`` of memory."""
    stages = []
    for stage in range(job.plan.pp):
        chunks = job.chunks(stage)
        stages.append(StageRoom(budget_of(job, visible_bytes, chunks), served.cache_uses(job, chunks)))
    engine, share = job.work.stack.engine, job.scheme.context(job.plan)
    return Capacity(tuple(stages), share, block_of(engine, job.model.attention_kind.name, share, stages))


def block_of(engine: ServingEngine, kind: str, share: ContextShare, stages: Sequence[StageRoom]) -> int:
    """Tokens of a block, which states of linear attention may enlarge."""
    uses = [use for stage in stages for use in stage.uses]
    states = [served.rank_bytes(share, use, 0) for use in uses if use.sequence_bytes]
    tokens = [served.rank_bytes(share, replace(use, sequence_bytes=0.0), share.ranks) for use in uses if use.grows]
    if engine.states is None or not states or not tokens:
        return engine.block_tokens
    return engine.states.block_tokens(engine.block_tokens, kind, min(tokens), max(states))


def kept_by(job: Job) -> tuple[tuple[int, int], ...]:
    """``(tokens, count)`` of the sequences of a serving step, at its end."""
    return tuple((queries + context, count) for queries, context, count in served.sequences_of(job))


def cache_budget(
    engine: ServingEngine,
    visible_bytes: float,
    weight_bytes: float,
    activation_bytes: float = 0.0,
    *,
    reserve_bytes: float = 0.0,
    ranks: int = 1,
) -> Budget:
    """Bytes for caches on a GPU.

    Parameters
    ----------
    engine
        Whose rule of memory decides.
    visible_bytes
        Memory that a process sees.
    weight_bytes
        Weights on this GPU, as stored.
    activation_bytes
        Peak of the activations, in the largest pass that the engine admits.
    reserve_bytes
        The workload's reserve for the runtime, for engines without ``context_bytes`` of their own.
    ranks
        GPUs of a replica.
    """
    limits, captured = engine.limits_on(visible_bytes), engine.graphs.tokens(1, engine.slots)
    kept = engine.memory.reserve
    free = kept.fixed + kept.token * (limits.tokens if limits else 0)
    free += kept.graph * (captured[-1] if captured else 0)
    free = max(kept.least, free + kept.rank * ranks)
    own = engine.context_bytes if engine.context_bytes.value else Prior(*(3 * (reserve_bytes,)))
    sizes = []
    for runtime, peer, graphs in zip(own, engine.peer_bytes, engine.graph_bytes, strict=True):
        context = runtime + peer * (ranks - 1)
        parts = {"weights": weight_bytes, "activations": activation_bytes, "graphs": graphs, "context": context}
        sizes.append(_bytes_for_caches(engine.memory, visible_bytes, parts, free))
    likely, most, least = sizes
    return Budget(likely, least, most)


def _bytes_for_caches(
    rule: MemoryRule, visible_bytes: float, parts: Mapping[str, float], reserve_bytes: float
) -> float:
    """Bytes for caches: at most what all parts leave of the visible memory, at least 0."""
    shared = rule.share * (visible_bytes - sum(parts[name] for name in rule.before))
    own = shared - sum(parts[name] for name in rule.after) - reserve_bytes
    return max(0.0, min(own, visible_bytes - sum(parts.values())))


def budget_of(job: Job, visible_bytes: float, chunks: Sequence[Chunk]) -> Budget:
    """Bytes for caches on a GPU with the given chunks."""
    return cache_budget(
        job.work.stack.engine,
        visible_bytes,
        served.weight_bytes(job, scheme_of(job.plan).residency.weight_shards(job), chunks),
        activation_bytes(job, visible_bytes, chunks),
        reserve_bytes=job.work.runtime_reserve_bytes,
        ranks=prod(job.plan.degree(axis) for axis in job.scheme.axes) * job.plan.pp,
    )


#: Parts of the ledger that are no activations.
OTHERS = ("weights", "kv_cache", "logits", "runtime_reserve", "expert_pool", "draft_pool")


def activation_bytes(job: Job, visible_bytes: float, chunks: Sequence[Chunk]) -> float:
    """Most bytes of a GPU beside weights and caches, while a layer runs or a token is sampled.

    An engine measures the largest pass that it admits: a prompt with the most tokens per pass, over the cached latents
    that it expands at once, and logits of the most running sequences. Without an engine it is the step's own pass.
    """
    engine = job.work.stack.engine
    limits = engine.limits_on(visible_bytes)
    if limits is not None:
        load = Load(prompts=1, prompt=engine.pass_tokens(limits, job.plan.attention_replicas))
        job = replace(job, work=replace(job.work, pass_=PREFILL_STEP.name, load=load), pass_index=None)
    parts = peak(declared(job, scheme_of(job.plan).residency, chunks))
    layers = sum(size for part, size in parts.items() if part not in OTHERS)
    if limits is None:
        return layers + parts.get("logits", 0.0)
    if engine.context_workspace:
        behind = replace(job.work.load, cached=engine.context_workspace)
        loaded = replace(job, work=replace(job.work, load=behind))
        further = peak(declared(loaded, scheme_of(job.plan).residency, chunks))
        layers += further.get(UNPACKED, 0.0)
    sequences = min(limits.sequences, engine.slots or limits.sequences)
    return max(layers, engine.logit_bytes.value * job.model.vocab * sequences)


def answer(capacity: Capacity, context: int, streams: Streams) -> dict[str, Any]:
    """The entry ``capacity`` of a plan: bytes per GPU, and the sequences of ``context`` tokens that fit, each with the
    caches of its streams."""
    caches = streams.read(context) / context if streams.branches else streams.caches
    low, high = (caches_of / caches for caches_of in capacity.sessions_range(context))
    budget = capacity.budget
    return {
        "cache_bytes": budget.size_bytes,
        "cache_bytes_range": [budget.low, budget.high],
        "context": context,
        "sessions": capacity.sessions(context) / caches,
        "sessions_range": [low, high],
        "tokens": capacity.tokens(context),
        "longest_context": capacity.longest_context(streams.caches),
    }
