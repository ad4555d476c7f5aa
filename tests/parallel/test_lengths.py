"""Sequences of unequal length: dealt to groups of ranks that lie in each other, every one once; known limits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from helpers.bounds import check_step
from helpers.engine import architecture, model_file
from hypothesis import given, settings
from hypothesis import strategies as st

import tspsim
from tspsim.base.errors import InputError
from tspsim.parallel.lengths import Groups, SequenceAssignment, assign
from tspsim.step.question import look_up
from tspsim.step.result import PlanResult

MODEL = architecture(512, layers=2, heads=8, kv_heads=4, vocab=1024)
#: From so short that a rank has dozens to one that all share.
LONG_TAIL = [200, 7000, 100, 3000, 900, 1500, 50, 400, 1100, 256, 4000, 128, 600, 700, 90, 2000]


def lengths_file(folder: Path, lengths: list[int]) -> dict[str, Any]:
    path = folder / "lengths.csv"
    rows = [f"{index},{tokens},1" for index, tokens in enumerate(lengths)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n")
    return {"kind": "file", "file": str(path)}


def asked(folder: Path, lengths: list[int], *plans: dict[str, Any], pass_: str = "training") -> dict[str, Any]:
    return {
        "name": "lengths",
        "cluster": "mi300x-8",
        "workload": {
            "model": model_file(folder, MODEL), "pass": pass_, "sequence": max(lengths),
            "global_batch": len(lengths), "lengths": lengths_file(folder, lengths),
        },
        "plans": [{"name": f"P{index}", **plan} for index, plan in enumerate(plans)],
    }  # fmt: skip


def run(folder: Path, lengths: list[int], *plans: dict[str, Any], **more: Any) -> tuple[PlanResult, ...]:
    return tspsim.simulate(asked(folder, lengths, *plans, **more)).plans


def shares(lengths: list[int], *, count: int = 8, room: int | None = 1024) -> SequenceAssignment:
    groups = Groups(count, 1, room, True, lambda ranks: 2 * ranks if ranks > 1 else 1)
    return assign(MODEL, tuple(lengths), True, "work", groups)


@given(st.lists(st.integers(1, 8192), min_size=1, max_size=40), st.sampled_from([1, 2, 8, 16]))
@settings(max_examples=60, deadline=None)
def test_every_sequence_is_dealt_once_to_neighbours_that_agree_on_it(lengths: list[int], count: int) -> None:
    found = shares(lengths, count=count, room=-(-8192 // count))
    seen: Counter[int] = Counter()
    for rank, packs in enumerate(found.packs):
        assert packs, "every rank has something, so that sums of gradients meet"
        for pack in packs:
            assert sum(pack.tokens) <= found.room * pack.ranks + 2 * pack.ranks and pack.position == rank % pack.ranks
            if pack.ranks > 1:
                first = rank - pack.position
                group = found.packs[first : first + pack.ranks]
                orders = [[each.tokens for each in packs if each.ranks >= pack.ranks] for packs in group]
                assert all(order == orders[0] for order in orders)
            if not pack.position:
                seen.update(pack.tokens)
    padded = sum(seen.values())
    assert padded == len(lengths) and 0 <= found.padded - sum(lengths) < 2 * count * len(lengths)
    assert found == shares(lengths, count=count, room=-(-8192 // count))


def test_ranks_are_the_least_power_of_two_that_takes_a_sequence() -> None:
    found = shares([8192, 4000, 1025, *[1024] * 64])
    assert found.ranks_of_sequences == {1: 64, 2: 1, 4: 1, 8: 1}
    assert found.imbalance < 1.1


def test_a_rank_with_nothing_to_do_makes_the_narrowest_sequence_wider() -> None:
    assert shares([1000]).ranks_of_sequences == {8: 1}
    assert shares([2000, 1000]).ranks_of_sequences == {4: 2}


def test_short_sequences_exchange_nothing_and_take_as_long_as_plain_replicas(tmp_path: Path) -> None:
    short = [tokens for tokens in LONG_TAIL if tokens <= 1024]
    dynamic, plain = run(tmp_path, short, {"sp": "auto", "rank_tokens": 1024}, {"rank_tokens": 1024})
    assert dynamic.communication_bytes_per_layer["total"] == 0
    assert dynamic.step_time_s == plain.step_time_s and dynamic.memory == plain.memory


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("exchange", ["all_gather", "ring", "token_ring"])
def test_one_longest_sequence_is_static_context_parallelism(tmp_path: Path, exchange: str) -> None:
    keys = {"exchange": exchange}
    dynamic, static = run(tmp_path, [8192], {"sp": "auto", "rank_tokens": 1024, **keys}, {"sp": 8, **keys})
    assert dynamic.step_time_s == static.step_time_s
    assert dynamic.communication_bytes_per_layer == static.communication_bytes_per_layer
    assert dynamic.memory == static.memory


def test_shared_sequences_alone_pay_for_gathers(tmp_path: Path) -> None:
    """A layer's forward brings each of d ranks the (d − 1)/d of a sequence's keys and values that it lacks."""
    (plan,) = run(tmp_path, LONG_TAIL, {"sp": "auto", "rank_tokens": 1024}, pass_="forward")
    found = shares(LONG_TAIL)
    key_bytes = 2 * 2 * MODEL.kv_width
    lacked = sum(
        (pack.ranks - 1) / pack.ranks * tokens * key_bytes
        for packs in found.packs
        for pack in packs
        for tokens in pack.tokens
    )
    assert plan.communication_bytes_per_layer["total"] == pytest.approx(lacked / 8, rel=1e-9)


def test_of_layers_made_again_in_part_the_step_lies_between_none_and_all(tmp_path: Path) -> None:
    again = ("none", {"what": "full", "layers": 1}, "full")
    for shared in ({"sp": "auto", "rank_tokens": 1024}, {"sp": "auto"}):
        plans = [{**shared, "recomputation": what} for what in again]
        none, some, all_ = [each.step_time_s for each in run(tmp_path, LONG_TAIL, *plans)]
        assert none < some < all_


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("pass_", ["forward", "training"])
@pytest.mark.parametrize(
    "keys",
    [
        {"sp": "auto", "rank_tokens": 1024},
        {"sp": "auto", "rank_tokens": 1024, "exchange": "ring", "zero": 1},
        {"sp": "auto", "rank_tokens": 2048, "tp": 2, "sequence_regions": True},
        {"sp": 4, "rank_tokens": 2048, "exchange": "ulysses"},
        {"sp": 4, "rank_tokens": 2048, "overlap": True},
    ],
    ids=str,
)
def test_folded_is_every_rank_below_its_bounds(tmp_path: Path, keys: dict[str, Any], pass_: str) -> None:
    keys = keys if pass_ == "training" else {key: value for key, value in keys.items() if key != "zero"}
    plan = check_step(asked(tmp_path, LONG_TAIL, keys, pass_=pass_))
    assert plan.tokens_per_step == sum(LONG_TAIL) and 0 < plan.mfu <= 1


def test_the_step_takes_its_flops_at_least_and_those_of_the_longest_sequence(tmp_path: Path) -> None:
    plan, alone = run(tmp_path, LONG_TAIL, {"sp": "auto", "rank_tokens": 1024}, {"sp": 8})
    (longest,) = run(tmp_path, [max(LONG_TAIL)], {"sp": 8})
    question = look_up(tspsim.load(asked(tmp_path, LONG_TAIL, {"sp": 8})))
    flops = sum(LONG_TAIL) * question.work.flops_per_token(question.model)
    assert plan.step_time_s > flops / (8 * question.device.peak_of("bf16"))
    assert plan.step_time_s > 0.9 * longest.step_time_s and alone.step_time_s > longest.step_time_s


def test_drawn_lengths_depend_on_their_seed_alone_and_are_cut(tmp_path: Path) -> None:
    scenario = asked(tmp_path, LONG_TAIL, {"sp": "auto", "rank_tokens": 512})
    drawn = {"kind": "lognormal", "median": 600, "sigma": 1.5}
    scenario["workload"] |= {"lengths": drawn, "global_batch": 64, "sequence": 4096}
    first, again = (look_up(tspsim.load(scenario)).work.unequal for _ in range(2))
    scenario["workload"] |= {"length_seed": 1}
    other = look_up(tspsim.load(scenario)).work.unequal
    assert first == again != other and max(first.tokens) == 4096 and first.cut > 0
    told = tspsim.load(scenario).to_dict()
    assert told["plans"][0]["dynamic_sp"] is True and told["workload"]["length_seed"] == 1
    (plan,) = tspsim.simulate(scenario).plans
    assert any("tokens cut off longer ones" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("plan", "work", "said"),
    [
        ({"sp": "auto", "rank_tokens": 500}, {}, "plans.P0.rank_tokens: ranks with 500 tokens each hold 4000"),
        ({"sp": 4, "rank_tokens": 1000}, {}, "take at least 1750"),
        ({"sp": "auto", "pp": 2, "schedule": "zb-h1"}, {}, "plans.P0.schedule: zb-h1 beside workload.lengths"),
        ({"offload_from": 1024}, {}, "plans.P0.offload_from: says which sequences' activations offload_layers sends"),
        ({"tsp": 2}, {}, "plans.P0.tsp: takes sequences of one length alone; use tp or sp"),
        ({"sp": 2, "micro_batch": 2}, {}, "of unequal ones state rank_tokens"),
        ({"sp": "auto", "zero": 3, "rank_tokens": 1024}, {}, "replicas have unequal numbers; use 0 or 1"),
        ({"sp": "auto"}, {"lengths": None}, "plans.P0.sp: is of sequences of unequal length"),
        ({"sp": "auto", "deal": "wrk"}, {}, "did you mean 'work'"),
        ({}, {"global_batch": 4}, "leave 4 of 8 replicas without work"),
        ({}, {"global_batch": None}, "lengths are of a global batch"),
        ({}, {"document": 128}, "document is not built beside lengths"),
    ],
    ids=str,
)
def test_what_cannot_be_dealt_is_refused_with_its_key(
    tmp_path: Path, plan: dict[str, Any], work: dict[str, Any], said: str
) -> None:
    scenario = asked(tmp_path, LONG_TAIL, plan)
    scenario["workload"] = {key: value for key, value in {**scenario["workload"], **work}.items() if value is not None}
    with pytest.raises(InputError) as error:
        look_up(tspsim.load(scenario))
    assert said in str(error.value), error.value
