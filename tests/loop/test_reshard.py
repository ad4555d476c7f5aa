"""Weights between training and generation: the published bytes, and gathers that run on the machine's links."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tspsim.base.errors import InputError
from tspsim.loop.reshard import RESHARD_METHODS, reshard
from tspsim.network import collective, load_cluster

M = 140e9
NODES = "h100-2x8"


@given(
    tp=st.sampled_from([1, 2, 4, 8]), pp=st.sampled_from([1, 2]), tensor=st.sampled_from([1, 2, 4, 8]),
    stages=st.sampled_from([1, 2]),
)  # fmt: skip
def test_bytes_are_those_of_the_paper(tp: int, pp: int, tensor: int, stages: int) -> None:
    """HybridFlow's Table 2."""
    if tp % tensor or pp % stages:
        with pytest.raises(InputError):
            reshard(NODES, M, tp=tp, pp=pp, generate_tp=tensor, generate_pp=stages)
        return
    found = {
        way: reshard(NODES, M, tp=tp, pp=pp, generate_tp=tensor, generate_pp=stages, way=way) for way in RESHARD_METHODS
    }
    whole, part, ranks = tp * pp, tensor * stages, 16
    assert found["everyone"].received_bytes == pytest.approx(M * (ranks - 1) / ranks)
    assert found["replica"].received_bytes == pytest.approx(M * (whole - 1) / whole)
    assert found["interleaved"].received_bytes == pytest.approx(M * (whole - part) / (part * whole))
    assert [found[way].beside_bytes for way in RESHARD_METHODS] == pytest.approx([M / ranks, M / whole, 0.0])
    assert found["interleaved"].held_bytes == pytest.approx(M / part)
    assert found["interleaved"].seconds <= found["replica"].seconds * (1 + 1e-9)


def test_nothing_moves_where_the_layouts_are_the_same() -> None:
    found = reshard(NODES, M, tp=8, generate_tp=8)
    assert (found.received_bytes, found.seconds) == (0.0, 0.0)


def test_groups_that_share_no_link_take_as_long_as_one_alone() -> None:
    """Behind a switch four pairs gather as one does; on a mesh every pair has a link of its own."""
    for cluster in ("hgx-h100-8", "mi300x-8"):
        found = reshard(cluster, M, tp=8, generate_tp=4)
        alone = collective(load_cluster(cluster), range(2), "all_gather", M / 4)
        assert found.seconds == pytest.approx(alone.latency_s + alone.fluid_s)


def test_stages_that_are_joined_gather_across_nodes() -> None:
    near = reshard(NODES, M, tp=8, generate_tp=4)
    far = reshard(NODES, M, tp=8, pp=2, generate_tp=8)
    assert far.received_bytes == near.received_bytes / 2
    assert far.seconds > near.seconds


def test_wrong_degrees_are_told() -> None:
    with pytest.raises(InputError, match="3 is no divisor of 8"):
        reshard(NODES, M, tp=8, generate_tp=3)
    with pytest.raises(InputError, match="does not divide the 16 GPUs"):
        reshard(NODES, M, tp=3)
    with pytest.raises(InputError, match="interleaved"):
        reshard(NODES, M, way="interleave")
