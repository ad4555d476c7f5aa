"""Exchanges with experts in slices of the experts' own kernels (Comet, Zhang et al. 2025, arXiv 2502.19811):
``overlap: fused`` for experts that tokens are sent to.

The first product is cut along tokens, ordered by source rank, a rank's own first; the second along columns, so that
rows are summed and returned while later columns are multiplied. With n slices, W per direction of the exchange,
products C₁ (gate, up, activation) and C₂ (down):

    max(C₁, W + C₁/n) + C₂/n + (n − 1)·max(C₂, W)/n + W/n

that is max(C₁, W) + max(C₂, W) and a slice of each. Unlike pieces of tokens through both products (``expert_pieces``,
Tutel's degree), slices do not make products smaller. A serving step's kernel has both products, the first with two
thirds of a gated expert's FLOPs. Gradients take the same paths; the first product's weight gradients follow its input
gradients, beside the last rows.

There are as many slices as ranks, at most :data:`MOST`. Separate kernels pack and order rows, as without fusion. The
fused kernel moves its rows itself at the links' rate, so a library's dispatch kernels cannot be inside it; the compute
units that it takes are the device's factor of kernels beside transfers. The paper cuts finer tiles and chooses blocks
for transfers by measurement; nobody has published such kernels for AMD's GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...model.routed import RoutedShard
from ...operators import Computes, Operator
from ..builder import ProgramBuilder, Slice
from ..expert_rows import own_rows, sent_rows, tokens_leave
from ..feature import FEATURES, Feature
from ..interleave import EXCHANGE
from ..job import Job
from ..pipeline import Refusal
from ..recompute import recomputed_kernels
from . import fused
from .fused import FUSED

#: Most slices: a sixteenth of a product and of an exchange then stays exposed.
MOST = 16


def applies(job: Job) -> bool:
    """Whether a plan's experts are fused with their exchanges."""
    return job.plan.overlap == FUSED and job.plan.ep > 1 and not job.replicates_tokens


def check(job: Job) -> Refusal:
    """Why the plan does not fit."""
    plan = job.plan
    if not applies(job):
        if plan.overlap == FUSED and plan.tp == 1:
            return "overlap", "fused is of products and sums of tp > 1, and of experts that tokens are sent to"
        return None
    dispatch = plan.dispatch
    if dispatch.phases is not None or dispatch.gathers or dispatch.everywhere or dispatch.by_nodes is not None:
        problem = (
            f"fused kernels move tokens to experts themselves; {plan.expert_dispatch} is a library's way: use links"
        )
        return "expert_dispatch", problem
    if plan.hiding.halves or plan.hiding.micro_batches:
        return "expert_overlap", f"{plan.expert_overlap} hides what overlap: fused hides; leave one out"
    if plan.expert_pieces > 1:
        return "expert_pieces", f"{plan.expert_pieces} are calls of their own beside overlap: fused; leave one out"
    if plan.expert_shards is not None:
        return "expert_shards", f"{plan.expert_shards} is not built beside overlap: fused; leave one out"
    return None


FEATURES.register(
    Feature(
        "fused",
        "exchanges in slices of the kernels that need them, or make what they carry",
        options=(fused.TRANSPORT,),
        keys=("overlap",),
        scheme="tensor",
        check=lambda job: check(job) or fused.check(job, tokens_leave(job)),
        buffers=lambda job, chunks: fused.buffers(job),
    )
)


def slices(job: Job) -> int:
    """Slices of each product."""
    return min(job.plan.ep, MOST)


def arrive(builder: ProgramBuilder, count: int, size_bytes: float, name: str, after: Sequence[int]) -> list[list[int]]:
    """Dependencies of each of ``count`` slices: the rank's own rows are present, the others' arrive in count − 1."""
    moved = [_exchange(builder, size_bytes, name, after, Slice(number, count - 1)) for number in range(count - 1)]
    return [list(after), *([move] for move in moved)]


def forward(
    builder: ProgramBuilder,
    job: Job,
    routed: RoutedShard,
    sums: Sequence[Operator],
    after: Sequence[int],
    here: Sequence[int],
    shared: Callable[[], list[int]],
) -> tuple[list[int], int, list[int]]:
    """From the router's choice to returned rows. ``sums``: kernels that sum a token's rows on one rank; ``here``: moved
    weights to wait for.

    Returns the dependencies of the last sum, the last product, and the last instructions of the shared experts, which
    run beside the first rows' transfer.
    """
    packed = builder.compute("pack rows for dispatch", routed.copy(own_rows(job), "pack rows"), after=after)
    arrived = arrive(builder, slices(job), _size(job), "dispatch", [packed])
    done = shared()
    first = routed.copy(routed.all_rows, "rows to experts"), routed.gate_up(), routed.activation()
    entered = _enter(builder, "experts: gate, up", first, arrived, here)
    back, multiplied = _leave(builder, job, "experts: down", (routed.down(), *sums), entered, "combine")
    return back, multiplied, done


def backward(
    builder: ProgramBuilder,
    job: Job,
    routed: RoutedShard,
    sums: Sequence[Operator],
    here: Sequence[int],
    shared: Callable[[], list[int]],
) -> tuple[list[int], int, list[int]]:
    """The forward mirrored."""
    packed = builder.compute("pack rows for dispatch gradients", routed.copy(own_rows(job), "pack rows"))
    arrived = arrive(builder, slices(job), _size(job), "dispatch gradients", [packed])
    done = shared()
    first = (
        routed.copy(routed.all_rows, "d rows to experts", Computes.INPUT_GRADIENT),
        *builder.gradients(routed.down()),
        *recomputed_kernels(job, routed.activation()),
        routed.activation_backward(),
    )
    entered = _enter(builder, "experts backward: down", first, arrived, here)
    rows, *weights = builder.gradients(routed.gate_up())
    name = "experts backward: gate, up"
    back, multiplied = _leave(builder, job, name, (rows, *sums), entered, "combine gradients")
    if weights:
        multiplied = builder.compute(f"{name}, weight", *weights)
    return back, multiplied, done


def serve(
    builder: ProgramBuilder,
    kernel: Operator,
    gated: bool,
    count: int,
    arrived: Sequence[Sequence[int]],
    here: Sequence[int],
    size_bytes: float,
) -> list[int]:
    """A serving step's single kernel of both products, in ``count`` slices of each, and its rows' return; returns the
    dependencies of their sum."""
    wide = 2 if gated else 1
    of = count * (wide + 1)
    for number, arrival in enumerate(arrived):
        waits = [*arrival, *([] if number else here)]
        entered = builder.compute("experts", *[kernel] * wide, after=waits, slice_of=Slice(number, of))
    back: list[int] = []
    for number in range(count):
        left = builder.compute("experts", kernel, after=[entered], slice_of=Slice(count + number, of))
        back.append(_exchange(builder, size_bytes, "combine", [left], Slice(number, count)))
    return back


def _size(job: Job) -> float:
    return sent_rows(job) * job.model.hidden * job.activation_bytes


def _enter(
    builder: ProgramBuilder,
    name: str,
    operators: Sequence[Operator],
    arrived: Sequence[Sequence[int]],
    here: Sequence[int],
) -> int:
    for number, arrival in enumerate(arrived):
        waits = [*arrival, *([] if number else here)]
        last = builder.compute(name, *operators, after=waits, slice_of=Slice(number, len(arrived)))
    return last


def _leave(
    builder: ProgramBuilder, job: Job, name: str, operators: Sequence[Operator], entered: int, back_name: str
) -> tuple[list[int], int]:
    count, back = slices(job), list[int]()
    for number in range(count):
        part = Slice(number, count)
        last = builder.compute(name, *operators, after=[entered], slice_of=part)
        back.append(_exchange(builder, _size(job), back_name, [last], part))
    return back, last


def _exchange(builder: ProgramBuilder, size_bytes: float, name: str, after: Sequence[int], slice_of: Slice) -> int:
    return builder.collective("all_to_all", "ep", size_bytes, name, after=after, stream=EXCHANGE, slice_of=slice_of)
