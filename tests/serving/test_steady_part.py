"""The steady part of runs against what queueing theory says of them, and what of an answer rests on it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tspsim
from tspsim.base.units import share_beside
from tspsim.report.requests import headline
from tspsim.serving.bounds import kept_of
from tspsim.serving.steady import Steady, steady_of, tied, window
from tspsim.serving.waits import Waits
from tspsim.step.result import PlanResult
from tspsim.studies.purchase.machines import machines_in_words


def waits_of(sent: Any, first: Any, end: Any, outputs: Any = 100) -> Waits:
    sent, first, end = (np.asarray(each, dtype=float) for each in (sent, first, end))
    whole = np.full(len(sent), 1, dtype=np.int64)
    return Waits(sent, sent, first, end, 1000 * whole, np.asarray(outputs * whole), 0 * whole, 0 * whole)


def closed(clients: int, count: int, seed: int = 0) -> Waits:
    """Clients without a queue whose answers take a lognormal time of mean one: they serve one a second each."""
    random = np.random.default_rng(seed)
    takes = random.lognormal(-0.32, 0.8, count)
    free = [0.0] * clients
    rows = []
    for each in takes:
        at = heapq.heappop(free)
        heapq.heappush(free, at + each)
        rows.append((at, at + 0.1 * each, at + each))
    return waits_of(*zip(*rows, strict=True))


def stream(rate: float, count: int, seed: int = 0) -> Waits:
    """Poisson arrivals at so many servers that nobody waits, of two seconds each in the mean."""
    random = np.random.default_rng(seed)
    sent = np.cumsum(random.exponential(1.0 / rate, count))
    end = sent + random.exponential(2.0, count)
    return waits_of(sent, sent + 0.1 * (end - sent), end)


def found(waits: Waits, **more: Any) -> Steady:
    steady = steady_of(waits, more.pop("bounds", {}), **more)
    assert steady is not None
    return steady


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("count", [600, 6000, 60_000])
def test_a_closed_loop_serves_its_clients_over_the_mean_answer_however_long_it_ran(count: int):
    """Renewal theory: C/E[S], of lognormal times; over the wall 600 are 8 % below it."""
    inside = 0
    for seed in range(5):
        waits = closed(64, count, seed)
        steady = found(waits)
        assert steady.requests_per_s.value == pytest.approx(64.0, rel=0.13 if count == 600 else 0.04)
        inside += abs(steady.requests_per_s.value - 64.0) <= 1.3 * steady.requests_per_s.half
        if count == 600:
            assert len(waits) / waits.wall_s < 0.9 * 64.0
    assert inside >= 3
    assert steady.users == pytest.approx(64.0, rel=0.01)


def test_a_stream_serves_what_comes_and_has_under_way_what_little_says():
    few, many = (found(stream(30.0, count), rate=30.0) for count in (600, 20_000))
    assert few.requests_per_s.value == pytest.approx(30.0, rel=0.05)
    assert many.requests_per_s.value == pytest.approx(30.0, rel=0.005)
    assert many.users == pytest.approx(60.0, rel=0.05)
    assert many.requests_per_s.half < few.requests_per_s.half
    assert tied((30.0, 29.0, 31.0), (31.0, 30.0, 32.0)) and not tied((30.0, 29.9, 30.1), (31.0, 30.9, 31.1))


def test_requests_that_end_together_count_in_whole_waves():
    waves = np.repeat(np.arange(20.0), 8)
    steady = found(waits_of(waves, waves + 0.25, waves + 1.0))
    assert (steady.from_s, steady.to_s, steady.answers) == (2.0, 19.0, 17.0)
    assert steady.requests_per_s.value == pytest.approx(8.0) and steady.requests_per_s.half == pytest.approx(0.0)
    assert steady.output_tokens_per_s.value == pytest.approx(800.0)


def test_the_last_digit_of_a_time_does_not_move_the_steady_part():
    """A request that is sent in the place of the first answered comes at that time, an ulp before it or not."""
    waits = closed(4, 400)
    second = np.where(waits.arrival_s == waits.first_end_s, np.nextafter(waits.arrival_s, 0.0), waits.arrival_s)
    assert (second < waits.arrival_s).sum() == 1
    assert window(waits_of(second, waits.first_token_s, waits.end_s)) == window(waits)


def test_what_is_sent_at_once_or_ends_in_the_ramp_has_no_steady_part():
    assert window(waits_of([0.0] * 40, [1.0] * 40, [2.0] * 40))[0] == 2.0
    for waits in (waits_of([0.0] * 40, [1.0] * 40, np.arange(40) + 2.0), closed(64, 200), closed(2, 20)):
        assert steady_of(waits, {}) is None


class _InPieces(Waits):
    """The same, some at once."""

    def pieces(self) -> Iterator[Waits]:
        for first in range(0, len(self), 97):
            yield self.part(slice(first, first + 97))


def test_of_pieces_it_is_what_it_is_of_all_at_once():
    waits = closed(16, 1000)
    pieces = _InPieces(*(getattr(waits, name) for name in Waits.__dataclass_fields__))
    whole, parts = (found(each, bounds={"e2e": 1.0, "ttft": 0.1}) for each in (waits, pieces))
    for name in ("requests_per_s", "good_share", "apart_share", "goodput_requests_per_s"):
        mine, other = getattr(whole, name), getattr(parts, name)
        assert (mine.value, mine.half) == pytest.approx((other.value, other.half))
    share = float((waits.e2e_s <= 1.0).mean())
    assert whole.good_share is not None and abs(whole.good_share.value - share) < 3 * whole.good_share.half


def test_a_share_is_held_against_what_is_asked_as_it_is_and_not_as_it_is_rounded():
    waits = stream(30.0, 4000)
    exact = kept_of(waits, None, {"e2e": 4.0}, 0.9, False, False)
    assert exact.kept == (exact.share >= 0.9)
    assert not kept_of(waits, None, {"e2e": 4.0}, np.nextafter(exact.share, 1.0), False, False).kept
    assert kept_of(waits, None, {"e2e": 4.0}, exact.share, False, False).kept
    assert not kept_of(waits, None, {"e2e": 4.0}, exact.share, False, True).kept


@given(st.floats(0.0, 1.0), st.floats(0.01, 1.0))
def test_a_share_never_reads_as_if_it_lay_on_the_other_side_of_a_bound(share: float, bound: float):
    shown = float(share_beside(share, bound).removesuffix(" %"))
    if abs(share - bound) > 1e-9:
        assert (share < bound) == (shown < 100.0 * bound)


# --- what rests on it --------------------------------------------------------------------------------------------


def purchase(**traffic: Any) -> dict[str, Any]:
    return {
        "name": "buy",
        "workload": {"model": "llama-3.1-8b", "stack": "vllm"},
        "traffic": {
            "arrivals": {"kind": "closed", "concurrency": [8, 64]},
            "prompt": {"kind": "lognormal", "median": 400, "sigma": 0.7, "cap": 2000},
            "output": {"kind": "lognormal", "median": 60, "sigma": 0.7, "cap": 400},
            "slo": {"ttft": "1 s", "tpot": "30 ms"},
            **traffic,
        },
        "plans": [{"name": "one", "tp": 1}],
        "offers": [
            {"name": name, "cluster": {"device": name, "gpus_per_node": 1, "nodes": 1}} for name in ("h200", "mi355x")
        ],
        "project": {"requests": "200 requests/s"},
    }


@pytest.mark.parametrize(
    ("counts", "clients"),
    [((200, 600), [24]), pytest.param((600, 6000, 60_000), [8, 24, 64], marks=pytest.mark.slow)],
    ids=["two", "three"],
)
@pytest.mark.in_turn(2, group="rates")
def test_a_purchase_is_the_same_with_600_requests_and_with_100_times_as_many(counts: Any, clients: Any):
    arrivals = {"kind": "closed", "concurrency": clients}
    decisions = [tspsim.compare(purchase(requests=count, arrivals=arrivals)).verdict for count in counts]
    longest = decisions[-1]
    for decision in decisions:
        assert decision is not None and longest is not None and decision.winner is not None
        assert longest.winner is not None
        assert decision.winner.name == longest.winner.name or decision.verdicts[0].tie
        for mine, other in zip(decision.rows, longest.rows, strict=True):
            assert mine.service is not None and other.service is not None
            assert mine.service.machines_low <= other.service.machines <= mine.service.machines_high
            assert mine.service.machines_high - mine.service.machines_low <= 1 + mine.service.machines // 10


def test_plans_that_serve_all_that_is_sent_tie_and_an_unfilled_machine_is_told():
    asked = purchase(requests=100, arrivals={"kind": "poisson", "rate": [4, 8]})
    plans = [{"name": "one"}, {"name": "few", "engine": {"max_num_seqs": 64}}]
    cluster = asked.pop("offers")[0]["cluster"]
    result = tspsim.simulate({**asked, "plans": plans, "cluster": cluster, "project": {"requests": "20/s"}})
    first, second = sorted(result.plans, key=lambda plan: plan is not result.best)
    told = headline(first, [second])
    assert f"ties with {second.name}, and at 8 requests/s puts out" in told and "serves best" in headline(
        first, [refused(second)]
    )
    assert "No heavier load was stated" in " ".join(machines_in_words(result))


def refused(plan: PlanResult) -> PlanResult:
    return replace(plan, error="does not fit")


def test_an_offer_that_keeps_the_bounds_at_no_load_is_neither_cheapest_nor_counted_out():
    asked = purchase(requests=200, arrivals={"kind": "closed", "concurrency": 16})
    asked["traffic"]["slo"] = {"tpot": "6.2 ms"}
    asked["offers"][0]["prices"] = {"gpu_hour": "0.01 USD/h"}
    asked["offers"][0]["cluster"]["device"] = "mi300x"
    asked["offers"][1]["cluster"]["device"] = "b200"
    compared = tspsim.compare(asked)
    decision = compared.verdict
    assert decision is not None and decision.winner is not None and decision.winner.device == "b200"
    (missed,) = [row for row in decision.rows if row.misses]
    assert missed.device == "mi300x" and missed.service is None and missed.measure("tokens_per_usd") is None
    told = " ".join(decision.in_words())
    assert "keeps the bounds at no load" in told and "90 % are asked" in told
