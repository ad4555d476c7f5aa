"""Caches of some sequences in the host's memory, or in a pool: the closed form, memory, the link, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.bounds import check_below

import tspsim
from tspsim.base.errors import InputError
from tspsim.network import host_bandwidth, load_cluster
from tspsim.step.bound import bounds
from tspsim.step.result import PlanResult

NODE = {"device": "mi300x", "nodes": 1}
POOL = {"node": "h200-pool-72", "gpus_per_node": 8}


def run(*plans: dict[str, Any], cluster: Any = None, **work: Any) -> list[PlanResult]:
    scenario = tspsim.load(
        {
            "name": "caches",
            "cluster": cluster or NODE,
            "workload": {"model": "llama-3.1-70b", "pass": "decode", "batch": 16, "context": 8192, **work},
            "plans": [{"name": f"P{index}", "tp": 8, **plan} for index, plan in enumerate(plans)],
        }
    )
    result = tspsim.simulate(scenario)
    check_below(bounds(scenario), result)
    assert all(plan.ran and plan.mfu <= 1.0 for plan in result.plans), [plan.error for plan in result.plans]
    return list(result.plans)


@pytest.mark.parametrize("share", [0.125, 0.5, 0.9375])
def test_a_step_takes_the_closed_form(share: float) -> None:
    """K/b + (n − 1)·max(C, K/b) + C."""
    home, away = run({}, {"host_caches": share})
    sequences, layers = round(16 * share), 80
    copied = sequences * 8193 * 2 * 128 * 2  # one key/value head a rank
    copy_s, layer_s = copied / host_bandwidth(load_cluster("mi300x-8").node), home.step_time_s / layers
    closed = copy_s + (layers - 1) * max(layer_s, copy_s) + layer_s
    assert away.step_time_s == pytest.approx(closed, rel=0.02)
    frame = away.timeline.frame()
    came = frame[(frame["name"] == "caches from host") & (frame["rank"] == 0)]
    assert len(came) == layers and float(came["bytes"].sum()) == pytest.approx(layers * copied)


def test_caches_that_are_away_take_two_layers_of_room() -> None:
    home, away = run({}, {"host_caches": 0.5})
    assert away.memory.parts["kv_cache"] == pytest.approx(0.5 * home.memory.parts["kv_cache"])
    one_layer = home.memory.parts["kv_cache"] / 80
    assert away.memory.parts["cache_buffers"] == pytest.approx(2 * 0.5 * one_layer)
    sessions = [plan.inference["capacity"]["sessions"] for plan in (home, away)]
    assert sessions[1] == pytest.approx(2 * sessions[0], rel=0.02)


def test_nothing_that_is_away_is_faster_and_more_away_is_never_faster() -> None:
    steps = [plan.step_time_s for plan in run({}, *({"host_caches": share} for share in (0.01, 0.125, 0.25, 0.5)))]
    assert steps[0] == steps[1]  # not one whole sequence
    assert steps[1:] == sorted(steps[1:])


def test_a_pool_as_fast_as_memory_hides_them() -> None:
    home, away = run({}, {"host_caches": 0.5}, cluster=POOL)
    assert home.step_time_s < away.step_time_s < 1.2 * home.step_time_s


def test_latents_stages_and_mixed_steps_go_with_it() -> None:
    run({"tp": 4, "pp": 2, "host_caches": 0.5})
    home, away = run({"dp": 8, "tp": 1, "ep": 8}, {"dp": 8, "tp": 1, "ep": 8, "host_caches": 0.5}, model="deepseek-v2")
    assert away.step_time_s > home.step_time_s
    mixed = {"pass": "mixed", "sequence": 512, "sequences_per_replica": 1}
    home, away = run({}, {"host_caches": 0.5}, **mixed)
    assert away.step_time_s > home.step_time_s


def test_who_stands_for_others_takes_as_long() -> None:
    work = {"model": "qwen3-8b", "pass": "decode", "batch": 8, "context": 2048}
    plans = [{"name": "P", "tp": 2, "host_caches": 0.25}]
    scenario = tspsim.load({"name": "c", "cluster": NODE, "plans": plans, "workload": work})
    (folded,), (full,) = tspsim.simulate(scenario).plans, tspsim.simulate(scenario, every_rank=True).plans
    assert folded.step_time_s == pytest.approx(full.step_time_s, rel=1e-9)


@pytest.mark.parametrize(
    ("plan", "work", "told"),
    [
        ({"host_caches": 0.5, "host_attention": 0.1}, {}, "host_attention: beside host_caches"),
        ({"host_caches": 0.5, "dcp": 8}, {}, "dcp: beside host_caches"),
        ({"host_caches": 0.5, "offload_weights": 2}, {}, "offload_weights: beside host_caches"),
        ({"host_caches": 0.5}, {"model": "qwen3-next-80b-a3b"}, "keeps others"),
        ({"host_caches": 1.5}, {}, "host_caches"),
    ],
)
def test_what_does_not_go_with_it_is_refused(plan: dict[str, Any], work: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        run(plan, **work)
