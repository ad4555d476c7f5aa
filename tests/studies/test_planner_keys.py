"""Every key of a plan is searched, or says why not; what is searched lies above its bound and is told in names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers.draws import in_turn

import tspsim
from tspsim.hardware import Costs
from tspsim.parallel import BALANCES, BATCH_ASSIGNMENTS, DECODE_EXCHANGES, Captured, build_mesh, mesh_axes
from tspsim.parallel.dispatch import DISPATCHES
from tspsim.parallel.pipeline import ORDERS
from tspsim.parallel.search_keys import search_keys
from tspsim.parallel.search_rule import AS_STATED
from tspsim.report.plan import searched
from tspsim.scenario.plan import PlanSpec
from tspsim.step.paths import LowerBound
from tspsim.step.question import Question, look_up
from tspsim.step.simulation import run_plan, scheduled
from tspsim.studies.planner import Planner
from tspsim.studies.planner.candidate import name_of, plan_keys
from tspsim.studies.planner.space import Space

CLUSTER = {"node": "mi300x-8", "gpus_per_node": 4}


def asked(*plans: dict[str, Any], **work: Any) -> Question:
    workload = {"model": "mixtral-8x7b", "pass": "training", "sequence": 2048, "global_batch": 8, **work}
    named = [{"name": f"P{number}", **keys} for number, keys in enumerate(plans or ({},))]
    return look_up(tspsim.load({"name": "keys", "cluster": CLUSTER, "workload": workload, "plans": named}))


def space_of(question: Question, batch: int = 8) -> Space:
    return Space(question.model, question.work, question.cluster, batch)


def test_every_key_of_a_plan_is_searched_or_says_why_not() -> None:
    keys = {*PlanSpec.model_fields, *(option.name for option in PlanSpec.further())} - {
        *mesh_axes(),
        "ep",
        "name",
        "search",
    }
    assert not keys - {*search_keys()}, "declare beside the key what a search tries of them, or why it does not"


@pytest.mark.parametrize("registry", [DISPATCHES, ORDERS, BALANCES, DECODE_EXCHANGES], ids=lambda each: each.what)
def test_every_registered_object_is_told_as_searched_or_with_its_reason(registry: Any) -> None:
    """In some question: of training, of a forward, or of a step that decodes, with experts and uneven loads."""
    routing = {"load": "zipf", "skew": 0.5}
    told = set[str]()
    for pass_ in ("training", "forward", "decode"):
        amount = {"sequence": 2048, "global_batch": 8} if pass_ != "decode" else {"batch": 8, "context": 2048}
        work = {"model": "mixtral-8x7b", "pass": pass_, "routing": routing, **amount}
        plan = {"name": "P"}
        question = look_up(tspsim.load({"name": "k", "cluster": CLUSTER, "workload": work, "plans": [plan]}))
        space = space_of(question)
        told |= {value for values in space.searched().values() for value in values}
        told |= {each.split(": ")[-1] for keys in space.left().values() for each in keys}
    assert set(registry.names()) <= told | {each.name for each in DISPATCHES.values() if not each.trains}


def test_without_experts_or_unequal_lengths_nothing_is_tried_of_them() -> None:
    space = space_of(asked(model="llama-3.1-8b"))
    assert not space.kernel_keys and not space.moment_keys
    assert not {key for key in space.searched() if key.startswith("expert") or key in ("deal", "rank_tokens")}
    balanced = space_of(asked())
    assert "expert_balance" not in balanced.searched()


def test_ways_to_experts_are_tried_named_apart_and_written_as_keys() -> None:
    question = asked({"ep": 4}, routing={"load": "zipf", "skew": 0.8})
    space, names = space_of(question), dict[str, Any]()
    for family in space.families():
        plan = family.plan
        replicas = (plan.ep, plan.dp, plan.recomputation, family.sequences) == (4, 4, "none", 1)
        if not replicas:
            continue
        for staged in space.within_stage(family):
            name = name_of(staged.plan)
            assert name not in names, "a name tells the plan"
            names[name] = plan_keys(replace(staged.plan, name=name))
    tried = {(key, str(keys.get(key))) for keys in names.values() for key in keys}
    assert {("expert_pieces", "2"), ("expert_pieces", "4"), ("expert_shards", "0")} <= tried
    assert {("expert_balance", "llep"), ("expert_overlap", "micro_batches")} <= tried
    for keys in names.values():
        again = asked(keys, routing={"load": "zipf", "skew": 0.8}).plans[0]
        assert plan_keys(again) == {**keys, "micro_batch": 1}


WAYS = (
    {"expert_pieces": 2}, {"expert_pieces": 4, "expert_dispatch": "experts"}, {"expert_shards": 0},
    {"expert_balance": "llep"}, {"expert_overlap": "micro_batches"},
    {"expert_overlap": "micro_batches", "pp": 2, "ep": 2, "schedule": "dualpipe"},
    {"pp": 2, "ep": 2, "schedule": "dualpipe"},
)  # fmt: skip


@pytest.mark.parametrize("keys", in_turn(WAYS), ids=str)
def test_no_bound_lies_above_the_step_of_any_way_to_experts(keys: dict[str, Any]) -> None:
    work = {"model": "moonlight-16b-a3b", "sequence": 1024, "global_batch": 16}
    question = asked({"ep": 4, **keys}, routing={"load": "zipf", "skew": 0.5}, **work)
    job, device = scheduled(question, question.plans[0]), question.device
    bound = LowerBound(
        question.cluster, question.work.stack.cost(Costs(device), device, Captured.NOTHING),
        max(device.peak_flops_per_s.values()), device.compute_slowdown,
    )  # fmt: skip
    mesh = build_mesh(job.plan, question.cluster.gpus, question.cluster.gpus_per_node)
    result = run_plan(question, job.plan)
    step_s = result.step_time_s
    assert result.ran, result.error
    family = replace(job, plan=replace(job.plan, schedule="1f1b"))
    shape = [(1, job.plan.order)]
    for least_s in (bound.first_s(family, shape), bound.floor_s(family, shape), bound.compute_s(family, shape)):
        assert 0.0 < least_s <= step_s
    assert bound.first_s(family, shape) <= bound.floor_s(family, shape) * (1 + 1e-9)
    for least_s in (bound.even_s(job, mesh), bound.rough_s(job, mesh), bound.outline_s(job, mesh)):
        assert least_s <= bound.step_s(job, mesh) * (1 + 1e-9) and least_s <= step_s
    assert bound.step_s(job, mesh) <= step_s


LENGTHS = {"kind": "lognormal", "median": 1024, "sigma": 1.5, "floor": 128}


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(
    "keys",
    [
        {"sp": "auto", "exchange": "ring"},
        {"sp": "auto"},
        {"sp": 4},
        {"pp": 2, "deal": "like"},
        {"tp": 2, "deal": "tokens"},
    ],
    ids=str,
)
def test_bounds_of_unequal_sequences_lie_below_and_near_their_steps(keys: dict[str, Any]) -> None:
    question = asked(keys, model="tsp-8b", sequence=8192, global_batch=12, lengths=LENGTHS)
    job, device = scheduled(question, question.plans[0]), question.device
    bound = LowerBound(question.cluster, Costs(device), max(device.peak_flops_per_s.values()), device.compute_slowdown)
    mesh = build_mesh(job.plan, question.cluster.gpus, question.cluster.gpus_per_node)
    step_s = run_plan(question, job.plan).step_time_s
    assert bound.flops_s(job) <= bound.dealt_s(job) <= bound.step_s(job, mesh) <= step_s
    assert bound.dealt_s(job) > 2 * bound.flops_s(job) and bound.step_s(job, mesh) > 0.5 * step_s


def test_deals_are_tried_where_sequences_differ_and_like_ones_where_stages_wait() -> None:
    question = asked({"sp": "auto"}, model="tsp-8b", sequence=8192, global_batch=12, lengths=LENGTHS)
    found: dict[int, set[str]] = {}
    for family in space_of(question, 12).families():
        found.setdefault(family.plan.pp, set()).add(family.plan.options.get("deal", "work"))
    assert found[1] == {"work", "tokens"} and found[2] == set(BATCH_ASSIGNMENTS.names())


def test_the_claim_names_what_was_searched_and_why_the_rest_was_not() -> None:
    planner = Planner(
        tspsim.load({
            "name": "claim", "cluster": CLUSTER, "plans": [{"name": "P"}],
            "workload": {"model": "llama-3.1-8b", "pass": "training", "sequence": 1024, "global_batch": 4},
        }), stated=False, jobs=1, budget_s=0.5,
    )  # fmt: skip
    claim, entry = searched(planner.answer), planner.answer.left
    assert "zero" in claim and "residual (another model)" in claim and "placement: order" in claim
    assert "checkpoint" in " ".join(entry["another question"])
    assert "expert" not in claim.replace("tried with experts", ""), "a dense model has none to speak of"


def test_a_serving_search_claims_no_key_that_it_keeps_as_stated() -> None:
    """What `ServingPlanner` goes through of experts are degrees and dispatches (`spreads`)."""
    work = {"model": "mixtral-8x7b", "pass": "decode", "batch": 8, "context": 2048}
    work |= {"routing": {"load": "zipf", "skew": 0.5}}
    named = {"name": "k", "cluster": CLUSTER, "workload": work, "plans": [{"name": "P"}]}
    space = space_of(look_up(tspsim.load(named)))
    assert not {"expert_pieces", "expert_balance", "expert_overlap"} & set(space.searched())
    assert {"expert_pieces", "expert_balance", "expert_overlap"} <= set(space.left()[AS_STATED])
