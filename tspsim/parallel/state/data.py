"""Data parallelism: gradients summed over all ranks that hold the same weights, and what ZeRO divides among them.

Those are the replicas and, within one, the sequence shards beside each other (``rank_groups.replica_axis``).

Stage 0 (DDP): a layer's gradients are all-reduced while the layers before it run backward, once a step. Stage 1: they
are reduce-scattered, each replica updates its share, and weights are gathered, layer by layer, ahead of the first
forward of the next step (in a steady run: of this one). Stage 2: they are reduce-scattered in every backward, so that
whole gradients never stay. Stage 3 (FSDP): a layer's weights are gathered as well, ahead of every forward and backward,
one layer in advance. Embedding and head are gathered and summed as layers are; with stage 3 once a micro-batch, kept
from the head's forward to its backward, which follows.
Rajbhandari et al. 2020 (ZeRO), §5 and §7; Zhao et al. 2023 (FSDP), §3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from ...model import Block
from ...model.layer import LayerShard
from ...operators import MemoryBound
from ...steps import FORWARD, Task
from ..adapters import Halves
from ..builder import ProgramBuilder
from ..expert_rows import routed_shard
from ..job import Job
from ..ledger import Buffer, Lifetime
from ..parameter_group import ParameterGroup
from ..pipeline import Chunk
from ..rank_groups import expert_axis, expert_copies, expert_ranks, expert_state_shards, replica_axis
from ..whole import accumulates_whole, keeps_whole, sums_beside
from . import shard_levels, weight_arrivals, weight_offload, weight_peers
from .wires import recast, wire_bytes


@dataclass(frozen=True)
class OwnedParameters:
    """What one rank of a replica owns, in parameters: ``weight_shards`` ranks hold a copy of the weights together.

    Routed experts are spread otherwise (``rank_groups.expert_ranks``), and other ranks hold the same ones.
    """

    job: Job
    weight_shards: int

    def replicated(self, parameters: float) -> ParameterGroup:
        """Parameters that all ranks of the replica axis hold."""
        job, copies = self.job, self.job.copies
        shards, secondary = job.plan.shard_group or copies, job.plan.secondary_shard or 0
        weights = shard_levels.level(job.plan) if job.plan.zero else 0
        return ParameterGroup(replica_axis(job), copies, parameters, shards, secondary=secondary, weights=weights)

    def layer(self, block: Block) -> tuple[ParameterGroup, ...]:
        """One layer, by who else holds it; a single entry unless its experts are spread on an axis of their own."""
        job = self.job
        whole = job.model.block_parameters(block)
        if not block.experts:
            return (self.replicated(whole / self.weight_shards),)
        routed = job.model.routed_parameters_per_layer
        return together(
            self.replicated((whole - routed) / self.weight_shards), self.experts(routed / expert_ranks(job))
        )

    def layer_bytes(self, block: Block) -> float:
        """Bytes of one layer's weights."""
        return self.job.weight_bytes * sum(held.parameters for held in self.layer(block))

    def experts(self, parameters: float) -> ParameterGroup:
        """Parameters of routed experts, that all ranks hold which have these."""
        job = self.job
        groups = ("expert shard", "expert replicate") if job.plan.ep > 1 else ("shard", "replicate")
        if job.plan.ep == 1 and not job.scheme.usual:
            groups = ("+".join(("shard", *job.scheme.axes)), "replicate")
        return ParameterGroup(expert_axis(job), expert_copies(job), parameters, expert_state_shards(job), groups)

    def trained_layer(self, block: Block) -> tuple[ParameterGroup, ...]:
        """What of a layer is trained: all of it, or with frozen weights its adapters."""
        if self.job.work.adapters is None:
            return self.layer(block)
        return self.adapters(block)

    def adapters(self, block: Block) -> tuple[ParameterGroup, ...]:
        """The adapters of a layer. Their whole halves are on every tensor-parallel rank; TSP has each own a part."""
        common, routed = self.halves(block)
        owners = self.weight_shards if self.job.scheme.folds else 1
        parts = [self.replicated(common.split + common.whole / owners)]
        if block.experts:
            parts.append(self.experts(routed.both))
        return together(*parts)

    def halves(self, block: Block) -> tuple[Halves, Halves]:
        """Parameters of the adapters beside what all tokens visit in a layer, and beside its routed experts."""
        job, adapters = self.job, self.job.work.adapters
        assert adapters is not None
        common = adapters.common(LayerShard(job.model, self.weight_shards, block=block))
        return common, adapters.routed(routed_shard(job)) if block.experts else Halves()

    def alike_on_tensor_ranks(self, chunks: Sequence[Chunk]) -> float:
        """Parameters of adapters' whole halves, whose gradients one rank of ``tp`` keeps and has only a part of."""
        if self.job.work.adapters is None or self.job.plan.tp == 1:
            return 0.0

        def whole(block: Block) -> tuple[ParameterGroup, ...]:
            common, routed = self.halves(block)
            return self.replicated(common.whole), self.experts(routed.whole)

        return sum(held.share(divided=self.job.plan.zero > 0) for held in self.in_layers(chunks, whole))

    def trained_layers(self, chunks: Sequence[Chunk]) -> tuple[ParameterGroup, ...]:
        """What of a stage's layers is trained on one rank, by who else holds it."""
        return together(*self.in_layers(chunks, self.trained_layer))

    def trained(self, chunks: Sequence[Chunk]) -> tuple[ParameterGroup, ...]:
        """What of a stage is trained on one rank: its layers, and unless the model is frozen its tables; of
        frozen tables alone nothing."""
        if self.job.work.adapters is None:
            return self.owned(chunks)
        return self.trained_layers(chunks) or (self.replicated(0.0),)

    def embedding(self, chunk: Chunk) -> ParameterGroup:
        """The embedding, where it stands: half of what is outside layers, or all of it where it is the head too."""
        model = self.job.model
        here = model.parameters_outside_layers / (1 if model.tied_embeddings else 2)
        return self.replicated(here / self.weight_shards if chunk.has_embedding else 0.0)

    def head(self, chunk: Chunk) -> ParameterGroup:
        """The head, where it stands (a tied one only where the embedding is not), and what joins the modules for
        further tokens."""
        model = self.job.model
        if not chunk.has_head:
            return self.replicated(0.0)
        here = model.parameters_outside_layers / 2
        if model.tied_embeddings:
            here = 0.0 if chunk.has_embedding else model.parameters_outside_layers
        return self.replicated((here + self.job.multi_token * model.join_parameters) / self.weight_shards)

    def tables(self, chunks: Sequence[Chunk]) -> ParameterGroup:
        """Embedding and head of a stage."""
        parts = [table for chunk in chunks for table in (self.embedding(chunk), self.head(chunk))]
        return self.replicated(sum(part.parameters for part in parts))

    def owned(self, chunks: Sequence[Chunk]) -> tuple[ParameterGroup, ...]:
        """Parameters of a stage on one rank, by who else holds them."""
        return together(*self.in_layers(chunks, self.layer), self.tables(chunks))

    def in_layers(
        self, chunks: Sequence[Chunk], one: Callable[[Block], tuple[ParameterGroup, ...]]
    ) -> list[ParameterGroup]:
        """What ``one`` layer of each kind counts, for all of a stage's layers."""
        return [
            held._replace(parameters=held.parameters * count)
            for block, count in self.job.blocks(chunks).items()
            for held in one(block)
        ]


def together(*parts: ParameterGroup) -> tuple[ParameterGroup, ...]:
    """Parts that the same ranks hold become one; the order of first appearance stays."""
    sums: dict[tuple[str, int], ParameterGroup] = {}
    for held in parts:
        summed = sums.get((held.axis, held.copies))
        total = held.parameters if summed is None else summed.parameters + held.parameters
        sums[held.axis, held.copies] = held._replace(parameters=total)
    return tuple(sums.values())


def state(job: Job, share: OwnedParameters, chunks: Sequence[Chunk]) -> Iterator[Buffer]:
    """Weights, and while training what is kept of those that are trained; replicas divide each from a ZeRO level on."""
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
    yield kept("optimizer_buffers", trained, optimizer.buffers, inf)
    yield kept("optimizer_state", trained, optimizer.state, 1)
    yield kept("optimizer_temporaries", trained, optimizer.temporaries, 1)


def undivided(job: Job, share: OwnedParameters, chunks: Sequence[Chunk]) -> Iterator[Buffer]:
    """What stands whole though replicas divide it: a layer's gradient on its way to be scattered, with ZeRO 3 beside
    the layer at work and the one gathered ahead; or a table with its gradient."""
    zero, gradients = job.plan.zero, job.work.reduced_bytes
    if zero < 2:
        return
    gathers_layers = zero == 3 and not keeps_whole(job)
    part = "gathered_weights" if gathers_layers else "whole_gradients"
    if zero == 3 and not gathers_layers:
        yield Buffer("gathered_weights", job.weight_bytes * divided(share.owned(chunks)), Lifetime.STEP)
    if accumulates_whole(job):
        # Divided sums take their place behind the last backward, unit by unit.
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


def divided(parts: tuple[ParameterGroup, ...]) -> float:
    """Parameters that replicas divide."""
    return sum(held.parameters for held in parts if held.shards > 1)


def gather_weights(builder: ProgramBuilder, job: Job, share: OwnedParameters, block: Block, task: Task) -> int | None:
    """A layer's weights from the ranks that hold shares of them, ahead of the layer; None where nobody divides."""
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
    """A copy between the buffer of an exchange and where its elements are used; none where a stack makes none."""
    return (MemoryBound("copy", size_bytes, name=name),) if size_bytes else ()


def refresh(
    builder: ProgramBuilder, job: Job, held: Sequence[ParameterGroup], task: Task, name: str, after: Sequence[int] = ()
) -> list[int]:
    """With levels apart, weights as the step before updated them; returns what their gather waits for."""
    last = list(after)
    if task.kind == FORWARD and task.micro_batch == 0:
        for group in held:
            if group.weights and group.parameters:
                last = shard_levels.refresh(builder, group, group.parameters * job.work.optimizer.weights, name, last)
    return last


def weight_wire(job: Job, task: Task) -> str | None:
    """The type that weights are gathered in: ahead of a backward they come from the second copy as they are."""
    return job.plan.weight_wire if task.kind == FORWARD or not job.plan.secondary_shard else None


def gathers(job: Job, task: Task) -> bool:
    """Whether a task needs weights of others: with ZeRO 3 every one, unless they stay; else the first one of a step,
    after its update."""
    if not job.training or job.plan.zero == 0:
        return False
    first_use = task.kind == FORWARD and task.micro_batch == 0
    if job.plan.zero == 3:
        return first_use or not keeps_whole(job)
    return first_use and job.work.stack.overlap_weights


def gather_table(builder: ProgramBuilder, job: Job, table: ParameterGroup, task: Task, name: str) -> None:
    """Embedding or head, ahead of the kernels that follow; frozen ones are gathered where they are divided."""
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
    """Bytes of a layer's weights that ranks divide, by the axis of those ranks, as they stand; or as a ``task`` gathers
    them: ahead of a forward in the type of the wire, ahead of a backward from the second copy where there is one.

    Frozen weights change in no step: ZeRO 3 alone, which divides them, gathers them, and the adapters with them.
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
    """The layer that was just written begins when its weights are here; overlapped, they are gathered a layer ahead."""
    if gathered is None:
        return
    builder.hold_until(gathered)
    builder.after_previous_layer(gathered, ready[-1], "weights", turns=2 if job.work.stack.overlap_weights else 1)


def reduce_layer(builder: ProgramBuilder, job: Job, held: Sequence[ParameterGroup], task: Task) -> None:
    """Sum a layer's gradients beside the backward of the layers before, after a scheme's own exchange of them.

    A stack that does not overlap them sums all at the end of the step (:func:`finish_step`), or from ZeRO 2 on, which
    has no room for whole gradients, waits for each layer's.
    """
    last = task.micro_batch == job.micro_batches - 1
    if sums_beside(job, task) or (last and job.work.stack.overlap_gradients):
        sum_beside(builder, job, held, "layer gradients", builder.exchanged_gradients, across=last)


def reduce_table(
    builder: ProgramBuilder, job: Job, table: ParameterGroup, name: str, task: Task, exchanged: Sequence[int] = ()
) -> None:
    """Sum the gradients of embedding or head, from ZeRO 2 on, which has no room for them; else they wait for the end
    of the step."""
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
    """Sum gradients that have just been made, or ``exchanged`` by their scheme, beside what comes next; with levels
    apart ``across`` the groups as well, or not yet."""
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
    """Over all ranks that hold the weights: whole on each, or with ZeRO each rank its share; between groups that divide
    state among themselves the shares are summed as well. With levels apart those are divided further, at the end of a
    step (``across``)."""
    size = held.parameters * job.work.reduced_bytes
    if not job.plan.zero:
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
    """Gradients in a narrow type: one all-to-all inside a group of ``secondary`` ranks, whose parts each rank adds up,
    and one across the groups, so that each element crosses between nodes once (ZeRO++, §3.3)."""
    wire, usual, inside = job.plan.gradient_wire, job.work.reduced_bytes, held.secondary
    assert wire is not None
    narrow, elements, stream = wire_bytes(wire, usual), held.parameters, "gradient kernels"
    last = builder.compute(f"{name}: narrow", recast("quantise", elements, usual, narrow), after=after, stream=stream)
    for axis, left, more in ((held.groups[0], inside, narrow), (held.groups[1], held.copies // inside, usual)):
        if left == 1:
            continue
        size = elements * narrow
        moved = builder.collective("all_to_all", axis, size, name, after=[last], stream="gradients")
        # Every part is read, and their sum is written.
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
    """Gradients of embedding and head, the norm of all gradients, and the optimizer's pass over what a rank owns.

    ``exchanged`` ends the scheme's own exchange of gradients; ``copied`` the copies of what the optimizer overwrites.
    """
    plan, optimizer, stack = job.plan, job.work.optimizer, job.work.stack
    waits = list(exchanged)
    owned = share.trained(chunks)
    widest = max(owned, key=lambda held: held.copies)
    late: tuple[ParameterGroup, ...] = ()
    name = "sum table gradients"
    if plan.zero < 2 and not stack.overlap_gradients:
        late, name = owned, "sum gradients"
    elif plan.zero < 2 and job.work.adapters is None:
        late = (share.tables(chunks),)
    for held in late:
        if held.copies > 1 and held.parameters:
            ready = builder.compute("last gradients ready", after=exchanged)
            waits.append(sum_gradients(builder, job, held, name, [ready]))
    tables = share.tables(chunks)
    if tables.weights and tables.parameters and tables.shards < tables.copies:
        ready = builder.compute("last gradients ready", after=exchanged)
        size = tables.parameters * job.work.reduced_bytes / tables.shards
        waits.append(
            builder.collective(
                "reduce_scatter", tables.sum_axis, size, "sum table gradients across", after=[ready], stream="gradients"
            )
        )
    alike = share.alike_on_tensor_ranks(chunks) * optimizer.gradients
    if alike:
        ready = builder.compute("adapters' gradients ready", after=exchanged)
        waits.append(
            builder.collective("all_reduce", "tp", alike, "sum adapters over tp", after=[ready], stream="gradients")
        )
    if widest.copies > 1:
        waits.append(builder.collective("all_reduce", widest.axis, 4, "gradient norm", stream="gradients"))
    elements = sum(held.share(divided=plan.zero > 0) for held in owned)
    read = (1.0 + stack.clip_passes) * optimizer.gradients
    size = elements * (read + optimizer.weights + 2.0 * (optimizer.state + optimizer.temporaries))
    waits += copied
    kernels = (MemoryBound("adamw", size, name="optimizer"),) if size else ()
    updated = builder.compute("optimizer step", *kernels, after=waits)
    if plan.zero in (1, 2) and not stack.overlap_weights:
        for held in owned:
            if held.shards > 1 and held.parameters:
                size = held.parameters * optimizer.weights
                builder.collective(
                    "all_gather", held.shard_axis, size, "gather weights", after=[updated], stream="parameters"
                )
    if plan.offload_weights and job.work.adapters is None:
        gone = weight_offload.away(job, chunks).elements()
        weight_arrivals.send_back(builder, [share.layer_bytes(block) for block in gone], updated)


# --- what a search tries ----------------------------------------------------------------------------------------
