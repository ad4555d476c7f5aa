"""TSP in inference: what the shipped scenarios say, and what was known by hand before they ran."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

import tspsim
from tspsim.model import load_model
from tspsim.step.result import PlanResult, Result

KI = 1024
TP8 = {"name": "TP8", "tp": 8}
#: Eight ranks that divide contexts by their tokens, each way there is.
SHARED: list[dict[str, Any]] = [
    {"name": "tree", "tp": 8, "dcp": 8},
    {"name": "fused", "tp": 8, "dcp": 8, "decode_exchange": "tree_fused"},
    {"name": "gather", "tp": 8, "dcp": 8, "decode_exchange": "gather_scatter"},
    {"name": "all-to-all", "tp": 8, "dcp": 8, "decode_exchange": "all_to_all"},
    {"name": "Helix2", "tp": 8, "kvp": 2},
    {"name": "Helix8", "tp": 8, "kvp": 8},
    {"name": "TSP8", "tsp": 8},
]


@cache
def shipped(name: str) -> Result:
    return tspsim.simulate(name)


def decode(device: str, model: str, plans: list[dict[str, Any]], **work: Any) -> Mapping[str, PlanResult]:
    """Each plan's answer on one node."""
    asked = {
        "name": "a test",
        "cluster": {"device": device, "nodes": 1},
        "workload": {"model": model, "pass": "decode", **work},
        "plans": plans,
    }
    return {plan.name: plan for plan in tspsim.simulate(asked).plans}


# --- the shipped scenarios ------------------------------------------------------------------------------------


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(
    ("name", "plans"),
    [
        ("tsp-inference-128k", ["TSP8", "TP8", "SP8", "TP4-SP2", "TSP8-published"]),
        ("tsp-decode-128k", ["TP8", "TSP8-resident", "TSP8-travel", "Helix8"]),
        ("tree-attention-decode", ["Tree8", "TP8", "Ring8"]),
    ],
)
def test_plans_stand_in_the_stated_order_and_run(name: str, plans: list[str]) -> None:
    found = shipped(name)
    assert [plan.name for plan in found.plans] == plans
    assert all(plan.ran for plan in found.plans)


def test_reading_a_prompt_moves_weights_and_the_keys_and_values_of_its_tokens() -> None:
    """[(2 + 2/g)ha + 2BSa/g](D − 1)/D and 3hf(D − 1)/D elements, whatever the schedule; TP 2(T − 1)/T·BSh twice."""
    model, tokens, found = load_model("llama-3.1-70b"), 128 * KI, shipped("tsp-inference-128k")
    h, a, g = model.hidden, model.heads * model.head_dim, model.heads // model.kv_heads
    moved = {
        "attention": 2 * ((2 + 2 / g) * h * a + 2 * tokens * a / g) * 7 / 8,
        "mlp": 2 * 3 * h * model.ffn * 7 / 8,
    }
    for name in ("TSP8", "TSP8-published"):
        volumes = found.plan(name).communication_bytes_per_layer
        assert {part: volumes[part] for part in moved} == moved
    assert found.plan("TP8").communication_bytes_per_layer["total"] == 2 * 2 * 2 * 7 / 8 * tokens * h
    assert found.plan("SP8").communication_bytes_per_layer["total"] == 2 * 2 * tokens * a / g * 7 / 8


def test_tsp_reads_a_long_prompt_first_and_leaves_as_much_room_as_tensor_parallelism() -> None:
    found = shipped("tsp-inference-128k")
    times = {plan.name: plan.inference["time_to_first_token_s"] for plan in found.plans}
    sessions = {plan.name: plan.inference["capacity"]["sessions"] for plan in found.plans}
    assert min(times, key=times.__getitem__) == "TSP8"
    assert sessions["TSP8"] > sessions["TP8"] > sessions["TP4-SP2"] > 2.5 * sessions["SP8"]


def test_published_and_chosen_schedules_of_tsp_hold_the_same_weights_and_caches() -> None:
    found = shipped("tsp-inference-128k")
    chosen, published = (found.plan(name).memory.parts for name in ("TSP8", "TSP8-published"))
    assert all(chosen[part] == published[part] for part in ("weights", "kv_cache"))
    assert found.plan("TSP8").step_time_s < found.plan("TSP8-published").step_time_s


def test_in_decode_what_tsp_s_ranks_own_costs_exchanges_and_saves_no_memory() -> None:
    """Llama-3.1-70B has as many key/value heads as ranks: the cache is divided already."""
    found = shipped("tsp-decode-128k")
    caches = {plan.memory.parts["kv_cache"] for plan in found.plans}
    assert len(caches) == 1
    times = {plan.name: plan.step_time_s for plan in found.plans}
    assert times["TP8"] < times["Helix8"] < times["TSP8-resident"] < times["TSP8-travel"] / 10


def test_a_tree_is_faster_than_copies_of_a_latent_and_a_ring_far_slower() -> None:
    found = shipped("tree-attention-decode")
    tree, copies, ring = (found.plan(name) for name in ("Tree8", "TP8", "Ring8"))
    assert tree.step_time_s < copies.step_time_s < ring.step_time_s / 40
    caches = [plan.memory.parts["kv_cache"] for plan in (tree, copies)]
    assert caches[1] == pytest.approx(8 * caches[0])
    assert copies.memory.parts["kv_cache"] / 61 == pytest.approx(1208e6, rel=1e-3)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("keys", [{"tp": 8}, {"sp": 8}, {"sp": 8, "exchange": "ulysses"}, {"tsp": 8}], ids=str)
def test_a_prompt_in_chunks_needs_the_memory_of_its_last_chunk(keys: dict[str, Any]) -> None:
    """Its keys and values are gathered with those of all chunks before it, and its last tokens are sampled."""

    def parts(**work: Any) -> Mapping[str, float]:
        workload = {"model": "llama-3.1-8b", "pass": "prefill", **work}
        asked = {"name": "a test", "cluster": "mi300x-8", "workload": workload, "plans": [{"name": "P", **keys}]}
        return tspsim.simulate(asked).plan("P").memory.parts

    in_chunks = parts(sequence=32 * KI, chunk=8 * KI)
    last = parts(sequence=8 * KI, cached=24 * KI)
    same = [part for part in last if part != "in_flight_weights"]
    assert {part: in_chunks[part] for part in same} == {part: last[part] for part in same}


# --- by hand --------------------------------------------------------------------------------------------------


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("device", ["mi300x", "mi355x", "b200"])
@pytest.mark.parametrize(("batch", "context"), [(1, 128 * KI), (8, 128 * KI), (64, 8 * KI)])
def test_as_many_key_value_heads_as_ranks_never_gain_time_by_sharing_contexts(
    device: str, batch: int, context: int
) -> None:
    found = decode(device, "llama-3.1-70b", [TP8, *SHARED], batch=batch, context=context)
    heads = found.pop("TP8")
    assert heads.step_time_s < min(plan.step_time_s for plan in found.values())
    assert all(plan.memory.parts["kv_cache"] >= heads.memory.parts["kv_cache"] for plan in found.values())


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("device", ["mi300x", "mi355x", "b200"])
def test_moving_the_weights_of_a_dense_model_never_pays_in_decode(device: str) -> None:
    travel = {"name": "travel", "tsp": 8, "decode_form": "travel"}
    for batch in (1, 400):
        found = decode(device, "llama-3.1-70b", [TP8, SHARED[-1], travel], batch=batch, context=8 * KI)
        assert found["travel"].step_time_s > 3 * max(found["TP8"].step_time_s, found["TSP8"].step_time_s)


def test_beside_experts_that_stay_what_travels_is_hidden_but_owning_it_is_faster() -> None:
    """Kimi K2.6: 145 M parameters a layer travel, 17 G stay. Attention data parallelism holds them all instead."""
    work = {"context": 8 * KI, "precision": {"kv": "fp8"}}
    forms = [{"name": form, "tsp": 8, "ep": 8, "decode_form": form} for form in ("tree", "sequences", "travel")]
    found = decode("b200", "kimi-k2.6", forms, batch=512, **work)
    whole = {"name": "DP8", "dp": 8, "ep": 8, "expert_dispatch": "low_latency"}
    owned = decode("b200", "kimi-k2.6", [whole], batch=64, **work)["DP8"]
    travel = found["travel"]
    assert travel.step_time_s < min(found["tree"].step_time_s, found["sequences"].step_time_s)
    assert sum(travel.breakdown_s["exposed_communication"].values()) < 0.15 * travel.step_time_s
    assert owned.step_time_s < travel.step_time_s
    assert owned.memory.parts["weights"] > travel.memory.parts["weights"] + 15 * 2**30
    assert travel.inference["capacity"]["sessions"] > 8 * owned.inference["capacity"]["sessions"]


@pytest.mark.parametrize("device", ["mi355x", "b200"])
def test_sharing_latents_starts_to_pay_between_half_a_million_and_two_million_resident_tokens(device: str) -> None:
    """Later than the 245 k and 150 k of two latencies alone: docs/tsp-inference.md says by what."""
    tree = {"name": "tree", "tp": 8, "dcp": 8}

    def gain(resident: int) -> float:
        work = {"batch": 8, "context": resident // 8, "precision": {"kv": "fp8"}}
        found = decode(device, "kimi-k2.6", [TP8, tree], **work)
        return found["TP8"].step_time_s - found["tree"].step_time_s

    assert gain(512 * KI) < 0 < gain(2048 * KI - 8)
