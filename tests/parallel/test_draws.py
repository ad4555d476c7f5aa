"""Choices of experts that a step draws: the busiest rank against sampled steps, and what a step with them costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tspsim
from tspsim.hardware import load_device
from tspsim.model import load_model
from tspsim.model.parts import Experts
from tspsim.operators import AbsorbProduct
from tspsim.parallel import ExpertRouting
from tspsim.parallel.balance import BUSIEST, Balance
from tspsim.parallel.draws import dispersion, drawn_choices, drawn_experts, expected_maximum

EVEN = ExpertRouting(drawn=True)
#: What TensorRT-LLM's stack says of Hopper.
AS_FP8 = {"absorb fp8_block hopper": "as fp8"}


def experts_of(model: str) -> Experts:
    experts = load_model(model).experts
    assert experts is not None
    return experts


def sampled(experts: Experts, tokens: int, steps: int = 400, seed: int = 3) -> NDArray[np.bool_]:
    """Choices (steps, tokens, experts) of equal experts by the gate of DeepSeek-V3 (arXiv:2412.19437, §2.1.2): the
    groups with the highest sums of two scores, and the best experts in them."""
    groups, kept = experts.groups or 1, experts.kept_groups or experts.groups or 1
    scores = np.random.default_rng(seed).gumbel(size=(steps, tokens, groups, experts.count // groups))
    if groups > kept:
        sums = np.sort(scores, axis=-1)[..., -2:].sum(axis=-1)
        worst = np.argsort(sums, axis=-1)[..., : groups - kept]
        np.put_along_axis(scores, worst[..., None], -np.inf, axis=-2)
    flat = scores.reshape(steps, tokens, experts.count)
    least = np.partition(flat, -experts.topk, axis=-1)[..., -experts.topk, None]
    return np.asarray(flat >= least)


def test_the_expected_maximum_is_that_of_sampled_numbers() -> None:
    draws = np.random.default_rng(1).poisson(4.0, (20000, 8)).max(axis=1).mean()
    assert expected_maximum((4.0,) * 8, (1.0,) * 8) == pytest.approx(draws, rel=0.02)
    uneven = np.random.default_rng(2).poisson((20.0, 12.0, 4.0), (20000, 3)).max(axis=1).mean()
    assert expected_maximum((20.0, 12.0, 4.0), (1.0,) * 3) == pytest.approx(uneven, rel=0.02)
    assert expected_maximum((3.0, 7.0), (0.0, 0.0)) == 7.0


@pytest.mark.parametrize(("model", "ranks"), [("deepseek-r1", 8), ("qwen3-235b-a22b", 8), ("qwen3-235b-a22b", 4)])
@pytest.mark.parametrize("tokens", [4, 16, 64])
def test_the_busiest_rank_is_that_of_sampled_steps(model: str, ranks: int, tokens: int) -> None:
    experts, choices = experts_of(model), tokens * 8.0
    by_rank = sampled(experts, tokens).reshape(400, tokens, ranks, -1)
    most = by_rank.sum(axis=(1, 3)).max(axis=1).mean()
    read = by_rank.any(axis=1).sum(axis=2).max(axis=1).mean()
    assert drawn_choices(EVEN, BUSIEST, experts, ranks, choices) == pytest.approx(most, rel=0.08)
    assert drawn_experts(EVEN, BUSIEST, experts, ranks, choices) == pytest.approx(read, rel=0.08)


def test_groups_of_experts_that_are_ranks_draw_more_unevenly() -> None:
    """DeepSeek's eight groups on eight ranks: a token's choices are on four of them."""
    grouped, free = experts_of("deepseek-r1"), experts_of("qwen3-235b-a22b")
    assert dispersion(grouped, 8) > 1.2 > 1.0 > dispersion(free, 8)


def test_many_tokens_draw_what_the_mean_is() -> None:
    experts = experts_of("deepseek-r1")
    loads = [drawn_choices(EVEN, BUSIEST, experts, 8, 8.0 * tokens) / tokens for tokens in (1, 16, 256, 1 << 20)]
    assert loads == sorted(loads, reverse=True) and loads[-1] == pytest.approx(1.0, abs=0.01)
    assert loads[0] > 3.0


def test_a_policy_that_deals_out_what_was_drawn_keeps_its_own_numbers() -> None:
    dealt = Balance("activated", (("replicas", 1),))
    assert drawn_choices(EVEN, dealt, experts_of("deepseek-r1"), 8, 64.0) == 0.0


def step_s(plan: dict[str, Any], drawn: bool, batch: int, skew: float = 0.0) -> float:
    load = {"load": "zipf", "skew": skew} if skew else {"load": "balanced"}
    asked = {
        "name": "s",
        "cluster": {"device": "h200", "node": "hgx-h200-8", "nodes": 1},
        "workload": {
            "model": "deepseek-r1", "stack": "trtllm", "pass": "decode", "batch": batch, "context": 1400,
            "routing": {**load, "drawn": drawn},
        },
        "plans": [{"name": "P", **plan}],
    }  # fmt: skip
    return tspsim.simulate(asked).plan("P").step_time_s


@pytest.mark.parametrize("plan", [{"tp": 8, "ep": 8}, {"tp": 1, "dp": 8, "ep": 8, "expert_dispatch": "gather"}])
def test_a_step_waits_for_the_rank_that_drew_most(plan: dict[str, Any]) -> None:
    few, many = (step_s(plan, True, batch) / step_s(plan, False, batch) for batch in (2, 256))
    assert few > 1.08 and few > many >= 1.0


def test_experts_that_all_ranks_divide_draw_alike() -> None:
    assert step_s({"tp": 8}, True, 4, 0.5) == step_s({"tp": 8}, False, 4, 0.5)


def test_an_engine_multiplies_absorbed_matrices_in_the_type_of_block_scaled_weights() -> None:
    """On Hopper alone; aiconfigurator's collect_mla_bmm.py (TensorRT-LLM 1.3.0rc20, H200, 16 heads) times 8.6 us for
    64 absorbed queries and 7.8 us for four values in fp8, their quantising among it, and 4.3 and 4.8 us in bf16."""
    plain, engine = load_device("h200"), load_device("h200").with_engine("trtllm", AS_FP8)
    for tokens, n, k, measured in ((64, 512, 128, 8.56e-6), (4, 128, 512, 7.802e-6)):
        scaled = AbsorbProduct(tokens, 16, n, k, weights="fp8_block")
        wide = AbsorbProduct(tokens, 16, n, k, weights="bf16")
        assert engine.time(scaled).seconds == pytest.approx(measured, rel=0.15)
        assert engine.time(wide).seconds == plain.time(wide).seconds == plain.time(scaled).seconds < 5.5e-6
    later = load_device("b200")
    assert later.with_engine("trtllm", AS_FP8).time(scaled).seconds == later.with_engine("trtllm").time(scaled).seconds
