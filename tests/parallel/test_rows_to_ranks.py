"""A plain all-to-all takes rows by rank; several experts of a rank leave them by expert."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.engine import job_of, moe

from tspsim.operators import Operator
from tspsim.parallel import scheme_of, write_program

TWO_EACH, ONE_EACH = moe(1024, count=16, topk=4), moe(1024, count=8, topk=4)


def turned(model: Any, pass_: str, **plan: Any) -> list[Operator]:
    recomputed = {"recomputation": "none"} if pass_ == "training" else {}
    job = job_of(model, dp=8, ep=8, pass_=pass_, **recomputed, **plan)
    issued = [each.instruction for each in write_program(scheme_of(job.plan), job).unrolled()]
    return [one for each in issued for one in getattr(each, "operators", ()) if one.name == "rows to ranks"]


@pytest.mark.parametrize(("pass_", "times"), [("forward", 1), ("training", 2)])
@pytest.mark.parametrize("pieces", [1, 2])
def test_every_combine_waits_for_rows_in_the_order_of_ranks(pass_: str, times: int, pieces: int) -> None:
    """A sequence of 1,024 tokens with four choices: as many rows, read and written in bf16."""
    copies = turned(TWO_EACH, pass_, expert_dispatch="experts", expert_pieces=pieces)
    assert len(copies) == times * pieces * TWO_EACH.layers
    moved = sum(one.hbm_bytes for one in copies) / (times * TWO_EACH.layers)
    assert moved == pytest.approx(2.0 * 1024 * 4 * TWO_EACH.hidden * 2.0)


def test_single_experts_and_sums_on_a_rank_turn_nothing() -> None:
    assert turned(ONE_EACH, "training", expert_dispatch="experts") == []
    assert turned(TWO_EACH, "training", expert_dispatch="ranks") == []
