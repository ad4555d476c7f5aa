"""GPUs that differ: expected steps folded against draws of every rank; off by default, refused beside traffic."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.draws import in_turn

import tspsim
from tspsim.base.errors import InputError
from tspsim.scenario.variation import Variation
from tspsim.step.variation import drawn, slowest_of


def step_s(plan: dict[str, Any], variation: dict[str, Any] | None, *, every_rank: bool = False) -> float:
    cluster = {"device": "mi300x", "nodes": 1, **({"variation": variation} if variation is not None else {})}
    work = {"model": "tsp-8b", "pass": "training", "sequence": "2Ki", "global_batch": 8}
    plans = [{"name": "P", "recomputation": "none", **plan}]
    asked = {"name": "v", "cluster": cluster, "workload": work, "plans": plans}
    told = tspsim.simulate(asked, every_rank=every_rank).plans[0]
    assert told.step_time_s is not None
    return told.step_time_s


def test_the_slowest_of_two_and_of_many_is_that_of_the_tables() -> None:
    # David and Nagaraja 2003, table 3.2: 1/sqrt(pi), 1.5388 of ten, 2.5076 of a hundred.
    assert [round(slowest_of(count), 4) for count in (2, 10, 100)] == [0.5642, 1.5388, 2.5076]


@pytest.mark.parametrize(
    ("plan", "within"),
    in_turn([({"zero": 1}, 0.005), ({"tp": 8}, 0.005), ({"tp": 2, "pp": 2}, 0.01), ({"pp": 4}, 0.015)]),
)
def test_the_folded_step_is_the_mean_of_draws_of_every_rank(plan: dict[str, Any], within: float) -> None:
    variation = {"gpu": "4 %", "step": "2 %", "seed": 1}
    folded, exact, alike = (
        step_s(plan, variation), step_s(plan, variation, every_rank=True), step_s(plan, None)
    )  # fmt: skip
    assert folded == pytest.approx(exact, rel=within)
    assert folded > alike and exact > alike


def test_nothing_varies_unless_it_is_said() -> None:
    assert step_s({"tp": 8}, None) == step_s({"tp": 8}, {}) == step_s({"tp": 8}, {"gpu": 0.0, "seed": 7})


def test_a_seed_decides_the_draws_and_nothing_else() -> None:
    one, same, other = (drawn(Variation(gpu=0.02, step=0.01, seed=seed), 64, 3) for seed in (0, 0, 1))
    assert one == same != other
    plan = {"tp": 8}
    assert step_s(plan, {"gpu": 0.02, "seed": 1}) == step_s(plan, {"gpu": 0.02, "seed": 2})


def test_more_that_differ_wait_longer() -> None:
    spreads = [step_s({"zero": 1}, {"gpu": f"{share} %"}) for share in (0, 1, 2, 4)]
    assert spreads == sorted(spreads) and len(set(spreads)) == 4


def test_what_is_no_share_or_no_step_is_refused() -> None:
    for wrong, said in (({"gpu": "two"}, "2 %"), ({"gpu": 0.5}, "gpu"), ({"gpus": 0.02}, "did you mean 'gpu'")):
        with pytest.raises(InputError, match=said):
            step_s({"tp": 8}, wrong)
    with pytest.raises(InputError, match="of single steps"):
        cluster = {"device": "mi355x", "nodes": 1, "variation": {"gpu": 0.02}}
        tspsim.load("kimi-k2.6-mi355x-vs-b200", ["offers=[]", f"cluster={cluster}"])


def test_a_plan_says_how_much_its_kernels_lose() -> None:
    asked = tspsim.load("tsp-8x-h100", ["cluster={device: h100, nodes: 1, variation: {gpu: 2 %}}"])
    notes = tspsim.simulate(asked).plans[0].notes
    assert any("2.8 %" in note and "8 GPUs" in note for note in notes)
