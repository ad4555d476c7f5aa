"""Published training runs by their published plans: they fit as their authors ran them, at the rate they reached."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tspsim
from tspsim.parallel import load_stack, peak_memory, scheme_of
from tspsim.step.question import Question, look_up

#: Scenario → MFU as its authors state it.
LLAMA_3 = {
    "llama-3-405b-8192-h100": 0.43,
    "llama-3-405b-16384-h100": 0.41,
    "llama-3-405b-16384-h100-128k": 0.38,
}


def peak(asked: Question) -> float:
    plan = asked.plans[0]
    return sum(peak_memory(asked.job(plan), scheme_of(plan).residency).values())


@pytest.mark.parametrize("name", LLAMA_3)
def test_llama_3_fits_without_recomputation_with_what_its_stack_frees_and_not_without(name: str) -> None:
    asked = look_up(tspsim.load(name))
    assert asked.plans[0].recomputation == "none"
    room = asked.device.visible_memory_bytes
    assert peak(asked) <= room
    kept = replace(asked, work=replace(asked.work, stack=replace(asked.work.stack, remakes=())))
    assert peak(kept) > room
    norms, products = (
        peak(replace(asked, work=replace(asked.work, stack=replace(asked.work.stack, remakes=(name,)))))
        for name in ("norms", "products")
    )
    assert peak(asked) < products < norms < peak(kept)


def test_what_a_stack_frees_costs_the_kernels_that_make_it_again() -> None:
    def step_s(stack: str) -> float:
        work = {"model": "llama-3.1-8b", "pass": "training", "sequence": "8Ki", "stack": stack}
        plans = [{"name": "P", "tp": 8, "recomputation": "none"}]
        return (
            tspsim.simulate({"name": "a", "cluster": "hgx-h100-8", "workload": work, "plans": plans})
            .plans[0]
            .step_time_s
        )

    assert load_stack("llama-3").stack().remakes == ("norms", "products")
    assert step_s("ideal") < step_s("llama-3")


@pytest.mark.parametrize(
    "name", [pytest.param("llama-3-405b-8192-h100", marks=pytest.mark.slow), "llama-3-405b-16384-h100"]
)
@pytest.mark.in_turn(2, group="published")
def test_llama_3_runs_at_the_published_rate(name: str) -> None:
    (plan,) = tspsim.simulate(name).plans
    assert plan.mfu == pytest.approx(LLAMA_3[name], rel=0.05)


def test_llama_3_has_one_setting_in_all_its_scenarios() -> None:
    # The third takes 45 s: docs/validation-training.md has its rate.
    asked = [tspsim.load(name) for name in LLAMA_3]
    assert {(each.workload.stack, each.cluster.variation.gpu, each.cluster.variation.step) for each in asked} == {
        ("llama-3", 0.01, 0.0)
    }
    assert all("A100" in each.source for each in asked)
