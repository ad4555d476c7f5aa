"""Attention of TSP's layers: weights of a group of heads arrive, its keys and values are gathered, every rank attends
its own tokens; in the backward dK, dV and the weights' gradients return to their owners."""

from __future__ import annotations

from ...base.quick import replace
from ...model.layer import LayerShard, gradients
from ...operators import Operator
from ..builder import ProgramBuilder
from ..context import carried, selected
from ..context.attention import (
    attend_by_blocks,
    attention_backward,
    context_bytes,
    expand,
    latent_bytes,
    own_segments,
    slice_segments,
)
from ..job import Job
from ..partition import Segments, local_segments
from ..recompute import recomputed_heads, recomputed_kernels
from . import folded_weights
from .transport import transport_of


def group_of(job: Job, layer: LayerShard) -> LayerShard:
    """The part of a layer that is attended at once: one group of heads."""
    return replace(layer, shards=job.plan.attended_groups)


def attention_overlapped(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int) -> int:
    """Groups of heads, software-pipelined by one: QKV of group r+1 precedes attention of group r, so that the gather of
    r+1 runs beside it. Returns the last instruction."""
    groups, tokens, group = job.plan.attended_groups, job.tokens, group_of(job, layer)
    ahead = min(folded_weights.ATTENTION_BUFFERS, groups)
    if builder.recomputing:
        # A layer recomputed for its backward keeps its own weights; the next layer's first arrive beside them.
        ahead = groups + (ahead if transport_of(job).keeps else 0)
    buffers = builder.buffers("attention weights", ahead, groups)
    gathered: list[tuple[int, list[int]]] = []
    attended: list[int] = []

    def project(step: int) -> None:
        moved = bring_weights(builder, job, group, step, [])
        buffers.fill(step, *moved)
        if step == 0:
            entered = builder.compute("norm", layer.norm(tokens), *layer.entering(tokens), after=whole)
            best.extend(choose_context(builder, job, layer, position, entered))
        projected = builder.compute(f"QKV {step + 1}/{groups}", *group.projecting(tokens), after=moved[-1:])
        gathered.append((projected, best or gather_context(builder, job, group, step, [projected])))

    whole = gather_attention_whole(builder, job, layer, [])
    best: list[int] = []
    project(0)
    for step in range(groups):
        if step + 1 < groups:
            project(step + 1)
        attended.append(attend(builder, job, group, position, step, *gathered[step]))
        if not builder.recomputing:
            buffers.used(step, attended[step])
    return attended[-1]


def attention_in_turn(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int) -> int:
    """Without overlap: every exchange ends before the next instruction begins."""
    groups, group = job.plan.attended_groups, group_of(job, layer)
    whole = gather_attention_whole(builder, job, layer, [])
    last = builder.compute("norm", layer.norm(job.tokens), *layer.entering(job.tokens), after=whole)
    best = choose_context(builder, job, layer, position, last)
    for step in range(groups):
        moved = bring_weights(builder, job, group, step, [*best[:1], last])
        projected = builder.compute(f"QKV {step + 1}/{groups}", *group.projecting(job.tokens), after=moved[-1:])
        gathered = [*best, projected] if best else gather_context(builder, job, group, step, [projected])
        last = attend(builder, job, group, position, step, projected, gathered)
    return last


def attention_part_backward(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int) -> int:
    plan, tokens, work = job.plan, job.tokens, job.work
    groups, group = plan.attended_groups, group_of(job, layer)
    overlap = plan.overlap is not False
    kept = plan.recomputation == "full"
    # A recomputed layer's weights are in the buffers that its forward filled.
    buffers = builder.buffers("attention weights", min(folded_weights.ATTENTION_BUFFERS, groups), groups)
    # Adapters are needed from the first group on, latent down projections after the last one.
    early = [] if kept or work.adapters is None else gather_attention_whole(builder, job, layer, [])
    reduced: list[int] = []
    last: list[int] = []

    def project(step: int) -> None:
        """dQ, dK and dV of a group through its QKV weights, when its dK and dV are reduced."""
        nonlocal last
        last = [
            builder.compute(
                f"QKV {step + 1}/{groups} backward",
                group.rope(tokens, backward=True),
                *(gradient for product in group.projections(tokens) for gradient in gradients(product)),
                after=[reduced[step]],
            )
        ]
        buffers.used(step, last[0])

    for step in range(groups):
        needed: list[int] = []
        if not kept:
            waits = [] if overlap else last
            moved = bring_weights(builder, job, group, step, waits)
            gathered = gather_context(builder, job, group, step, waits)
            buffers.fill(step, *moved, *gathered)
            needed = [*(() if step else early), moved[-1], gathered[-1]]
        reduced.append(attend_backward(builder, job, group, position, step, needed))
        if not overlap:
            project(step)
        elif step:
            project(step - 1)
    if overlap:
        project(groups - 1)
    if layer.down_weights:
        needed = early or ([] if kept else gather_attention_whole(builder, job, layer, last))
        d_down = [gradient for product in layer.down_projections(tokens) for gradient in gradients(product)]
        last = [builder.compute("latents backward", *layer.latent_norms(tokens, backward=True), *d_down, after=needed)]
    load = folded_weights.attention(job, group)
    trained = groups * load.trained_in_shard + load.trained_in_whole
    if work.adapters is not None:
        trained += folded_weights.mlp(job, layer).trained_in_whole
    summed = []
    if trained:
        size = trained * work.optimizer.gradients
        name = "attention gradients to owners"
        summed = [builder.collective("reduce_scatter", "tsp", size, name, after=last, stream="weight gradients")]
        builder.exchanged_gradients += summed
    normed = *recomputed_kernels(job, layer.norm(tokens)), layer.norm_backward(tokens)
    return builder.compute("norm backward", *normed, after=[] if overlap else summed)


def gather_attention_whole(builder: ProgramBuilder, job: Job, layer: LayerShard, after: list[int]) -> list[int]:
    """Gather what heads do not divide and every rank needs whole: down projections to latents, halves of adapters, and
    cached latents if tokens are divided."""
    size = folded_weights.attention(job, layer).whole_bytes
    name = "projections to latents" if layer.down_weights else "adapters of attention"
    whole = [builder.collective("all_gather", "tsp", size, name, after=after, stream="weights")] if size else []
    cached = latent_bytes(job, layer) if job.token_shards > 1 else 0.0
    if cached:
        whole.append(builder.collective("all_gather", "tsp", cached, "cached latents", after=after, stream="weights"))
    return whole


def bring_weights(builder: ProgramBuilder, job: Job, group: LayerShard, step: int, after: list[int]) -> list[int]:
    """Bring the weights of a group of heads: all-gathered if every rank owns some of its heads, otherwise broadcast by
    its owners one by one."""
    plan, size = job.plan, folded_weights.attention(job, group).shard_bytes
    if transport_of(job).gathers_heads and owned_by_all(job):
        name = f"weights, group {step + 1}/{plan.attended_groups}"
        return [builder.collective("all_gather", "tsp", size, name, after=after, stream="weights")]
    owners = plan.tsp // plan.attended_groups
    return [
        builder.collective(
            "broadcast",
            "tsp",
            size / owners,
            f"weights {owner + 1}/{plan.tsp}",
            root=owner,
            after=after,
            stream="weights",
        )
        for owner in range(step * owners, (step + 1) * owners)
    ]


def owned_by_all(job: Job) -> bool:
    """Whether groups of heads can be chosen so that every rank owns equally many heads, and K/V heads, of each; always
    true for one group."""
    model, parts = job.model, job.plan.tsp * job.plan.attended_groups
    return job.plan.attended_groups == 1 or (model.heads % parts == 0 and model.kv_heads % parts == 0)


def slices_of(job: Job) -> int:
    """Slices of tokens in which K and V of a group of heads are gathered and attended."""
    return job.plan.overlap_chunks if job.plan.overlap_by == "blocks" and job.plan.overlap is not False else 1


def choose_context(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, entered: int) -> list[int]:
    """For sparse attention: gather index keys and latents of all ranks, once per layer for all heads, and select.

    Returns the dependencies of attention; empty without selection.
    """
    if not selected.selects(layer):
        return []
    overlap = job.plan.overlap is not False
    return selected.select(builder, job, layer, segments_of(job, position), [entered], overlap=overlap)


def segments_of(job: Job, position: int) -> Segments:
    """Segments of the whole context that a rank's own tokens attend."""
    plan = job.plan
    return local_segments(plan.partition, job.sequence, plan.tsp, position, job.sequences, job.work.causal, job.cached)


def gather_context(builder: ProgramBuilder, job: Job, group: LayerShard, step: int, after: list[int]) -> list[int]:
    """Gather K and V of a group of heads, one gather per slice; for linear attention, the maps of states."""
    if carried.carries(group):
        return carried.hand_on(builder, job, group, after)
    parts = slices_of(job)
    name = f"gather K,V {step + 1}/{job.plan.attended_groups}"
    size = context_bytes(job, group) / parts
    return [builder.collective("all_gather", "tsp", size, name, after=after, stream="context") for _ in range(parts)]


def attend(
    builder: ProgramBuilder, job: Job, group: LayerShard, position: int, step: int, projected: int, gathered: list[int]
) -> int:
    """Local queries over the whole context with one group of heads, and its part of the output projection.

    By blocks, the rank's own tokens are attended while the others' arrive.
    """
    work, plan = job.work, job.plan
    name, output = f"attention {step + 1}/{plan.attended_groups}", group.leaving(job.tokens)
    if selected.selects(group):
        kernels = *selected.attending(group, segments_of(job, position)), *output
        return builder.compute(name, *kernels, after=[*gathered, projected])
    if carried.carries(group):
        return builder.compute(name, *carried.scanning(job, group), *output, after=gathered)
    if len(gathered) == 1:
        kernels = *expand(job, group), group.attention(segments_of(job, position), causal=work.causal), *output
        return builder.compute(name, *kernels, after=gathered)
    return attend_by_blocks(builder, job, group, position, name, projected, gathered, *output)


def attend_backward(
    builder: ProgramBuilder, job: Job, group: LayerShard, position: int, step: int, after: list[int]
) -> int:
    """dO of a group of heads, its attention's backward, and the reduction of dK and dV to their owners; returns the
    last reduction. By blocks, a slice's reduction runs while the next slice is computed."""
    plan, work, tokens, parts = job.plan, job.work, job.tokens, slices_of(job)
    groups, size = plan.attended_groups, context_bytes(job, group) / parts
    name, summed = f"attention {step + 1}/{groups}", f"sum dK,dV {step + 1}/{groups}"
    before: list[Operator] = [*gradients(group.output(tokens)), *recomputed_heads(job, group, tokens)]

    def home(last: int) -> int:
        return builder.collective("reduce_scatter", "tsp", size, summed, after=[last], stream="context")

    if parts == 1:
        shard = plan.partition, job.sequence, plan.tsp, position
        segments = local_segments(*shard, job.sequences, work.causal, job.cached)
        named = f"{name} backward"
        return home(attention_backward(builder, job, group, segments, work.causal, named, after, before=before))
    sums = builder.compute(f"{name} d output", *before, after=after)
    for part in range(parts):
        segments = slice_segments(job, group, position, part, parts)
        named = f"{name} slice {part + 1}/{parts} backward"
        sums = home(attention_backward(builder, job, group, segments, False, named))
    attention_backward(builder, job, group, *own_segments(job, group, position), f"{name} own block backward")
    return sums
