"""Distinct experts that a step touches: in closed form for random choices, and by shares."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tspsim.parallel.routing import BALANCED, ExpertRouting, distinct_experts


@pytest.mark.parametrize("pairs", range(4))
def test_random_choices_touch_the_mean_over_all_of_them(pairs: int) -> None:
    """Every sequence of choices of four experts, counted."""
    found = [len(set(choices)) for choices in itertools.product(range(4), repeat=pairs)]
    assert distinct_experts(4, pairs) == pytest.approx(sum(found) / len(found))
    assert BALANCED.distinct(4, pairs) == pytest.approx(distinct_experts(4, pairs))


@pytest.mark.parametrize("pairs", range(4))
def test_skewed_choices_touch_the_mean_weighted_by_their_shares(pairs: int) -> None:
    shares = np.array([0.5, 0.25, 0.125, 0.125])
    each = itertools.product(range(4), repeat=pairs)
    found = sum(len(set(choices)) * float(np.prod(shares[list(choices)])) for choices in each)
    assert ExpertRouting("measured", shares=tuple(shares)).distinct(4, pairs) == pytest.approx(found)


def test_deepseek_in_decoding() -> None:
    """256 experts, 8 a token: 1 token touches nearly 8, 64 tokens 87 %, thousands all of them."""
    assert distinct_experts(256, 8) == 256 * (1 - (1 - 1 / 256) ** 8)
    assert distinct_experts(256, 64 * 8) / 256 == pytest.approx(0.865, abs=0.001)
    assert distinct_experts(256, 8 * 4096) == pytest.approx(256)


def test_distinct_experts_grow_with_tokens_and_never_beyond_what_there_is() -> None:
    for routing in (BALANCED, ExpertRouting("zipf", skew=1.0), ExpertRouting("dirichlet", skew=0.5, seed=3)):
        found = [routing.distinct(64, pairs) for pairs in (0, 1, 8, 64, 512, 1 << 20)]
        assert found[:2] == pytest.approx([0.0, 1.0])
        assert all(fewer <= more for fewer, more in itertools.pairwise(found)) and found[-1] <= 64.0
        assert found[3] <= distinct_experts(64, 64) + 1e-9


def test_ranks_share_them() -> None:
    routing = ExpertRouting("zipf", skew=1.2, seed=1)
    for choice in (BALANCED, routing):
        ranks = choice.distinct_of_ranks(64, 8, 100)
        assert len(ranks) == 8 and sum(ranks) == pytest.approx(choice.distinct(64, 100))
    assert len(set(routing.distinct_of_ranks(64, 8, 100))) > 1


def test_shares_are_drawn_once_for_all_who_ask_and_nobody_changes_them() -> None:
    routing = ExpertRouting("dirichlet", skew=0.5, seed=3)
    shares = routing.assigned_shares(64)
    assert routing.assigned_shares(64) is shares and len(routing.assigned_shares(32)) == 32
    with pytest.raises(ValueError, match="read-only"):
        shares[0] = 1.0
    assert ExpertRouting("dirichlet", skew=0.5, seed=3) == routing
