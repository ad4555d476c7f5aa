"""Runs with prefill and decode workers of their own, as scenarios with two pools."""

from __future__ import annotations

from typing import Any

from tspsim.scenario import load
from tspsim.serving.answer import deployment_of
from tspsim.serving.metrics import Waits
from tspsim.serving.points import serve
from tspsim.simulation import look_up

from ..devices import LOOKUPS
from ..runs import FABRICS, USUAL_FABRIC, machine
from .question import scenario_of
from .run import ServedPlan, ServedRun
from .scripts import BESIDE


def waits_of(run: ServedRun, count: int) -> Waits:
    """What the clients of a run's first requests waited for; raises InputError where it is not covered."""
    question = look_up(load(scenario(run, count)), LOOKUPS)
    traffic = question.scenario.traffic
    assert traffic is not None
    waits, _ = serve(deployment_of(question, question.plans[0]), traffic)
    return waits


def scenario(run: ServedRun, count: int) -> dict[str, Any]:
    """With as many nodes as the workers fill, joined as such machines mostly are."""
    assert run.prefill is not None
    plan, workers = run.prefill
    workload = scenario_of(run.plan)["workload"]
    if run.policy == "trtllm":
        workload["engine"] = {"max_num_tokens": max(8192, run.prompt + BESIDE)}
    node, nodes = machine(run.plan.device, run.gpus)
    cluster: dict[str, Any] = {"device": run.plan.device, "node": node, "nodes": nodes}
    if nodes > 1:
        cluster["fabric"] = FABRICS.get(run.plan.device, USUAL_FABRIC)
    pools = {"prefill": _pool(plan, workers), "decode": _pool(run.plan, run.replicas)}
    return {
        "name": "validation",
        "cluster": cluster,
        "workload": workload,
        "traffic": {
            "arrivals": {"kind": "closed", "concurrency": run.concurrency},
            "prompt": {"kind": "uniform", "of": run.prompt, "from": run.least},
            "output": {"kind": "uniform", "of": run.output, "from": run.least},
            "requests": count,
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
