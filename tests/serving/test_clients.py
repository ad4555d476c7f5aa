"""Clients on a clock: who sends when, whatever serves them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim.base import catalog
from tspsim.scenario.traffic import TrafficSpec
from tspsim.serving.metrics import Waits
from tspsim.serving.requests import Request
from tspsim.serving.traffic import NO_PROCESS, Clients, ProcessTimes, RequestTable


class Delay:
    """Every request is answered after the same time, however many there are."""

    def __init__(self, clients: Clients, seconds: float) -> None:
        self.clients, self.seconds = clients, seconds
        self.env = simpy.Environment()
        self.here = self.most = 0

    def run(self) -> RequestTable:
        self.clients.begin(self.env, self.take)
        self.env.run()
        return self.clients.table

    def take(self, request: Request) -> None:
        self.here += 1
        self.most = max(self.most, self.here)
        request.first_scheduled_s = self.env.now
        request.first_token_s = self.env.now + self.seconds / 2
        done: Any = self.env.timeout(self.seconds)
        done.callbacks.append(lambda _: self.end(request))

    def end(self, request: Request) -> None:
        self.here -= 1
        request.end_s = self.env.now
        self.clients.ended(request)


def served(
    stated: dict[str, Any], seconds: float = 1.0, front_end_s: float = 0.0, times: ProcessTimes = NO_PROCESS
) -> tuple[Waits, Delay]:
    traffic = catalog.validate({"prompt": 100, "output": 10, **stated}, TrafficSpec)
    delay = Delay(Clients(traffic.draw(), front_end_s, times), seconds)
    return Waits.of(delay.run()), delay


def test_a_closed_loop_keeps_as_many_under_way_as_it_has_clients() -> None:
    waits, delay = served({"arrivals": {"kind": "closed", "concurrency": 4}, "requests": 12})
    assert delay.most == 4
    assert waits.arrival_s.tolist() == [0.0] * 4 + [1.0] * 4 + [2.0] * 4


def test_clients_may_come_one_after_the_other() -> None:
    arrivals = {"kind": "closed", "concurrency": 3, "interval": "250 ms"}
    waits, delay = served({"arrivals": arrivals, "requests": 7})
    assert sorted(waits.arrival_s) == [0.0, 0.25, 0.5, 1.0, 1.25, 1.5, 2.0]
    assert delay.most == 3


def test_an_open_loop_waits_for_nobody_and_a_limit_holds_requests_back() -> None:
    arrivals = {"kind": "fixed", "rate": 4}
    free, delay = served({"arrivals": arrivals, "requests": 8})
    assert free.arrival_s == pytest.approx(np.arange(8) / 4) and delay.most == 4
    held, delay = served({"arrivals": {**arrivals, "max_concurrency": 2}, "requests": 8})
    assert delay.most == 2 and held.arrival_s[:4] == pytest.approx([0.0, 0.25, 1.0, 1.25])


def test_the_next_turn_comes_after_a_think_time() -> None:
    prefix = {"turns": 3, "think": "2 s"}
    waits, delay = served({"arrivals": {"kind": "closed", "concurrency": 1}, "prefix": prefix, "requests": 6})
    assert waits.arrival_s.tolist() == [0.0, 3.0, 6.0, 7.0, 10.0, 13.0]
    assert delay.most == 1


def test_warm_up_ends_before_what_counts_begins() -> None:
    stated = {"arrivals": {"kind": "closed", "concurrency": 2}, "prefix": {"share": 0.5}, "requests": 4}
    waits, delay = served({**stated, "protocol": {"kind": "aiperf", "warm_ups": 3}})
    assert len(delay.clients.table) == 7 and len(waits) == 4
    assert waits.arrival_s.tolist() == [2.0, 2.0, 3.0, 3.0] and waits.wall_s == 2.0
    paced = {**stated, "arrivals": {"kind": "fixed", "rate": 10}, "protocol": {"kind": "aiperf", "warm_ups": 3}}
    waits, _ = served(paced)
    assert waits.arrival_s == pytest.approx([1.2, 1.3, 1.4, 1.5])


def test_conversations_of_a_warm_up_end_before_what_counts_begins() -> None:
    """None of them is counted in part: the first that counts is the first turn of the first after them."""
    prefix, arrivals = {"turns": 3, "think": "2 s"}, {"kind": "closed", "concurrency": 1}
    waits, delay = served({"arrivals": arrivals, "prefix": prefix, "requests": 6, "protocol": "vllm_bench"})
    assert len(waits) == 6 and waits.arrival_s.tolist() == [7.0, 10.0, 13.0, 14.0, 17.0, 20.0]
    assert waits.wall_s == 14.0 and delay.clients.table.drawn.warm_up == 3


def test_plain_counts_all_but_the_ends_that_it_is_told_to_leave_out() -> None:
    protocol = {"kind": "plain", "skip_first": 2, "skip_last": 1}
    waits, _ = served({"arrivals": {"kind": "fixed", "rate": 1}, "requests": 6, "protocol": protocol})
    assert waits.arrival_s.tolist() == [2.0, 3.0, 4.0]


def test_the_front_end_is_in_every_wait_and_in_a_client_s_pace() -> None:
    waits, _ = served({"arrivals": {"kind": "closed", "concurrency": 1}, "requests": 3}, front_end_s=0.5)
    assert waits.ttft_s == pytest.approx(1.0) and waits.e2e_s == pytest.approx(1.5)
    assert waits.arrival_s == pytest.approx([0.0, 1.5, 3.0])


def test_prompts_that_come_together_are_tokenised_one_after_the_other() -> None:
    """Three prompts of 100 tokens at 1 ms a token: the first waits for itself, the last for all, whoever is served."""
    one_by_one = ProcessTimes(prompt_token_s=1e-3)
    stated = {"arrivals": {"kind": "closed", "concurrency": 3}, "requests": 4}
    waits, _ = served(stated, front_end_s=0.5, times=one_by_one)
    assert waits.ttft_s[:3] == pytest.approx([1.1, 1.2, 1.3])
    assert (waits.arrival_s[3], waits.ttft_s[3]) == pytest.approx((1.6, 1.1)), "nobody is before the fourth"


def test_a_book_gives_requests_back_as_they_were() -> None:
    _, delay = served({"arrivals": {"kind": "closed", "concurrency": 2}, "requests": 5, "prefix": {"share": 0.5}})
    book = delay.clients.table
    assert [request.number for request in book] == [0, 1, 2, 3, 4]
    assert book[-1].end_s == book.end_s[4] and book[1].blocks == book.drawn.shared.blocks(1)
    assert len(book[1:3]) == 2
    with pytest.raises(IndexError):
        book[5]


ARRIVALS = st.one_of(
    st.fixed_dictionaries({"kind": st.just("closed"), "concurrency": st.integers(1, 9)}),
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["poisson", "fixed"]),
            "rate": st.floats(0.1, 50.0),
            "max_concurrency": st.integers(1, 9),
        }
    ),
)


@settings(max_examples=40, deadline=None)
@given(arrivals=ARRIVALS, requests=st.integers(1, 60), turns=st.integers(1, 4), warm_ups=st.integers(0, 5))
def test_everybody_is_answered_once_and_nobody_is_sent_before_his_time(
    arrivals: dict[str, Any], requests: int, turns: int, warm_ups: int
) -> None:
    stated = {"arrivals": arrivals, "requests": requests, "prefix": {"turns": turns, "think": "100 ms"}}
    waits, delay = served({**stated, "protocol": {"kind": "aiperf", "warm_ups": warm_ups}})
    book = delay.clients.table
    assert np.isfinite(book.end_s).all() and len(waits) == requests
    most = arrivals.get("concurrency") or arrivals["max_concurrency"]
    assert delay.most <= most
    for number in range(1, len(book)):
        if number % turns:
            assert book.arrival_s[number] >= book.end_s[number - 1] + 0.1 - 1e-9


def test_little_s_law_holds_of_a_closed_loop() -> None:
    waits, _ = served({"arrivals": {"kind": "closed", "concurrency": 8}, "requests": 800}, 0.7)
    throughput = len(waits) / waits.wall_s
    assert throughput * waits.e2e_s.mean() == pytest.approx(8.0)


def test_the_same_seed_gives_the_same_run() -> None:
    def run() -> Waits:
        return served({"arrivals": {"kind": "gamma", "rate": 9, "cv": 3}, "requests": 200, "seed": 5})[0]

    assert (run().arrival_s == run().arrival_s).all()
