"""Weights of some layers in neighbours' memory (EnergonAI): the closed form, memory, the link, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.bounds import check_below

import tspsim
from tspsim.base.errors import InputError
from tspsim.hardware import load_device
from tspsim.network import collective, load_cluster
from tspsim.step.bound import bounds
from tspsim.step.result import PlanResult

CLUSTERS = {"mi300x": "mi300x-8", "h100": "hgx-h100-8"}


def run(*plans: dict[str, Any], device: str = "h100", every: bool = False, **work: Any) -> list[PlanResult]:
    asked = {"model": "llama-3.1-8b", "pass": "prefill", "sequence": 4096, "sequences_per_replica": 1, **work}
    scenario = tspsim.load(
        {
            "name": "peers",
            "cluster": {"device": device, "nodes": 1},
            "workload": {key: value for key, value in asked.items() if value is not None},
            "plans": [{"name": f"P{index}", **plan} for index, plan in enumerate(plans)],
        }
    )
    result = tspsim.simulate(scenario)
    check_below(bounds(scenario), result)
    assert all(plan.ran and plan.mfu <= 1.0 for plan in result.plans), [plan.error for plan in result.plans]
    if every:
        for folded, full in zip(result.plans, tspsim.simulate(scenario, every_rank=True).plans, strict=True):
            assert folded.step_time_s == pytest.approx(full.step_time_s, rel=1e-9)
    return list(result.plans)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(("device", "peers"), [("h100", 2), ("h100", 8), ("mi300x", 2)])
@pytest.mark.parametrize("tokens", [256, 16384])
def test_layers_that_all_come_take_the_closed_form(device: str, peers: int, tokens: int) -> None:
    """W/b + (n − 1)·max(C, W/b) + C of gathers among p, hidden where (1 − 1/p)·W/b ≤ C; kernels and gathers beside each
    other are slower by the device's factors."""
    home, away = run({}, {"offload_weights": 32, "weight_peers": peers}, device=device, sequence=tokens)
    weights = 2 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336 + 2 * 4096)
    gather_s = collective(load_cluster(CLUSTERS[device]), range(peers), "all_gather", weights).alone_s
    layer_s, gpu = home.step_time_s / 32, load_device(device)

    def closed(kernels_s: float, wire_s: float) -> float:
        return wire_s + 31 * max(kernels_s, wire_s) + kernels_s

    beside = closed(layer_s * gpu.compute_slowdown, gather_s * gpu.communication_slowdown)
    assert closed(layer_s, gather_s) * 0.99 <= away.step_time_s <= beside * 1.01


def test_neighbours_are_faster_than_the_host_and_keep_their_part() -> None:
    home, host, peers = run(
        {}, {"offload_weights": 16}, {"offload_weights": 16, "weight_peers": 4}, sequence=512, every=True
    )
    assert home.step_time_s <= peers.step_time_s < host.step_time_s
    gone = home.memory.parts["weights"] - peers.memory.parts["weights"]
    assert peers.memory.parts["weights_for_neighbours"] == pytest.approx(gone / 4)
    assert peers.memory.parts["weight_buffers"] == host.memory.parts["weight_buffers"] == pytest.approx(gone / 8)
    assert peers.memory.peak_bytes < home.memory.peak_bytes


def test_more_neighbours_keep_less_and_every_fourth_layer_hides_behind_four() -> None:
    two, eight, fourth = run(
        {"offload_weights": 32, "weight_peers": 2}, {"offload_weights": 32, "weight_peers": 8},
        {"offload_weights": 8, "weight_peers": 2}, sequence=2048,
    )  # fmt: skip
    assert eight.memory.peak_bytes < two.memory.peak_bytes
    assert fourth.step_time_s < two.step_time_s


def test_decoding_forward_and_tensor_parallel_ranks_go_with_it() -> None:
    keys = {"offload_weights": 8, "weight_peers": 2}
    run({"tp": 2, **keys}, every=True)
    run(keys, **{"pass": "decode", "batch": 8, "context": 2048, "sequence": None, "sequences_per_replica": None})
    run(keys, **{"pass": "forward"})


@pytest.mark.parametrize(
    ("plan", "work", "told"),
    [
        ({"weight_peers": 2}, {}, "state how many these are"),
        ({"offload_weights": 8, "weight_peers": 3}, {}, "3 does not divide the 8 replicas"),
        ({"offload_weights": 8, "weight_peers": 2}, {"pass": "training"}, "of steps that keep weights as they are"),
        ({"offload_weights": 8, "weight_peers": 2, "ep": 8}, {"model": "qwen3-30b-a3b"}, "beside ep 8"),
    ],
)
def test_what_does_not_go_with_it_is_refused(plan: dict[str, Any], work: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        run(plan, **work)
