"""Parameters of a rank: what each stage, replica and expert group has, as groups of ranks with the same ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...model import Block
from ...model.layer import LayerShard
from ..adapters import Halves
from ..expert_rows import routed_shard
from ..job import Job
from ..parameter_group import ParameterGroup
from ..pipeline import Chunk
from ..rank_groups import expert_axis, expert_copies, expert_ranks, expert_state_shards, replica_axis
from . import served, shard_levels


@dataclass(frozen=True)
class OwnedParameters:
    """Parameters on one rank of a replica, over whose ``weight_shards`` ranks its weights are spread.

    Routed experts have their own groups (``rank_groups.expert_ranks``). ``once``: an even share of each layer, as if no
    rank repeated what another has.
    """

    job: Job
    weight_shards: int
    once: bool = False

    def replicated(self, parameters: float) -> ParameterGroup:
        """Parameters that all ranks of the replica axis hold."""
        job, copies = self.job, self.job.copies
        shards, secondary = job.plan.shard_group or copies, job.plan.secondary_shard or 0
        weights = shard_levels.level(job.plan) if job.plan.zero else 0
        return ParameterGroup(replica_axis(job), copies, parameters, shards, secondary=secondary, weights=weights)

    def layer(self, block: Block) -> tuple[ParameterGroup, ...]:
        """One layer's parameters by group of holders; a single entry unless experts have a group of their own."""
        job = self.job
        whole = job.model.block_parameters(block)
        beyond = 0.0 if self.once else sum(served.beyond_even_share(job, self.weight_shards, block).values())
        if not block.experts:
            return (self.replicated(whole / self.weight_shards + beyond),)
        routed = job.model.routed_parameters_per_layer
        common = (whole - routed) / self.weight_shards + beyond
        return together(self.replicated(common), self.experts(routed / expert_ranks(job)))

    def layer_bytes(self, block: Block) -> float:
        """Bytes of one layer's weights."""
        return self.job.weight_bytes * sum(held.parameters for held in self.layer(block))

    def experts(self, parameters: float) -> ParameterGroup:
        """Parameters of routed experts, held by all ranks with the same experts."""
        job = self.job
        groups = ("expert shard", "expert replicate") if job.plan.ep > 1 else ("shard", "replicate")
        if job.plan.ep == 1 and not job.scheme.usual:
            groups = ("+".join(("shard", *job.scheme.axes)), "replicate")
        return ParameterGroup(expert_axis(job), expert_copies(job), parameters, expert_state_shards(job), groups)

    def trained_layer(self, block: Block) -> tuple[ParameterGroup, ...]:
        """Trained parameters of a layer: all, or with frozen weights its adapters."""
        if self.job.work.adapters is None:
            return self.layer(block)
        return self.adapters(block)

    def adapters(self, block: Block) -> tuple[ParameterGroup, ...]:
        """The adapters of a layer. Their undivided halves are on every tensor-parallel rank; TSP divides them."""
        common, routed = self.halves(block)
        owners = self.weight_shards if self.job.scheme.folds else 1
        parts = [self.replicated(common.split + common.whole / owners)]
        if block.experts:
            parts.append(self.experts(routed.both))
        return together(*parts)

    def halves(self, block: Block) -> tuple[Halves, Halves]:
        """Parameters of the adapters of what all tokens visit in a layer, and of its routed experts."""
        job, adapters = self.job, self.job.work.adapters
        assert adapters is not None
        common = adapters.common(LayerShard(job.model, self.weight_shards, block=block))
        return common, adapters.routed(routed_shard(job)) if block.experts else Halves()

    def summed_over_tensor_ranks(self, chunks: Sequence[Chunk]) -> float:
        """Gradients, in elements, of which each rank of ``tp`` has only a part: of adapters' undivided halves; of norms
        over single heads; with sequence regions of all norms, of biases after sums, and of weights that all ranks have
        whole (Megatron-Core's ``sequence_parallel`` parameters)."""
        plan, model, adapters = self.job.plan, self.job.model, self.job.work.adapters
        regions = plan.sequence_regions
        if plan.tp == 1:
            return 0.0

        def whole(block: Block) -> tuple[ParameterGroup, ...]:
            if adapters is None:
                matrices = sum(served.whole_on_every_rank(self.job, block).values()) if regions else 0
                return (self.replicated(matrices + model.partial_parameters(block, tokens_divided=regions)),)
            common, routed = self.halves(block)
            return self.replicated(common.whole), self.experts(routed.whole)

        parts = self.in_layers(chunks, whole)
        if adapters is None and regions and any(chunk.has_head for chunk in chunks):
            parts.append(self.replicated(model.final_norm_parameters))
        return sum(held.share(self.sums_shares) for held in parts)

    @property
    def sums_shares(self) -> bool:
        """Whether replicas have divided gradients before ranks of ``tp`` sum theirs: Megatron-Core's buffer of
        gradients is whole until ZeRO 2, that of adapters until ZeRO 1."""
        return self.job.plan.zero >= (2 if self.job.work.adapters is None else 1)

    def summed_over_kv_copies(self, chunks: Sequence[Chunk]) -> float:
        """Gradients, in elements, of projections to K and V whose heads several ranks of ``tp`` hold: each has the part
        of its own query heads."""
        plan, copies = self.job.plan, self.job.plan.kv_copies
        if copies == 1 or self.job.work.adapters is not None:
            return 0.0

        def repeated(block: Block) -> tuple[ParameterGroup, ...]:
            # A head that g ranks hold is g - 1 of g parts beyond an even share of it.
            beyond = served.repeated_heads(self.job, plan.tp, block)
            return (self.replicated(beyond * copies / (copies - 1)),)

        return sum(held.share(self.sums_shares) for held in self.in_layers(chunks, repeated))

    def trained_layers(self, chunks: Sequence[Chunk]) -> tuple[ParameterGroup, ...]:
        """Trained parameters of a stage's layers on one rank, by group of holders."""
        return together(*self.in_layers(chunks, self.trained_layer))

    def trained(self, chunks: Sequence[Chunk]) -> tuple[ParameterGroup, ...]:
        """Trained parameters of a stage on one rank: its layers and, unless the model is frozen, its tables."""
        if self.job.work.adapters is None:
            return self.owned(chunks)
        return self.trained_layers(chunks) or (self.replicated(0.0),)

    def embedding(self, chunk: Chunk) -> ParameterGroup:
        """The embedding, on its stage: half of the parameters outside layers, or all if tied to the head."""
        model = self.job.model
        here = model.parameters_outside_layers / (1 if model.tied_embeddings else 2)
        return self.replicated(here / self.weight_shards if chunk.has_embedding else 0.0)

    def head(self, chunk: Chunk) -> ParameterGroup:
        """The head, on the stage that has it (a tied one only if the embedding is elsewhere), with the projections of
        the MTP modules."""
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
        """Parameters of a stage on one rank, by group of holders."""
        return together(*self.in_layers(chunks, self.layer), self.tables(chunks))

    def in_layers(
        self, chunks: Sequence[Chunk], one: Callable[[Block], tuple[ParameterGroup, ...]]
    ) -> list[ParameterGroup]:
        """What ``one`` gives for each kind of layer, times the stage's layers of that kind."""
        return [
            held._replace(parameters=held.parameters * count)
            for block, count in self.job.blocks(chunks).items()
            for held in one(block)
        ]


def together(*parts: ParameterGroup) -> tuple[ParameterGroup, ...]:
    """Joins parts with the same holders, in the order of first appearance."""
    sums: dict[tuple[str, int], ParameterGroup] = {}
    for held in parts:
        summed = sums.get((held.axis, held.copies))
        total = held.parameters if summed is None else summed.parameters + held.parameters
        sums[held.axis, held.copies] = held._replace(parameters=total)
    return tuple(sums.values())


def divided(parts: tuple[ParameterGroup, ...]) -> float:
    """Parameters that replicas shard."""
    return sum(held.parameters for held in parts if held.shards > 1)
