"""Nodes that a fleet needs for a year: for each offer the fewest that meet its needs in every draw.

A draw is a seed. The fewest nodes of each draw are found by bisection, if more nodes never make a need worse. The
answer is the largest of them, checked in all draws; the range of the draws stands beside it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ..answer.kinds import simulate
from ..base.display import Progress
from ..base.errors import InfeasibleError, InputError
from ..fleet import FleetAnswer, FleetQuestion, answer, load
from ..fleet.need_keys import FleetOffer, Needs
from ..fleet.needs import Reached, reached, worst_of
from ..scenario import Scenario
from ..step.result import Result
from .best_plans import BUDGET_S, fleet_with_best
from .executors import in_order

#: Further nodes to try, as a share, where the draws' largest number does not hold in all draws.
MORE = 0.25
#: Columns of the table of offers.
COLUMNS = ("offer", "nodes", "of single draws", "GPUs", "USD", "MWh")


@dataclass(frozen=True)
class FleetSize:
    """One offer: the number of nodes that meet the needs; or why none do."""

    offer: str
    device: str
    draws: int
    error: str = ""
    nodes: int = 0
    gpus: int = 0
    #: The fewest and the most nodes that single draws need.
    low: int = 0
    high: int = 0
    #: For every need the worst value of all draws.
    reached: tuple[Reached, ...] = ()
    #: The worst of all draws with one node less; empty where no such fleet runs.
    fewer: tuple[Reached, ...] = ()
    #: Of the fleet's own seed, and the range over all draws.
    usd: float | None = None
    usd_of_draws: tuple[float, float] | None = None
    energy_kwh: float | None = None
    energy_of_draws: tuple[float, float] | None = None
    #: The answer on ``nodes`` nodes, with the fleet's own seed.
    answer: FleetAnswer | None = field(default=None, repr=False, compare=False)

    def cells(self) -> list[str]:
        """The cells of :data:`COLUMNS`."""
        if self.error:
            return [self.offer, *["–"] * (len(COLUMNS) - 1)]
        draws = f"{self.low:,}" if self.low == self.high else f"{self.low:,} to {self.high:,}"
        usd, energy = between(self.usd_of_draws), between(self.energy_of_draws, 1e-3)
        return [self.offer, f"{self.nodes:,}", draws, f"{self.gpus:,}", usd, energy]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        document: dict[str, Any] = {"name": self.offer, "device": self.device, "draws": self.draws}
        if self.error:
            return document | {"error": self.error}
        return document | {
            "nodes": self.nodes,
            "gpus": self.gpus,
            "nodes_of_draws": [self.low, self.high],
            "reached": [need.to_json() for need in self.reached],
            "with_one_node_less": [need.to_json() for need in self.fewer],
            "cost_usd": self.usd,
            "cost_usd_of_draws": None if self.usd_of_draws is None else list(self.usd_of_draws),
            "energy_kwh": self.energy_kwh,
            "energy_kwh_of_draws": None if self.energy_of_draws is None else list(self.energy_of_draws),
        }


def between(ends: tuple[float, float] | None, scale: float = 1.0) -> str:
    """Both ends of a range; one where they read alike.

    >>> between((1234.2, 1250.0)), between((1234.2, 1234.3)), between(None)
    ('1,234 to 1,250', '1,234', '–')
    """
    if ends is None:
        return "–"
    low, high = (f"{end * scale:,.0f}" for end in ends)
    return low if low == high else f"{low} to {high}"


@dataclass(frozen=True)
class FleetSizes:
    """The sizes of all offers."""

    name: str
    sizes: tuple[FleetSize, ...]
    COLUMNS: ClassVar[tuple[str, ...]] = COLUMNS

    @property
    def cheapest(self) -> FleetSize | None:
        """The cheapest offer that meets the needs; None where a price is missing or no offer meets them."""
        able = [size for size in self.sizes if not size.error]
        if not able or any(size.usd is None for size in able):
            return None
        return min(able, key=lambda size: size.usd or 0.0)

    def rows(self) -> list[list[str]]:
        """One row per offer, under :data:`COLUMNS`."""
        return [size.cells() for size in self.sizes]

    def in_words(self) -> list[str]:
        """A sentence per offer: what it reaches, and why one node less is too few."""
        sentences = []
        for size in self.sizes:
            if size.error:
                sentences.append(f"{size.offer}: {size.error}.")
                continue
            values = "; ".join(_with_range(need) for need in size.reached)
            missed = "; ".join(need.in_words() for need in size.fewer if not need.kept)
            less = f" With one node less {missed}." if missed else ""
            sentences.append(f"{size.offer}: in the worst of {size.draws} draws {values}.{less}")
        return [
            *sentences,
            "Step times are those of the jobs' stacks; their uncertainty is not in the numbers of nodes.",
        ]

    @property
    def verdict(self) -> str:
        """The cheapest offer in a sentence; empty where there is no choice, or no price."""
        best = self.cheapest
        if best is None or len(self.sizes) < 2:
            return ""
        return f"Cheapest: {best.offer}, {best.usd:,.0f} USD for the period."

    def to_json(self) -> dict[str, Any]:
        """The contract's JSON (``docs/json.md``)."""
        return {"schema": 1, "scenario": self.name, "fleet_sizes": [size.to_json() for size in self.sizes]}

    def csv(self) -> str:
        """One row per offer, full digits; empty cells where an offer has no number."""
        rows = [size.to_json() for size in self.sizes]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        needs = list(dict.fromkeys(need["need"] for row in rows for need in row.get("reached", ())))
        plain = ("name", "device", "draws", "nodes", "gpus", "cost_usd", "energy_kwh")
        fewer = [f"{need}_with_one_node_less" for need in needs]
        writer.writerow([*plain, "nodes_low", "nodes_high", *needs, *fewer, "error"])
        for row in rows:
            values = [
                {need["need"]: need["value"] for need in row.get(key, ())} for key in ("reached", "with_one_node_less")
            ]
            reached_values = [by_need.get(need) for by_need in values for need in needs]
            ends = row.get("nodes_of_draws", (None, None))
            writer.writerow([*(row.get(key) for key in plain), *ends, *reached_values, row.get("error")])
        return text.getvalue()

    def dumps(self) -> str:
        """The JSON as text."""
        return json.dumps(self.to_json(), indent=1)


def _with_range(need: Reached) -> str:
    span = need.range_in_words()
    return f"{need.in_words()}, {span} by the draw" if span else need.in_words()


def fleet_sizes(
    source: FleetQuestion | str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    jobs: int | None = None,
    budget_s: float | None = BUDGET_S,
    progress: Progress | None = None,
) -> FleetSizes:
    """The number of nodes that a fleet needs, of each offer.

    Parameters
    ----------
    source
        What :func:`tspsim.fleet.load` returns or takes; it states ``needs``.
    jobs
        Processes, one per offer; None: as many as are of use.
    budget_s
        Work of the search for each job with ``plan: best``, on each offer, counted in seconds of a processor.

    Raises
    ------
    InputError
        The question is wrong, or states no needs.
    """
    question = source if isinstance(source, FleetQuestion) else load(source, overrides)
    if question.needs is None:
        raise InputError(
            "states no needs; the number of nodes follows from needs, such as needs: {p95_wait: 2 h}",
            key="needs",
        )
    offers = question.offers or (FleetOffer(name=question.name[:60], cluster=question.cluster),)
    sizes = []
    answers = in_order(jobs, partial(_sized, question, budget_s), offers)
    for index, offer in enumerate(offers):
        if progress is not None:
            progress(offer.name, index / len(offers))
        sizes.append(next(answers))
    list(answers)  # lets its processes go
    return FleetSizes(question.name, tuple(sizes))


def _sized(question: FleetQuestion, budget_s: float | None, offer: FleetOffer) -> FleetSize:
    """The size of one offer."""
    assert question.needs is not None
    return _NodeSearch(question, question.needs, offer, budget_s).run()


class _NodeSearch:
    """The bisection for one offer; it keeps the answers that it simulated."""

    def __init__(self, question: FleetQuestion, needs: Needs, offer: FleetOffer, budget_s: float | None) -> None:
        self.needs, self.offer, self.budget_s = needs, offer, budget_s
        changed = {"cluster": offer.cluster} | ({"prices": offer.prices} if offer.prices is not None else {})
        self.question = question.model_copy(update=changed)
        self._tried: dict[tuple[int, int], FleetAnswer] = {}
        self._steps: dict[str, Result] = {}

    def run(self) -> FleetSize:
        needs, most = self.needs, self.offer.cluster.nodes
        device = str(self.offer.cluster.device or self.offer.cluster.node or "")
        spares = self.question.failures.spares if self.question.failures is not None else 0
        least = spares + max(min(job.nodes or (1,)) for job in self.question.jobs)
        if least > most:
            beside = f" beside {spares} spares" if spares else ""
            reached_values = f"a job takes {least - spares} nodes{beside}; {most} are offered"
            return FleetSize(self.offer.name, device, needs.draws, reached_values)
        try:
            self.question = fleet_with_best(self.question, budget_s=self.budget_s)
            own = [self._fewest(draw, least, most) for draw in range(needs.draws)]
        except InfeasibleError as error:
            return FleetSize(self.offer.name, device, needs.draws, str(error))
        if None in own:
            reached_values = ", ".join(need.in_words() for need in self._worst(most) if not need.kept)
            return FleetSize(self.offer.name, device, needs.draws, f"{most} nodes are too few: {reached_values}")
        draws = [nodes for nodes in own if nodes is not None]
        nodes = self._in_all(max(draws), min(most, max(draws) + max(1, int(MORE * max(draws)))))
        if nodes is None:
            return FleetSize(self.offer.name, device, needs.draws, "no number of nodes holds in all draws")
        shown = self._answer(nodes, 0)
        facts = shown.facts
        every = [self._answer(nodes, draw).facts for draw in range(needs.draws)]
        return FleetSize(
            self.offer.name,
            shown.cluster["device"]["name"],
            needs.draws,
            nodes=nodes,
            gpus=facts.gpus,
            low=min(draws),
            high=max(draws),
            reached=self._worst(nodes),
            fewer=self._fewer(nodes, least),
            usd=facts.cost_usd,
            usd_of_draws=_ends([of_draw.cost_usd for of_draw in every]),
            energy_kwh=facts.energy_kwh,
            energy_of_draws=_ends([of_draw.energy_kwh for of_draw in every]),
            answer=shown,
        )

    def _fewest(self, draw: int, least: int, most: int) -> int | None:
        """The fewest nodes of one draw; None where even ``most`` are too few."""
        if not self._holds(most, draw):
            return None
        low, high = least - 1, most  # low is too few, high is enough
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._holds_on_fewer(middle, draw) else (middle, high)
        return high

    def _holds_on_fewer(self, nodes: int, draw: int) -> bool:
        """Whether ``nodes`` are enough, where ``most`` run; a fleet that does not run has too few."""
        try:
            return self._holds(nodes, draw)
        except (InputError, InfeasibleError):
            return False

    def _fewer(self, nodes: int, least: int) -> tuple[Reached, ...]:
        """The values with one node less; empty where such a fleet does not run."""
        try:
            return self._worst(nodes - 1) if nodes > least else ()
        except (InputError, InfeasibleError):
            return ()

    def _in_all(self, nodes: int, most: int) -> int | None:
        """The first number from ``nodes`` on that holds in every draw."""
        holds = (all(self._holds(count, draw) for draw in range(self.needs.draws)) for count in range(nodes, most + 1))
        return next((nodes + more for more, enough in enumerate(holds) if enough), None)

    def _holds(self, nodes: int, draw: int) -> bool:
        return all(need.kept for need in reached(self.needs, self._answer(nodes, draw)))

    def _worst(self, nodes: int) -> tuple[Reached, ...]:
        """For every need the worst value of all draws."""
        return worst_of([reached(self.needs, self._answer(nodes, draw)) for draw in range(self.needs.draws)])

    def _answer(self, nodes: int, draw: int) -> FleetAnswer:
        if (nodes, draw) not in self._tried:
            cluster = self.offer.cluster.model_copy(update={"nodes": nodes})
            question = self.question.model_copy(update={"cluster": cluster, "seed": self.question.seed + draw})
            self._tried[nodes, draw] = answer(question, self._step)
        return self._tried[nodes, draw]

    def _step(self, scenario: Scenario) -> Result:
        """A job's own scenario, simulated once for all sizes of the fleet."""
        key = json.dumps(scenario.to_dict(), sort_keys=True, default=str)
        if key not in self._steps:
            self._steps[key] = simulate(scenario)
        return self._steps[key]


def _ends(values: Sequence[float | None]) -> tuple[float, float] | None:
    """The smallest and the largest value; None where one is missing."""
    present = [value for value in values if value is not None]
    return (min(present), max(present)) if len(present) == len(values) else None


__all__ = ["FleetSize", "FleetSizes", "fleet_sizes"]
