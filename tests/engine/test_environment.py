"""The engine's environment is SimPy's: the same events in the same order, and the same ends."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
import simpy

from tspsim.network.environment import Environment


def told(env: simpy.Environment) -> list[tuple[float, int]]:
    """When each step of some processes happens, and whose it is."""
    found: list[tuple[float, int]] = []

    def process(number: int, rng: random.Random) -> Iterator[simpy.Event]:
        for _ in range(20):
            yield env.timeout(rng.choice([0.0, 0.5, 1.0]))
            found.append((env.now, number))

    for number in range(5):
        env.process(process(number, random.Random(number)))  # type: ignore[arg-type]
    env.run()
    return found


def test_the_same_happens_in_the_same_order() -> None:
    assert told(Environment()) == told(simpy.Environment())


def test_it_runs_until_a_time_an_event_or_step_by_step() -> None:
    env = Environment()
    env.timeout(3.0)
    env.run(until=2.0)
    assert env.now == 2.0
    assert env.run(until=env.timeout(0.5, "here")) == "here" and env.now == 2.5
    while env.peek() < math.inf:
        env.step()
    assert env.now == 3.0
    with pytest.raises(simpy.core.EmptySchedule):
        env.step()


def test_what_fails_unseen_ends_the_run() -> None:
    env = Environment()
    env.event().fail(ValueError("lost"))
    with pytest.raises(ValueError, match="lost"):
        env.run()
