"""An engine with one seat and one output a request is a queue that books know."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tspsim.serving import AffineCost, Engine, replay

ONE_SEAT = Engine("vllm", max_num_seqs=1)
SERVICE_S = 1.0


def waits(arrival_s):
    requests = pd.DataFrame({"arrival_s": arrival_s, "prompt_tokens": 10, "output_tokens": 1})
    answer = replay(requests, AffineCost(SERVICE_S), ONE_SEAT)
    return answer.first_token_s.to_numpy() - answer.arrival_s.to_numpy() - SERVICE_S


@pytest.mark.parametrize("load", [*(pytest.param(load, marks=pytest.mark.slow) for load in (0.3, 0.6)), 0.8])
def test_poisson_arrivals_wait_as_pollaczek_and_khinchine_say(load):
    """M/D/1: the mean wait is ρ S / (2 (1 − ρ)). Waits of neighbours are alike, so that the confidence is that of means
    of long batches."""
    generator = np.random.default_rng(20261122)
    count, batches = 40_000, 40
    waited = waits(np.cumsum(generator.exponential(SERVICE_S / load, count)))
    means = waited.reshape(batches, -1).mean(axis=1)
    error = means.std(ddof=1) / np.sqrt(batches)
    expected = load * SERVICE_S / (2 * (1 - load))
    assert waited.mean() == pytest.approx(expected, abs=3.5 * error)
    assert error < 0.1 * expected


def test_the_wait_of_each_is_lindley_s():
    """W' = max(0, W + S − gap), request by request."""
    generator = np.random.default_rng(5)
    gaps = np.round(generator.exponential(1.1, 5000) * 64) / 64
    arrival_s = np.cumsum(gaps)
    waited, expected = waits(arrival_s), [0.0]
    for gap in gaps[1:]:
        expected.append(max(0.0, expected[-1] + SERVICE_S - gap))
    np.testing.assert_array_equal(waited, expected)


def test_a_regular_stream_below_the_rate_of_service_never_waits():
    assert (waits(np.arange(1000) * 1.0) == 0.0).all()


def test_nothing_is_served_faster_than_steps_allow():
    """Ten times too many: the last leaves when all have been served, one after another."""
    assert waits(np.arange(100) * 0.1)[-1] == pytest.approx(99 * SERVICE_S - 9.9)
