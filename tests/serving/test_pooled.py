"""Plans with pools from a scenario to its answer: what is sent, over which NICs, on whose GPUs, at whose price."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tspsim
from tspsim.base.errors import InputError
from tspsim.scenario import load
from tspsim.serving.answer import deployment_of
from tspsim.serving.log import StepKind
from tspsim.serving.work import StepWork
from tspsim.step.question import look_up
from tspsim.step.result import PlanResult

OTHER = {"device": "mi300x", "nodes": 1, "gpus_per_node": 4}


def scenario(pools: dict[str, Any], cluster: dict[str, Any] | None = None, clients: int = 4) -> dict[str, Any]:
    return {
        "name": "pools",
        "cluster": cluster or {"device": "h200", "nodes": 2, "fabric": "rails-400g", "gpus_per_node": 4},
        "workload": {"model": "llama-3.1-8b", "stack": "vllm"},
        "traffic": {
            "arrivals": {"kind": "closed", "concurrency": clients},
            "prompt": {"kind": "fixed", "of": 4096},
            "output": {"kind": "fixed", "of": 64},
            "requests": 24,
        },
        "plans": [{"name": "split", "pools": pools}],
    }


def answered(pools: dict[str, Any], **more: Any) -> PlanResult:
    (plan,) = tspsim.simulate(load(scenario(pools, **more))).plans
    assert plan.ran, plan.error
    return plan


def pools(p: int = 4, d: int = 4, **more: Any) -> dict[str, Any]:
    return {"prefill": {"replicas": 1, "tp": p}, "decode": {"replicas": 1, "tp": d}, **more}


@pytest.mark.parametrize(("clients", "together"), [(1, 1), (4, 2)])
def test_all_of_a_prompts_cache_goes_once_over_as_many_nics_as_there_are_ranks(clients, together):
    # A step reads up to 8,192 tokens: with four clients two prompts end at once, and their caches share the NICs.
    plan = answered(pools(), clients=clients)
    (size,) = {transfer.size_bytes for transfer in plan.runs[0].transfers}
    assert size == pytest.approx(4096 * 32 * 2 * 8 * 128 * 2)  # tokens, layers, K and V, heads, width, bf16
    cluster = look_up(load(scenario(pools()))).cluster
    assert cluster.fabric is not None
    rate = 4 * cluster.fabric.nic.bandwidth.value * cluster.fabric.efficiency.value
    moved_s = together * size / rate + 2 * cluster.fabric.nic.latency.value
    exposed = [transfer.exposed_s for transfer in plan.runs[0].transfers]
    assert min(exposed) == pytest.approx(1e-3 + moved_s)


def test_a_push_hides_what_a_pull_waits_for():
    pulled, pushed = answered(pools()), answered(pools(transfer="push"))
    waits = [np.mean([each.exposed_s for each in plan.runs[0].transfers]) for plan in (pulled, pushed)]
    assert waits[1] < 0.2 * waits[0]


def test_steps_that_write_read_no_prompts():
    (run,) = answered(pools()).runs
    kinds = {name: set(log.column("kind").tolist()) for name, log in zip(run.names, run.logs, strict=True)}
    assert kinds == {"prefill 0": {StepKind.PREFILL}, "decode 0": {StepKind.DECODE}}


def test_time_an_output_token_is_that_of_decoding_alone():
    plan = answered(pools(first_token="prefill", transfer="push"))
    deployment = deployment_of(question := look_up(load(scenario(pools()))), question.plans[0])
    step_s = deployment.costs.seconds([StepWork((), (4096 + 32,) * 2)])
    assert plan.serving["tpot_s"]["p50"] == pytest.approx(step_s, rel=0.25)


def test_all_gpus_count_and_cost():
    plan = answered(pools())
    assert plan.gpus == 8
    usd = plan.cost["usd_per_gpu_hour"]["neocloud"] * 8 * plan.serving["wall_s"] / 3600
    assert plan.cost["usd_per_million_tokens"]["neocloud"] == pytest.approx(usd / (24 * 64) * 1e6)


def test_answers_may_be_written_on_other_gpus_than_prompts_are_read_on():
    mixed = {
        "prefill": {"replicas": 1, "tp": 4},
        "decode": {"replicas": 1, "tp": 4, "cluster": OTHER},
        "fabric": "rails-400g",
    }
    plan = answered(mixed, cluster={"device": "h200", "gpus_per_node": 4})
    prices = {name: tspsim.hardware.load_device(name).prices_usd_per_hour["neocloud"] for name in ("h200", "mi300x")}
    assert plan.cost["usd_per_gpu_hour"]["neocloud"] == pytest.approx(sum(prices.values()) / 2)
    assert plan.gpus == 8
    assert plan.runs[0].transfers


def test_clusters_that_nothing_joins_are_refused():
    mixed = {"prefill": {"replicas": 1, "tp": 4}, "decode": {"replicas": 1, "tp": 4, "cluster": OTHER}}
    with pytest.raises(InputError, match="has no fabric to reach the other pool by; name one"):
        tspsim.simulate(load(scenario(mixed, cluster={"device": "h200", "gpus_per_node": 4})))


def test_a_degree_that_divides_nothing_is_told_at_its_pool():
    with pytest.raises(InputError, match=r"plans\.split\.pools\.decode"):
        look_up(load(scenario({"prefill": {"replicas": 5, "tp": 1}, "decode": {"replicas": 1, "tp": 3}})))


def test_pools_without_traffic_are_refused():
    alone = scenario(pools())
    del alone["traffic"]
    alone["workload"] |= {"pass": "decode", "batch": 4, "context": 1000}
    with pytest.raises(InputError, match="pools serve requests, and the scenario has no `traffic`"):
        look_up(load(alone))
