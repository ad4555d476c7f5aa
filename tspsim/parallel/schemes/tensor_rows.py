"""Column-split products of tensor parallelism and the exchange of rows over ``tp``: norm, gather, product and sum,
slice by slice, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...model.layer import LayerShard
from ...operators import Gemm, MemoryBound, Operator
from ..builder import WHOLE, ProgramBuilder, Slice
from ..experts import expert
from ..experts.fused import Cut, copied, copied_rows, copied_sum
from ..job import Job
from ..residual import residual_of


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
    elif layer.kind.experts:
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
            gathered.append(gather_rows(builder, job, tokens, normed[-1:], f"gather for {name}", width, slice_of))
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
) -> list[int]:
    """Gradients of column-split products and the sum of their common input's, ``width`` elements per token; returns the
    dependencies of the input's gradient."""
    pairs = [builder.gradients(product) for product in products]
    d_input = [one[0] for one in pairs]
    d_weight = [gradient for one in pairs for gradient in one[1:]]
    if job.plan.tp == 1 or not sums:
        return [builder.compute(name, *before, *d_input, *d_weight, *after_products)]
    multiplied = builder.compute(f"{name}, input", *before, *d_input, *after_products)
    if not d_weight or job.plan.overlap or residual_of(job.plan).late:
        summed = reduce_rows(builder, job, job.tokens, multiplied, sum_name, width)
        if d_weight:
            builder.compute(f"{name}, weight", *d_weight)
        return [summed]
    both = builder.compute(f"{name}, weight", *d_weight)
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
    builder: ProgramBuilder, job: Job, tokens: int, after: list[int], name: str, width: int = 0, slice_of: Slice = WHOLE
) -> list[int]:
    """With sequence regions, gather every rank's 1/T of the tokens. Returns the dependencies of the whole rows."""
    if job.plan.tp == 1 or not job.plan.sequence_regions:
        return after
    size = tokens * (width or job.model.hidden) * job.activation_bytes
    if job.plan.overlap and copied(job.plan):
        return [copied_rows(builder, size, name, after, slice_of)]
    last = builder.collective("all_gather", "tp", size, name, after=after, stream="gather rows", slice_of=slice_of)
    for kernel in laid_out(job, size):
        last = builder.compute(f"{name}, laid out", kernel, after=[last], slice_of=slice_of)
    return [last]


def laid_out(job: Job, size_bytes: float) -> tuple[MemoryBound, ...]:
    """The copy between the layout of collectives (by rank) and that of products, in stacks that make one."""
    moved = 2.0 * size_bytes * job.work.stack.row_copies
    return (MemoryBound("copy", moved, name="lay rows out"),) if moved else ()


def residual_tokens(job: Job, tokens: int | None = None) -> int:
    """Tokens of the residual stream on this rank, of ``tokens`` (None: its own): 1/T with sequence regions."""
    return (job.tokens if tokens is None else tokens) // (job.plan.tp if job.plan.sequence_regions else 1)
