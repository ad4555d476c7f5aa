"""Attention on some GPUs, experts on others: parts that add up, and what pools are worth beside wide expert groups."""

from __future__ import annotations

from typing import Any

import pytest

import tspsim
from tspsim.base.errors import InputError
from tspsim.network import build_cluster
from tspsim.studies.expert_pools import ExpertPoolPair, exchange_s, expert_pools

NODES = {"device": "h100", "nodes": 4, "fabric": "rail-optimised-400g"}
WORK = {"model": "deepseek-v2", "context": 4096}


def pools(batch: int, micro_batches: int = 1, expert_gpus: int = 16, **more: Any) -> ExpertPoolPair:
    return expert_pools(NODES, WORK, expert_gpus=expert_gpus, batch=batch, micro_batches=micro_batches, **more)


def test_one_micro_batch_goes_there_and_back_and_two_take_turns() -> None:
    one, two, four = (pools(768, count) for count in (1, 2, 4))
    assert one.layer_s == pytest.approx(one.attention_s + one.experts_s + one.there_s + one.back_s)
    chain = two.attention_s + two.experts_s + two.there_s + two.back_s
    assert two.layer_s == max(2 * two.attention_s, 2 * two.experts_s, chain)
    # Weights of experts and small kernels are paid in every micro-batch: four are too many here.
    assert two.step_s < one.step_s
    assert four.step_s > two.step_s


def test_experts_that_the_pool_reads_grow_slower_than_its_tokens() -> None:
    """E[a] = C·(1 − (1 − k/E)^B) of C experts a rank, B tokens of all attention GPUs: DeepSeek-V2 has 160, six a token,
    ten on each of 16 ranks."""
    for batch in (16, 64, 256):
        assert pools(batch).touched == pytest.approx(10 * (1 - (1 - 6 / 160) ** batch), rel=0.02)
    assert pools(256).experts_s < 2 * pools(16).experts_s


def test_the_exchange_is_bytes_over_nics_and_links() -> None:
    """16 GPUs send all rows to each of two nodes: a node's eight NICs take them all."""
    cluster = build_cluster("h100", 4, "rail-optimised-400g")
    size = 3072 * 5120 * 2.0
    there, back = exchange_s(cluster, 16, size)
    assert cluster.fabric is not None
    nics = 8 * cluster.fabric.nic.bandwidth.value * cluster.fabric.efficiency.value
    for each in (there, back):
        # And then NVLink, at some hundred GB/s, with the latency of a collective.
        assert size / nics < each < 2.5 * size / nics
    assert exchange_s(cluster, 16, 2 * size)[0] > there


def test_nothing_of_a_model_is_in_both_pools_or_in_none() -> None:
    found = pools(768)
    model = 2 * 236e9
    cache = 48 * 4097 * 60 * 576 * 2.0  # of 768 sequences on 16 GPUs: 576 elements a token in 60 layers
    each = found.attention_bytes - cache
    assert each + 16 * found.expert_bytes == pytest.approx(model, rel=0.01)


@pytest.mark.parametrize("batch", [768, 3072])
def test_beside_wide_groups_of_the_same_gpus_pools_are_no_gain_of_several_times(batch: int) -> None:
    """Published are 2.2 to 4.7 times other systems; wide groups by small messages are within a fifth of pools."""
    keys = {"dp": 32, "ep": 32, "expert_dispatch": "low_latency"}
    work = {**WORK, "pass": "decode", "batch": batch // 32}
    question = {"name": "wide", "cluster": NODES, "workload": work, "plans": [{"name": "P", **keys}]}
    wide = tspsim.simulate(question).plans[0].tokens_per_s_per_gpu
    best = max(pools(batch, count).tokens_per_s_per_gpu for count in (1, 2))
    assert 0.8 < best / wide < 1.2


def test_what_cannot_stand_apart_is_told() -> None:
    for keys, told in (
        ({"expert_gpus": 32}, "leave none"),
        ({"expert_gpus": 12}, "do not divide"),
        ({"batch": 100}, "do not divide 100 sequences"),
        ({"expert_gpus": 8, "batch": 24 * 256}, "attention take"),
    ):
        with pytest.raises(InputError, match=told):
            pools(**{"batch": 768, **keys})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no experts"):
        expert_pools(NODES, {**WORK, "model": "llama-3.1-8b"}, expert_gpus=8, batch=24)
