"""Where ranks stand: axes in order, groups that partition the cluster, placements along nodes and rails."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.engine import architecture, job_of, model_file, question
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tspsim
from tspsim.base.errors import InputError
from tspsim.parallel import Job, Plan, build_mesh, mesh_axes
from tspsim.parallel.rank_groups import ranks_along
from tspsim.program.instructions import Mesh

AXES = mesh_axes()
#: A forward pass.
WORK = job_of(architecture(512)).work
GPUS_PER_NODE = 8


def lay(gpus: int, *, node: tuple[str, ...] = (), rails: tuple[str, ...] = (), **degrees: int) -> Mesh:
    """The mesh of some degrees, dp filled in."""
    filled = dict.fromkeys(AXES, 1) | degrees
    filled.setdefault("dp", 1)
    if "dp" not in degrees:
        filled["dp"] = gpus // prod(size for axis, size in degrees.items() if axis != "ep")
    return build_mesh(Plan("test", filled, node_axes=node, rail_axes=rails), gpus, GPUS_PER_NODE)


def group_of(mesh: Mesh, axis: str, rank: int) -> list[int]:
    group: list[int] = mesh.groups(axis)[mesh.group_of(axis)[rank]].tolist()
    return group


@st.composite
def placed(draw: st.DrawFn) -> tuple[Mesh, int]:
    """A mesh of any degrees on one to eight nodes, placed by hand or not."""
    degrees = {axis: draw(st.sampled_from([1, 1, 2, 4])) for axis in AXES if axis != "dp"}
    nodes = draw(st.sampled_from([1, 2, 4, 8]))
    gpus = nodes * GPUS_PER_NODE
    assume(gpus % prod(degrees.values()) == 0)
    axes = draw(st.permutations(AXES))
    first, second = sorted([draw(st.integers(0, 5)), draw(st.integers(0, 5))])
    try:
        return lay(gpus, node=tuple(axes[:first]), rails=tuple(axes[first:second]), **degrees), gpus
    except InputError:
        assume(False)
        raise


@given(placed())
def test_every_gpu_stands_at_exactly_one_place(case: tuple[Mesh, int]) -> None:
    mesh, gpus = case
    assert sorted(mesh.ranks.reshape(-1).tolist()) == list(range(gpus))
    assert set(mesh.axes) == set(AXES) and prod(mesh.sizes.values()) == gpus


@given(placed())
def test_groups_of_an_axis_partition_the_cluster_and_agree_with_positions(case: tuple[Mesh, int]) -> None:
    mesh, gpus = case
    for axis in mesh.axes:
        groups = mesh.groups(axis)
        assert groups.shape == (gpus // mesh.sizes[axis], mesh.sizes[axis])
        assert sorted(groups.reshape(-1).tolist()) == list(range(gpus))
        everyone = np.arange(gpus)
        assert (groups[mesh.group_of(axis), mesh.positions[axis]] == everyone).all()


@given(placed())
def test_ranks_of_a_group_differ_in_nothing_but_their_position_on_its_axis(case: tuple[Mesh, int]) -> None:
    mesh, _ = case
    for axis in mesh.axes:
        for other in mesh.axes:
            along = mesh.positions[other][mesh.groups(axis)]
            if other == axis:
                assert (along == np.arange(mesh.sizes[axis])).all()
            else:
                assert (along == along[:, :1]).all()


def test_by_default_the_axes_that_talk_most_are_neighbours() -> None:
    mesh = lay(64, tp=4, sp=2, pp=2)
    assert group_of(mesh, "tp", 0) == [0, 1, 2, 3]
    assert group_of(mesh, "sp", 0) == [0, 4]
    assert group_of(mesh, "pp", 0) == [0, 8]
    assert group_of(mesh, "dp", 0) == [0, 16, 32, 48]


def test_a_folded_replica_fills_a_node() -> None:
    mesh = lay(32, tsp=8)
    assert [group_of(mesh, "tsp", 8 * node) for node in range(4)] == np.arange(32).reshape(4, 8).tolist()


def test_the_first_axis_named_for_the_node_is_innermost() -> None:
    mesh = lay(16, tp=2, sp=4, node=("sp", "tp"))
    assert group_of(mesh, "sp", 0) == [0, 1, 2, 3]
    assert group_of(mesh, "tp", 0) == [0, 4]


def test_replicas_stand_where_they_are_named() -> None:
    """Megatron's order is tp, cp, dp, pp: a pipeline's stages are the farthest apart."""
    mesh = lay(32, tp=2, pp=4, node=("tp", "sp", "dp"))
    assert group_of(mesh, "dp", 0) == [0, 2, 4, 6]
    assert group_of(mesh, "pp", 0) == [0, 8, 16, 24]
    experts = lay(32, tp=2, pp=4, ep=4, node=("tp", "sp", "dp"))
    assert group_of(experts, "ep", 0) == [0, 1, 2, 3]
    assert group_of(experts, "edp", 0) == [0, 4]


def test_an_axis_on_rails_steps_from_node_to_node_at_the_same_place() -> None:
    mesh = lay(32, tp=4, sp=4, node=("tp",), rails=("sp",))
    assert group_of(mesh, "sp", 1) == [1, 9, 17, 25]
    for group in mesh.groups("sp").tolist():
        assert len({rank % GPUS_PER_NODE for rank in group}) == 1
        assert len({rank // GPUS_PER_NODE for rank in group}) == 4
    # What the node has left holds another replica.
    assert group_of(mesh, "dp", 0) == [0, 4]


@given(placed())
def test_default_groups_are_as_near_as_the_axes_before_them_allow(case: tuple[Mesh, int]) -> None:
    mesh, gpus = case
    inner = lay(gpus, **{axis: size for axis, size in mesh.sizes.items() if axis != "dp"})
    stride = 1
    for axis in AXES:
        groups = inner.groups(axis)
        assert (np.diff(groups, axis=1) == stride).all()
        stride *= inner.sizes[axis]


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.sampled_from(["tp", "sp", "tsp"]))
def test_rail_axes_never_leave_their_rail(inside: int, across: int, axis: str) -> None:
    mesh = lay(64, pp=inside, node=("pp",), rails=(axis,), **{axis: across})
    assert (mesh.groups(axis) % GPUS_PER_NODE == mesh.groups(axis)[:, :1] % GPUS_PER_NODE).all()
    assert (mesh.groups("pp") // GPUS_PER_NODE == mesh.groups("pp")[:, :1] // GPUS_PER_NODE).all()


# Expert groups: made of the ranks of the other axes, innermost first.


@st.composite
def spread(draw: st.DrawFn) -> Mesh:
    """A mesh with an expert group of any size that its axes can fill."""
    degrees = {axis: draw(st.sampled_from([1, 2, 4])) for axis in ("tp", "sp", "pp", "dp")}
    if draw(st.booleans()):
        degrees["tsp"], degrees["tp"], degrees["sp"] = degrees["tp"], 1, 1
    gpus = prod(degrees.values())
    assume(gpus % GPUS_PER_NODE == 0)
    degrees["ep"] = draw(st.sampled_from([2, 4, 8, 16]))
    assume(Plan("test", degrees).expert_parts is not None)
    return lay(gpus, **degrees)


@given(spread())
def test_expert_groups_and_their_copies_partition_the_stages(mesh: Mesh) -> None:
    stages, gpus = mesh.positions["pp"], mesh.ranks.size
    for axis in ("ep", "edp"):
        groups = mesh.groups(axis)
        assert sorted(groups.reshape(-1).tolist()) == list(range(gpus))
        assert (stages[groups] == stages[groups[:, :1]]).all()
        assert (groups[mesh.group_of(axis), mesh.positions[axis]] == np.arange(gpus)).all()
    # A rank and its copies are what an expert group and the ranks that hold the same experts have in common.
    for rank in range(gpus):
        assert set(group_of(mesh, "ep", rank)) & set(group_of(mesh, "edp", rank)) == {rank}
    assert mesh.sizes["ep"] * mesh.sizes["edp"] * mesh.sizes["pp"] == gpus


@given(spread())
def test_expert_groups_leave_the_other_axes_whole(mesh: Mesh) -> None:
    assert prod(mesh.sizes[axis] for axis in AXES) == mesh.ranks.size
    for axis in AXES:
        groups = mesh.groups(axis)
        for other in AXES:
            if other != axis:
                along = mesh.positions[other][groups]
                assert (along == along[:, :1]).all()


@st.composite
def grouped(draw: st.DrawFn) -> tuple[Mesh, Plan]:
    """A mesh with an expert group and a shard group, one's part of every axis a multiple of the other's."""
    degrees = {axis: draw(st.sampled_from([1, 2, 4])) for axis in ("tp", "sp", "pp")}
    degrees["dp"] = draw(st.sampled_from([2, 4, 8]))
    if draw(st.booleans()):
        degrees["tsp"], degrees["tp"], degrees["sp"] = degrees["tp"], 1, 1
    gpus = prod(degrees.values())
    assume(gpus % GPUS_PER_NODE == 0)
    degrees["ep"] = draw(st.sampled_from([2, 4, 8, 16]))
    plan = Plan("test", degrees, zero=1, shard_group=draw(st.sampled_from([2, 4, 8])))
    assume(plan.expert_parts is not None and plan.shard_parts is not None)
    return build_mesh(plan, gpus, GPUS_PER_NODE), plan


@given(grouped())
@settings(deadline=None)
def test_copies_of_experts_divide_state_in_their_shard_group_and_sum_across(case: tuple[Mesh, Plan]) -> None:
    mesh, plan = case
    job = Job(architecture(512), plan, WORK)
    for whole, inside, across in (("dp+sp", "shard", "replicate"), ("edp", "expert shard", "expert replicate")):
        sizes = [prod(mesh.sizes[part] for part in mesh.parts(axis)) for axis in (whole, inside, across)]
        assert sizes[0] == sizes[1] * sizes[2] == ranks_along(job, whole)
        assert sizes[1:] == [ranks_along(job, inside), ranks_along(job, across)]
        for rank in range(0, mesh.ranks.size, 7):
            near, far = set(group_of(mesh, inside, rank)), set(group_of(mesh, across, rank))
            assert near & far == {rank}
            assert near | far <= set(group_of(mesh, whole, rank))
    # Of those that hold the same experts, ranks of one shard group and of one tensor-parallel group divide state.
    for rank in range(0, mesh.ranks.size, 7):
        copies = set(group_of(mesh, "edp", rank))
        near = {
            other
            for neighbour in group_of(mesh, "shard", rank)
            for axis in ("tp", "tsp")
            for other in group_of(mesh, axis, neighbour)
        }
        assert set(group_of(mesh, "expert shard", rank)) == copies & near


def test_an_expert_group_is_filled_from_the_innermost_axes() -> None:
    assert group_of(lay(64, tp=2, sp=2, pp=4, ep=16), "ep", 0) == list(range(16))
    assert group_of(lay(64, tp=2, pp=4, ep=4), "ep", 0) == [0, 1, 2, 3]
    assert group_of(lay(64, tp=8, pp=4, ep=4), "ep", 0) == [0, 1, 2, 3]
    assert group_of(lay(64, tsp=8, pp=2, ep=8), "ep", 8) == list(range(8, 16))
    # The replicas that share experts stand inside the pipeline's stages, the others outside.
    mesh = lay(64, pp=4, ep=8)
    assert group_of(mesh, "ep", 0) == list(range(8))
    assert group_of(mesh, "pp", 0) == [0, 8, 16, 24]
    assert group_of(mesh, "edp", 0) == [0, 32]
    assert group_of(mesh, "dp", 0) == [*range(8), *range(32, 40)]


def test_an_expert_group_that_axes_cannot_fill_is_none() -> None:
    assert Plan("test", {"tp": 4, "dp": 4, "ep": 6}).expert_parts is None
    assert Plan("test", {"tp": 4, "dp": 3, "ep": 12}).expert_parts == {"tp": 4, "sp": 1, "dp": 3}


def test_degrees_that_do_not_use_all_gpus_are_refused_with_both_numbers() -> None:
    with pytest.raises(InputError, match=r"degrees multiply to 12, but the cluster has 16"):
        lay(16, tp=4, sp=3, dp=1)


def test_a_node_that_cannot_be_filled_is_refused_with_the_place() -> None:
    with pytest.raises(InputError, match=r"plans\.test\.placement.*2 ranks .* nodes of 8 GPUs.*dp = 1 ") as caught:
        lay(16, tp=2, sp=8, node=("tp",), rails=("sp",))
    assert caught.value.exit_code == 2


def test_a_node_that_its_axes_do_not_divide_is_refused() -> None:
    """Three ranks a node of eight, or twelve across one and a half: the next along the rail would leave it."""
    for inside in (3, 12):
        with pytest.raises(InputError, match=r"placement"):
            lay(48, tp=inside, sp=2, node=("tp",), rails=("sp",))


def refuse(*plans: Any, cluster: str = "mi300x-2x8", **work: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        tspsim.simulate(question("tsp-8b", plans, cluster=cluster, **{"sequence": 16 * 1024, **work}))
    return caught.value


def test_a_remainder_of_gpus_is_an_error_that_names_the_plan() -> None:
    error = refuse({"name": "odd", "tp": 3})
    assert error.key == "plans.odd"
    assert "tp 3 = 3 GPUs a replica do not divide the cluster's 16; 1 would be left over" in str(error)


def test_a_replica_larger_than_the_cluster_is_an_error() -> None:
    assert "32 GPUs a replica do not divide the cluster's 16" in str(refuse({"name": "large", "tsp": 32}))


def test_degrees_that_do_not_divide_the_heads_are_an_error_that_names_the_degree() -> None:
    error = refuse({"name": "many", "tp": 64}, cluster="mi300x-16x8")
    assert error.key == "plans.many.tp" and "64 does not divide the 32 attention heads" in str(error)


def test_a_sequence_that_zigzag_order_cannot_cut_is_an_error_that_names_the_multiple() -> None:
    error = refuse({"name": "TSP8", "tsp": 8}, sequence=1000)
    assert error.key == "plans.TSP8.tsp" and "multiple of 16, not 1000" in str(error)


def test_ulysses_beyond_the_key_value_heads_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    model = model_file(tmp_path, architecture(1024, kv_heads=4))
    plans = [{"name": "ulysses", "sp": 8, "exchange": "ulysses"}]
    with pytest.raises(InputError, match=r"4 key/value heads, not 8; use all_gather or ring"):
        tspsim.simulate(question(model, plans, sequence=1024))
