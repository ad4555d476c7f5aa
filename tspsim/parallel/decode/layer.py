"""A layer and the head of a serving step in which all ranks have every token: divided heads and columns, two
all-reduces, and attention over contexts that ranks may share; then logits and sampling.

For decoding rows each rank attends a part of the contexts, and results are merged
(:mod:`tspsim.parallel.decode.exchange`). Prompts attend a rank's own heads, after gathering the other ranks' parts of
their cached contexts.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from ...base.quick import replace
from ...model.attention import decoded, prefilled
from ...model.layer import LayerShard, ServingLayer
from ...operators import BatchQuantity, Gemm, MemoryBound, Operator, Role, Rows
from ..builder import ProgramBuilder
from ..experts import expert, expert_serving
from ..feature import attending
from ..job import Job, MadeOfRows
from ..registries import ContextShare, in_heads
from ..residual import residual_of
from . import expert_pool
from .exchange import FP32, Partial, exchange_of
from .index_exchange import index_exchange_of

#: Bytes per token of the mean squares of Q and of K over all heads, in fp32.
SQUARES_BYTES = 8


def share_of(job: Job, layer: ServingLayer) -> ContextShare:
    """How a layer's contexts are shared; in a layer without a cache of tokens only heads are divided."""
    share = job.scheme.context(job.plan)
    if share.ranks > 1 and not layer.attention_kind.divides_context:
        return in_heads(share.own)
    return share


def of_shards(layer: ServingLayer, shards: int) -> ServingLayer:
    """The layer divided by ``shards`` ranks."""
    return layer if layer.shards == shards else replace(layer, shards=shards)


def operators_of(
    job: Job, layer: ServingLayer, make: Callable[[ServingLayer, Rows], tuple[Operator, ...]]
) -> tuple[Operator, ...]:
    """Operators of a layer's attention over all rows of a pass, cached: layers that differ in the MLP alone share
    them."""
    block, operators = layer.composition, job.attention_operators
    key = make.__name__, layer.shards, block.window, block.chunk, block.attention, block.indexer, block.compression
    if key not in operators:
        operators[key] = MadeOfRows(make, layer, make(layer, job.rows))
    return operators[key].operators


def attends_alone(job: Job) -> bool:
    """Whether of all that is written of such a step :func:`operators_of` alone looks at the rows of a pass: contexts
    are on one rank, and no feature, and no branches of a stream, attend in another way."""
    ranks, branches = job.scheme.context(job.plan).ranks, job.work.load.streams.branches
    return ranks == 1 and not branches and attending(job, attend) is attend


def serve_layer(builder: ProgramBuilder, job: Job, layer: LayerShard, axis: str) -> list[int]:
    """Write one layer; ``layer`` is the shard of a rank of ``axis``, whose ranks divide heads and columns."""
    assert isinstance(layer, ServingLayer)
    builder.part = "attention"
    share = share_of(job, layer)
    before = gather_cached(builder, job, layer, share)
    entered, projected = project(builder, job, layer, share, axis, before)
    attended = attending(job, attend)(builder, job, layer, share, [projected])
    output = of_shards(layer, share.own)
    leaving_heads = operators_of(job, output, layer.attention_kind.leave)
    done = builder.compute("output projection", *leaving_heads, after=attended, reads=layer.reads)
    residual = residual_of(job.plan)
    reduced = sum_rows(builder, job, axis, done, "sum attention", sums=residual.sums_attention)
    first, leaving = mlp(builder, job, layer, axis, [] if residual.late else [reduced])
    for index, producer in enumerate([reduced] if residual.late else leaving):
        for entering in [entered, *before]:
            builder.after_previous_layer(entering, producer, f"tokens {index}")
    if residual.late:
        builder.after_previous_layer(first, leaving[0], "tokens of the MLP")
        return [*leaving, reduced]
    return leaving


def project(
    builder: ProgramBuilder, job: Job, layer: ServingLayer, share: ContextShare, axis: str, before: list[int]
) -> tuple[int, int]:
    """Write norm, queries, keys and values; returns the first instruction and the last.

    Ranks that own a part of every matrix divide the undivided projections, and gather the results.
    """
    kind, tokens = layer.attention_kind, job.tokens
    waiting: list[Operator] = [layer.norm(tokens)]
    entering = operators_of(job, layer, kind.enter)
    first, ready, width = -1, list(before), 0
    ranks = job.scheme.tensor_ranks(job)

    def flush(name: str) -> None:
        nonlocal first, ready, waiting
        ready = [builder.compute(name, *waiting, after=ready, reads=layer.reads)]
        first = ready[0] if first < 0 else first
        waiting = []

    def gather() -> None:
        nonlocal ready, width
        flush("norm, latents")
        size = tokens * width * job.activation_bytes
        ready, width = [builder.collective("all_gather", axis, size, "gather latents", after=ready)], 0

    for operator in entering:
        if job.scheme.folds and isinstance(operator, Gemm):
            waiting.append(replace(operator, n=ceil(operator.n / ranks)))
            width += operator.n
            continue
        if width:
            gather()
        waiting.append(operator)
    if width:
        gather()
    waiting += operators_of(job, of_shards(layer, share.projected), kind.project)
    flush("norm, QKV")
    if layer.model.qk_norm_wide and share.projected > 1:
        squares = tokens * SQUARES_BYTES
        ready = [builder.collective("all_reduce", axis, squares, "sum squares of Q and K", after=ready)]
    return first, ready[0]


def attend(builder: ProgramBuilder, job: Job, layer: ServingLayer, share: ContextShare, after: list[int]) -> list[int]:
    """Attention of a rank's heads over whole contexts, or merged from the ranks' parts."""
    kind, rows = layer.attention_kind, job.rows
    own = of_shards(layer, share.own)
    if share.ranks == 1:
        branches = job.work.load.streams.branches
        kernels = attend_branches(job, own) if branches else operators_of(job, own, kind.attend)
        return [builder.compute("attention", *kernels, after=after, reads=layer.reads)]
    prompts, decodes = prefilled(rows), decoded(rows)
    if prompts:
        with builder.sized(BatchQuantity.READ):
            hand_on_entries(builder, Partial(share, layer, prompts, index_exchange_of(job.plan)), after)
        kernels = kind.attend(own, prompts)
        after = [builder.compute("attention of prompts", *kernels, after=after, reads=of_prompts(layer))]
    if decodes:
        partial = Partial(share, layer, decodes, index_exchange_of(job.plan))
        with builder.sized(BatchQuantity.DECODING):
            after = exchange_of(job).attend(builder, partial, after)
    return after


def of_prompts(layer: ServingLayer) -> Callable[[Operator], BatchQuantity]:
    """What operators of attention of the prompts alone read."""
    bent = BatchQuantity.BENT_PROMPTS
    return lambda operator: bent if layer.reads(operator) is bent else BatchQuantity.PROMPTS


def attend_branches(job: Job, own: ServingLayer) -> tuple[Operator, ...]:
    """Attend each stream's own tokens, and the shared context once for all streams of a sequence; merge both by their
    log-sum-exps. Windowed layers read each stream's window whole, which ends in its own tokens eventually."""
    kind = own.attention_kind
    if own.composition.window:
        return kind.attend(own, job.rows)
    apart, together = job.work.load.streams.apart(job.rows)
    heads, (_, width) = own.model.heads // own.shards, kind.merged(own.model)
    size = job.tokens * heads * (3 * width * own.activation_bytes + 2 * FP32)
    merge = MemoryBound("add", size, job.tokens, name="merge branches", role=Role.MERGE)
    return *kind.attend(own, together), *kind.attend(own, apart), merge


def gather_cached(builder: ProgramBuilder, job: Job, layer: ServingLayer, share: ContextShare) -> list[int]:
    """Gather the other ranks' parts of the prompts' cached contexts, of this rank's heads."""
    size = cached_bytes(layer, share, job.rows)
    if not size:
        return []
    cut = _heads(layer, share.projected), _heads(layer, share.attended)
    kind = "all_gather" if cut[0] == cut[1] else "all_to_all"
    with builder.sized(BatchQuantity.CACHED):
        return [builder.collective(kind, share.axis, size, "gather cached K,V")]


def cached_bytes(layer: ServingLayer, share: ContextShare, rows: Rows) -> float:
    """Cache bytes of a rank's own heads behind the prompts, in one layer; 0 if contexts are not shared."""
    if share.ranks == 1:
        return 0.0
    use, prompts = layer.attention_kind.cache(layer.model, layer.composition, layer.formats.cache), prefilled(rows)
    tokens = sum((min(c, use.window) if use.window else c) * n for _, c, n in prompts)
    shared = 0.0 if share.whole_keys else sum(c * n for _, c, n in prompts) * use.shared_token_bytes
    latest = sum(min(c, use.latest) * n for _, c, n in prompts) * use.latest_token_bytes
    return tokens * use.token_bytes / _heads(layer, share.projected) + shared + latest


def _heads(layer: ServingLayer, parts: int) -> int:
    """Number of parts that the cache's heads are divided into."""
    return min(parts, layer.attention_kind.cache(layer.model, layer.composition, layer.formats.cache).heads)


def hand_on_entries(builder: ProgramBuilder, prompts: Partial, after: list[int]) -> None:
    """Send keys and values of prompts to the ranks that keep them, beside what follows."""
    if prompts.entries:
        name = "new entries to their ranks"
        builder.collective("all_to_all", prompts.share.axis, prompts.entries, name, after=after, stream="context")


def mlp(builder: ProgramBuilder, job: Job, layer: ServingLayer, axis: str, after: list[int]) -> tuple[int, list[int]]:
    """Write a rank's MLP or experts and their sum, with expert parallelism over replicas if there is any.

    Returns the first kernel, and the instructions that complete the layer.
    """
    builder.part = "mlp"
    residual = residual_of(job.plan)
    tokens = job.tokens
    products: tuple[Operator, ...] = (layer.gate_up(tokens), layer.activation(tokens), layer.down(tokens))
    if layer.composition.experts:
        if expert_pool.size(job.plan):
            done = expert_pool.send(builder, job, layer, after, shared_experts(builder, job, layer, axis))
            return done[0], done
        if job.plan.ep > 1 and not job.replicates_tokens:
            done = expert_serving.serve(builder, job, layer, after, shared_experts(builder, job, layer, axis))
            return done[0], done
        products = expert.local_forward(job, layer, tokens)
    if residual.side_by_side:
        multiplied = builder.compute("MLP", *products, layer.add(tokens), after=after)
    else:
        multiplied = builder.compute("norm, MLP", layer.norm(tokens), *products, after=after)
    if layer.composition.experts and job.sums_over_experts:
        # Shared experts, equal on all ranks of sp, count once.
        return multiplied, [summed(builder, job, "ep", multiplied, "sum experts")]
    return multiplied, [sum_rows(builder, job, axis, multiplied, "sum MLP", sums=residual.sums_mlp)]


def shared_experts(builder: ProgramBuilder, job: Job, layer: ServingLayer, axis: str) -> expert.Shared | None:
    """A function that writes the shared experts beside routed ones on other ranks, with their sum; None: none."""
    if not layer.ffn:
        return None
    tokens = job.tokens
    products = layer.gate_up(tokens), layer.activation(tokens), layer.down(tokens)

    def write(after: list[int]) -> list[int]:
        multiplied = builder.compute("shared experts", *products, after=after)
        return [sum_rows(builder, job, axis, multiplied, "sum shared experts")]

    return write


def sum_rows(builder: ProgramBuilder, job: Job, axis: str, after: int, name: str, *, sums: bool = True) -> int:
    """Sum all tokens' rows over the ranks; nothing if one rank has all, or the residual stream has no sum here."""
    if job.scheme.tensor_ranks(job) == 1 or not sums:
        return after
    return summed(builder, job, axis, after, name)


def summed(builder: ProgramBuilder, job: Job, axis: str, after: int, name: str) -> int:
    size = job.tokens * job.model.hidden * job.activation_bytes
    return builder.collective("all_reduce", axis, size, name, after=[after])


# --- the head -------------------------------------------------------------------------------------------------

#: Bytes of a logit in the exchange between ranks.
LOGIT_BYTES = 2.0


def sampled_head(builder: ProgramBuilder, job: Job, layer: LayerShard, axis: str) -> None:
    """Every rank of an axis multiplies its part of the vocabulary; logits are gathered and a token is sampled.

    If the axis divides the tokens, the prompts' last tokens are first sent to all its ranks.
    """
    tokens, ranks = job.head_tokens, job.plan.degree(axis)
    normed = job.tokens if job.work.stack.engine.norms_all else tokens
    with builder.sized(BatchQuantity.TOKENS if job.work.stack.engine.norms_all else BatchQuantity.OUTPUTS):
        builder.compute("final norm", layer.norm(normed))
    ready: list[int] = []
    with builder.sized(BatchQuantity.OUTPUTS):
        if job.token_shards > 1 and axis == job.plan.token_axis:
            size = tokens * job.model.hidden * job.activation_bytes
            ready = [builder.collective("broadcast", axis, size, "last tokens")]
        logits = builder.compute("language-model head", layer.head(tokens), after=ready)
        if ranks > 1:
            whole = tokens * layer.vocab * ranks * LOGIT_BYTES
            logits = builder.collective("all_gather", axis, whole, "gather logits", after=[logits])
        builder.compute("sample", layer.sample(tokens), after=[logits])
