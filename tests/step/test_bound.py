"""Physical ceilings: what they say of the published claim, and that nothing simulated passes them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from helpers.bounds import run_below_bounds
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tspsim.base.units import flops
from tspsim.parallel import scheme_of
from tspsim.scenario import load
from tspsim.step.bound import Bounds, bounds, most_ranks_of_a_node
from tspsim.step.simulation import look_up, simulate

HEADLINE = "tsp-vs-tpsp-1024-mi300x"
PEAK = 1307.4e12
#: Causal forward of 32 layers of 16·h² at 128Ki: 32·(2·16·4096² + 4·4096·65536) FLOPs a token.
FLOPS_PER_TOKEN = 32 * (2 * 16 * 4096**2 + 4 * 4096 * 65536)


@pytest.fixture(scope="module")
def headline() -> Bounds:
    return bounds(load(HEADLINE))


def test_the_ceiling_is_every_gpus_peak_over_a_tokens_flops(headline: Bounds) -> None:
    assert headline.flops_per_token == FLOPS_PER_TOKEN
    assert headline.best.tokens_per_s == pytest.approx(1024 * PEAK / FLOPS_PER_TOKEN, rel=1e-12)
    assert headline.best.tokens_per_s == pytest.approx(26.0e6, rel=2e-3)
    assert headline.best.model.limit == "compute"
    assert headline.best_block.block_tokens_per_s == pytest.approx(32 * headline.best.tokens_per_s, rel=1e-12)


def test_the_published_173_million_is_impossible_as_a_model_and_plausible_as_a_block(headline: Bounds) -> None:
    model, block = headline.judge(173e6)
    assert not model.possible and model.word == "impossible"
    assert model.flops_per_s_per_gpu == pytest.approx(8.7e15, rel=2e-3)
    assert "8.707 PFLOP/s per GPU" in model.reason and "1.307 PFLOP/s" in model.reason
    assert block.possible and block.plausible
    assert block.flops_per_s_per_gpu == pytest.approx(272e12, rel=1e-3)
    assert block.share == pytest.approx(0.208, abs=1e-3)


def test_a_claim_within_the_ceiling_is_possible_with_its_share(headline: Bounds) -> None:
    model, _ = headline.judge(0.25 * headline.best.tokens_per_s)
    assert model.possible and model.plausible and model.share == pytest.approx(0.25)
    assert "25 % of the ceiling" in model.reason


def test_the_ceiling_itself_is_possible_and_a_millionth_more_is_not(headline: Bounds) -> None:
    ceiling = headline.best.tokens_per_s
    assert headline.judge(ceiling)[0].word == "possible, but not plausible"
    assert not headline.judge(ceiling * (1 + 1e-6))[0].possible


def test_training_takes_three_times_the_flops() -> None:
    forward = bounds(load(HEADLINE))
    training = bounds(load(HEADLINE, ["workload.pass=training"]))
    assert training.flops_per_token == 3 * forward.flops_per_token
    for plan, rival in zip(training.plans, forward.plans, strict=True):
        assert plan.model.compute_s == pytest.approx(3 * rival.model.compute_s, rel=1e-12)
        assert plan.model.hbm_s > rival.model.hbm_s and plan.model.links_s > rival.model.links_s
        assert plan.block == rival.block


def test_memory_says_which_plans_fit() -> None:
    fits = {plan.name: plan.memory.fits for plan in bounds(load("tsp-memory-8x-mi300x")).plans}
    plans = {"TSP8": True, "TP8": True, "TP4-SP2": True, "TP2-SP4": True, "SP8": False, "TSP8-published": True}
    assert fits == plans


def test_a_plan_that_does_not_fit_sets_no_ceiling() -> None:
    found = bounds(load("tsp-memory-8x-mi300x"))
    assert found.best in found.fitting and "SP8" not in {plan.name for plan in found.fitting}
    nothing = bounds(load("tsp-memory-8x-mi300x", ["workload.sequence=16Mi"]))
    assert nothing.fitting == () and nothing.best in nothing.plans


def test_tensor_parallelism_over_nics_is_bounded_by_links() -> None:
    wide = {
        "name": "wide",
        "cluster": {"device": "mi300x", "nodes": 8, "fabric": "rails-400g"},
        "workload": {"model": "llama-3.1-70b", "pass": "forward", "sequence": "8Ki"},
        "plans": [{"name": "TP64", "tp": 64}],
    }
    (plan,) = bounds(load(wide)).plans
    assert plan.model.limit == "links"
    # Seven eighths of twice a layer's activations enter each node, over its eight NICs of 50 GB/s.
    entering = 80 * 2 * 2 * 7 / 8 * 8192 * 8192 * 2
    assert plan.model.links_s == pytest.approx(entering / (8 * 50e9), rel=1e-12)


DEGREES: list[dict[str, Any]] = [
    {"tsp": 8},
    {"tp": 8},
    {"tp": 4, "sp": 2},
    {"sp": 8, "exchange": "ring"},
    {"tp": 2, "sp": 4, "exchange": "ulysses"},
    {"tp": 8, "overlap": True},
    {"tp": 16},
    {"tsp": 16},
    {"tp": 2, "sp": 8},
]

#: Training in fp8 moves bf16 weights.
PRECISIONS = ["bf16", "fp8"]


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@example("b200-2x8", "llama-3.1-8b", "training", "fp8", 1024, 1, {"tsp": 8})
@given(
    cluster=st.sampled_from(["mi300x-2x8", "mi355x-2x8", "h100-2x8", "b200-2x8"]),
    model=st.sampled_from(["tsp-8b", "llama-3.1-8b", "qwen3-8b"]),
    pass_=st.sampled_from(["forward", "training"]),
    precision=st.sampled_from(PRECISIONS),
    sequence=st.sampled_from([1024, 4096, 32768]),
    count=st.integers(1, 4),
    degrees=st.sampled_from(DEGREES),
)
def test_no_plan_passes_its_bound(
    cluster: str, model: str, pass_: str, precision: str, sequence: int, count: int, degrees: dict[str, Any]
) -> None:
    workload = {
        "model": model, "pass": pass_, "precision": precision, "sequence": sequence, "sequences_per_replica": count
    }  # fmt: skip
    question = {"name": "any", "cluster": cluster, "workload": workload, "plans": [{"name": "P", **degrees}]}
    run_below_bounds(look_up(load(question)))


@pytest.mark.parametrize("degrees", DEGREES[:5])
def test_bytes_received_equal_those_of_the_simulated_transfers(degrees: dict[str, Any]) -> None:
    question = load(
        {
            "name": "volumes",
            "cluster": "mi300x-8",
            "workload": {"model": "llama-3.1-8b", "pass": "forward", "sequence": "16Ki"},
            "plans": [{"name": "P", **degrees}],
        }
    )
    found = look_up(question)
    job = found.job(found.plans[0])
    received = sum(each.bytes for each in scheme_of(job.plan).received(job, False))
    (plan,) = simulate(question).plans
    assert received == pytest.approx(plan.communication_bytes_per_layer["total"], rel=1e-12)


def test_ranks_that_share_a_node() -> None:
    assert most_ranks_of_a_node(np.array([[0, 0, 0, 0]])) == 4
    assert most_ranks_of_a_node(np.array([[0, 1, 2, 3], [4, 5, 6, 7]])) == 1
    assert most_ranks_of_a_node(np.array([[0, 1, 0, 1], [2, 2, 3, 4]])) == 2


def test_json_is_plain_and_holds_the_verdict(headline: Bounds) -> None:
    document = json.loads(json.dumps(headline.to_json(173e6), allow_nan=False))
    assert document["schema"] == 1
    assert document["claim"]["model"]["verdict"] == "impossible"
    assert document["claim"]["block"]["verdict"] == "possible" and document["claim"]["block"]["plausible"]
    assert document["ceiling_tokens_per_s"] == headline.best.tokens_per_s
    first = document["plans"][0]["model"]
    assert first["ceiling_tokens_per_s"] == min(first[f"{by}_tokens_per_s"] for by in ("compute", "hbm", "links"))
    assert "claim" not in headline.to_json()


def test_rates_are_written_with_four_digits() -> None:
    assert [flops(value) for value in (1.3074e15, 9.999e14, 272.1e12, 5.0)] == [
        "1.307 PFLOP/s",
        "999.9 TFLOP/s",
        "272.1 TFLOP/s",
        "5.000 FLOP/s",
    ]
