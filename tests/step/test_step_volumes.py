"""What a step moves is reported where links carried it, and where its time goes adds up."""

from __future__ import annotations

from typing import Any

import pytest

import tspsim
from tspsim.network.kinds import KINDS
from tspsim.step.result import PlanResult, Result

GPUS = 16
#: Plans that move different things: weights of replicas, gradients alone, activations of stages, a scheme's own.
PLANS: list[dict[str, Any]] = [
    {"name": "FSDP", "zero": 3},
    {"name": "DP", "zero": 0},
    {"name": "ZeRO1", "zero": 1},
    {"name": "PP", "tp": 4, "pp": 4, "zero": 1},
    {"name": "TSP8", "tsp": 8},
    {"name": "TP8", "tp": 8, "zero": 3},
    {"name": "SP8", "sp": 8, "exchange": "ring"},
    {"name": "offloads", "zero": 3, "offload_layers": 2},
]


SMALL = """
{name: small, layers: 4, hidden: 2048, attention: {heads: 16, kv_heads: 8, head_dim: 128}, source: made up for a test,
 mlp: {width: 8192, gated: true}, embedding: {vocab: 32000, tied: false}}
"""


@pytest.fixture(scope="module", autouse=True)
def model(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A small model, which all questions here ask for."""
    file = tmp_path_factory.mktemp("models") / "small.yaml"
    file.write_text(SMALL, encoding="utf-8")
    ASKED["model"] = str(file)


#: The workload of every question.
ASKED: dict[str, Any] = {"sequence": "4Ki"}


def answered(workload: dict[str, Any], plans: list[dict[str, Any]]) -> Result:
    question = {
        "name": "volumes",
        "cluster": {"device": "mi300x", "nodes": 2, "fabric": "rails-400g"},
        "workload": ASKED | workload,
        "plans": plans,
    }
    return tspsim.simulate(question)


@pytest.fixture(scope="module")
def trained() -> Result:
    return answered({"pass": "training", "global_batch": 16}, PLANS)


def hold(plan: PlanResult) -> None:
    """The laws of any step that ran."""
    assert plan.ran, plan.error
    volumes = dict(plan.communication_bytes_per_step)
    total = volumes.pop("total")
    assert total == pytest.approx(sum(volumes.values()))
    carried = sum(use.carried_bytes for use in plan.links)
    assert (total > 0) == (carried > 0), (plan.name, total, carried)
    layers = plan.communication_bytes_per_layer
    assert layers["total"] <= total and all(size > 0 for size in volumes.values())
    parts = plan.breakdown_s
    waited = sum(parts["exposed_communication"].values())
    assert parts["compute"] + waited + parts["bubble"] + parts["idle"] == pytest.approx(plan.step_time_s, rel=1e-9)
    assert 0.0 <= parts.get("host", 0.0) <= parts["idle"] * (1.0 + 1e-12)
    kinds = {*KINDS.names(), "send_recv", "copy_in", "copy_out"}
    assert set(parts["exposed_communication"]) <= kinds, "what is called communication moves something"


def test_volumes_are_there_wherever_links_carried_bytes_and_parts_add_up(trained: Result) -> None:
    for plan in trained.plans:
        hold(plan)
    slow = answered({"pass": "training", "global_batch": 16, "stack": "nanotron"}, PLANS[:2])
    for plan in slow.plans:
        hold(plan)
        assert plan.breakdown_s["host"] > 0.0
    served = answered({"pass": "prefill", "sequence": 512, "stack": "vllm"}, [{"name": "P", "tp": 8}])
    hold(served.plans[0])
    assert served.plans[0].breakdown_s["host"] > 0.02 * served.plans[0].step_time_s
    alone = tspsim.simulate(
        {
            "name": "alone",
            "cluster": {"device": "h200", "nodes": 1, "gpus_per_node": 1},
            "workload": ASKED | {"pass": "forward", "sequence": "1Ki"},
            "plans": [{"name": "one"}],
        }
    )
    hold(alone.plans[0])
    assert alone.plans[0].communication_bytes_per_step == {"total": 0}


def test_fsdp_gathers_its_weights_forward_and_back_and_scatters_gradients(trained: Result) -> None:
    """ZeRO's paper, section 7.2: a volume of 3·(N − 1)/N·Ψ elements a step, here two bytes each, two thirds of them
    weights."""
    volumes = trained.plan("FSDP").communication_bytes_per_step
    model, share = trained.scenario["model"], (GPUS - 1) / GPUS
    psi, tables = 2 * model["parameters"] * share, 2 * 2 * model["vocab"] * model["hidden"] * share
    assert volumes["weights"] == pytest.approx(2 * psi - tables, rel=1e-3), "tables stay from forward to backward"
    assert volumes["gradients"] == pytest.approx(psi, rel=1e-3)
    plain = trained.plan("DP").communication_bytes_per_step
    summed = plain["gradients"] + plain["optimizer"]  # tables are summed last, beside the norm
    assert summed == pytest.approx(2 * psi, rel=1e-3), "an all-reduce is a scatter and a gather"
    assert "weights" not in plain and trained.plan("PP").communication_bytes_per_step["pipeline"] > 0
    assert trained.plan("offloads").communication_bytes_per_step["total"] > volumes["total"]


def test_a_frame_and_a_page_tell_the_volume_of_a_step(trained: Result) -> None:
    frame = trained.to_frame()
    assert (frame["communication_bytes_per_step"] > 0).all()
