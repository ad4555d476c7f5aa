"""Experts and tokens placed for each other: Janus' scheduler, ExFlow's affinity, Speculative MoE's local rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.bounds import check_below
from helpers.engine import model_file, moe, question
from hypothesis import given
from hypothesis import strategies as st

import tspsim
from tspsim.base.errors import InputError
from tspsim.parallel import ExpertRouting
from tspsim.parallel.affinity import placed, stay_rate, transitions
from tspsim.parallel.balance import BALANCES, Visits
from tspsim.parallel.balances import activated
from tspsim.step.bound import bounds
from tspsim.step.result import PlanResult

SMALL = moe(1024, layers=4, count=32, topk=4, width=512)
FIRST = moe(1024, layers=4, count=32, topk=1, width=512)
EP8 = {"dp": 8, "ep": 8}


def served(
    folder: Path, *plans: dict[str, Any], model: Any = SMALL, pass_: str = "decode", **work: Any
) -> list[PlanResult]:
    named = [{"name": f"P{index}", **plan} for index, plan in enumerate(plans)]
    work = ({"batch": 8, "context": 1024} if pass_ == "decode" else {"sequence": 2048}) | work
    asked = tspsim.load(question(model_file(folder, model), named, pass_=pass_, **work))
    result, every = tspsim.simulate(asked), tspsim.simulate(asked, every_rank=True)
    check_below(bounds(asked), result)
    for found, full in zip(result.plans, every.plans, strict=True):
        assert found.ran, found.error
        assert found.step_time_s == pytest.approx(full.step_time_s, rel=1e-9)
    return list(result.plans)


def moved(plan: PlanResult, name: str) -> float:
    """Bytes of one layer's transfer of this name, as the first rank issues it."""
    frame = plan.timeline.frame()
    first = frame[(frame["rank"] == 0) & (frame["layer"] == 1) & (frame["name"] == name)]
    return float(first["bytes"].sum())


# --- Janus --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "expected"), [(4, 3.8), (16, 12.7), (64, 27.8), (128, 31.5)])
def test_distinct_experts_of_a_rank_are_those_of_the_closed_form(tokens: int, expected: float) -> None:
    """E[a] = C·(1 − (1 − k/E)^B), 32 of 256 experts a rank, 8 a token; a drawn a_max lies a little above."""
    mean = ExpertRouting().distinct_of_ranks(256, 8, 8 * tokens)[0]
    assert mean == pytest.approx(expected, rel=0.015)
    visits = Visits((1 / 256,) * 256, 8, 8.0 * tokens)
    most, _ = activated.steps(visits, 256, "fewest", 64, 0.0, 0)
    assert mean <= most <= 1.75 * mean


@given(st.integers(1, 12), st.integers(0, 2**20 - 1), st.integers(0, 5))
def test_every_chosen_expert_runs_once_where_it_is_and_on_few(ranks: int, active: int, seed: int) -> None:
    generator = np.random.Generator(np.random.PCG64(seed))
    counts = generator.integers(1, ranks + 1, 20)
    copies = [tuple(generator.choice(ranks, count, replace=False).tolist()) for count in counts]
    chosen = [bool(active >> index & 1) for index in range(20)]
    where = activated.scheduled(chosen, copies, ranks)
    assert all(rank in mine for rank, mine in zip(where, copies, strict=True))
    have = np.bincount([rank for rank, on in zip(where, chosen, strict=True) if on], minlength=ranks)
    everywhere = [sum(on and rank in mine for on, mine in zip(chosen, copies, strict=True)) for rank in range(ranks)]
    assert sum(have) == sum(chosen) and max(have) <= max(everywhere)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("skew", [0.0, 0.5])
def test_a_scheduler_reads_fewer_experts_than_copies_that_share_rows(skew: float) -> None:
    """Over plain experts by few tokens; once all are chosen copies cannot help. More tokens never choose fewer."""
    shares = tuple(ExpertRouting("zipf", skew=skew).expert_shares(256).tolist())
    before = 0.0
    for tokens in (4, 16, 64, 256):
        visits = Visits(shares, 64, 8.0 * tokens)
        fewest, even, plain = (
            activated.steps(visits, replicas, spread, 16, 0.0, 0)[0]
            for replicas, spread in ((320, "fewest"), (320, "evenly"), (256, "fewest"))
        )
        assert before <= plain and fewest < even
        assert fewest < plain if tokens <= 16 else fewest <= plain + 0.25
        before = plain


def test_experts_that_few_ranks_read_make_a_decode_step_faster(tmp_path: Path) -> None:
    """The same copies, the same rows in all: read once instead of on every rank that has one."""
    wide = moe(4096, layers=2, count=32, topk=2, width=4096)
    ways: list[Any] = [{"replicas": 48, "spread": spread} for spread in ("fewest", "evenly")]
    ways += [{"replicas": 48, "scheduler": "1 ms"}]
    plans = [{**EP8, "expert_dispatch": "gather", "expert_balance": {"policy": "activated", **way}} for way in ways]
    fewest, even, slow = served(tmp_path, *plans, model=wide, batch=1)
    assert fewest.step_time_s < even.step_time_s < slow.step_time_s
    assert fewest.memory.parts["weights"] == even.memory.parts["weights"]
    assert moved(fewest, "choices to all") == 7 * 1 * 2 * 4 and moved(even, "choices to all") == 0.0


def test_its_copies_are_weights_and_it_does_not_train(tmp_path: Path) -> None:
    spare, plain = served(tmp_path, {**EP8, "expert_balance": "activated"}, EP8)
    more = spare.memory.parts["weights"] - plain.memory.parts["weights"]
    assert more == pytest.approx(4 * 3 * 1024 * 512 * 2)
    assert not BALANCES.get("activated").trains
    with pytest.raises(InputError, match="replicas: 33"):
        served(tmp_path, {**EP8, "expert_balance": {"policy": "activated", "replicas": 33}})


# --- Speculative MoE ------------------------------------------------------------------------------------------


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("pass_", ["prefill", "decode"])
@pytest.mark.parametrize("rate", [0.125, 0.62, 1.0])
def test_what_is_predicted_right_does_not_travel(tmp_path: Path, pass_: str, rate: float) -> None:
    ways = [{**EP8, "expert_dispatch": dispatch} for dispatch in ("predicted", "links")]
    predicted, usual = served(tmp_path, *ways, pass_=pass_, routing={"local_rate": rate})
    share = (1 - rate) / (1 - 1 / 8)
    for name in ("dispatch", "combine"):
        assert moved(predicted, name) == pytest.approx(share * moved(usual, name), rel=1e-4, abs=1.0)
    assert predicted.step_time_s <= usual.step_time_s
    assert any("fall on a token's own rank (stated" in note for note in predicted.notes)
    assert predicted.memory.parts == usual.memory.parts


@pytest.mark.parametrize(
    ("rate", "message"), [(None, "needs routing.local_rate"), (0.1, "is less than the 1/8 of a random placement")]
)
def test_a_prediction_has_a_rate(tmp_path: Path, rate: float | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        served(tmp_path, {**EP8, "expert_dispatch": "predicted"}, routing={"local_rate": rate})


# --- ExFlow ---------------------------------------------------------------------------------------------------


@given(st.floats(0.0, 1.0), st.sampled_from([2, 4, 8]), st.integers(0, 3))
def test_partners_are_found(affinity: float, ranks: int, seed: int) -> None:
    """p = a + (1 − a)/N: nothing beats a map that puts every partner on its expert's rank."""
    routing = ExpertRouting(seed=seed, affinity=affinity)
    assert stay_rate(routing, 32, ranks) == pytest.approx(affinity + (1 - affinity) / ranks)


def test_a_map_by_affinity_is_no_worse_than_experts_as_they_stand() -> None:
    generator = np.random.Generator(np.random.PCG64(5))
    measured = ExpertRouting(transitions=tuple(map(tuple, generator.dirichlet([0.2] * 16, 16).tolist())))
    flow = transitions(measured, 16).reshape(4, 4, 16).sum(axis=1) / 16
    where = placed(flow)
    assert sorted(np.bincount(where)) == [4] * 4
    standing = sum(flow[expert // 4, expert] for expert in range(16))
    assert sum(flow[where[expert], expert] for expert in range(16)) > standing
    assert stay_rate(measured, 16, 4) > 0.25


@pytest.mark.parametrize("affinity", [0.0, 0.6, 1.0])
def test_a_token_of_one_expert_takes_one_exchange_a_layer(tmp_path: Path, affinity: float) -> None:
    """n·h·β·(1 − p) there and nothing back, against twice n·h·β·(N − 1)/N."""
    ways = [{**EP8, "expert_dispatch": dispatch} for dispatch in ("staying", "links")]
    staying, usual = served(tmp_path, *ways, model=FIRST, routing={"affinity": affinity})
    stays = affinity + (1 - affinity) / 8
    assert moved(staying, "dispatch") == pytest.approx((1 - stays) / (7 / 8) * moved(usual, "dispatch"), abs=1.0)
    assert moved(staying, "combine") == 0.0 < moved(usual, "combine")
    entries = 2 * 1024 * 2  # keys and values of a token
    assert moved(staying, "new entries to all") == 7 * 8 * entries
    assert any("contexts of 8 replicas" in note for note in staying.notes) and not usual.notes
    assert staying.memory.parts["kv_cache"] == pytest.approx(8 * usual.memory.parts["kv_cache"])


def test_with_several_experts_sums_still_travel(tmp_path: Path) -> None:
    ways = [{**EP8, "expert_dispatch": dispatch} for dispatch in ("staying", "links")]
    staying, usual = served(tmp_path, *ways, routing={"affinity": 1.0})
    reached = 8 * (1 - (1 - 1 / 8) ** 4)
    share = (reached - 1) / (reached * 7 / 8)
    assert moved(staying, "combine") == pytest.approx(share * moved(usual, "combine"), abs=2)
    assert moved(staying, "dispatch") == pytest.approx(moved(staying, "combine"), abs=2)


@pytest.mark.parametrize(
    ("plan", "routing", "message"),
    [
        ({"tp": 2, "dp": 4, "ep": 8}, {}, "staying is of attention replicas"),
        (EP8, {"transitions": [[1, 0], [0, 1]]}, "2 rows of routing.transitions, but 32 experts"),
        (EP8, {"transitions": [[1, 0], [0]]}, "as many numbers in every row"),
        (EP8, {"affinity": 0.5, "transitions": [[1]]}, "leave one out"),
    ],
)
def test_what_affinity_needs_is_said_in_one_line(
    tmp_path: Path, plan: dict[str, Any], routing: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        served(tmp_path, {**plan, "expert_dispatch": "staying"}, routing=routing)


def test_they_serve_and_do_not_train(tmp_path: Path) -> None:
    path = model_file(tmp_path, SMALL)
    for dispatch in ("staying", "predicted"):
        plan = {"name": "P", "ep": 8, "expert_dispatch": dispatch}
        with pytest.raises(InputError, match=f"{dispatch} is of decode"):
            tspsim.simulate(question(path, [plan], pass_="training", sequence=1024, routing={"local_rate": 0.5}))
