"""Disaggregated runs as scenarios with a prefill and a decode pool."""

from __future__ import annotations

from typing import Any

from tspsim.scenario import load
from tspsim.serving.answer import deployment_of
from tspsim.serving.metrics import Waits
from tspsim.serving.points import whole
from tspsim.step.simulation import look_up

from ..devices import LOOKUPS
from ..runs import fabric_of, machine, node_of
from .question import scenario_of
from .run import Options, ServedPlan, ServedRun


def waits_of(run: ServedRun, count: int) -> Waits:
    """The waits of a run's first requests. Raises InputError if the simulator does not cover the run."""
    question = look_up(load(scenario(run, count)), LOOKUPS)
    traffic = question.scenario.traffic
    assert traffic is not None
    return whole(deployment_of(question, question.plans[0]), traffic)


def scenario(run: ServedRun, count: int) -> dict[str, Any]:
    """The scenario of a run, with the nodes that its workers fill and the usual fabric between them.

    If both pools together do not fill whole nodes, prefill workers have nodes of their own and use a part of each.
    """
    assert run.prefill is not None
    plan, workers = run.prefill
    reading, writing = _pool(plan, workers, run.reading), _pool(run.plan, run.replicas, run.options)
    pools: dict[str, Any] = {"prefill": reading, "decode": writing}
    gpus = run.gpus
    if gpus > node_of(plan.device) and gpus % node_of(plan.device):
        reading["cluster"], gpus = _cluster(plan.device, plan.gpus * workers), run.plan.gpus * run.replicas
        pools["fabric"] = fabric_of(plan.device)
    return {
        "name": "validation",
        "cluster": _cluster(run.plan.device, gpus),
        "workload": scenario_of(run.plan)["workload"],
        "traffic": {
            "arrivals": {"kind": "closed", "concurrency": run.concurrency},
            "prompt": {"kind": "uniform", "of": run.prompt, "from": run.least},
            "output": {"kind": "uniform", "of": run.output, "from": run.least},
            "requests": count,
        },
        "plans": [{"name": "run", "pools": pools}],
    }


def _cluster(device: str, gpus: int) -> dict[str, Any]:
    node, nodes = machine(device, gpus)
    cluster: dict[str, Any] = {"device": device, "node": node, "nodes": nodes}
    return cluster if nodes == 1 else cluster | {"fabric": fabric_of(device)}


def _pool(plan: ServedPlan, replicas: int, options: Options) -> dict[str, Any]:
    pool: dict[str, Any] = {"replicas": replicas, "tp": plan.tp, "engine": dict(options), **plan.expert_keys}
    if plan.dp > 1:
        pool["dp"] = plan.dp
    return pool
