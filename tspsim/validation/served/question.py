"""A served plan as a question to the simulator: its cluster, types and software."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tspsim.base import catalog, dialect
from tspsim.network.load import usual_node
from tspsim.scenario import load
from tspsim.step.simulation import Question, look_up

from ...base.memo import remembered
from ..devices import LOOKUPS
from .run import ServedPlan

#: Random prompts load experts unevenly, and every step draws.
ROUTING: dict[str, Any] = {"load": "zipf", "skew": 0.8, "drawn": True}
EVEN: dict[str, Any] = {"load": "balanced", "drawn": True}
#: Questions kept at once: the rows of a piece of work have one or two plans.
QUESTIONS = 16


def scenario_of(plan: ServedPlan, **amount: Any) -> dict[str, Any]:
    """The scenario of a step of one replica; ``amount`` holds the ``workload`` keys that give the step and its size."""
    node, replicas = _node(plan.device, plan.gpus)
    precision: dict[str, Any] = {}
    for key, classes in (("weights", plan.weights), ("activations", plan.activations)):
        if classes:
            precision[key] = dict(classes)
    if plan.kv:
        precision["kv"] = plan.kv
    plan_keys: dict[str, Any] = {"name": "run", "tp": plan.tp, "dp": plan.dp * replicas, **plan.expert_keys}
    routing = EVEN if plan.even else ROUTING
    return {
        "name": "validation",
        "cluster": {"device": plan.device, "node": node, "nodes": 1},
        "workload": {"model": plan.model, "stack": plan.stack, "precision": precision, "routing": routing, **amount},
        "plans": [plan_keys],
    }


@remembered(64)
def _node(device: str, gpus: int) -> tuple[str, int]:
    """The node of a run (a catalog name, or a file with a part of its GPUs), and the number of replicas that fit on it.

    A part of a mesh has the links between its GPUs; a replica of one GPU gets a second GPU with its own replica.
    """
    import yaml

    name = usual_node(device)
    facts = dialect.read_yaml(catalog.locate("nodes", name))
    whole = int(facts["gpus"])
    if gpus == whole:
        return name, 1
    used, link = gpus, dict(facts["link"])
    if facts.get("intra") == "full_mesh":
        used = max(2, gpus)
        link["per_gpu"] = link["per_gpu"] * (used - 1) // (whole - 1)
    part = {**facts, "name": f"{name}-{used}", "gpus": used, "nics": used, "rails": used, "link": link}
    _folders.append(tempfile.TemporaryDirectory(prefix="tspsim-validation-"))
    file = Path(_folders[-1].name) / f"{name}-{used}.yaml"
    file.write_text(yaml.safe_dump(part), encoding="utf-8")
    return str(file), used // gpus


#: A folder that lasts as long as the process.
_folders: list[tempfile.TemporaryDirectory[str]] = []


@remembered(QUESTIONS)
def question_of(plan: ServedPlan) -> Question:
    """The question of a decode step of one sequence. All steps have its model, cluster, types and software.

    Raises
    ------
    InputError
        The simulator does not cover the plan.
    """
    return look_up(load(scenario_of(plan, **{"pass": "decode", "batch": 1, "context": 1024})), LOOKUPS)


def step_question(plan: ServedPlan, step: str, batch: int, tokens: int) -> Question:
    """The question of a decode step of a batch at a context of ``tokens``, or of a prefill of ``tokens``."""
    amount = {"batch": batch, "context": tokens} if step == "decode" else {"sequence": tokens}
    return look_up(load(scenario_of(plan, **{"pass": step}, **amount)), LOOKUPS)
