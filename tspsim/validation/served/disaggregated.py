"""Runs with prefill and decode workers of their own, as scenarios with two pools."""

from __future__ import annotations

from typing import Any

from tspsim.answer import simulate
from tspsim.errors import InputError

from ..runs import FABRICS, USUAL_FABRIC, machine
from .measures import Measures
from .question import scenario_of
from .run import ServedPlan, ServedRun


def replay(run: ServedRun) -> Measures:
    """The run from its first request to its last answer; raises InputError where it is not covered."""
    result = simulate(scenario(run))
    plan = result.plans[0]
    if not plan.ran or plan.serving is None:
        raise InputError(str(plan.error or "nothing was served"))
    found = plan.serving
    return Measures(
        ttft_s=found["ttft_s"]["mean"],
        tpot_s=found["tpot_s"]["mean"],
        median_ttft_s=found["ttft_s"]["p50"],
        median_tpot_s=found["tpot_s"]["p50"],
        output_tokens_per_s=found["output_tokens_per_s"],
        tokens_per_s=found["total_tokens_per_s"],
        preemptions=found["preemptions"],
    )


def scenario(run: ServedRun) -> dict[str, Any]:
    """With as many nodes as the workers fill, joined as such machines mostly are."""
    assert run.prefill is not None
    plan, count = run.prefill
    workload = scenario_of(run.plan)["workload"]
    node, nodes = machine(run.plan.device, run.gpus)
    cluster: dict[str, Any] = {"device": run.plan.device, "node": node, "nodes": nodes}
    if nodes > 1:
        cluster["fabric"] = FABRICS.get(run.plan.device, USUAL_FABRIC)
    pools = {"prefill": _pool(plan, count), "decode": _pool(run.plan, run.replicas)}
    return {
        "name": "validation",
        "cluster": cluster,
        "workload": workload,
        "traffic": {
            "arrivals": {"kind": "closed", "concurrency": run.concurrency},
            "prompt": {"kind": "uniform", "of": run.prompt, "from": run.least},
            "output": {"kind": "uniform", "of": run.output, "from": run.least},
            "requests": run.requests,
        },
        "plans": [{"name": "run", "pools": pools}],
    }


def _pool(plan: ServedPlan, replicas: int) -> dict[str, Any]:
    pool: dict[str, Any] = {"replicas": replicas, "tp": plan.tp}
    if plan.dp > 1:
        pool["dp"] = plan.dp
    if plan.ep > 1:
        pool["ep"] = plan.ep
    if plan.dp > 1 and plan.ep > 1:
        pool["expert_dispatch"] = "gather"
    return pool
