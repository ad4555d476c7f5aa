"""Rows at a rank's routed experts, and memory of experts beside a rank's share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from ..model.parts import WeightClass
from ..model.routed import RoutedShard
from . import expert_checks, expert_shards
from .balance import touched
from .feature import FEATURES, Feature
from .job import Job
from .ledger import Buffer, Lifetime
from .pipeline import Chunk


def tokens_leave(job: Job) -> bool:
    """Whether tokens of any layer go to experts on other ranks."""
    return job.plan.ep > 1 and job.model.experts is not None and not job.replicates_tokens


def own_tokens(job: Job) -> int:
    """Tokens that a rank routes: those it holds, with sequence regions 1/T of them."""
    return job.tokens // (job.plan.tp if job.plan.sequence_regions else 1)


def program_axes(job: Job) -> tuple[str, ...]:
    """Axes along which programs differ because of experts: the group's, if its ranks have different loads."""
    uneven = job.model.experts is not None and job.plan.ep > 1 and not job.expert_loads.even
    return ("ep",) if uneven else ()


def load_of(job: Job, position: int | None) -> float:
    """Load of a rank over the mean; ``position`` None: of the busiest."""
    return job.expert_loads.busiest_rank_load if position is None else job.expert_loads.loads[position]


def choices_are_drawn(job: Job) -> bool:
    """Whether choices of a serving step are drawn: ``routing.drawn``, and whole experts on several ranks."""
    plan = job.plan
    divided = plan.ep > 1 and plan.expert_owners == 1 and plan.expert_shards != 0
    return job.work.routing.drawn and job.model.experts is not None and job.step.serves and divided


def choices_drawn(job: Job, tokens: int) -> float:
    """Choices of a serving step's ``tokens`` tokens of an expert group; 0 if they are not drawn."""
    experts = job.model.experts
    return float(tokens * experts.topk) if experts is not None and choices_are_drawn(job) else 0.0


def step_load(job: Job, tokens: int, position: int | None) -> float:
    """:func:`load_of` in a serving step of ``tokens`` tokens of the whole group, with the draw of their choices."""
    choices, experts = choices_drawn(job, tokens), job.model.experts
    assert experts is not None
    if not choices:
        return load_of(job, position)
    from .draws import drawn_choices

    most = drawn_choices(job.work.routing, job.plan.expert_balance, experts, job.plan.ep, choices)
    return most * job.plan.ep / choices or load_of(job, position)


def padded_load(job: Job, local: int, position: int | None) -> float:
    """Load of the busiest of a rank's ``local`` experts over the mean; ``position`` None: of all experts."""
    experts = job.model.experts
    assert experts is not None
    loads = experts.count * job.work.routing.expert_shares(experts.count)
    return float(max(loads if position is None else loads[position * local :][:local]))


def sent_rows(job: Job, position: int | None = None) -> float:
    """Rows that a rank of an expert group receives; with balanced loads also the rows that it sends."""
    experts = job.model.experts
    if experts is None or not expert_shards.tokens_travel(job):
        return 0.0
    return own_tokens(job) * expert_shards.copies(job, experts) * load_of(job, position)


def own_rows(job: Job) -> float:
    """Rows of a rank's own tokens in the dispatch, whatever the loads, without dropped ones."""
    experts = job.model.experts
    assert experts is not None
    kept = 1.0 - job.work.routing.dropped(experts.count)
    return own_tokens(job) * expert_shards.copies(job, experts) * kept if expert_shards.tokens_travel(job) else 0.0


def left(job: Job) -> tuple[float, float]:
    """Bytes of dispatch and combine over those of randomly placed experts."""
    experts, dispatch, nodes = job.model.experts, job.plan.dispatch, job.plan.expert_nodes
    assert experts is not None
    if dispatch.by_nodes is not None and nodes > 1:
        return dispatch.by_nodes(job.work.routing, experts, job.plan.ep, nodes)[:2]
    return dispatch.left(job.work.routing, experts, job.plan.ep)


def routed_shard(job: Job, tokens: int | None = None, position: int | None = None) -> RoutedShard:
    """The experts of a rank and the rows of each, for ``tokens`` tokens per rank (None: all)."""
    experts, plan = job.model.experts, job.plan
    assert experts is not None
    grouped, replicated = plan.ep > 1, job.replicates_tokens
    if tokens is None:
        tokens = own_tokens(job) if grouped else job.tokens
    local, slices, sources = expert_shards.products(job, experts)
    load = padded_load(job, local, position) if job.work.stack.pads_experts else load_of(job, position)
    rows = tokens * (1 if replicated else sources) * experts.topk / experts.count * load
    whole = job.tensor_ranks if job.step.serves else plan.tp
    columns = max(1, whole // plan.ep) if replicated else slices if grouped else whole
    dtype, kept = job.work.precision, None
    if job.step.serves:
        formats = job.work.formats
        dtype, kept = formats.multiplied(WeightClass.EXPERTS), formats.kept(WeightClass.EXPERTS)
    return RoutedShard(job.model, local, ceil(rows), columns, dtype, job.activation_bytes, kept)


def expert_bytes(job: Job) -> float:
    """Bytes of one expert's weights."""
    return job.model.expert_parameters * job.weight_bytes


def moved_bytes(job: Job) -> float:
    """Bytes of the experts that a balance policy moves to a rank for one layer, of the rank that receives most."""
    return job.expert_loads.moved_experts * expert_bytes(job)


def buffers(job: Job, chunks: Sequence[Chunk]) -> Iterator[Buffer]:
    """Experts of other ranks for a layer, with their gradients while training; and copies that stay in all layers of
    ``chunks`` (in a serving step they count as weights: :mod:`tspsim.parallel.state.served`)."""
    if job.model.experts is not None and job.plan.ep > 1:
        moved = moved_bytes(job)
        gradients_ = moved / job.weight_bytes * job.work.optimizer.gradients if job.training else 0.0
        yield Buffer("moved_experts", moved + gradients_, Lifetime.LAYER)
        layers = sum(count for block, count in job.blocks(chunks).items() if block.experts)
        if not job.step.serves:
            yield from expert_shards.buffers(job)
            yield Buffer("copied_experts", job.expert_loads.further_experts * expert_bytes(job) * layers, Lifetime.STEP)


def touched_experts(job: Job, tokens: int, position: int | None) -> float:
    """Distinct experts of a rank that any of the group's tokens chose; ``position`` None: of the rank with most."""
    experts, plan = job.model.experts, job.plan
    assert experts is not None
    per_rank = touched(job.work.routing, plan.expert_balance, experts.count, plan.ep, tokens * experts.topk)
    mean, choices = max(per_rank) if position is None else per_rank[position], choices_drawn(job, tokens)
    if not choices:
        return mean
    from .draws import drawn_experts

    return drawn_experts(job.work.routing, plan.expert_balance, experts, plan.ep, choices) or mean


FEATURES.register(
    Feature(
        "experts",
        "routed experts, where they are and how tokens reach them",
        keys=(
            *("model.experts", "ep", "expert_dispatch", "expert_overlap", "expert_pieces", "expert_shards"),
            "expert_balance",
        ),
        check=expert_checks.check,
        buffers=buffers,
        axes=program_axes,
    )
)
