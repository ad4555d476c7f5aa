"""Speculative decoding in an engine: what a step puts out, expected or by chance, and what it holds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tspsim.base.errors import InputError
from tspsim.scenario.acceptance import rates_of
from tspsim.serving import AffineCost, Engine, replay
from tspsim.serving.requests import Request
from tspsim.serving.speculation import AcceptanceModel


def serve(speculation, outputs, *, count=1, prompt=100, cost=None, **options):
    requests = pd.DataFrame({"arrival_s": [0.0] * count, "prompt_tokens": prompt, "output_tokens": outputs})
    return replay(requests, cost or AffineCost(1.0), Engine("vllm", speculation=speculation, **options))


def test_tokens_a_step_are_the_sum_of_products():
    assert AcceptanceModel((0.8,) * 3).tokens_a_step == pytest.approx((1 - 0.8**4) / (1 - 0.8))
    assert AcceptanceModel((1.0, 1.0)).tokens_a_step == 3.0
    assert AcceptanceModel((0.0, 1.0)).tokens_a_step == 1.0


@pytest.mark.parametrize("lengths", [(1.79, 2.27, 2.49, 2.54), (1.83, 2.43, 2.88, 3.24), (2.0, 3.0, 4.0)])
def test_a_table_of_lengths_gives_back_its_lengths(lengths):
    """Published golden tables of tokens a step for 1, 2, ... drafts."""
    for drafts, length in enumerate(lengths, start=1):
        assert AcceptanceModel(rates_of(lengths)[:drafts]).tokens_a_step == pytest.approx(length)


@given(a=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5), steps=st.integers(0, 5000), tokens=st.integers(0, 9000))
def test_steps_and_tokens_belong_to_each_other(a, steps, tokens):
    speculation = AcceptanceModel(tuple(a))
    assert speculation.tokens(steps) == pytest.approx(steps * speculation.tokens_a_step, abs=1)
    needed = speculation.steps_for(tokens)
    assert speculation.tokens(needed) >= tokens
    assert needed == 0 or speculation.tokens(needed - 1) < tokens
    assert speculation.tokens(speculation.steps_within(tokens)) <= tokens


def test_one_request_takes_its_outputs_over_the_mean_rounded_up():
    for acceptance in ((0.8,), (0.8, 0.5), (0.9, 0.8, 0.7), (1.0,), (0.0,)):
        speculation = AcceptanceModel(acceptance)
        answer = serve(speculation, 101)
        assert answer.end_s[0] == 1 + np.ceil(np.round(100 / speculation.tokens_a_step, 9))


def test_a_step_computes_a_token_and_its_drafts_for_everybody():
    seen = []
    requests = pd.DataFrame({"arrival_s": [0.0, 0.0], "prompt_tokens": [8, 4], "output_tokens": [6, 6]})
    engine = Engine("vllm", speculation=AcceptanceModel((0.5, 0.0)))
    replay(requests, lambda batch: (seen.append((batch.rows, batch.outputs)), 1.0)[1], engine)
    # 1.5 tokens a step: contexts grow by one and two in turn.
    assert [rows for rows, _ in seen[1:]] == [
        ((3, 8, 1), (3, 4, 1)),
        ((3, 9, 1), (3, 5, 1)),
        ((3, 11, 1), (3, 7, 1)),
        ((3, 12, 1), (3, 8, 1)),
    ]
    assert [outputs for _, outputs in seen] == [2, 6, 6, 6, 6]


def test_chance_has_the_mean_and_the_distribution_that_it_should():
    speculation = AcceptanceModel((0.8, 0.5), sampled=True, seed=7)
    draws = [next(speculation.draws(Request(number, 0.0, 1, 1))) for number in range(4000)]
    shares = np.bincount(draws, minlength=4)[1:] / len(draws)
    assert shares == pytest.approx([0.2, 0.4, 0.4], abs=0.03)
    answer = serve(speculation, 600, count=50)
    expected = 599 / AcceptanceModel((0.8, 0.5)).tokens_a_step
    assert (answer.end_s - answer.first_token_s).mean() == pytest.approx(expected, rel=0.02)


def test_what_a_request_draws_does_not_depend_on_the_others():
    sampled = AcceptanceModel((0.7, 0.6), sampled=True, seed=1)
    alone = serve(sampled, 80).end_s[0]
    assert serve(sampled, 80, count=9).end_s[0] == alone
    assert serve(sampled, 80).end_s[0] == alone
    other = AcceptanceModel((0.7, 0.6), sampled=True, seed=2)
    assert len({serve(other, 80).end_s[0], serve(AcceptanceModel((0.7, 0.6)), 80).end_s[0], alone}) > 1


def test_drafts_need_room_in_the_cache():
    """110 tokens fit into 112 alone; with three drafts they are refused: they are written beyond the outputs."""
    serve(None, 10, kv_tokens=112)
    with pytest.raises(InputError, match="take 115 tokens of cache"):
        serve(AcceptanceModel((0.5,) * 3), 10, kv_tokens=112)


def test_wrong_acceptances_are_refused():
    for wrong in ((), (1.5,), (-0.1,), (float("nan"),)):
        with pytest.raises(InputError):
            AcceptanceModel(wrong)
    with pytest.raises(InputError, match="not a probability"):
        AcceptanceModel(rates_of((1.5, 2.5)))
