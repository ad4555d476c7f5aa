"""Waits, rates and money of a run, as benchmarks define them."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import simpy

from tspsim.serving import CalledCost, Engine, Replica, Request
from tspsim.serving.log import StepKind, StepLog
from tspsim.serving.metrics import Bill, Cache, Waits, gaps, measure, weighted_percentiles
from tspsim.serving.replay import ON_TIME
from tspsim.serving.replica import ScheduledEvent


def waits(**columns: Any) -> Waits:
    """Two requests: of 11 outputs in 3 s, the first after 1 s, and of one output."""
    stated = {
        "arrival_s": [0.0, 1.0],
        "first_scheduled_s": [0.5, 1.0],
        "first_token_s": [1.0, 2.5],
        "end_s": [3.0, 2.5],
        "prompt_tokens": [100, 60],
        "output_tokens": [11, 1],
        "preemptions": [1, 0],
        "cached_tokens": [0, 16],
    } | columns
    return Waits(*(np.array(column) for column in stated.values()))


def measured(kept: Waits, **more: Any) -> dict[str, Any]:
    bill = Bill({"rental": 2.0, "own": 1.0}, 1000.0)
    return measure(kept, more.pop("logs", []), gpus=8, bill=bill, cache=Cache(1000.0, 4.0), bounds={}, **more)


def test_waits_are_those_of_the_client() -> None:
    told = measured(waits())
    assert told["ttft_s"]["mean"] == pytest.approx((1.0 + 1.5) / 2)
    assert told["e2e_s"]["mean"] == pytest.approx((3.0 + 1.5) / 2)
    assert told["tpot_s"]["mean"] == pytest.approx(2.0 / 10)  # one output has none
    assert told["tokens_per_s_per_user"] == pytest.approx(5.0)


def test_tpot_is_a_mean_over_requests_and_not_over_tokens() -> None:
    kept = waits(output_tokens=[11, 2], first_token_s=[1.0, 2.0], end_s=[3.0, 3.0])
    told = measured(kept)
    assert told["tpot_s"]["mean"] == pytest.approx((0.2 + 1.0) / 2)
    assert told["itl_s"]["mean"] == pytest.approx((2.0 + 1.0) / 11)


def test_rates_are_over_the_wall_and_all_gpus() -> None:
    told = measured(waits())
    assert told["wall_s"] == 3.0
    assert told["output_tokens_per_s"] == pytest.approx(4.0)
    assert told["output_tokens_per_s_per_gpu"] == pytest.approx(0.5)
    assert told["requests_per_s"] == pytest.approx(2 / 3)
    assert told["total_tokens_per_s"] == pytest.approx(172 / 3)


def test_a_million_tokens_cost_the_wall_of_all_gpus() -> None:
    told = measured(waits())
    hours = 8 * 3.0 / 3600
    assert told["usd_per_million_output_tokens"] == pytest.approx({"rental": 2e6 * hours / 12, "own": 1e6 * hours / 12})
    assert told["usd_per_million_tokens"]["own"] == pytest.approx(1e6 * hours / 172)
    assert told["usd_per_million_input_tokens"]["own"] == pytest.approx(1e6 * hours / 160)
    assert told["energy_kwh"] == pytest.approx(8 * 1.0 * 3.0 / 3600)


def test_goodput_counts_requests_that_keep_every_bound() -> None:
    bill = Bill({})
    for bounds, good in [({"ttft": 1.2}, 1), ({"tpot": 0.1}, 1), ({"tpot": 0.2, "ttft": 2.0}, 2), ({"e2e": 1.0}, 0)]:
        told = measure(waits(), [], gpus=1, bill=bill, cache=Cache(None), bounds=bounds)
        assert told["goodput_requests_per_s"] == pytest.approx(good / 3.0) and told["good_share"] == good / 2
    assert measured(waits())["goodput_requests_per_s"] is None


def test_caches_hits_and_preemptions_are_counted() -> None:
    log = StepLog()
    log.add(0.0, 1.0, 1, StepKind.PREFILL, 0, 100, 0, 250)
    told = measured(waits(), logs=[log])
    assert told["kv"] == {"capacity_tokens": 1000.0, "peak_share": 0.25, "sessions": 4.0}
    assert told["preemptions"] == 1 and told["prefix_hit_share"] == pytest.approx(0.1)


def test_gaps_are_steps_and_longer_where_prompts_came_between() -> None:
    log = StepLog()
    log.add(0.0, 1.0, 10, StepKind.DECODE, 4, 0, 0, 0)  # ten steps of 0.1
    log.add(1.0, 1.5, 1, StepKind.PREFILL, 0, 64, 0, 0)  # decode stands still
    log.add(1.5, 1.6, 1, StepKind.DECODE, 6, 0, 0, 0)  # four waited for both, two have joined
    seconds, counts = (np.concatenate(column) for column in zip(*gaps([log], 0.0, 2.0), strict=True))
    found = {round(float(each), 6): int(count) for each, count in zip(seconds, counts, strict=True) if count}
    assert found == {0.1: 42, 0.6: 4} or (counts[np.isclose(seconds, 0.1)].sum(), found[0.6]) == (42, 4)


class Told(Replica):
    """A replica that tells when each request's tokens came."""

    def __init__(self, *given: Any, **keys: Any) -> None:
        super().__init__(*given, **keys)
        self.came: dict[int, list[float]] = {}

    def _finish(self) -> float:
        assert self._run is not None
        (lane,), (plan,) = self.schedulers, self._run.plans
        made = lane.decoders.sequences() if plan.decodes else []
        read = [sequence for sequence, tokens in plan.chunks if sequence.computed + tokens == sequence.target]
        end_s = super()._finish()
        for sequence in (*made, *read):
            self.came.setdefault(sequence.request.number, []).append(end_s)
        return end_s


ENGINES = {
    "vllm": {"max_num_batched_tokens": 40, "max_num_seqs": 3},
    "sglang": {"chunked_prefill_size": 32, "disable_overlap_schedule": True},
    "trtllm": {"max_num_tokens": 64, "enable_chunked_prefill": True, "disable_overlap_scheduler": True},
    "atom": {"max_num_batched_tokens": 128},
}


@pytest.mark.parametrize("scheduler", ENGINES)
def test_gaps_of_a_log_are_those_between_the_tokens_of_requests(scheduler: str) -> None:
    """Whoever reads prompts between, whoever has ended before, and however long the engine was idle."""
    draw = random.Random(7)
    for _ in range(10):
        env = simpy.Environment()
        cost = CalledCost(lambda batch: 2.0**-6 * (1 + sum(q * n for q, _, n in batch.rows) // 8))
        replica = Told(env, Engine(scheduler, **ENGINES[scheduler]), cost, every_step=True)
        asked = [Request(i, draw.randint(0, 80) / 16, draw.randint(1, 70), draw.randint(1, 30)) for i in range(15)]
        for request in asked:
            ScheduledEvent(env, request.arrival_s, partial(replica.submit, request), ON_TIME)
        env.run()
        between = np.sort(np.concatenate([np.diff(each) for each in replica.came.values()]))
        seconds, counts = (np.concatenate(column) for column in zip(*gaps([replica.log], 0.0, 1e9), strict=True))
        np.testing.assert_allclose(np.sort(np.repeat(seconds, counts)), between, rtol=1e-9)


def test_percentiles_of_weighted_values_are_those_of_all_of_them() -> None:
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([10, 80, 10])
    assert weighted_percentiles(values, weights) == {"p50": 1.0, "p90": 2.0, "p99": 3.0}


def test_nothing_served_has_no_waits() -> None:
    empty = waits(**{name: [] for name in Waits.__dataclass_fields__})
    told = measured(empty)
    assert told["ttft_s"] is None and told["tpot_s"] is None and told["output_tokens_per_s"] == 0.0
