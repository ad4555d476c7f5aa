"""Keys that do nothing: an answer says so, or the question is refused; those that do something are not named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.engine import architecture, model_file, moe, question

import tspsim
from tspsim.base.errors import InputError
from tspsim.step.result import PlanResult

DENSE, EXPERTS = architecture(512, vocab=32_000), moe(512, count=8, vocab=32_000)
#: Steps by name.
STEPS: dict[str, dict[str, Any]] = {
    "forward": {"sequence": 1024},
    "training": {"sequence": 1024, "sequences_per_replica": 4},
    "prefill": {"sequence": 1024},
    "decode": {"batch": 8, "context": 1024},
}
#: What does nothing in a plan: the step, its degrees, and the key.
IDLE = [
    ("forward", {"tp": 8}, {"exchange": "ring"}),
    ("forward", {"tp": 8}, {"partition": "contiguous"}),
    ("forward", {"sp": 8}, {"head_groups": 2}),
    ("forward", {"sp": 8}, {"weight_transport": "gather"}),
    ("forward", {"sp": 8}, {"mlp_pieces": 2}),
    ("forward", {"sp": 8}, {"tsp_schedule": "published"}),
    ("forward", {"sp": 8}, {"context_transport": "multi_ring"}),
    ("forward", {"sp": 8}, {"overlap_chunks": 2}),
    ("forward", {"sp": 8}, {"sequence_regions": True}),
    ("forward", {"tp": 8}, {"overlap_by": "blocks"}),
    ("forward", {"dp": 8}, {"overlap": True}),
    ("forward", {"dp": 8}, {"zero": 1}),
    ("forward", {"dp": 8}, {"expert_dispatch": "experts"}),
    ("prefill", {"tp": 8}, {"expert_balance": "eplb"}),
    ("training", {"dp": 8}, {"expert_overlap": "shared_experts"}),
    ("training", {"tp": 8}, {"zero": 1}),
    ("decode", {"tp": 8}, {"decode_exchange": "gather_scatter"}),
]


def answers(model: str, pass_: str, *plans: dict[str, Any], **work: Any) -> tuple[PlanResult, ...]:
    named = [{"name": f"P{index}", **plan} for index, plan in enumerate(plans)]
    return tspsim.simulate(question(model, named, pass_=pass_, **STEPS[pass_], **work)).plans


def idle(answer: PlanResult) -> list[str]:
    return [note for note in answer.notes if "no part of the step asks for it" in note]


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(("pass_", "degrees", "key"), IDLE, ids=str)
@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_a_key_that_does_nothing_is_told(
    model: Any, pass_: str, degrees: dict[str, Any], key: dict[str, Any], tmp_path: Path
) -> None:
    plain, stated = answers(model_file(tmp_path, model), pass_, degrees, degrees | key)
    assert (stated.step_time_s, stated.memory, stated.inference) == (plain.step_time_s, plain.memory, plain.inference)
    assert idle(plain) == []
    (note,) = idle(stated)
    assert note.startswith(f"`{next(iter(key))}` does nothing here")


@pytest.mark.parametrize(
    ("pass_", "plan"),
    [
        ("forward", {"sp": 4, "exchange": "ring", "partition": "contiguous", "context_transport": "multi_ring"}),
        ("forward", {"sp": 8, "overlap": True, "overlap_chunks": 2, "overlap_by": "blocks"}),
        ("forward", {"tsp": 8, "head_groups": 2, "weight_transport": "gather", "mlp_pieces": 2}),
        ("training", {"tp": 2, "pp": 2, "zero": 1, "sequence_regions": True, "overlap": True, "schedule": "zb-h1"}),
        ("training", {"ep": 8, "expert_dispatch": "experts", "zero": 2}),
        ("decode", {"tp": 8, "dcp": 8, "decode_exchange": "tree_fused"}),
    ],
    ids=str,
)
def test_keys_that_a_step_asks_for_are_not(pass_: str, plan: dict[str, Any], tmp_path: Path) -> None:
    (answer,) = answers(model_file(tmp_path, EXPERTS), pass_, plan)
    assert answer.ran and idle(answer) == []


def test_routing_of_a_model_without_experts_is_told(tmp_path: Path) -> None:
    routing = {"load": "zipf", "skew": 1.0}
    (dense,) = answers(model_file(tmp_path, DENSE), "forward", {"dp": 8}, routing=routing)
    (experts,) = answers(model_file(tmp_path, EXPERTS), "forward", {"ep": 8}, routing=routing)
    assert [note.split()[0] for note in idle(dense)] == ["`workload.routing`"] and idle(experts) == []


@pytest.mark.parametrize("load", [{}, {"load": "hot", "hot_experts": 1, "hot_share": 0.5}], ids=str)
def test_a_skew_without_a_load_that_has_one_is_refused(load: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"skew: 1 is of load: zipf and dirichlet"):
        answers(model_file(tmp_path, EXPERTS), "forward", {"ep": 8}, routing={"skew": 1.0, **load})


@pytest.mark.parametrize(
    ("pass_", "modules", "message"), [("training", 0, "tiny has none"), ("forward", 1, "a forward pass runs none")]
)
def test_modules_that_nobody_trains_are_refused(pass_: str, modules: int, message: str, tmp_path: Path) -> None:
    model = architecture(512, vocab=32_000, multi_token=modules)
    with pytest.raises(InputError, match=f"multi_token: .*{message}"):
        answers(model_file(tmp_path, model), pass_, {"dp": 8}, multi_token=True)
