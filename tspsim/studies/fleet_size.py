"""How many nodes a fleet's year takes: of every offer the fewest that reach its needs, in every draw.

Of each draw (a seed) the fewest nodes are found by halving, as far as more nodes never make a need worse; the answer is
the most that any draw takes, looked at again in all of them, and between which numbers the draws lie.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ..answer import simulate
from ..errors import InfeasibleError, InputError
from ..fleet import FleetAnswer, FleetQuestion, answer, load
from ..fleet.need_keys import FleetOffer, Needs
from ..fleet.needs import Reached, reached
from ..result import Result
from ..scenario import Scenario

#: Nodes more than the draws' own that are looked at, as a share, where one of them does not hold at the most of all.
MORE = 0.25
Progress = Callable[[str, float], None]
#: Of the table of offers.
COLUMNS = ("offer", "nodes", "of single draws", "GPUs", "USD", "MWh")


@dataclass(frozen=True)
class FleetSize:
    """One offer: so many nodes reach what is needed; or why none do."""

    offer: str
    device: str
    draws: int
    error: str = ""
    nodes: int = 0
    gpus: int = 0
    #: The fewest nodes that single draws take.
    low: int = 0
    high: int = 0
    #: Of every need the worst of all draws.
    reached: tuple[Reached, ...] = ()
    #: With one node less, the worst of all draws; empty where there is none less.
    fewer: tuple[Reached, ...] = ()
    usd: float | None = None
    energy_kwh: float | None = None
    #: On so many nodes, of the fleet's own seed.
    answer: FleetAnswer | None = field(default=None, repr=False, compare=False)

    def cells(self) -> list[str]:
        """Under :data:`COLUMNS`."""
        if self.error:
            return [self.offer, *["–"] * (len(COLUMNS) - 1)]
        draws = f"{self.low:,}" if self.low == self.high else f"{self.low:,} to {self.high:,}"
        usd = "–" if self.usd is None else f"{self.usd:,.0f}"
        energy = "–" if self.energy_kwh is None else f"{self.energy_kwh / 1000.0:,.0f}"
        return [self.offer, f"{self.nodes:,}", draws, f"{self.gpus:,}", usd, energy]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        told: dict[str, Any] = {"name": self.offer, "device": self.device, "draws": self.draws}
        if self.error:
            return told | {"error": self.error}
        return told | {
            "nodes": self.nodes,
            "gpus": self.gpus,
            "nodes_of_draws": [self.low, self.high],
            "reached": [each.to_json() for each in self.reached],
            "with_one_node_less": [each.to_json() for each in self.fewer],
            "cost_usd": self.usd,
            "energy_kwh": self.energy_kwh,
        }


@dataclass(frozen=True)
class FleetSizes:
    """All offers."""

    name: str
    sizes: tuple[FleetSize, ...]
    COLUMNS: ClassVar[tuple[str, ...]] = COLUMNS

    @property
    def cheapest(self) -> FleetSize | None:
        """Of those that reach what is needed; None where a price is missing or nothing does."""
        able = [size for size in self.sizes if not size.error]
        if not able or any(size.usd is None for size in able):
            return None
        return min(able, key=lambda size: size.usd or 0.0)

    def rows(self) -> list[list[str]]:
        """A row an offer, under :data:`COLUMNS`."""
        return [size.cells() for size in self.sizes]

    def in_words(self) -> list[str]:
        """Of every offer what it reaches, and why one node less does not."""
        sentences = []
        for size in self.sizes:
            if size.error:
                sentences.append(f"{size.offer}: {size.error}.")
                continue
            told = "; ".join(each.in_words() for each in size.reached)
            missed = "; ".join(each.in_words() for each in size.fewer if not each.kept)
            less = f" With one node less {missed}." if missed else ""
            sentences.append(f"{size.offer}: in the worst of {size.draws} draws {told}.{less}")
        return [
            *sentences,
            "Steps of jobs are those of their stacks; how far these may be off is not in the numbers of nodes.",
        ]

    @property
    def verdict(self) -> str:
        """Which offer is cheapest; empty where there is no choice, or no price."""
        best = self.cheapest
        if best is None or len(self.sizes) < 2:
            return ""
        return f"Cheapest: {best.offer}, {best.usd:,.0f} USD for the time that is looked at."

    def to_json(self) -> dict[str, Any]:
        """The contract's JSON (``docs/json.md``)."""
        return {"schema": 1, "scenario": self.name, "fleet_sizes": [size.to_json() for size in self.sizes]}

    def dumps(self) -> str:
        """The same as text."""
        return json.dumps(self.to_json(), indent=1)


def fleet_sizes(
    source: FleetQuestion | str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    progress: Progress | None = None,
) -> FleetSizes:
    """How many nodes of each offer a fleet takes.

    Parameters
    ----------
    source
        What :func:`tspsim.fleet.load` returns, or what it takes; it states ``needs``.

    Raises
    ------
    InputError
        The question is wrong, or says not what is needed.
    """
    question = source if isinstance(source, FleetQuestion) else load(source, overrides)
    if question.needs is None:
        raise InputError(
            "says nothing of what has to hold; how many nodes is asked with needs, such as needs: {p95_wait: 2 h}",
            key="needs",
        )
    offers = question.offers or (FleetOffer(name=question.name[:60], cluster=question.cluster),)
    found = []
    for index, offer in enumerate(offers):
        if progress is not None:
            progress(offer.name, index / len(offers))
        found.append(_Search(question, question.needs, offer).run())
    return FleetSizes(question.name, tuple(found))


class _Search:
    """The halving of one offer, which remembers what it simulated."""

    def __init__(self, question: FleetQuestion, needs: Needs, offer: FleetOffer) -> None:
        self.needs, self.offer = needs, offer
        changed = {"cluster": offer.cluster} | ({"prices": offer.prices} if offer.prices is not None else {})
        self.question = question.model_copy(update=changed)
        self._tried: dict[tuple[int, int], FleetAnswer] = {}
        self._steps: dict[str, Result] = {}

    def run(self) -> FleetSize:
        needs, most = self.needs, self.offer.cluster.nodes
        device = str(self.offer.cluster.device or self.offer.cluster.node or "")
        least = max((max(job.nodes or (1,)) for job in self.question.jobs), default=1)
        if least > most:
            return FleetSize(self.offer.name, device, needs.draws, f"a job takes {least} nodes; {most} are offered")
        try:
            own = [self._fewest(draw, least, most) for draw in range(needs.draws)]
        except InfeasibleError as error:
            return FleetSize(self.offer.name, device, needs.draws, str(error))
        if None in own:
            told = ", ".join(each.in_words() for each in self._worst(most) if not each.kept)
            return FleetSize(self.offer.name, device, needs.draws, f"{most} nodes are too few: {told}")
        draws = [nodes for nodes in own if nodes is not None]
        nodes = self._in_all(max(draws), min(most, max(draws) + max(1, int(MORE * max(draws)))))
        if nodes is None:
            return FleetSize(self.offer.name, device, needs.draws, "no number of nodes holds in all draws")
        shown = self._answer(nodes, 0)
        facts = shown.facts
        fewer = self._worst(nodes - 1) if nodes > least else ()
        return FleetSize(
            self.offer.name,
            shown.cluster["device"]["name"],
            needs.draws,
            nodes=nodes,
            gpus=facts.gpus,
            low=min(draws),
            high=max(draws),
            reached=self._worst(nodes),
            fewer=fewer,
            usd=facts.cost_usd,
            energy_kwh=facts.energy_kwh,
            answer=shown,
        )

    def _fewest(self, draw: int, least: int, most: int) -> int | None:
        """Nodes that one draw takes; None where the most are too few."""
        if not self._holds(most, draw):
            return None
        low, high = least - 1, most  # low is too few, high is enough
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._holds(middle, draw) else (middle, high)
        return high

    def _in_all(self, nodes: int, most: int) -> int | None:
        """The first number from ``nodes`` on that is enough in every draw."""
        holds = (all(self._holds(count, draw) for draw in range(self.needs.draws)) for count in range(nodes, most + 1))
        return next((nodes + more for more, enough in enumerate(holds) if enough), None)

    def _holds(self, nodes: int, draw: int) -> bool:
        return all(each.kept for each in reached(self.needs, self._answer(nodes, draw)))

    def _worst(self, nodes: int) -> tuple[Reached, ...]:
        """Of every need the largest value of all draws."""
        every = [reached(self.needs, self._answer(nodes, draw)) for draw in range(self.needs.draws)]
        return tuple(max(column, key=lambda each: each.value) for column in zip(*every, strict=True))

    def _answer(self, nodes: int, draw: int) -> FleetAnswer:
        if (nodes, draw) not in self._tried:
            cluster = self.offer.cluster.model_copy(update={"nodes": nodes})
            asked = self.question.model_copy(update={"cluster": cluster, "seed": self.question.seed + draw})
            self._tried[nodes, draw] = answer(asked, self._step)
        return self._tried[nodes, draw]

    def _step(self, scenario: Scenario) -> Result:
        """A job's own scenario, simulated once whatever the fleet's size."""
        key = json.dumps(scenario.to_dict(), sort_keys=True, default=str)
        if key not in self._steps:
            self._steps[key] = simulate(scenario)
        return self._steps[key]


__all__ = ["FleetSize", "FleetSizes", "fleet_sizes"]
