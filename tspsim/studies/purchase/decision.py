"""The buyer's decision: the best offer by each measure, its certainty, and the cost of the whole project."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...answer.kinds import run_plan
from ...base.display import Progress
from ...base.errors import InputError, TspsimError
from ...scenario import Scenario
from ...scenario.project import DAY_S, Project
from ...step.result import PlanResult, Result
from .. import uncertainty
from ..executors import answers, executor_of
from ..query import Library, Query, ask
from ..searched import Searched
from ..worker import answer
from .checkpoints import CheckpointCost
from .costs import OWNED, Rates, rates_of
from .likely import Likely, likely_of, slack_of
from .needs import Need, need
from .outcome import PurchaseOutcome, outcome_of
from .row import MEASURES, OBJECTIVES, OfferRow
from .scaling import Trial, curve, trials_of
from .service import load_of, nearest_of, service_of
from .verdict import sentences, today_s_ratio


@dataclass(frozen=True)
class Decision:
    """All offers, and the best one against the others.

    ``verdicts`` has the winner against each other offer, nearest first; ``measure`` is what they compare. There is no
    winner where a plan that was not simulated might change the verdict; ``doubt`` then says so.
    """

    project: Project | None
    rows: tuple[OfferRow, ...]
    measure: uncertainty.Measure
    winner: OfferRow | None
    verdicts: tuple[uncertainty.Verdict, ...]
    doubt: str = ""

    def ranked(self, measure: str) -> list[OfferRow]:
        """Rows by a measure, the best first; those without it last, in their order."""
        return sorted(self.rows, key=lambda row: -(row.measure(measure) or 0.0))

    def today_s_ratio(self, verdict: uncertainty.Verdict) -> float | None:
        """Today's price of a GPU hour of the winner over the other's, or of their power where joules are compared: the
        verdict's break-even ratio stands beside it."""
        rows = {row.name: row for row in self.rows}
        return today_s_ratio(rows[verdict.a], rows[verdict.b], verdict.measure)

    @property
    def _today(self) -> str:
        return "power_ratio_today" if self.measure == "tokens_per_joule" else "price_ratio_today"

    def in_words(self) -> list[str]:
        """The verdict, in a sentence or two per offer."""
        if self.doubt:
            return [self.doubt]
        first = [self.unpriced] if self.unpriced else []
        return [*first, *sentences(self.winner, self.rows, self.verdicts, self.measure)]

    @property
    def unpriced(self) -> str:
        """A note that offers are ranked by rate for lack of prices; empty where none lacks, or a rank is stated."""
        if self.measure != "tokens_per_s" or (self.project is not None and self.project.rank is not None):
            return ""
        lacks = [row.name for row in self.rows if row.able and not row.rates.usd]
        rate = OBJECTIVES[self.measure].words
        return (
            f"{', '.join(lacks)}: no price is known (`prices.gpu_hour`), so offers are ranked by {rate}."
            if lacks
            else ""
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data, SI units."""
        return {
            "project": self.project.model_dump(mode="json") if self.project else None,
            "measure": self.measure,
            "winner": self.winner.name if self.winner else None,
            "tied": [verdict.b for verdict in self.verdicts if verdict.tie],
            "doubt": self.doubt or None,
            "offers": [_row_json(row) for row in self.rows],
            "verdicts": [
                asdict(verdict) | {"tie": verdict.tie, self._today: self.today_s_ratio(verdict)}
                for verdict in self.verdicts
            ],
        }


def _row_json(row: OfferRow) -> dict[str, Any]:
    rates = asdict(row.rates)
    return {
        "name": row.name,
        "plan": row.plan.name if row.plan else None,
        "device": row.device,
        "gpus": row.gpus,
        **{name: row.measure(name) for name in MEASURES},
        "memory_headroom_bytes": row.headroom_bytes,
        "limit": row.best.bottleneck if row.best else None,
        **({"load": row.load.label} if row.load else {}),
        **({"misses": row.misses} if row.misses else {}),
        **({"searched": row.searched.to_json()} if row.searched else {}),
        "rates": rates,
        "need": _need_json(row.need) if row.need else None,
        "too_small": row.too_small or None,
        **({"service": asdict(row.service)} if row.service else {}),
        "project": _outcome_json(row.outcome, row.likely),
        "weak_scaling": [asdict(point) for point in row.weak],
        "strong_scaling": [asdict(point) for point in row.strong],
    }


def _need_json(need: Need) -> dict[str, Any]:
    entry: dict[str, Any] = {"nodes": need.nodes, "gpus": need.gpus, "tokens_per_s": need.tokens_per_s}
    entry |= {"project": _outcome_json(need.outcome, need.likely), "day": _outcome_json(need.day, None)}
    return entry | {"run": asdict(need.run) if need.run else None}


def _outcome_json(done: PurchaseOutcome | None, likely: Likely | None) -> dict[str, Any] | None:
    """A run with its days; where it was drawn, also its ``likely`` ranges and probabilities."""
    if done is None:
        return None
    return asdict(done) | {"days": done.days} | ({"likely": asdict(likely)} if likely else {})


def decide(
    scenarios: Sequence[Scenario],
    results: Sequence[Result],
    *,
    curves: bool = True,
    needs: bool | None = None,
    searched: Sequence[Searched | None] = (),
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Decision:
    """Compare the results of scenarios, such as those of :func:`tspsim.studies.purchase.expand`.

    Parameters
    ----------
    scenarios, results
        In the same order.
    curves
        Simulate scaling curves too.
    needs
        Simulate the machine sizes that the project's rate or deadline needs; None: where curves are simulated.
    searched
        The search for each one's plans, as :func:`tspsim.studies.best_plans.with_best` returns it.
    jobs
        Processes for the curves; None: as many as are of use.
    progress
        Called with the name of the current task and the share that is done.

    Raises
    ------
    UnknownNameError
        A device has no price on the project's basis.
    """
    tell = progress or (lambda _what, _share: None)
    steps = all(scenario.traffic is None for scenario in scenarios)  # curves and needs are of single steps
    curves = curves and steps
    library = Library()
    rows = []
    for index, (scenario, result) in enumerate(zip(scenarios, results, strict=True)):
        tell("prices and doubts", index / len(results))
        rows.append(_row(scenario, result, library))
    if curves:
        rows = _with_curves(scenarios, rows, library, jobs, tell)
    if (curves if needs is None else needs) and steps:
        rows = _with_needs(scenarios, rows, library, tell)
    searches = searched or [None] * len(rows)
    rows = [replace(row, searched=search) for row, search in zip(rows, searches, strict=True)]
    project = next((scenario.project for scenario in scenarios if scenario.project), None)
    measure = _measure(project, rows)
    winner, verdicts = _verdicts(rows, measure)
    doubt = not_searched_enough(winner, rows, verdicts)
    if doubt:
        winner, verdicts = None, ()
    return Decision(project, tuple(rows), measure, winner, verdicts, doubt)


def _measure(project: Project | None, rows: Sequence[OfferRow]) -> uncertainty.Measure:
    """The measure that the project ranks by; by default tokens per dollar where every able offer has a price.

    Raises
    ------
    InputError
        An offer lacks the price or power that the rank needs.
    """
    priced = all(row.rates.usd for row in [row for row in rows if row.able] or rows)
    if project is None or project.rank is None:
        return "tokens_per_dollar" if priced else "tokens_per_s"
    lacks = [row.name for row in rows if not row.weighed(project.rank)]
    if lacks:
        what = "power; state project.power" if project.rank == "tokens_per_joule" else "price; state prices.gpu_hour"
        raise InputError(f"{lacks[0]} has no {what}", key="project.rank")
    return project.rank


def not_searched_enough(
    winner: OfferRow | None, rows: Sequence[OfferRow], verdicts: Sequence[uncertainty.Verdict]
) -> str:
    """Why there is no verdict: an offer that is behind may have a better plan; empty where it makes no difference."""
    others = {row.name: row for row in rows}
    rivals = [
        f"{verdict.a} leads {verdict.b} by {100.0 * (verdict.ratio - 1.0):.1f} %, "
        f"and {verdict.b} may have a plan that is {100.0 * doubt_of(others[verdict.b]):.1f} % better"
        for verdict in verdicts
        if doubt_of(others[verdict.b]) and verdict.ratio <= 1.0 + doubt_of(others[verdict.b])
    ]
    return (
        f"Not searched enough: {'; '.join(rivals)}. Give more with --budget." if winner is not None and rivals else ""
    )


def doubt_of(row: OfferRow) -> float:
    """The share by which an offer may be better than with its searched plan."""
    return row.searched.doubt if row.searched is not None else 0.0


def _with_doubt(winner: uncertainty.PricedPlan, row: OfferRow, measure: uncertainty.Measure) -> uncertainty.Verdict:
    """The winner against another offer; probability and low end hold even if that offer has a plan better by its
    search's gap."""
    assert row.uncertainty is not None
    verdict = uncertainty.compare(winner, row.uncertainty, measure)
    if not doubt_of(row):
        return verdict
    faster = 1.0 + doubt_of(row)
    parts_s = {name: part_s / faster for name, part_s in row.uncertainty.parts_s.items()}
    best = replace(row.uncertainty, step_s=row.uncertainty.step_s / faster, parts_s=parts_s)
    least = uncertainty.compare(winner, best, measure)
    return replace(verdict, low=least.low, probability=least.probability, break_even_low=least.break_even_low)


def _with_curves(
    scenarios: Sequence[Scenario], rows: Sequence[OfferRow], library: Library, jobs: int | None, tell: Progress
) -> list[OfferRow]:
    """The rows with both scaling curves; all points are simulated in parallel."""
    trials: list[tuple[int, Trial]] = []
    for index, (scenario, row) in enumerate(zip(scenarios, rows, strict=True)):
        if row.best is not None:
            trials += [
                (index, point) for point in trials_of(scenario, library.look_up(scenario).cluster, row.best.name)
            ]
    rates = simulated(
        [point.scenario for _, point in trials], jobs=jobs, tell=lambda share: tell("scaling curves", share)
    )
    both: dict[tuple[int, str], list[tuple[Trial, float]]] = {}
    for (index, point), rate in zip(trials, rates, strict=True):
        if rate is not None:
            both.setdefault((index, point.curve), []).append((point, rate))
    return [
        replace(row, weak=curve(both.get((index, "weak"), [])), strong=curve(both.get((index, "strong"), [])))
        for index, row in enumerate(rows)
    ]


def _with_needs(
    scenarios: Sequence[Scenario], rows: Sequence[OfferRow], library: Library, tell: Progress
) -> list[OfferRow]:
    """The rows with the machine size that the project's rate or deadline needs, and its cost."""

    def ask(scenario: Scenario) -> PlanResult | None:
        question = library.look_up(scenario)
        answer = run_plan(question, question.plans[0])
        return answer if answer.ran else None

    priced = []
    for index, (scenario, row) in enumerate(zip(scenarios, rows, strict=True)):
        tell(f"nodes that {row.name} needs", index / len(rows))
        if row.best is not None:
            cluster = library.look_up(scenario).cluster
            slack = slack_of(row.uncertainty, scenario.project or Project())
            enough = need(scenario, cluster, row.best.name, row.best.tokens_per_s, ask, slack)
            if isinstance(enough, str):
                row = replace(row, too_small=enough)
            elif enough is not None:
                row = replace(row, need=_priced(enough, row, library))
        priced.append(row)
    return priced


def _priced(need: Need, row: OfferRow, library: Library) -> Need:
    """A need with the project's cost on the machine of its size, and the cost of a day."""
    question = library.look_up(need.scenario)
    rates = rates_of(need.scenario, question.cluster, question.device)
    project = need.scenario.project or Project()
    day = need.cost.schedule(DAY_S, need.nodes, project.failures)
    day = replace(day, elapsed_s=DAY_S, work_s=DAY_S * day.goodput)
    done = outcome_of(need.scenario, need.gpus, rates, need.run) if need.run is not None else None
    return replace(
        need,
        outcome=done,
        likely=likely_of(done, rates, row.uncertainty, project) if done and row.uncertainty else None,
        day=outcome_of(need.scenario, need.gpus, rates, day),
    )


def _row(scenario: Scenario, result: Result, library: Library) -> OfferRow:
    question = library.look_up(scenario)
    best = result.best
    rates = rates_of(scenario, question.cluster, question.device)
    if best is None:
        return OfferRow(scenario.name, result, None, rates)
    load, misses, service = None, "", None
    if scenario.traffic is not None:
        load, service = load_of(scenario, result), service_of(scenario, result, rates)
        misses = "" if load is not None else nearest_of(scenario, result)
    basis = scenario.project.price if scenario.project else "neocloud"
    if rates.basis == OWNED:  # stated terms, which are certain
        prices = scenario.prices.model_copy(update={"gpu_hour": rates.usd})
        scenario = scenario.model_copy(update={"prices": prices})
        question = library.look_up(scenario)
    offer: uncertainty.PricedPlan | None = None
    if load is not None:
        offer = uncertainty.offer_served(
            question,
            name=scenario.name,
            tokens_per_s=load.tokens_per_s if service is None else 1.0 / service.share,
            spread=load.spread,
            drawn=load.doubt if service is None else service.share_doubt,
            basis=basis,
        )
    elif scenario.traffic is None:
        offer = uncertainty.offer_of(scenario, best.name, basis=basis, name=scenario.name, lookups=library.lookups)
    outcome = likely = None
    if offer is not None:
        offer = replace(_with_fabric(offer, scenario, rates), watts_per_gpu=rates.watts_per_gpu or 0.0)
    if scenario.project is not None and scenario.project.tokens is not None:
        cost = CheckpointCost.of(best, scenario.project.failures)
        run = cost.run(scenario.project.tokens, question.cluster.nodes, scenario.project.failures)
        outcome = outcome_of(scenario, question.cluster.gpus, rates, run)
        likely = likely_of(outcome, rates, offer, scenario.project) if offer is not None else None
    return OfferRow(
        scenario.name,
        result,
        best,
        rates,
        service=service,
        load=load,
        misses=misses,
        outcome=outcome,
        likely=likely,
        uncertainty=offer,
    )


def _with_fabric(offer: uncertainty.PricedPlan, scenario: Scenario, rates: Rates) -> uncertainty.PricedPlan:
    """The offer on the terms of the ranking: with its fabric, whose prices have an uncertainty of their own."""
    usd = rates.usd or 0.0
    parts = scenario.project.fabric if scenario.project else None
    if parts is None or not rates.fabric_added or not usd:
        return replace(offer, usd_per_gpu_hour=usd)
    name = "fabric prices"
    return replace(
        offer,
        usd_per_gpu_hour=usd - rates.fabric_usd_per_gpu_hour,
        added_usd_per_gpu_hour=rates.fabric_usd_per_gpu_hour,
        added=name,
        factors={**offer.factors, name: uncertainty.Factor(*parts.range)},
    )


def _verdicts(
    rows: Sequence[OfferRow], measure: uncertainty.Measure
) -> tuple[OfferRow | None, tuple[uncertainty.Verdict, ...]]:
    """The winner against every other offer, nearest first."""
    able = [row for row in rows if row.uncertainty is not None and row.judged(measure)]
    winner = max(able, key=lambda row: row.judged(measure) or 0.0, default=None)
    if winner is None or winner.uncertainty is None:
        return None, ()
    verdicts = [
        _with_doubt(winner.uncertainty, row, measure)
        for row in able
        if row is not winner and row.uncertainty is not None
    ]
    return winner, tuple(sorted(verdicts, key=lambda verdict: (verdict.ratio, verdict.b)))


def simulated(
    scenarios: Sequence[Scenario], *, jobs: int | None = None, tell: Callable[[float], None] = lambda _share: None
) -> list[float | None]:
    """Tokens/s of scenarios with one plan each, in order, simulated in parallel; None where a plan does not run."""
    library = Library()
    keys: list[str] = []
    questions: dict[str, Query[Scenario]] = {}
    for number, scenario in enumerate(scenarios):
        ((entry, question),) = ask(library, number, scenario)
        keys.append(entry.key)
        if question is not None:
            questions[entry.key] = question
    rates: dict[str, float | None] = {}
    executor = executor_of(jobs, None, len(questions))
    finished = False
    try:
        for chunk in answers(questions.values(), executor, answer):
            for result in chunk:
                if result.bug:
                    raise TspsimError(result.bug)
                rates[result.key] = json.loads(result.text)["plan"].get("tokens_per_s")
            tell(len(rates) / len(questions))
        finished = True
    finally:
        executor.close(now=not finished)
    return [rates.get(key) for key in keys]
