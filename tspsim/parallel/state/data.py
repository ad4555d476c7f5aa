"""Data parallelism: gradients are summed over all ranks with the same weights, and ZeRO shards state among them.

These ranks are the replicas and, within one, its sequence shards (``rank_groups.replica_axis``).

Stage 0 (DDP): a layer's gradients are all-reduced while earlier layers run backward, once per step. Stage 1: they are
reduce-scattered, each replica updates its share, and weights are gathered layer by layer ahead of the first forward of
the next step (in a steady run, of this one). Stage 2: they are reduce-scattered in every backward, so that whole
gradients are never kept. Stage 3 (FSDP): a layer's weights are also gathered ahead of every forward and backward, one
layer in advance. Embedding and head are gathered and summed like layers; with stage 3 once per micro-batch, kept from
the head's forward to its backward, which follows.
Rajbhandari et al. 2020 (ZeRO), §5 and §7; Zhao et al. 2023 (FSDP), §3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf

from ...model import Block
from ...operators import MemoryBound
from ...steps import FORWARD, Task
from ..builder import ProgramBuilder
from ..job import Job
from ..ledger import Buffer, Lifetime
from ..parameter_group import ParameterGroup
from ..pipeline import Chunk
from ..plan import KV_COPIES
from ..whole import accumulates_whole, keeps_whole, sums_beside
from . import shard_levels, weight_arrivals, weight_offload, weight_peers
from .owned import OwnedParameters, divided
from .wires import recast, wire_bytes


def state(job: Job, share: OwnedParameters, chunks: Sequence[Chunk]) -> Iterator[Buffer]:
    """Weights and, while training, gradients and state of trained ones; each is sharded from some ZeRO stage on."""
    plan, optimizer = job.plan, job.work.optimizer
    owned, trained = share.owned(chunks), share.trained(chunks)
    away = weight_offload.away(job, chunks) if plan.offload_weights else Counter[Block]()
    gone = {block: count * share.layer_bytes(block) for block, count in away.items()}

    def kept(part: str, parameters: tuple[ParameterGroup, ...], bytes_per_parameter: float, level: float) -> Buffer:
        size = bytes_per_parameter * sum(held.share(plan.zero >= level, level) for held in parameters)
        return Buffer(part, size, Lifetime.STEP)

    weights = kept("weights", owned, job.weight_bytes, 3 if job.training else inf)
    yield weights._replace(size_bytes=weights.size_bytes - sum(gone.values())) if gone else weights
    if gone:
        yield from weight_offload.buffers(share.layer_bytes(block) for block in gone)
        yield from weight_peers.buffers(plan, gone.values())
    if not job.training:
        return
    second = sum(held.parameters / held.secondary for held in owned if held.secondary)
    yield Buffer("secondary_weights", job.weight_bytes * second, Lifetime.STEP)
    if job.work.adapters is not None:
        yield kept("adapters", trained, optimizer.weights, 3)
    yield kept("gradients", trained, optimizer.gradients, 2)
    yield kept("narrow_weights", owned, job.mixed_precision.copy_bytes, inf)
    yield kept("optimizer_buffers", trained, optimizer.buffers, inf)
    yield kept("optimizer_state", trained, optimizer.state, 1)
    yield kept("optimizer_temporaries", trained, optimizer.temporaries, 1)


def undivided(job: Job, share: OwnedParameters, chunks: Sequence[Chunk]) -> Iterator[Buffer]:
    """Buffers that are whole though replicas shard them: a layer's gradient before its reduce-scatter, with ZeRO 3
    beside the layer at work and the one gathered ahead; or a table with its gradient."""
    zero, gradients = job.plan.zero, job.work.reduced_bytes
    if zero < 2:
        return
    gathers_layers = zero == 3 and not keeps_whole(job)
    part = "gathered_weights" if gathers_layers else "whole_gradients"
    if zero == 3 and not gathers_layers:
        yield Buffer("gathered_weights", job.weight_bytes * divided(share.owned(chunks)), Lifetime.STEP)
    if accumulates_whole(job):
        # Sharded sums take their place after the last backward, unit by unit.
        whole, trained = gradients * divided(share.trained(chunks)), share.trained(chunks)
        sums = job.work.optimizer.gradients * sum(held.share(True, 2) for held in trained if held.shards > 1)
        yield Buffer("whole_gradients", max(0.0, whole - sums), Lifetime.STEP)
    for block in job.blocks(chunks):
        gathered = 2 * sum(divided_bytes(job, share, block).values()) if gathers_layers else 0.0
        size = gathered + gradients * divided(share.trained_layer(block))
        yield Buffer(part, size, Lifetime.LAYER, block)
    bytes_per_parameter = job.weight_bytes if gathers_layers else 0.0
    bytes_per_parameter += gradients if job.work.adapters is None else 0.0
    for chunk in chunks:
        for table in (share.embedding(chunk), share.head(chunk)):
            yield Buffer(part, bytes_per_parameter * divided((table,)), Lifetime.TABLE)


def gather_weights(builder: ProgramBuilder, job: Job, share: OwnedParameters, block: Block, task: Task) -> int | None:
    """Gather a layer's weights from the ranks that hold shares, ahead of the layer; None if they are not sharded."""
    if not gathers(job, task):
        return None
    gathered = None
    builder.part = "weights"
    wire, elements = weight_wire(job, task), 0.0
    updated = refresh(builder, job, share.trained_layer(block), task, "updated layer weights")
    for axis, size in divided_bytes(job, share, block, task).items():
        gathered = builder.collective(
            "all_gather", axis, size, "gather layer weights", after=updated, stream="parameters"
        )
        elements += size / wire_bytes(wire, job.work.optimizer.weights)
    if gathered is not None:
        # The first kernels of the layer, which wait for the weights.
        kernels = copies("copy weights out", elements * job.work.stack.gathered_copy_bytes)
        if wire is not None:
            kernels += (recast("dequantise", elements, wire_bytes(wire, 0.0), job.work.optimizer.weights),)
        if kernels:
            builder.compute("weights from the wire", *kernels)
    return gathered


def copies(name: str, size_bytes: float) -> tuple[MemoryBound, ...]:
    """A copy between an exchange's buffer and the place of use, in stacks that make one."""
    return (MemoryBound("copy", size_bytes, name=name),) if size_bytes else ()


def refresh(
    builder: ProgramBuilder, job: Job, held: Sequence[ParameterGroup], task: Task, name: str, after: Sequence[int] = ()
) -> list[int]:
    """With shard levels, gather weights as the previous step updated them; returns the dependencies of their gather."""
    last = list(after)
    if task.kind == FORWARD and task.micro_batch == 0:
        for group in held:
            if group.weights and group.parameters:
                last = shard_levels.refresh(builder, group, group.parameters * job.work.optimizer.weights, name, last)
    return last


def weight_wire(job: Job, task: Task) -> str | None:
    """The type in which weights are gathered; before a backward they come unchanged from the secondary copy."""
    return job.plan.weight_wire if task.kind == FORWARD or not job.plan.secondary_shard else None


def gathers(job: Job, task: Task) -> bool:
    """Whether a task gathers weights: with ZeRO 3 every task, unless gathered weights are kept; otherwise the first
    forward of a step, after its update."""
    if not job.training or job.plan.zero == 0:
        return False
    first_use = task.kind == FORWARD and task.micro_batch == 0
    if job.plan.zero == 3:
        return first_use or not keeps_whole(job)
    return first_use and job.work.stack.overlap_weights


def gather_table(builder: ProgramBuilder, job: Job, table: ParameterGroup, task: Task, name: str) -> None:
    """Gather embedding or head before the kernels that follow; frozen ones only if they are sharded."""
    frozen = job.work.adapters is not None
    if not (gathers(job, task) and table.shards > 1 and table.parameters) or (frozen and job.plan.zero < 3):
        return
    builder.part = "weights"
    waits = [] if job.work.stack.overlap_weights else [builder.compute(f"{name} wanted")]
    wire = weight_wire(job, task)
    size = table.parameters * wire_bytes(wire, job.weight_bytes)
    waits = refresh(builder, job, [table], task, f"updated {name}", waits)
    axis = shard_levels.weight_axis(table) if table.weights else table.shard_axis
    gathered = builder.collective("all_gather", axis, size, f"gather {name}", after=waits, stream="parameters")
    cast = [] if wire is None else [recast("dequantise", table.parameters, wire_bytes(wire, 0.0), job.weight_bytes)]
    builder.compute(f"{name} here", *cast, after=[gathered])


def divided_bytes(job: Job, share: OwnedParameters, block: Block, task: Task | None = None) -> Mapping[str, float]:
    """Axis → bytes of a layer's weights that its ranks shard; for a ``task``, bytes that it gathers.

    Before a forward they have the wire's type, before a backward they come from the secondary copy if there is one.
    Frozen weights never change: only ZeRO 3, which shards them, gathers them, with the adapters.
    """
    kept = [(held, job.work.optimizer.weights) for held in share.trained_layer(block)]
    if job.plan.zero == 3 and job.work.adapters is not None:
        kept += [(held, job.weight_bytes) for held in share.layer(block)]
    sizes: dict[str, float] = {}
    for held, element_bytes in kept:
        if held.shards > 1 and held.parameters:
            axis = held.groups[0] if task and task.kind != FORWARD and held.secondary else held.shard_axis
            axis = shard_levels.weight_axis(held) if held.weights else axis
            moved = wire_bytes(weight_wire(job, task), element_bytes) if task else element_bytes
            sizes[axis] = sizes.get(axis, 0.0) + held.parameters * moved
    return sizes


def wait_for_weights(builder: ProgramBuilder, job: Job, gathered: int | None, ready: Sequence[int]) -> None:
    """Make the layer just written wait for its weights; with overlap they are gathered one layer ahead."""
    if gathered is None:
        return
    builder.hold_until(gathered)
    builder.after_previous_layer(gathered, ready[-1], "weights", turns=2 if job.work.stack.overlap_weights else 1)


def sums_whole(job: Job) -> bool:
    """Whether gradients of ZeRO 1 are summed whole, by an all-reduce after the last backward."""
    return job.plan.zero == 1 and job.work.stack.sums_whole


def reduce_layer(builder: ProgramBuilder, job: Job, held: Sequence[ParameterGroup], task: Task) -> None:
    """Sum a layer's gradients beside the backward of earlier layers, after a scheme's own exchange of them.

    A stack without overlap sums all at the end of the step (:func:`finish_step`), or from ZeRO 2 on, which has no room
    for whole gradients, waits for each layer's.
    """
    last = task.micro_batch == job.micro_batches - 1
    if sums_beside(job, task) or (last and job.work.stack.overlap_gradients and not sums_whole(job)):
        sum_beside(builder, job, held, "layer gradients", builder.exchanged_gradients, across=last)


def reduce_table(
    builder: ProgramBuilder, job: Job, table: ParameterGroup, name: str, task: Task, exchanged: Sequence[int] = ()
) -> None:
    """Sum the gradients of embedding or head, from ZeRO 2 on, which has no room for them; otherwise they are summed at
    the end of the step."""
    if sums_beside(job, task) and job.work.adapters is None:
        sum_beside(builder, job, [table], f"{name} gradients", exchanged, across=False)


def sum_beside(
    builder: ProgramBuilder,
    job: Job,
    held: Sequence[ParameterGroup],
    what: str,
    exchanged: Sequence[int],
    *,
    across: bool,
) -> None:
    """Sum new gradients, or ``exchanged`` ones of their scheme, beside what follows; with shard levels also ``across``
    groups, or not yet."""
    summed = [group for group in held if group.copies > 1 and group.parameters]
    if not summed:
        return
    builder.part = "gradients"
    divided_by_ranks = sum(group.parameters for group in summed if group.shards > 1)
    copied = copies("copy gradients in", divided_by_ranks * job.work.stack.reduced_copy_bytes)
    ready = [builder.compute(f"{what} ready", *copied), *exchanged]
    last = [sum_gradients(builder, job, group, f"sum {what}", ready, across=across) for group in summed]
    if not job.work.stack.overlap_gradients:
        builder.compute(f"{what} summed", after=last)


def sum_gradients(
    builder: ProgramBuilder, job: Job, held: ParameterGroup, name: str, after: Sequence[int], *, across: bool = True
) -> int:
    """Sum over all ranks with the same weights: all-reduce, or with ZeRO reduce-scatter; shares are also summed between
    groups that shard state on their own. With shard levels those are sharded further at the end of a step
    (``across``)."""
    size = held.parameters * job.work.reduced_bytes
    if not job.plan.zero or sums_whole(job):
        return builder.collective("all_reduce", held.axis, size, name, after=after, stream="gradients")
    summed = list(after)
    if job.plan.gradient_wire is not None and held.shards > 1:
        return sum_narrow(builder, job, held, name, after)
    if held.shards > 1:
        summed = [builder.collective("reduce_scatter", held.shard_axis, size, name, after=after, stream="gradients")]
    if held.shards < held.copies and (across or not held.weights):
        share = size / held.shards
        if held.weights:
            return builder.collective(
                "reduce_scatter", held.sum_axis, share, f"{name} across", after=summed, stream="gradients"
            )
        summed = [builder.collective("all_reduce", held.sum_axis, share, name, after=summed, stream="gradients")]
    return summed[-1]


def sum_narrow(builder: ProgramBuilder, job: Job, held: ParameterGroup, name: str, after: Sequence[int]) -> int:
    """Sum gradients in a narrow type (ZeRO++, §3.3): an all-to-all inside a group of ``secondary`` ranks, whose parts
    each rank adds, and one across groups, so that each element crosses between nodes once."""
    wire, usual, inside = job.plan.gradient_wire, job.work.reduced_bytes, held.secondary
    assert wire is not None
    narrow, elements, stream = wire_bytes(wire, usual), held.parameters, "gradient kernels"
    last = builder.compute(f"{name}: narrow", recast("quantise", elements, usual, narrow), after=after, stream=stream)
    for axis, left, more in ((held.groups[0], inside, narrow), (held.groups[1], held.copies // inside, usual)):
        if left == 1:
            continue
        size = elements * narrow
        moved = builder.collective("all_to_all", axis, size, name, after=[last], stream="gradients")
        # All parts are read, and their sum is written.
        add = recast("add parts", elements, narrow, more / left)
        last = builder.compute(f"{name}: add", add, after=[moved], stream=stream)
        elements /= left
    return last


def finish_step(
    builder: ProgramBuilder,
    job: Job,
    share: OwnedParameters,
    chunks: Sequence[Chunk],
    exchanged: Sequence[int],
    copied: Sequence[int] = (),
) -> None:
    """Sum the gradients of embedding and head, and their norm; update the rank's parameters.

    ``exchanged``: end of the scheme's own exchange of gradients; ``copied``: copies of what the optimizer overwrites.
    """
    plan, optimizer, stack = job.plan, job.work.optimizer, job.work.stack
    waits = list(exchanged)
    owned = share.trained(chunks)
    widest = max(owned, key=lambda held: held.copies)
    late: tuple[ParameterGroup, ...] = ()
    name = "sum table gradients"
    if plan.zero < 2 and (sums_whole(job) or not stack.overlap_gradients):
        late, name = owned, "sum gradients"
    elif plan.zero < 2 and job.work.adapters is None:
        late = (share.tables(chunks),)
    for held in late:
        if held.copies > 1 and held.parameters:
            ready = builder.compute("last gradients ready", after=exchanged)
            waits.append(sum_gradients(builder, job, held, name, [ready]))
    tables = share.tables(chunks)
    if tables.weights and tables.parameters and tables.shards < tables.copies and not sums_whole(job):
        ready = builder.compute("last gradients ready", after=exchanged)
        size = tables.parameters * job.work.reduced_bytes / tables.shards
        waits.append(
            builder.collective(
                "reduce_scatter", tables.sum_axis, size, "sum table gradients across", after=[ready], stream="gradients"
            )
        )
    what = "whole weights" if job.work.adapters is None else "adapters"
    for elements, part, axis in (
        (share.summed_over_tensor_ranks(chunks), what, "tp"),
        (share.summed_over_kv_copies(chunks), "repeated heads", KV_COPIES),
    ):
        if elements:
            ready = builder.compute(f"gradients of {part} ready", after=exchanged)
            size = elements * optimizer.gradients
            summed = builder.collective(
                "all_reduce", axis, size, f"sum {part} over {axis}", after=[ready], stream="gradients"
            )
            waits.append(summed)
    if widest.copies > 1:
        waits.append(builder.collective("all_reduce", widest.axis, 4, "gradient norm", stream="gradients"))
    elements = sum(held.share(divided=plan.zero > 0) for held in owned)
    read = (1.0 + stack.clip_passes) * optimizer.gradients
    moved = read + optimizer.weights + 2.0 * (optimizer.state + optimizer.temporaries)
    size = elements * (moved if stack.optimizer_bytes is None else stack.optimizer_bytes)
    waits += copied
    kernels = (MemoryBound("adamw", size, name="optimizer"),) if size else ()
    updated = builder.compute("optimizer step", *kernels, after=waits)
    if plan.zero in (1, 2) and not stack.overlap_weights:
        gathered = []
        for held in owned:
            if held.shards > 1 and held.parameters:
                size, axis = held.parameters * optimizer.weights, held.shard_axis
                gathered += [
                    builder.collective("all_gather", axis, size, "gather weights", after=[updated], stream="parameters")
                ]
        if gathered and stack.slices_s:
            slices_s = stack.slices_s * widest.shards * sum(chunk.layers for chunk in chunks)
            builder.host("copy slices of weights", slices_s, after=gathered)
    if plan.offload_weights and job.work.adapters is None:
        gone = weight_offload.away(job, chunks).elements()
        weight_arrivals.send_back(builder, [share.layer_bytes(block) for block in gone], updated)
