"""Fair share and priority with preemption beside second, plain implementations of what their descriptions say."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest

import tspsim
from tspsim.fleet import FleetAnswer

NODES, HALF_LIFE_S = 12, 7 * 86_400.0


class Row(NamedTuple):
    """A job: submitted, nodes, seconds, what its user says, who that is, priority."""

    at_s: int
    nodes: int
    runs_s: int
    says_s: int
    user: str
    priority: int


def drawn(seed: int, count: int) -> list[Row]:
    random = np.random.default_rng([seed, 32])
    at = np.cumsum(random.integers(0, 900, count)).tolist()
    wide = np.where(random.random(count) < 0.9, random.integers(1, 7, count), NODES).tolist()
    runs = random.integers(60, 20_000, count)
    says = (runs * random.choice([1, 2, 3], count)).tolist()
    who, how = random.integers(0, 4, count).tolist(), random.integers(0, 4, count).tolist()
    rows = zip(at, wide, runs.tolist(), says, who, how, strict=True)
    return [Row(at_s, nodes, runs_s, says_s, f"u{user}", rank) for at_s, nodes, runs_s, says_s, user, rank in rows]


def asked(rows: list[Row], scheduler: str) -> list[tuple[float | None, float | None, int]]:
    """First start, end and restarts of every job."""
    jobs = [
        {"name": f"j{n}", "user": row.user, "nodes": row.nodes, "hours": f"{row.runs_s} s", "limit": f"{row.says_s} s",
         "submit": f"{row.at_s} s", "priority": row.priority, "preemptible": True}
        for n, row in enumerate(rows)
    ]  # fmt: skip
    machine = {"device": "h100", "nodes": NODES, "fabric": "rails-400g"}
    answer = tspsim.simulate({"name": "plain", "cluster": machine, "jobs": jobs, "scheduler": scheduler})
    assert isinstance(answer, FleetAnswer)
    told = {job.name: (job.start_s, job.end_s, job.restarts) for job in answer.facts.jobs}
    return [told[f"j{n}"] for n in range(len(rows))]


class Plain:
    """A cluster without a clock's subtleties: instants one after the other, ends before arrivals."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows, self.now, self.free = rows, 0.0, NODES
        self.queue: list[int] = []
        #: (end, said end, begin, job)
        self.running: list[tuple[float, float, float, int]] = []
        self.first: dict[int, float] = {}
        self.ends: dict[int, float] = {}
        self.stops = [0] * len(rows)

    def run(self) -> list[tuple[float, float, int]]:
        coming = list(range(len(self.rows)))
        while coming or self.running:
            self.now = min([self.rows[job].at_s for job in coming[:1]] + [end for end, *_ in self.running])
            for each in [each for each in self.running if each[0] <= self.now]:
                self.leave(each)
                self.ends[each[-1]] = self.now
            while coming and self.rows[coming[0]].at_s <= self.now:
                self.queue.append(coming.pop(0))
            self.decide()
        return [(self.first[job], self.ends[job], self.stops[job]) for job in range(len(self.rows))]

    def start(self, job: int) -> None:
        row = self.rows[job]
        self.queue.remove(job)
        self.free -= row.nodes
        self.running.append((self.now + row.runs_s, self.now + row.says_s, self.now, job))
        self.first.setdefault(job, self.now)

    def leave(self, each: tuple[float, float, float, int]) -> None:
        self.running.remove(each)
        self.free += self.rows[each[-1]].nodes

    def decide(self) -> None:
        raise NotImplementedError


class PlainShare(Plain):
    used: dict[str, float]
    last = 0.0

    def decide(self) -> None:
        self.used = {user: use * 0.5 ** ((self.now - self.last) / HALF_LIFE_S) for user, use in self.used.items()}
        self.last = self.now
        while self.queue:
            firsts: dict[str, int] = {}
            for job in self.queue:
                firsts.setdefault(self.rows[job].user, job)
            head = min(firsts.values(), key=lambda job: (self.used.get(self.rows[job].user, 0.0), job))
            if self.rows[head].nodes > self.free:
                self.backfill(head)
                return
            self.go(head)

    def go(self, job: int) -> None:
        row = self.rows[job]
        self.start(job)
        self.used[row.user] = self.used.get(row.user, 0.0) + row.nodes * row.says_s

    def backfill(self, head: int) -> None:
        said = sorted(end for _, end, *_ in self.running)
        need = self.rows[head].nodes

        def then(at_s: float) -> int:
            return self.free + sum(self.rows[job].nodes for _, end, _, job in self.running if end <= at_s)

        shadow_s = next(end for end in said if then(end) >= need)
        extra = then(shadow_s) - need
        for job in [job for job in self.queue if job != head]:
            row = self.rows[job]
            over = self.now + row.says_s > shadow_s
            if row.nodes <= self.free and (not over or row.nodes <= extra):
                extra -= row.nodes * over
                self.go(job)


class PlainPriority(Plain):
    def decide(self) -> None:
        held, place = math.inf, 0
        self.queue.sort(key=self.rank)
        while place < len(self.queue):
            job = self.queue[place]
            if self.rows[job].priority >= held:
                place += 1
            elif self.fits(job) or self.stop_for(job):
                self.queue.sort(key=self.rank)  # whoever was stopped stands behind
            else:
                held = self.rows[job].priority if held == math.inf else held
                place += 1

    def rank(self, job: int) -> tuple[int, int]:
        return -self.rows[job].priority, job

    def fits(self, job: int) -> bool:
        if self.rows[job].nodes > self.free:
            return False
        self.start(job)
        return True

    def stop_for(self, job: int) -> bool:
        need, free, chosen = self.rows[job].nodes, self.free, []
        below = [each for each in self.running if self.rows[each[-1]].priority < self.rows[job].priority]
        for each in sorted(below, key=lambda each: (self.rows[each[-1]].priority, -each[2], -each[-1])):
            if free < need:
                chosen.append(each)
                free += self.rows[each[-1]].nodes
        if free < need:
            return False
        for each in chosen[::-1]:
            if free - self.rows[each[-1]].nodes >= need:
                chosen.remove(each)
                free -= self.rows[each[-1]].nodes
        for each in chosen:
            self.leave(each)
            self.stops[each[-1]] += 1
            self.queue.append(each[-1])
        self.start(job)
        return True


@pytest.mark.parametrize("seed", range(3))
def test_fair_share_starts_every_job_as_a_plain_one_does(seed: int) -> None:
    rows = drawn(seed, 100)
    plain = PlainShare(rows)
    plain.used = {}
    assert asked(rows, "fair_share") == plain.run()


@pytest.mark.parametrize("seed", range(3))
def test_preemption_starts_stops_and_ends_every_job_as_a_plain_one_does(seed: int) -> None:
    rows = drawn(seed, 100)
    found = PlainPriority(rows).run()
    assert sum(stops for *_, stops in found) > 10
    assert asked(rows, "priority") == found
