"""Pieces of tensor parallelism: column-split products, exchanges of rows over ``tp``, and serving steps.

Norm, gather, product and sum are written slice by slice, forward and backward. Serving steps add how ranks share
contexts, and keys of decode steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...base.units import PositiveCount
from ...model.layer import LayerShard
from ...operators import Gemm, MemoryBound, Operator, element_bytes
from ...steps import STEPS, Step
from ..builder import WHOLE, ProgramBuilder, Slice
from ..context.method import CONTEXT_METHODS
from ..decode import ContextShare, exchange, index_exchange
from ..decode.exchange import DECODE_EXCHANGES
from ..decode.layer import sampled_head, serve_layer
from ..decode.sharing import refused_exchange
from ..experts import expert
from ..experts.fused import Cut, copied, copied_rows, copied_sum
from ..feature import features_of
from ..job import Job
from ..pipeline import Refusal
from ..plan import Plan
from ..recompute import gathers_inputs_again
from ..registries import Option
from ..residual import residual_of
from ..search_rule import SearchRule, decodes


def embed(builder: ProgramBuilder, job: Job, layer: LayerShard) -> None:
    """Every rank looks up the rows that it owns; the sum over ``tp`` completes them."""
    looked_up = builder.compute("embedding lookup", layer.embedding(job.tokens))
    reduce_rows(builder, job, job.tokens, looked_up, "sum embedding")


def column_products(
    builder: ProgramBuilder, job: Job, layer: LayerShard, cut: Cut, waits: Sequence[list[int]], name: str
) -> Iterator[tuple[int, int]]:
    """Add and norm, then the column-split products (QKV, or the whole MLP), chunk by chunk.

    With sequence regions a chunk is normed and gathered while the one before is multiplied. Yields the first and last
    instruction of every chunk lazily, so that what follows a chunk is issued before the next.
    """
    width, tokens = job.model.hidden, cut.tokens
    down: tuple[Operator, ...] = ()
    products: tuple[Operator, ...]
    if name == "QKV":
        width, down = layer.entry_width, layer.entering(residual_tokens(job, tokens))
        products = layer.projecting(tokens)
    elif layer.composition.experts:
        products = expert.local_forward(job, layer, tokens)
    else:
        products = (layer.gate_up(tokens), layer.activation(tokens), layer.down(tokens))
    if residual_of(job.plan).side_by_side and name != "QKV":
        # Attention's normed input is reused, and both outputs are added to one.
        for wait in waits:
            both = builder.compute(name, *products, layer.add(tokens), after=wait)
            yield both, both
        return
    if not job.plan.sequence_regions or job.plan.tp == 1:
        for slice_of, wait in zip(cut.slices, waits, strict=True):
            norm = layer.norm(tokens)
            both = builder.compute(f"norm, {name}", norm, *down, *products, after=wait, slice_of=slice_of)
            yield both, both
        return
    normed: list[int] = []
    gathered: list[list[int]] = []
    for chunk in range(len(waits)):
        while len(normed) < min(chunk + 2, len(waits)):
            slice_of = cut.slice(len(normed))
            norm = layer.norm(tokens // job.plan.tp)
            normed.append(builder.compute("norm", norm, *down, after=waits[len(normed)], slice_of=slice_of))
            # What adapters read too is gathered as it was computed (Transformer Engine, layernorm_linear.py,
            # ``return_layernorm_output_gathered``).
            of = () if job.work.adapters is not None else products
            ready = gather_rows(builder, job, tokens, normed[-1:], f"gather for {name}", width, slice_of, of=of)
            gathered.append(ready)
        yield normed[chunk], builder.compute(name, *products, after=gathered[chunk], slice_of=cut.slice(chunk))


def column_gradients(
    builder: ProgramBuilder,
    job: Job,
    products: Sequence[Gemm],
    width: int,
    name: str,
    sum_name: str,
    *before: Operator,
    after_products: Sequence[Operator] = (),
    sums: bool = True,
    behind: int | None = None,
    again: Sequence[Operator] = (),
    whole: bool = False,
) -> list[int]:
    """Gradients of column-split products and the sum of their common input's, ``width`` elements per token; returns the
    dependencies of the input's gradient.

    With sequence regions the input is gathered again behind the kernel ``behind``, beside the product of its gradient,
    once the kernels ``again`` have made it; not if it was kept ``whole``.
    """
    pairs = [builder.gradients(product) for product in products]
    d_input = [one[0] for one in pairs]
    d_weight = [gradient for one in pairs for gradient in one[1:]]
    if job.plan.tp == 1 or not sums:
        return [builder.compute(name, *before, *again, *d_input, *d_weight, *after_products)]
    gathered: list[int] = []
    if d_weight and not whole and gathers_inputs_again(job):
        ready = [] if behind is None else [behind]
        if again:
            ready = [builder.compute(f"{name}, input again", *again, after=ready)]
        gathered = gather_rows(builder, job, job.tokens, ready, f"gather again for {name}", width, of=products)
        again = ()
    multiplied = builder.compute(f"{name}, input", *before, *again, *d_input, *after_products)
    beside = job.plan.overlap or job.work.stack.sums_beside_weights or residual_of(job.plan).late
    if not d_weight or beside:
        summed = reduce_rows(builder, job, job.tokens, multiplied, sum_name, width)
        if d_weight:
            builder.compute(f"{name}, weight", *d_weight, after=gathered)
        return [summed]
    both = builder.compute(f"{name}, weight", *d_weight, after=gathered)
    return [reduce_rows(builder, job, job.tokens, both, sum_name, width)]


def reduce_rows(
    builder: ProgramBuilder,
    job: Job,
    tokens: int,
    after: int,
    name: str,
    width: int = 0,
    slice_of: Slice = WHOLE,
    *,
    sums: bool = True,
) -> int:
    """Sum partial rows of ``width`` elements (0: h) over ``tp``: to all ranks, or with sequence regions to each rank
    its 1/T of the tokens. Nothing if the residual stream has no sum here."""
    if job.plan.tp == 1 or not sums:
        return after
    size = tokens * (width or job.model.hidden) * job.activation_bytes
    if job.plan.overlap and copied(job.plan):
        return copied_sum(builder, job, size, name, after, slice_of)
    if not job.plan.sequence_regions:
        return builder.collective("all_reduce", "tp", size, name, after=[after], slice_of=slice_of)
    for kernel in laid_out(job, size):
        after = builder.compute(f"{name}, laid out", kernel, after=[after], slice_of=slice_of)
    return builder.collective("reduce_scatter", "tp", size, name, after=[after], slice_of=slice_of)


def gather_rows(
    builder: ProgramBuilder,
    job: Job,
    tokens: int,
    after: list[int],
    name: str,
    width: int = 0,
    slice_of: Slice = WHOLE,
    *,
    of: Sequence[Operator] = (),
) -> list[int]:
    """With sequence regions, gather every rank's 1/T of the tokens, for the products ``of``. Returns the dependencies
    of the whole rows."""
    if not job.regions:
        return after
    size = tokens * (width or job.model.hidden) * gathered_bytes(job, of)
    if job.plan.overlap and copied(job.plan):
        return [copied_rows(builder, size, name, after, slice_of)]
    last = builder.collective("all_gather", "tp", size, name, after=after, stream="gather rows", slice_of=slice_of)
    for kernel in laid_out(job, size):
        last = builder.compute(f"{name}, laid out", kernel, after=[last], slice_of=slice_of)
    return [last]


def gathered_bytes(job: Job, products: Sequence[Operator]) -> float:
    """Bytes of an element that is gathered for ``products``: the activation's, or their own in stacks that quantise
    before they gather."""
    wide = job.activation_bytes
    own = [element_bytes(product.dtype) for product in products if isinstance(product, Gemm)]
    return min(wide, max(own)) if own and job.work.stack.quantised_gathers else wide


def laid_out(job: Job, size_bytes: float) -> tuple[MemoryBound, ...]:
    """The copy between the layout of collectives (by rank) and that of products, in stacks that make one."""
    moved = 2.0 * size_bytes * job.work.stack.row_copies
    return (MemoryBound("copy", moved, name="lay rows out"),) if moved else ()


def residual_tokens(job: Job, tokens: int | None = None) -> int:
    """Tokens of the residual stream on this rank, of ``tokens`` (None: its own): 1/T with sequence regions."""
    return (job.tokens if tokens is None else tokens) // (job.plan.tp if job.plan.sequence_regions else 1)


# --- steps that serve -----------------------------------------------------------------------------------------


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


#: Keys of steps that decode.
SERVING_OPTIONS = (
    Option(
        "dcp",
        PositiveCount,
        None,
        "decode context parallelism: ranks of tp that share a context by its tokens",
        SearchRule(of=decodes),
    ),
    Option(
        "kvp",
        PositiveCount,
        None,
        "Helix: ranks of tp that share a context, each with all its queries",
        SearchRule(of=decodes),
    ),
    exchange.OPTION,
    index_exchange.OPTION,
)
