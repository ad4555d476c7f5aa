"""Replicas behind a router: who gets what, when a run is over, what an interrupt leaves."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from helpers.serving import Closed, Listed, servers

from tspsim.base.errors import TspsimError, UnknownNameError
from tspsim.serving.replicas import ReplicaPool
from tspsim.serving.requests import Request
from tspsim.serving.routers import PREFIX_AWARE, ROUTERS
from tspsim.serving.service import Service


def asked(count: int, *, outputs: int = 1, every_s: float = 0.0) -> list[Request]:
    return [Request(number, number * every_s, 10, outputs) for number in range(count)]


def homes(pool: ReplicaPool) -> list[int]:
    return list(pool.homes)


def test_round_robin_sends_to_each_in_turn():
    pool = ReplicaPool([servers(3)])
    Service(Listed(asked(7)), pool).run()
    assert homes(pool) == [0, 1, 2, 0, 1, 2, 0]


def test_least_load_sends_where_fewest_wait_and_of_equals_where_fewest_tokens_are_ahead():
    requests = [Request(number, 0.1 * number, 10, outputs) for number, outputs in enumerate([9, 1, 1, 1])]
    pool = ReplicaPool([servers(2)], "least_load")
    Service(Listed(requests), pool).run()
    # The third finds one request on either; none waits yet, so the first of equals. The fourth finds two against one.
    assert homes(pool) == [0, 1, 0, 1]


def test_prefix_aware_follows_the_blocks_and_spreads_what_is_new():
    shared = {0: (1, 2, 3), 1: (7, 8, 9), 2: (1, 2, 4), 3: (7, 8, 10), 4: (1, 2, 3)}
    requests = [Request(number, float(number), 48, 1, blocks, 16) for number, blocks in shared.items()]
    pool = ReplicaPool([servers(2)], "prefix_aware")
    Service(Listed(requests), pool).run()
    assert homes(pool) == [0, 1, 0, 1, 0]


def test_prefix_aware_goes_by_load_once_loads_are_uneven():
    still = {"tokens_ahead": 0, "now_s": 0.0, "ahead_at": lambda time_s: 0, "watch": lambda notice: None}
    busy = SimpleNamespace(waiting=70, running=10, **still)
    idle = SimpleNamespace(waiting=0, running=1, **still)
    route = PREFIX_AWARE.open([busy, idle])
    assert [route(Request(number, 0.0, 16, 1, (5,), 16)) for number in range(2)] == [1, 1]
    even = PREFIX_AWARE.open([idle, idle])
    assert [even(Request(number, 0.0, 16, 1, (5,), 16)) for number in range(2)] == [0, 0]


def test_an_unknown_router_is_told_with_its_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'round_robin'"):
        ReplicaPool([servers(1)], "round_robbin")


def test_a_router_from_outside_is_asked_like_the_others():
    class Last:
        name, summary = "last", "the last one"

        def open(self, replicas):
            return lambda request: len(replicas) - 1

    ROUTERS.register(Last())
    try:
        pool = ReplicaPool([servers(4)], "last")
        Service(Listed(asked(3)), pool).run()
        assert homes(pool) == [3, 3, 3]
    finally:
        ROUTERS.remove("last")


def test_a_closed_loop_over_n_servers_is_n_times_as_fast():
    def wall_s(replicas: int) -> float:
        requests = asked(60, outputs=2)
        Service(Closed(requests, concurrency=6), ReplicaPool([servers(replicas)], "least_load")).run()
        return max(request.end_s for request in requests)

    assert wall_s(1) == pytest.approx(120.0)
    assert wall_s(3) == pytest.approx(40.0)


def test_all_that_was_asked_has_ended_and_is_told_in_order():
    outcome = Service(Closed(asked(20, outputs=3), 4), ReplicaPool([servers(2)])).run()
    assert [request.number for request in outcome.requests] == list(range(20))
    assert all(request.end_s >= request.arrival_s for request in outcome.requests)
    assert outcome.names == ("replica 0", "replica 1")
    assert sum(len(log) for log in outcome.logs) == 20
    assert not outcome.interrupted


def test_a_run_may_stop_at_a_time():
    outcome = Service(Listed(asked(10, every_s=1.0)), ReplicaPool([servers(1)]), until_s=4.5).run()
    ended = [request for request in outcome.requests if not math.isnan(request.end_s)]
    assert [request.end_s for request in ended] == [1.0, 2.0, 3.0, 4.0]


def test_an_interrupt_keeps_what_had_ended():
    def seconds(request: Request) -> float:
        if request.number == 5:
            raise KeyboardInterrupt
        return 1.0

    outcome = Service(Listed(asked(10)), ReplicaPool([servers(1, seconds)])).run()
    assert outcome.interrupted
    assert [not math.isnan(request.end_s) for request in outcome.requests] == [True] * 5 + [False] * 5


def test_requests_that_nothing_can_serve_are_a_bug_and_said():
    class Silent(Listed):
        def begin(self, env, send):
            pass

    with pytest.raises(TspsimError, match="3 of 3 requests have no answer"):
        Service(Silent(asked(3)), ReplicaPool([servers(1)])).run()


def test_progress_is_told_a_hundred_times_at_most():
    told: list[float] = []
    Service(Listed(asked(1000)), ReplicaPool([servers(1)]), progress=told.append).run()
    assert len(told) == 100
    assert told[-1] == 1.0
