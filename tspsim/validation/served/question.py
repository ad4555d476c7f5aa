"""A served plan as a question of the simulator: its cluster, its types, its software."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tspsim.scenario import load
from tspsim.simulation import Question, look_up

from ..devices import LOOKUPS
from ..runs import machine
from .run import ServedPlan

#: Questions kept at once: pieces of work are rows of one plan or two.
QUESTIONS = 16


def scenario_of(plan: ServedPlan, **amount: Any) -> dict[str, Any]:
    """The scenario of a step of one replica; ``amount``: the keys of ``workload`` that say which and how much."""
    node, nodes = machine(plan.device, plan.gpus)
    precision: dict[str, Any] = {}
    for key, classes in (("weights", plan.weights), ("activations", plan.activations)):
        if classes:
            precision[key] = dict(classes)
    if plan.kv:
        precision["kv"] = plan.kv
    asked: dict[str, Any] = {"name": "run", "tp": plan.tp, "dp": plan.dp}
    if plan.ep > 1:
        asked["ep"] = plan.ep
    if plan.dp > 1 and plan.ep > 1:
        asked["expert_dispatch"] = "gather"
    if plan.overlap:
        asked["expert_overlap"] = plan.overlap
    return {
        "name": "validation",
        "cluster": {"device": plan.device, "node": node, "nodes": nodes},
        "workload": {"model": plan.model, "stack": plan.stack, "precision": precision, **amount},
        "plans": [asked],
    }


@lru_cache(QUESTIONS)
def question_of(plan: ServedPlan) -> Question:
    """The question of a decode step of one sequence: model, cluster, types and software are those of every step.

    Raises
    ------
    InputError
        The simulator does not cover the plan.
    """
    return look_up(load(scenario_of(plan, **{"pass": "decode", "batch": 1, "context": 1024})), LOOKUPS)
