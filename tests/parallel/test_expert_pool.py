"""Attention on some GPUs and experts on others, as programs of the engine (Janus)."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.bounds import check_below

import tspsim
from tspsim.base.errors import InputError
from tspsim.step.bound import bounds
from tspsim.step.result import PlanResult
from tspsim.studies.expert_pools import expert_pools

NODES = {"device": "h100", "nodes": 4, "fabric": "rail-optimised-400g"}
WORK = {"model": "deepseek-v2", "context": 4096}
HALVES = {"expert_overlap": "two_batches"}


def asked(*plans: dict[str, Any], cluster: dict[str, Any] | None = None, **work: Any) -> tspsim.Scenario:
    return tspsim.load(
        {
            "name": "pool",
            "cluster": cluster or NODES,
            "workload": {**WORK, "pass": "decode", "batch": 24, **work},
            "plans": [{"name": f"P{index}", **plan} for index, plan in enumerate(plans)],
        }
    )


def run(*plans: dict[str, Any], **more: Any) -> list[PlanResult]:
    scenario = asked(*plans, **more)
    result = tspsim.simulate(scenario)
    check_below(bounds(scenario), result)
    assert all(plan.ran and plan.mfu <= 1.0 for plan in result.plans), [plan.error for plan in result.plans]
    return list(result.plans)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("pool", [8, 16])
@pytest.mark.parametrize("cluster", [NODES, {"device": "mi300x", "nodes": 4, "fabric": "rails-400g"}])
def test_a_step_is_that_of_the_closed_form(pool: int, cluster: dict[str, Any]) -> None:
    """T_a + T_e + 2·T_c a layer, tables and dense layers on the first pool, each kind of GPU's memory."""
    (plan,) = run({"expert_pool": pool}, cluster=cluster)
    form = expert_pools(cluster, WORK, expert_gpus=pool, batch=768)
    assert plan.step_time_s == pytest.approx(form.step_s, rel=0.003)
    assert plan.tokens_per_s == pytest.approx(form.tokens_per_s, rel=0.003)
    parts = plan.memory.parts
    kept = parts["weights"] + parts["kv_cache"]
    assert kept == pytest.approx(form.attention_bytes, rel=1e-9)
    assert kept + parts.get("expert_pool", 0.0) == pytest.approx(max(form.attention_bytes, form.expert_bytes), rel=1e-9)


def test_two_halves_in_turn_lie_between_the_busier_pool_and_the_closed_form() -> None:
    whole, halves = run({"expert_pool": 16}, {"expert_pool": 16, **HALVES})
    form = expert_pools(NODES, WORK, expert_gpus=16, batch=768, micro_batches=2)
    layers = 59
    busier_s = 2 * layers * max(form.attention_s, form.experts_s)
    # Shared experts run beside messages, which the closed form adds to what is attended.
    assert 0.8 * busier_s < halves.step_time_s < form.step_s < whole.step_time_s


def test_every_node_of_the_pool_gets_all_rows_over_its_nics_and_gives_as_many_sums() -> None:
    (plan,) = run({"expert_pool": 16})
    carried = sum(link.carried_bytes for link in plan.links if link.kind == "nic")
    rows = 768 * 5120 * 2
    # There and back, out of one NIC and into another, two nodes, 59 layers with experts.
    assert carried == pytest.approx(2 * 2 * 2 * 59 * rows, rel=1e-6)


def test_who_stands_for_others_takes_as_long() -> None:
    scenario = asked({"expert_pool": 8}, cluster={**NODES, "nodes": 2}, model="qwen3-30b-a3b", batch=4)
    (folded,), (full,) = tspsim.simulate(scenario).plans, tspsim.simulate(scenario, every_rank=True).plans
    assert folded.step_time_s == pytest.approx(full.step_time_s, rel=1e-9)
    assert len(folded.classes) < len(full.classes)
    assert folded.tokens_per_step == full.tokens_per_step == 16 * 4


def test_a_pool_that_is_too_full_is_refused_with_what_it_needs() -> None:
    wide = {"model": "deepseek-v3", "precision": {"weights": "bf16"}}
    (plan,) = tspsim.simulate(asked({"expert_pool": 8}, cluster={**NODES, "nodes": 2}, **wide)).plans
    assert not plan.ran and "expert_pool" in plan.memory.parts and "GiB per GPU" in str(plan.error)


def test_wait_and_capacity_are_those_of_the_gpus_that_attend() -> None:
    pool, wide = run({"expert_pool": 16}, {"ep": 32})
    sessions = [plan.inference["capacity"]["sessions"] for plan in (pool, wide)]
    # Half of the GPUs keep the caches of all, with more room each.
    assert 0.3 * sessions[1] < sessions[0] < 0.7 * sessions[1]


@pytest.mark.parametrize(
    ("plan", "work", "told"),
    [
        ({"expert_pool": 4}, {}, "4 of 32 GPUs: both pools take whole nodes of 8"),
        ({"expert_pool": 32}, {}, "both pools take whole nodes"),
        ({"expert_pool": 16, "tp": 2}, {}, "tp: 2 beside expert_pool is not built"),
        ({"expert_pool": 16, "ep": 16}, {}, "ep: 16 beside expert_pool is not built"),
        ({"expert_pool": 8}, {"batch": 7}, "24 attending GPUs do not divide 7 sequences a replica"),
        ({"expert_pool": 16}, {"model": "llama-3.1-8b"}, "llama-3.1-8b has none"),
        ({"expert_pool": 16, "placement": {"order": [1, 0, 2, 3]}}, {}, "the last GPUs are the pool"),
        ({"expert_pool": 16, "offload_weights": 4}, {}, "offload_weights: beside expert_pool"),
    ],
)
def test_what_does_not_go_with_it_is_refused(plan: dict[str, Any], work: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        tspsim.simulate(asked(plan, **work))


def test_other_steps_have_none() -> None:
    work = {"model": "deepseek-v2", "pass": "prefill", "sequence": 4096, "sequences_per_replica": 1}
    question = {"name": "p", "cluster": NODES, "plans": [{"name": "P", "expert_pool": 16}], "workload": work}
    with pytest.raises(InputError, match="is of steps that decode"):
        tspsim.simulate(question)
