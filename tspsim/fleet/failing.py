"""Failures, repairs and maintenance of nodes: processes beside the jobs of a fleet."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import simpy

from .clock import Fleet
from .failure_keys import Component, FailureKeys, Maintenance
from .running_job import RunningJob

DAY_S = 86_400.0


class Failing:
    """Failures of a fleet; the draws do not depend on its jobs.

    Attributes
    ----------
    events
        Component → number of failures, and number of jobs that they stopped.
    """

    def __init__(
        self,
        fleet: Fleet,
        keys: FailureKeys | None,
        windows: Sequence[Maintenance],
        random: np.random.Generator,
    ) -> None:
        self.fleet, self.keys, self.random = fleet, keys, random
        self.events: dict[str, list[int]] = {}
        self._failures: dict[int, int] = {}
        #: Spare nodes, and spares still owed once nodes come back.
        self._spares: list[int] = []
        self._owed = 0
        #: Node → number of reasons why it is out.
        self._reasons: dict[int, int] = {}
        if keys is not None:
            self._components = list(keys.all_components().items())
            self._weights = self._lemons(keys)
            spares = [node for leaf in reversed(fleet.nodes.leaves) for node in reversed(leaf)][: keys.spares]
            self._hold(spares)
            fleet.env.process(self._fail())
        for window in windows:
            fleet.env.process(self._maintain(window))

    def _hold(self, spares: Sequence[int]) -> None:
        self.fleet.nodes.take(spares)
        self._spares = list(spares)
        if spares:
            self.fleet.occupancy.spares = lambda: sum(node not in self.fleet.nodes.down for node in self._spares)

    def _lemons(self, keys: FailureKeys) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Relative failure rate of each node, mean 1."""
        weights = np.ones(self.fleet.nodes.count)
        if keys.lemons is not None:
            count = max(1, round(keys.lemons.share * len(weights)))
            weights[self.random.choice(len(weights), count, replace=False)] = keys.lemons.factor
            weights /= weights.mean()
        return weights

    def _fail(self) -> Generator[simpy.Event, Any, None]:
        env, random = self.fleet.env, self.random
        rates = np.array([component.rate for _, component in self._components])
        if not rates.sum():
            return
        scale_s = 1000.0 * DAY_S / (rates.sum() * self.fleet.nodes.count)
        which, where = np.cumsum(rates) / rates.sum(), np.cumsum(self._weights) / self._weights.sum()
        while True:
            yield env.timeout(float(random.exponential(scale_s)))
            drawn = random.random(3)
            name, component = self._components[min(int(np.searchsorted(which, drawn[0])), len(which) - 1)]
            node = min(int(np.searchsorted(where, drawn[1])), len(where) - 1)
            if self._sound(node, float(drawn[2])):
                self._strike(name, component, node)

    def _sound(self, node: int, drawn: float) -> bool:
        """Whether a node can fail: not if it is out, or a lemon that was replaced (beyond the usual rate)."""
        if node in self.fleet.nodes.down:
            return False
        lemons = self.keys.lemons if self.keys is not None else None
        if lemons is None or lemons.retire is None or self._failures.get(node, 0) < lemons.retire:
            return True
        return drawn < float(self._weights.min() / self._weights[node])

    def _strike(self, name: str, component: Component, node: int) -> None:
        fleet = self.fleet
        assert self.keys is not None
        fleet.account()
        self._failures[node] = self._failures.get(node, 0) + 1
        nodes = fleet.nodes.leaves[fleet.nodes.leaf_of[node]] if component.leaf else [node]
        struck = [member for member in nodes if member not in fleet.nodes.down]
        stood = self._out(struck, "failed", self.keys.detection + self.keys.eviction)
        counted = self.events.setdefault(name, [0, 0])
        counted[0] += 1
        counted[1] += stood
        fleet.changed()
        fleet.env.process(self._repair(struck, self.keys.detection + self.keys.eviction, component.repair))

    def _out(self, nodes: Sequence[int], why: str, notice_s: float) -> int:
        """Takes nodes out: their jobs hang, and wait again once that is noticed. Returns the number of jobs."""
        fleet = self.fleet
        struck = set(nodes)
        stood = 0
        for node in nodes:
            self._reasons[node] = self._reasons.get(node, 0) + 1
            fleet.nodes.fail(node)
        for running in [run for run in fleet.dispatcher.running.values() if not struck.isdisjoint(run.nodes)]:
            assert isinstance(running, RunningJob)
            if not running.hung:
                stood += 1
                fleet.hang(running, notice_s, why)
        return stood

    def _repair(self, nodes: Sequence[int], notice_s: float, repair_s: float) -> Generator[simpy.Event, Any, None]:
        fleet, env = self.fleet, self.fleet.env
        fleet.repairs += 1
        self._expect(nodes, env.now + notice_s + repair_s)
        if notice_s:
            yield env.timeout(notice_s)
        fleet.account()
        idle = [node for node in nodes if node in self._spares]
        fleet.nodes.give(idle)
        sound = [node for node in self._spares if node not in fleet.nodes.down]
        stood_in = sound[::-1][: len(nodes) - len(idle)]
        self._spares = [node for node in self._spares if node not in idle and node not in stood_in]
        if stood_in:
            env.process(self._stand_in(stood_in))
        yield env.timeout(repair_s)
        fleet.account()
        self._owed += len(idle) + len(stood_in)
        for node in nodes:
            self._back(node)
        fleet.repairs -= 1
        fleet.changed()

    def _expect(self, nodes: Sequence[int], back_s: float) -> None:
        """Nodes should be back by then, or later if another reason holds."""
        back_at_s = self.fleet.dispatcher.back_s
        for node in nodes:
            back_at_s[node] = max(back_s, back_at_s.get(node, 0.0))

    def _back(self, node: int) -> None:
        """Ends one reason to be out; with no other the node is back, as a spare where one is owed."""
        nodes = self.fleet.nodes
        self._reasons[node] -= 1
        if self._reasons[node]:
            return
        self.fleet.dispatcher.back_s.pop(node, None)
        nodes.mend(node)
        if self._owed and node not in nodes.taken:
            self._owed -= 1
            nodes.take((node,))
            self._spares.append(node)

    def _stand_in(self, spares: Sequence[int]) -> Generator[simpy.Event, Any, None]:
        assert self.keys is not None
        if self.keys.spare_start:
            yield self.fleet.env.timeout(self.keys.spare_start)
        self.fleet.account()
        self.fleet.nodes.give(spares)
        self.fleet.changed()

    def _maintain(self, window: Maintenance) -> Generator[simpy.Event, Any, None]:
        fleet, env = self.fleet, self.fleet.env
        order = [node for leaf in fleet.nodes.leaves for node in leaf]
        begin = 0
        yield env.timeout(window.every if window.first is None else window.first)
        while True:
            block = [order[(begin + step) % len(order)] for step in range(min(window.nodes, len(order)))]
            begin = (begin + window.nodes) % len(order)
            began_s = env.now
            fleet.account()
            self._out(block, "stopped", 0.0)
            fleet.repairs += 1
            self._expect(block, env.now + window.takes)
            yield env.timeout(window.takes)
            fleet.account()
            for node in block:
                self._back(node)
            fleet.repairs -= 1
            fleet.changed()
            yield env.timeout(max(0.0, began_s + window.every - env.now))

    def to_json(self) -> dict[str, Any]:
        """The entry ``failures``: by component, and for the whole fleet."""
        total, stood = (sum(counts[part] for counts in self.events.values()) for part in (0, 1))
        days = self.fleet.ended_s / DAY_S * self.fleet.nodes.count
        return {
            "events": {name: counts[0] for name, counts in sorted(self.events.items())},
            "interruptions": {name: counts[1] for name, counts in sorted(self.events.items())},
            "per_1000_node_days": 1000.0 * total / days if days else 0.0,
            "mean_time_between_s": self.fleet.ended_s / total if total else None,
            "mean_time_between_interruptions_s": self.fleet.ended_s / stood if stood else None,
        }
