"""Placement: the mesh of a plan on a cluster, and groups cut out of its axes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.quick import replace
from ..program.instructions import Mesh
from .lengths import sequence_groups
from .plan import EXPERT_POOL, WEIGHT_LEVELS, WEIGHT_SHARD, Plan, mesh_axes


def build_mesh(plan: Plan, gpus: int, gpus_per_node: int) -> Mesh:
    """Lay a plan's axes on a cluster of ``gpus`` GPUs, ``gpus_per_node`` to a node.

    Without a placement the axes follow GPU numbers in the order of :func:`~tspsim.parallel.plan.mesh_axes`, so that
    ranks that exchange most share a node; replicas that share experts come before pipeline stages. With a placement,
    ``node_axes`` run along the node (first named = neighbouring GPUs), data-parallel replicas fill the rest of the
    node, and ``rail_axes`` step from node to node along the rails. ``dp`` stands where it is named: ``tp, sp, dp`` and
    then the pipeline is Megatron's order. An ``order`` of nodes or GPUs replaces their numbers.

    Raises
    ------
    InputError
        The degrees do not multiply to ``gpus``, the placement does not fill nodes, or the order does not name each node
        or GPU once.
    """
    axes = mesh_axes()
    degrees = {axis: plan.degree(axis) for axis in axes}
    if prod(degrees.values()) != gpus:
        raise InputError(
            f"degrees multiply to {prod(degrees.values())}, but the cluster has {gpus} GPUs", key=f"plans.{plan.name}"
        )
    inner = list(plan.node_axes)
    outer = list(plan.rail_axes)
    middle = [axis for axis in axes if axis not in inner and axis not in outer and axis != "dp"]
    if not (inner or outer):
        inner, middle = middle, []
    order: list[tuple[str, int]] = [(axis, degrees[axis]) for axis in inner + middle]
    placed = "dp" in (*inner, *outer)
    replicas = 1 if placed else degrees["dp"]
    parts = plan.expert_parts or {}
    near = parts.get("dp", 1)
    if outer:
        in_node = prod(size for _, size in order)
        whole_nodes = in_node % gpus_per_node == 0
        fill = 1 if whole_nodes else gpus_per_node // in_node
        if not whole_nodes and (fill * in_node != gpus_per_node or replicas % fill):
            raise InputError(
                f"{in_node} ranks along a node do not fill nodes of {gpus_per_node} GPUs, "
                f"and dp = {replicas} cannot fill the rest",
                key=f"plans.{plan.name}.placement",
            )
        order += [("dp inside", fill), *((axis, degrees[axis]) for axis in outer)]
        order += [] if placed else [("dp", replicas // fill)]
    elif not placed:
        order = _with_replicas(order, replicas, near)
    names = [name for name, _ in reversed(order)]
    ranks = ordered(plan, gpus, gpus_per_node).reshape([size for _, size in reversed(order)])
    if "dp inside" in names:
        inside = names.index("dp inside")
        ranks = np.moveaxis(ranks, inside, 1)
        names.insert(1, names.pop(inside))
        ranks = ranks.reshape(ranks.shape[0] * ranks.shape[1], *ranks.shape[2:])
        names.pop(1)
    mesh = Mesh(tuple(names), ranks, {"dp": (outside_of("dp"), inside_of("dp"))} if inside_of("dp") in names else {})
    try:
        shards = plan.shard_parts or {} if plan.shard_group or plan.secondary_shard else {}
        return with_groups(mesh, parts if plan.ep > 1 else {}, shards, plan.groups)
    except ValueError as error:
        raise InputError(str(error), key=f"plans.{plan.name}") from None


def ordered(plan: Plan, gpus: int, gpus_per_node: int) -> NDArray[np.int64]:
    """GPU numbers in the mesh's order: by number, or the plan's order of nodes or GPUs."""
    if not plan.node_order:
        return np.arange(gpus, dtype=np.int64)
    order = np.array(plan.node_order, dtype=np.int64)
    nodes = gpus // gpus_per_node
    if sorted(plan.node_order) == list(range(gpus)):
        return order
    if sorted(plan.node_order) == list(range(nodes)):
        return (order[:, None] * gpus_per_node + np.arange(gpus_per_node)).reshape(-1)
    raise InputError(
        f"{len(order)} entries are no order of {nodes} nodes (0 to {nodes - 1}) or of {gpus} GPUs, each once",
        key=f"plans.{plan.name}.placement.order",
    )


def located(plan: Plan, gpus: int, gpus_per_node: int) -> Plan:
    """The plan with the number of ranks per node on its token axis, on groups that share sequences, and on expert
    groups that are placed on nodes; 0 if it differs between nodes or groups. Raises InputError for an invalid order."""
    _ = ordered(plan, gpus, gpus_per_node)
    axes = [plan.token_axis] if plan.token_shards > 1 else []
    axes += sequence_groups(plan.options, plan.dp) if "dynamic_sp" in plan.options else []
    axes += ["ep"] if plan.ep > 1 and plan.dispatch.by_nodes is not None and plan.expert_parts else []
    axes += ["dp"] if EXPERT_POOL in plan.options else []
    if not axes:
        return plan
    mesh = build_mesh(plan, gpus, gpus_per_node)
    return replace(plan, together={axis: _together(mesh.groups(axis) // gpus_per_node) for axis in axes})


def _together(nodes: NDArray[np.int64]) -> int:
    """Ranks of a group that share a node, 0 if that differs; ``nodes`` has one row per group."""
    # In a sorted row, ranks of one node are a run of equal neighbours.
    inner = np.sort(nodes, axis=1)
    starts = np.flatnonzero(np.diff(inner, axis=1, prepend=-1).reshape(-1))
    together = set(np.diff(starts, append=nodes.size).tolist())
    return together.pop() if len(together) == 1 else 0


def _with_replicas(order: list[tuple[str, int]], replicas: int, near: int) -> list[tuple[str, int]]:
    """The axes of a replica and its copies: ``dp`` outermost, but ``near`` copies that share experts before stages."""
    stages = [axis for axis, _ in order].index("pp")
    if near == 1:
        return [*order, ("dp", replicas)]
    if near == replicas:
        return [*order[:stages], ("dp", replicas), *order[stages:]]
    return [*order[:stages], (inside_of("dp"), near), *order[stages:], (outside_of("dp"), replicas // near)]


def with_groups(
    mesh: Mesh,
    expert: Mapping[str, int],
    shard: Mapping[str, int],
    groups: Mapping[str, Mapping[str, int]] | None = None,
) -> Mesh:
    """The mesh with axes of groups of neighbours, and axes across them.

    ``expert`` groups share the experts (``ep``; across them ``edp``), ``shard`` groups divide a replica's state
    (``shard``; ``replicate``). With both, ranks with the same experts divide state if they are in one shard group, or
    differ on axes outside it (``expert shard``), and sum gradients across (``expert replicate``). ``groups`` are
    others, by the name of their axis.
    """
    others = groups or {}
    for axis, part in (*expert.items(), *shard.items(), *(item for parts in others.values() for item in parts.items())):
        mesh = cut(mesh, axis, part)
    near, far = _parted(mesh, expert)
    made_of = {"ep": near, "edp": far} if near else {}
    inside, outside = _parted(mesh, shard)
    if shard:
        made_of |= {"shard": inside, "replicate": outside}
    if near and shard:
        made_of["expert shard"] = tuple(part for part in far if part not in outside)
        made_of["expert replicate"] = tuple(part for part in far if part in outside)
    made_of |= {name: _parted(mesh, parts)[0] for name, parts in others.items()}
    if WEIGHT_SHARD in others:
        made_of[WEIGHT_LEVELS] = tuple(part for part in inside if part not in made_of[WEIGHT_SHARD])
    return Mesh(mesh.axes, mesh.ranks, {**mesh.made_of, **made_of})


def cut(mesh: Mesh, axis: str, part: int) -> Mesh:
    """The mesh with a dimension boundary at groups of ``part`` neighbours of an axis.

    Raises
    ------
    ValueError
        Groups of an axis that is cut already do not nest with these.
    """
    pieces, below = mesh.parts(axis), 1
    for piece in reversed(pieces):
        size = mesh.ranks.shape[mesh.axes.index(piece)]
        if part <= below or part >= below * size:
            below *= size
            continue
        if part % below or (below * size) % part:
            raise ValueError(f"groups of {part} ranks of {axis} do not fit those of {below} or {below * size}")
        inner = part // below
        middle = between(axis) if between(axis) not in pieces else f"{between(axis)} of {part}"
        names = {
            axis: (outside_of(axis), inside_of(axis)),
            inside_of(axis): (middle, inside_of(axis)),
            outside_of(axis): (outside_of(axis), middle),
        }.get(piece, (piece, middle))
        place, shape = mesh.axes.index(piece), mesh.ranks.shape
        ranks = mesh.ranks.reshape(*shape[:place], size // inner, inner, *shape[place + 1 :])
        axes = (*mesh.axes[:place], *names, *mesh.axes[place + 1 :])
        made_of = tuple(name for old in pieces for name in (names if old == piece else (old,)))
        return Mesh(axes, ranks, {**mesh.made_of, axis: made_of})
    return mesh


def _parted(mesh: Mesh, parts: Mapping[str, int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Dimensions inside groups of the given numbers of neighbours, and across them; outermost first."""
    near: list[str] = []
    far: list[str] = []
    for axis, part in parts.items():
        below = 1
        for piece in reversed(mesh.parts(axis)):
            (near if below < part else far).insert(0, piece)
            below *= mesh.ranks.shape[mesh.axes.index(piece)]
    return tuple(near), tuple(far)


def inside_of(axis: str) -> str:
    """Name of the dimension of an axis inside one group."""
    return f"{axis} in group"


def between(axis: str) -> str:
    """Name of the dimension of an axis between smaller groups and larger ones."""
    return f"{axis} between groups"


def outside_of(axis: str) -> str:
    """Name of the dimension of an axis that counts the groups."""
    return f"{axis} over groups"
