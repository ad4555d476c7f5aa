"""Sequences of unequal length on pipelines, dealt by like lengths, with activations of the long ones on hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import test_lengths
from helpers.bounds import check_step
from test_lengths import LONG_TAIL, MODEL, asked, run, shares

import tspsim
from tspsim.parallel.lengths import Groups, assign

AUTO = {"sp": "auto", "rank_tokens": 2048}


def test_equal_lengths_on_a_pipeline_are_its_micro_batches(tmp_path: Path) -> None:
    """Sixteen sequences of 1,024 tokens, each a micro-batch of its own: the step that has no `lengths`, memory too."""
    (dealt_,) = run(tmp_path, [1024] * 16, {"pp": 2, "rank_tokens": 1024})
    scenario = asked(tmp_path, [1024] * 16, {"pp": 2, "micro_batch": 1})
    del scenario["workload"]["lengths"]
    (plain,) = tspsim.simulate(scenario).plans
    assert dealt_.step_time_s == plain.step_time_s and dealt_.memory == plain.memory


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("pass_", ["forward", "training"])
@pytest.mark.parametrize(
    "keys",
    [
        {**AUTO, "pp": 2},
        {**AUTO, "pp": 2, "deal": "like", "exchange": "ring", "zero": 1},
        {"sp": 2, "pp": 2, "rank_tokens": 4096, "tp": 2},
        {**AUTO, "pp": 2, "stage_layers": [0, 2], "recomputation": "none"},
    ],
    ids=str,
)
def test_folded_is_every_rank_below_its_bounds(tmp_path: Path, keys: dict[str, Any], pass_: str) -> None:
    keys = {key: value for key, value in keys.items() if pass_ == "training" or key not in ("zero", "recomputation")}
    plan = check_step(asked(tmp_path, LONG_TAIL, keys, pass_=pass_))
    assert plan.tokens_per_step == sum(LONG_TAIL) and 0 < plan.mfu <= 1


def test_short_sequences_on_pipelines_exchange_nothing(tmp_path: Path) -> None:
    short = [tokens for tokens in LONG_TAIL if tokens <= 1024]
    dynamic, plain = run(tmp_path, short, {**AUTO, "pp": 2}, {"rank_tokens": 2048, "pp": 2})
    assert dynamic.step_time_s == plain.step_time_s
    assert dynamic.communication_bytes_per_layer["total"] == plain.communication_bytes_per_layer["total"]


def test_like_lengths_stand_together_and_shares_stay_even() -> None:
    groups = Groups(4, 1, 1024, False, lambda ranks: 1)
    lengths = (*[900] * 8, *[300] * 24, *[60] * 100)
    alike, mixed = (assign(MODEL, lengths, True, deal, groups) for deal in ("like", "work"))

    def kinds(found: Any) -> list[int]:
        return [len({tokens for pack in packs for tokens in pack.tokens}) for packs in found.packs]

    assert max(kinds(alike)) <= 2 < max(kinds(mixed)) and alike.imbalance < 1.15
    counts = [len(packs) for packs in alike.packs]
    assert sum(sum(pack.tokens) for packs in alike.packs for pack in packs) == sum(lengths) and min(counts) >= 1
    # Sequences that several share are dealt as before.
    assert shares(LONG_TAIL).ranks_of_sequences == test_lengths.shares(LONG_TAIL).ranks_of_sequences


def test_only_long_sequences_send_their_activations_away(tmp_path: Path) -> None:
    keys = {**AUTO, "recomputation": "none", "offload_layers": 2}
    none, never, some, every = run(
        tmp_path, LONG_TAIL, {**AUTO, "recomputation": "none"}, {**keys, "offload_from": 100_000},
        {**keys, "offload_from": 1500}, keys,
    )  # fmt: skip
    assert never.step_time_s == none.step_time_s and never.memory == none.memory
    assert none.memory.peak_bytes >= some.memory.peak_bytes >= every.memory.peak_bytes
    assert none.step_time_s < some.step_time_s <= every.step_time_s
    away = some.timeline.frame()
    copies = away[away.name == "activations to host"]
    assert 0 < len(copies) < (every.timeline.frame().name == "activations to host").sum()


def test_a_copy_hides_behind_the_square_of_a_length() -> None:
    """What a layer sends grows with tokens, its kernels with their square too."""
    shares_ = []
    for tokens in (8192, 131072):
        plan = {"name": "P", "sp": 8, "zero": 1, "recomputation": "none", "offload_layers": 16}
        work = {"model": "llama-3.1-8b", "pass": "training", "sequence": tokens}
        scenario = {"name": "t", "cluster": "mi300x-8", "workload": work, "plans": [plan]}
        frame = tspsim.simulate(scenario).plans[0].timeline.frame()
        copies = frame[(frame.name == "activations to host") & (frame["rank"] == 0)]
        layer = frame[(frame.layer == copies.layer.iloc[0]) & (frame["rank"] == 0) & (frame.stream == "compute")]
        ahead = layer[layer.end_s <= copies.start_s.iloc[0] + 1e-12]
        copy_s = float((copies.end_s - copies.start_s).iloc[0])
        shares_.append(copy_s / float((ahead.end_s - ahead.start_s).sum()))
    assert shares_[0] > 1.0 > shares_[1] and shares_[1] < 0.6 * shares_[0]
