"""Rings over all links of a mesh: data moves around the ranks of an axis in parts, along rings that share no link.

A mesh of n GPUs has n − 1 links per GPU, of which one ring uses one. Its arcs split into edge-disjoint Hamiltonian
cycles (:func:`~tspsim.network.hamiltonian_cycles`; TASP, Wang et al. 2025): a block is cut into as many parts, each of
which takes one cycle, so that a rank then holds parts of several ranks' blocks. Over N nodes of g ranks there are two
levels: blocks move around inside every node in g − 1 hops while those of the node before arrive over the rails, from
the rank in the same place. Step s = r·g + i of the D = N·g is hop i of round r.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..base.memo import remembered
from ..network import hamiltonian_cycles
from ..program import RING_SHIFT
from .builder import ProgramBuilder
from .job import Job
from .plan import Plan


def refused(plan: Plan, axis: str) -> str | None:
    """Why an axis cannot use several rings; None if it can."""
    ranks, here = plan.degree(axis), plan.node_ranks(axis)
    if here and ranks % here == 0:
        return None
    return f"multi_ring needs as many of the {ranks} ranks of {axis} in every node"


def by_rail(job: Job, axis: str, step: int) -> bool:
    """Whether the blocks of a step arrive from another node."""
    return step > 0 and step % job.plan.node_ranks(axis) == 0


def lead(job: Job, axis: str, step: int) -> int:
    """Steps between a block's departure and its use: one, or a round if it arrives over the rails."""
    return job.plan.node_ranks(axis) if by_rail(job, axis, step) else 1


def bring(
    builder: ProgramBuilder,
    job: Job,
    axis: str,
    step: int,
    size_bytes: float,
    name: str,
    after: Sequence[int],
    stream: str,
) -> int:
    """Write the transfer of a step's blocks; a rank sends what it received :func:`lead` steps before."""
    if not by_rail(job, axis, step):
        return hop(builder, axis, size_bytes, f"{name} hop {step}", after, stream)
    here = job.plan.node_ranks(axis)
    where = f"{name} from {step // here} nodes before"
    return builder.pass_on(axis, here, size_bytes, where, after=after, stream=f"{stream} by rail")


def reduce_gradients(
    builder: ProgramBuilder,
    job: Job,
    axis: str,
    step: int,
    size_bytes: float,
    name: str,
    after: Sequence[int],
    stream: str,
) -> int:
    """Write the transfer of the gradients of a step's blocks: around their node, with every rank's part added, and
    after the last hop of a round from the rank where the block arrived to its owner."""
    here, done = job.plan.node_ranks(axis), list(after)
    if here > 1:
        done = [hop(builder, axis, size_bytes, f"{name} hop {step + 1}", done, stream)]
    rounds, place = divmod(step, here)
    if rounds and place == here - 1:
        where = f"{name} to {rounds} nodes before"
        done = [builder.pass_on(axis, -rounds * here, size_bytes, where, after=done, stream=f"{stream} by rail")]
    return done[0]


def hop(builder: ProgramBuilder, axis: str, size_bytes: float, name: str, after: Sequence[int], stream: str) -> int:
    """One hop inside the nodes, along all rings at once."""
    return builder.collective(RING_SHIFT, axis, size_bytes, name, after=after, stream=stream, algorithm="multi_ring")


def owners(job: Job, axis: str, position: int, step: int) -> tuple[int, ...]:
    """Owners (positions on the axis) of the parts that a rank holds at a step, one per cycle."""
    ranks, here = job.plan.degree(axis), job.plan.node_ranks(axis)
    rounds, turns = divmod(step, here)
    node, place = divmod(position - rounds * here, here)
    first = node * here % ranks
    return tuple(first + before for before in _before(here, place, turns))


@remembered(128)
def _before(ranks: int, place: int, turns: int) -> tuple[int, ...]:
    """The rank ``turns`` places before another, on every cycle."""
    if ranks == 1:
        return (0,)
    return tuple(cycle[(cycle.index(place) - turns) % ranks] for cycle in hamiltonian_cycles(ranks))
