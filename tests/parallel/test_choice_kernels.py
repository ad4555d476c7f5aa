"""A choice of experts by a library's small kernels, against kernels that were measured elsewhere."""

from __future__ import annotations

import pytest

from tspsim.hardware import load_device
from tspsim.hardware.pricers import price
from tspsim.model import load_model
from tspsim.model.routed import RoutedShard
from tspsim.operators import ChoiceKernels, Computes, Gemm, Role
from tspsim.parallel.stack import Stack
from tspsim.parallel.stack_spec import load_stack
from tspsim.scenario import load
from tspsim.step.question import look_up
from tspsim.traces.simulated import Simulated


def seconds(choice: ChoiceKernels, device: str = "h800") -> float:
    return float(price(load_device(device), choice).seconds)


def test_a_chain_takes_what_deepseeks_profile_has() -> None:
    """deepseek-ai/profile-data, train.json, of 4,096 tokens and 256 experts: 36 kernels forward are 226 us without the
    noise that simulates balance, 26 backward 74 us. Neither starts nor the time of a search were taken from it."""
    counts = load_stack("hai-llm").stack().choice_kernels
    assert counts is not None
    assert seconds(ChoiceKernels(4096, 256, *counts[:3])) == pytest.approx(226e-6, rel=0.15)
    assert seconds(ChoiceKernels(4096, 256, *counts[3:])) == pytest.approx(74e-6, rel=0.15)


def test_a_search_grows_as_published() -> None:
    """sgl-project/sglang#6946, eager: groups and best 8 of 256 take 362 us at 10,000 tokens and 1,158 at 40,000, of
    which two searches of few numbers, not counted here, are a fifth. More multiprocessors search faster."""
    grown = seconds(ChoiceKernels(40_000, 256, 5, 8, 1)) - seconds(ChoiceKernels(10_000, 256, 5, 8, 1))
    assert 0.7 * 796e-6 < grown < 796e-6
    assert seconds(ChoiceKernels(4096, 256, 0, 0, 1), "b200") < seconds(ChoiceKernels(4096, 256, 0, 0, 1), "h200")


def test_a_stack_chooses_by_its_kernels_and_leaves_other_operators() -> None:
    routed = RoutedShard(load_model("deepseek-v3"), 4, 8192)
    choose, router = routed.choose(4096), routed.router(4096)
    stack = Stack("mine", choice_kernels=(9, 25, 2, 13, 14), kernel_s=1e-6)
    assert not stack.fuses
    (chain,) = stack.run([choose])
    assert isinstance(chain, ChoiceKernels)
    assert (chain.tokens, chain.experts, chain.kernels, chain.role) == (4096, 256, 36, Role.EXPERT_CHOICE)
    assert tuple(stack.run([router])) == (router,)
    back = Gemm(4096, 7168, 256, role=Role.ROUTER, computes=Computes.INPUT_GRADIENT)
    behind, product = stack.run([back])
    assert isinstance(behind, ChoiceKernels) and product == back
    assert (behind.tokens, behind.experts, behind.kernels, behind.computes) == (4096, 256, 27, Computes.INPUT_GRADIENT)
    # The host launches each of them.
    assert stack.compute_s([chain]) == pytest.approx(36e-6)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(
    ("dispatch", "ep", "count"), [("ranks_fp8", 8, 2 * 26), ("experts", 8, 0), ("ranks_fp8", 1, 0)]
)
def test_the_layout_of_an_exchange_is_of_tokens_that_travel(dispatch: str, ep: int, count: int) -> None:
    scenario = {
        "name": "l", "cluster": {"device": "h800", "nodes": 1},
        "workload": {"model": "deepseek-v2-lite", "pass": "training", "stack": "hai-llm", "sequence": 1024,
                     "precision": "fp8_block"},
        "plans": [{"name": "P", "ep": ep, "zero": 3, "recomputation": "full", "expert_dispatch": dispatch}],
    }  # fmt: skip
    question = look_up(load(scenario))
    names = [operation.name for operation in Simulated(question, question.plans[0]).lane(0).operations]
    assert names.count("layout of dispatch") == count
    # Forward, repeated before the backward, and in the backward before the gradient of the router's product.
    assert names.count("choose experts") == 3 * 26
