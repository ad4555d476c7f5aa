"""Starts of every job of random logs are those of a second, plain implementation of the published algorithms; waits of
the queues of textbooks are their closed forms."""

from __future__ import annotations

from heapq import heappop, heappush
from math import factorial
from typing import Any

import numpy as np
import pytest
from helpers import plain_queues
from helpers.plain_queues import Policy, Row

from tspsim.fleet import JOB_SCHEDULERS
from tspsim.fleet.clock import Fleet
from tspsim.fleet.jobs import FleetJob
from tspsim.fleet.nodes import Nodes
from tspsim.fleet.placements.packed import Packed

POLICIES: dict[str, Policy] = {
    "fcfs": plain_queues.first_come, "easy": plain_queues.easy, "conservative": plain_queues.conservative,
}  # fmt: skip


def drawn(seed: int, count: int, nodes: int) -> list[Row]:
    """A log whose cluster is mostly full; times are whole seconds, and some users say what they need."""
    random = np.random.default_rng(seed)
    submit = np.cumsum(random.geometric(1 / 40, count)) // 10 * 10
    wide = np.minimum(nodes, 2 ** random.integers(0, 1 + int(np.log2(nodes)), count) + random.integers(0, 2, count))
    runs = np.ceil(random.lognormal(5.5, 1.3, count)).astype(int)
    says = np.where(random.random(count) < 0.3, runs, runs * random.integers(1, 6, count))
    return [Row(*map(int, row)) for row in zip(submit, wide, runs, says, strict=True)]


def run(rows: list[Row], nodes: int, scheduler: str, leaf: int = 8) -> Fleet:
    jobs = [
        FleetJob(n, f"j{n}", "log", "user", 0, float(row.submit), (row.nodes,), (float(row.runs),), float(row.says))
        for n, row in enumerate(rows)
    ]
    leaves = [range(begin, min(begin + leaf, nodes)) for begin in range(0, nodes, leaf)]
    policy: Any = JOB_SCHEDULERS.get(scheduler)()
    fleet = Fleet(jobs, Nodes(leaves, 8), policy, Packed(), random=np.random.default_rng(0))
    fleet.run()
    return fleet


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("scheduler", POLICIES)
def test_starts_of_a_short_log(scheduler: str) -> None:
    for seed in range(4):
        rows = drawn(seed, 60 if scheduler == "conservative" else 150, 32)
        found = [life.started_s for life in run(rows, 32, scheduler).lives]
        assert found == plain_queues.starts(rows, 32, POLICIES[scheduler])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_starts_of_2000_jobs(seed: int) -> None:
    rows = drawn(100 + seed, 2000, 64)
    for scheduler in ("fcfs", "easy"):
        found = [life.started_s for life in run(rows, 64, scheduler).lives]
        assert found == plain_queues.starts(rows, 64, POLICIES[scheduler])


def chance(count: int, servers: int, load: float, exponential: bool, seed: int) -> tuple[Any, Any]:
    """When jobs come, and their work, whose mean is 1 s."""
    random = np.random.default_rng(seed)
    submit = np.cumsum(random.exponential(1.0 / (load * servers), count))
    return submit, random.exponential(1.0, count) if exponential else np.ones(count)


def waited(submit: Any, work: Any, servers: int) -> Any:
    """Wait of every job of one node each on so many nodes."""
    jobs = [
        FleetJob(n, "", "log", "user", 0, float(at), (1,), (float(takes),), float(takes))
        for n, (at, takes) in enumerate(zip(submit, work, strict=True))
    ]
    policy: Any = JOB_SCHEDULERS.get("fcfs")()
    fleet = Fleet(jobs, Nodes([range(servers)], 8), policy, Packed(), random=np.random.default_rng(0))
    fleet.run()
    return np.array([life.started_s for life in fleet.lives], dtype=float) - submit


def erlang_c(servers: int, load: float) -> float:
    """Mean wait of M/M/c for mean work of 1 s (Erlang 1917)."""
    offered = servers * load
    last = offered**servers / factorial(servers) / (1.0 - load)
    waits = last / (sum(offered**k / factorial(k) for k in range(servers)) + last)
    return waits / (servers * (1.0 - load))


def khinchin(load: float) -> float:
    """Mean wait of M/D/1 for work of 1 s (Pollaczek 1930, Khinchin 1932)."""
    return load / (2.0 * (1.0 - load))


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(("servers", "exponential"), [(1, True), (1, False), (4, True)])
def test_every_wait_is_that_of_the_recursion_of_kiefer_and_wolfowitz(servers: int, exponential: bool) -> None:
    """Kiefer and Wolfowitz 1955: a job starts when it comes, or when the first of the servers is done."""
    submit, work = chance(3_000, servers, 0.8, exponential, 1)
    done = [0.0] * servers
    for at, takes, found in zip(submit.tolist(), work.tolist(), waited(submit, work, servers).tolist(), strict=True):
        begin = max(at, heappop(done))
        heappush(done, begin + takes)
        assert at + found == pytest.approx(begin, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("servers", "load", "exponential"), [(1, 0.5, True), (4, 0.6, True), (1, 0.6, False)])
def test_waits_of_long_runs_are_the_closed_forms(servers: int, load: float, exponential: bool) -> None:
    """Half a million jobs each; the queues are light enough for the mean of so many to be known within 1 %."""
    wait = erlang_c(servers, load) if exponential else khinchin(load)
    means = [waited(*chance(250_000, servers, load, exponential, seed), servers).mean() for seed in range(2)]
    assert np.mean(means) == pytest.approx(wait, rel=0.01)
