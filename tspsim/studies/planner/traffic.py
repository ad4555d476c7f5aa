"""The best plans for requests: every way to spread replicas and pools, at the load that bounds allow, on every offer.

A plan is bounded in closed form from a few of its steps (:mod:`.rates`), and those that are expected to serve most are
simulated first: clients in a closed loop are doubled or halved while that serves more within the bounds, and of
requests that come at times of their own the highest rate within the bounds is looked for. What is best then gets
variants: a limit on sequences, drafts, caches that are pushed. Processor time is shared evenly by the offers; one plan
is always answered.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import InputError, TspsimError, UnknownNameError
from ...parallel.draft import DRAFTS
from ...scenario import Scenario
from ...scenario.traffic import Traffic
from ...serving.answer import notes_of_runs, result_of
from ...serving.deployment import Deployment
from ...serving.highest import highest_rate
from ...serving.points import point
from ...serving.policies import POLICIES
from ..front import front_of
from ..purchase.offers import expand
from ..query import Library
from .limit import Limits
from .service_answer import stated_keys
from .service_demand import bounded_by, demand_of
from .service_names import name_of_service, plain
from .service_space import Candidate, ServiceSpace, rate
from .traffic_answer import OBJECTIVES, OF_GOODPUT, TrafficPlanned, Tried, goodput

#: Share of an offer's time for closed forms, and the share after which no new plan is looked at but variants.
BOUNDING, SEARCHING = 0.35, 0.75
#: Share of the whole budget for the search: the rest serves the best again with their ranges.
SEARCH = 0.8
#: Plans whose closed form serves less than this share of what the best was simulated to are not simulated.
HOPE = 0.6
#: Requests of a run of the search: ten a client, but no more than this, and never fewer than so many a client.
REQUESTS, LEAST_A_CLIENT = 1280, 3
#: Requests of a run that looks for a rate, at least.
REQUESTS_TO_FIND = 400
#: Clients, at most.
MOST_CLIENTS = 8192


@dataclass
class Offered:
    """The search on one offer's cluster."""

    name: str
    scenario: Scenario
    space: ServiceSpace
    end_s: float
    begin_s: float
    candidates: list[Candidate] = field(default_factory=list)
    known: list[Tried] = field(default_factory=list)

    def passed(self, share: float) -> bool:
        """Whether so much of its time is over."""
        return time.process_time() > self.begin_s + share * (self.end_s - self.begin_s)


class TrafficPlanner:
    """Asks and answers for a scenario with traffic; parameters as of :func:`~.choose.planner_of`.

    Objectives are :data:`.traffic_answer.OBJECTIVES`; None: most goodput a dollar, without bounds most tokens a dollar.
    Limits such as ``tpot<=50ms`` and ``ttft<=2s`` stand instead of the scenario's bounds.

    Raises
    ------
    InputError
        The scenario, the objective or a limit is wrong.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        stated: bool = True,
        objective: str | None = None,
        limits: Sequence[str] = (),
        top: int = 3,
        budget_s: float | None = None,
        progress: Callable[[str, float], None] | None = None,
    ) -> None:
        assert scenario.traffic is not None
        kept = Limits.of(limits, serves=True)
        self.traffic = bounded_by(scenario.traffic, kept.each)
        bounds = self.traffic.bounds(scenario.workload.model)
        objective = objective or ("goodput_per_dollar" if bounds else "tokens_per_dollar")
        if objective not in OBJECTIVES:
            raise UnknownNameError("objective", objective, OBJECTIVES, key="--objective")
        self.objective, self.merit, self.top, self.progress = objective, OBJECTIVES[objective], top, progress
        self.bounds, self.kept_limits, self.budget_s = bounds, kept, budget_s
        self.scenario = scenario.model_copy(update={"traffic": self.traffic})
        self.library = Library()
        self.demand = demand_of(self.traffic, bounds)
        self.stated = scenario.plans if stated else ()
        self.searched = ("tp", "pp", "dp", "ep", "pools", "engine", "speculation", self.load_name)

    @property
    def load_name(self) -> str:
        """What of the traffic is chosen with a plan."""
        return "concurrency" if self.traffic.arrivals.closed else "rate"

    def run(self) -> TrafficPlanned:
        """The best plans, the stated ones and the front; Ctrl-C ends with what is there.

        Raises
        ------
        InfeasibleError
            No legal plan has room.
        """
        begin_s, budget_s = time.process_time(), math.inf if self.budget_s is None else SEARCH * self.budget_s
        self._end_s = begin_s + budget_s / SEARCH
        offers = expand(self.scenario)
        answer: TrafficPlanned | None = None
        interrupted = False
        for number, offered in enumerate(offers):
            self._tell(offered.name, number / len(offers))
            now_s = time.process_time()
            end_s = now_s + (begin_s + budget_s - now_s) / (len(offers) - number)
            space = ServiceSpace(offered, self.demand, self.library, self.kept_limits)
            here = Offered(offered.name, offered, space, end_s, now_s)
            if answer is None:
                answer = TrafficPlanned(
                    self.scenario, space.question, self.objective, self.searched, bounds=self.bounds
                )
            try:
                self._search(here, answer)
            except KeyboardInterrupt:
                interrupted = True
            answer.known += here.known
            if interrupted:
                break
        assert answer is not None
        answer.interrupted = interrupted
        answer.complete &= not interrupted
        return self._concluded(answer)

    def _concluded(self, answer: TrafficPlanned) -> TrafficPlanned:
        answer.check_any()
        ranked = sorted(answer.known, key=lambda tried: (*(-each for each in self._rank(tried)), tried.name))
        distinct: dict[tuple[str, str], Tried] = {}
        for tried in ranked:
            distinct.setdefault((tried.offer, plain(tried.keys)), tried)
        answer.best = tuple(distinct.values())[: self.top]
        first: dict[str, Tried] = {}
        for tried in ranked:
            first.setdefault(tried.offer, tried)
        answer.by_offer = tuple(first.values())
        least = 0.0 if self.objective in OF_GOODPUT else self.traffic.share
        answer.kept = not self.bounds or (answer.best[0].share > 0.0 and answer.best[0].share >= least)
        answer.front = tuple(
            sorted(
                (each for name in first for each in front_of([t for t in ranked if t.offer == name], merits)),
                key=lambda tried: (tried.offer, -tried.result.tokens_per_s_per_gpu),
            )
        )
        again = {id(tried): tried for tried in (*answer.best, *answer.by_offer)}
        ranged = {
            key: self._again(tried) if number == 0 or time.process_time() < self._end_s else tried
            for number, (key, tried) in enumerate(again.items())
        }
        answer.best = tuple(ranged[id(tried)] for tried in answer.best)
        answer.by_offer = tuple(ranged[id(tried)] for tried in answer.by_offer)
        return answer

    # --- the search -----------------------------------------------------------------------------------------

    def _search(self, here: Offered, answer: TrafficPlanned) -> None:
        """One offer: stated plans, closed forms of all, the promising ones, variants of the best."""
        for plan in here.scenario.plans if self.stated else ():
            keys = stated_keys(plan)
            keys.pop("name")
            found = self._try(here, answer, Candidate(keys, here.scenario), plan.name)
            answer.stated += (found,) if found is not None else ()
        for candidate in self._all(here):
            answer.bounded += 1
            if candidate.expected:
                here.candidates.append(candidate)
            if here.passed(BOUNDING) and here.candidates:
                answer.complete = False
                break
        here.candidates.sort(key=lambda each: -self._hoped(each))
        for candidate in here.candidates:
            if here.known and (here.passed(SEARCHING) or not self._hopeful(here, candidate)):
                answer.complete &= not here.passed(SEARCHING)
                break
            self._try(here, answer, candidate)
        for variant in self._variants(here):
            if here.passed(1.0):
                answer.complete = False
                break
            self._try(here, answer, variant)
        self._finer(here, answer)

    def _finer(self, here: Offered, answer: TrafficPlanned) -> None:
        """The best plan between its clients and the next power of two on either side."""
        best = max(here.known, key=self._rank, default=None)
        if best is None or not self._free_clients:
            return
        candidate = Candidate({key: value for key, value in best.keys.items() if key != "name"}, here.scenario)
        for clients in (int(best.load["concurrency"]) * 3 // 2, int(best.load["concurrency"]) * 3 // 4):
            if clients and not here.passed(1.0):
                deployment = here.space.deployment(candidate.plan(best.name))
                self._at(here, answer, candidate, deployment, self._with_clients(clients))

    @property
    def _free_clients(self) -> bool:
        """Clients of a closed loop are looked for, between bounds; a stated curve is what it says."""
        return bool(self.bounds) and self.traffic.arrivals.closed and len(self.traffic.points()) == 1

    def _all(self, here: Offered) -> Iterator[Candidate]:
        """Usual plans and pools in turn, so that a short time sees both."""
        both = [here.space.usual(), here.space.split()]
        while both:
            for each in list(both):
                candidate = next(each, None)
                if candidate is None:
                    both.remove(each)
                else:
                    yield candidate

    def _hoped(self, candidate: Candidate) -> float:
        """Requests/s that are expected within bounds; of those that keep none the shortest wait."""
        hoped = rate(candidate, self.bounds)
        if hoped or not candidate.expected:
            return hoped
        return -min(self._excess(each.ttft_s, each.tpot_s) for each in candidate.expected)

    def _excess(self, ttft_s: float, tpot_s: float) -> float:
        """How far waits are above their bounds, the worst."""
        waits = {"ttft": ttft_s, "tpot": tpot_s}
        return max([waits[name] / bound for name, bound in self.bounds.items() if name in waits], default=0.0)

    def _hopeful(self, here: Offered, candidate: Candidate) -> bool:
        """Whether a plan may serve more than the best does, going by its closed form."""
        most = max(goodput(tried) for tried in here.known)
        return rate(candidate, self.bounds) > HOPE * most or not most

    def _variants(self, here: Offered) -> Iterator[Candidate]:
        """Of the best plan so far: other drafts, fewer sequences at once, caches that are pushed."""
        best = max(here.known, key=self._rank, default=None)
        if best is None:
            return
        expected = next((each.expected for each in here.candidates if plain(each.keys) == plain(best.keys)), ())
        for keys in self._further(here, best):
            yield Candidate(keys, here.scenario, expected)

    def _further(self, here: Offered, best: Tried) -> Iterator[dict[str, Any]]:
        keys = dict(best.keys)
        if "pools" in keys:
            for transfer in ("push", "pull"):
                if keys["pools"].get("transfer", "pull") != transfer:
                    yield {**keys, "pools": {**keys["pools"], "transfer": transfer}}
        speculation = self.scenario.workload.speculation
        if speculation is not None and speculation.tokens:
            yield {**keys, "speculation": {"tokens": 0}}
        elif "speculation" not in keys and DRAFTS.get("mtp").available(here.space.question.model):
            for tokens in (1, 3):
                yield {**keys, "speculation": {"tokens": tokens, "draft": "mtp"}}
        limit = POLICIES.get(best.result.settings["engine"]["scheduler"]).sequence_option
        if not self.traffic.arrivals.closed and limit and "pools" not in keys:
            yield {**keys, "engine": {**keys.get("engine", {}), limit: 64}}

    # --- one plan -------------------------------------------------------------------------------------------

    def _try(
        self, here: Offered, answer: TrafficPlanned, candidate: Candidate, name: str | None = None
    ) -> Tried | None:
        """The plan at its best load, if it is legal and has room."""
        name = name or self._name(here, candidate)
        self._tell(f"{here.name}: {name}", 0.0)
        try:
            plan = candidate.plan(name)
            deployment = here.space.deployment(plan)
            refused = deployment.refusal(self.demand.prompt + self.demand.output)
            if refused is not None:
                answer.refused += ((name, refused),)
                return None
            loads = self._loads(here, candidate, deployment)
            found = [self._at(here, answer, candidate, deployment, traffic) for traffic in loads]
        except (TspsimError, ValueError) as error:
            answer.refused += ((name, str(error)),)
            if isinstance(error, InputError) and name in {stated.name for stated in self.stated}:
                answer.wrong = answer.wrong or error
            return None
        return max(found, key=self._rank, default=None)

    def _loads(self, here: Offered, candidate: Candidate, deployment: Deployment) -> Iterator[Traffic]:
        """Loads to try, each after the one before was."""
        arrivals = self.traffic.arrivals
        if not arrivals.closed:
            points = self.traffic.points()
            if self.bounds and (arrivals.searches or (arrivals.mean_rate and arrivals.trace() is None)):
                found = highest_rate(deployment, self.traffic)
                asked = self.traffic.model_copy(update={"requests": found.requests})
                yield asked.at_rate(float(f"{found.rate or points[0].arrivals.mean_rate or 0.01:.4g}"))
            else:
                yield points[0]
            return
        stated = [int(each.arrivals.most or 1) for each in self.traffic.points()]
        powers = [1 << power for power in range(MOST_CLIENTS.bit_length())]
        sizes = powers if self._free_clients else sorted(stated)
        expected = candidate.best(self.bounds)
        wanted = expected.clients if expected else max(stated)
        start = min(range(len(sizes)), key=lambda index: abs(math.log(sizes[index] / wanted)))
        rank = self._rank_of_last(here)
        yield self._with_clients(sizes[start])
        best, index = rank(), start
        # Up while requests keep the bounds, else down, as long as it gets better.
        step = 1 if here.known[-1].share >= self.traffic.share else -1
        while 0 <= index + step < len(sizes) and not here.passed(1.0):
            index += step
            yield self._with_clients(sizes[index])
            if rank() <= best:
                break
            best = rank()

    def _rank_of_last(self, here: Offered) -> Callable[[], tuple[float, ...]]:
        return lambda: self._rank(here.known[-1])

    def _with_clients(self, clients: int) -> Traffic:
        """A closed loop of so many, long enough to mean something."""
        requests = max(min(10 * clients, self.traffic.requests or REQUESTS, REQUESTS), LEAST_A_CLIENT * clients)
        arrivals = self.traffic.arrivals.model_copy(update={"concurrency": (clients,)})
        return self.traffic.model_copy(update={"arrivals": arrivals, "requests": requests})

    def _at(
        self, here: Offered, answer: TrafficPlanned, candidate: Candidate, deployment: Deployment, traffic: Traffic
    ) -> Tried:
        """A plan under one load."""
        one = point(deployment, traffic, ranges=False)
        if one.interrupted:
            raise KeyboardInterrupt
        answer.simulated += 1
        notes = tuple(notes_of_runs(deployment, [one.run.metrics], one))
        result = result_of(deployment, one, [one], None, notes)
        share = one.run.metrics.get("kept_share", one.run.metrics["good_share"])
        plan = candidate.plan(deployment.plan.name)
        asked = here.scenario.model_copy(update={"plans": (plan,), "traffic": traffic, "offers": ()})
        keys = {**candidate.keys, "name": plan.name}
        tried = Tried(keys, result, asked, here.name, one.run.label, 1.0 if share is None else float(share))
        here.known.append(tried)
        return tried

    def _again(self, tried: Tried) -> Tried:
        """The same with ranges; as it is where somebody does not wait for them."""
        space = ServiceSpace(tried.asked, self.demand, self.library, self.kept_limits)
        deployment = space.deployment(tried.asked.plans[0])
        assert tried.asked.traffic is not None
        try:
            one = point(deployment, tried.asked.traffic)
        except KeyboardInterrupt:
            return tried
        if one.interrupted:
            return tried
        return replace(tried, result=result_of(deployment, one, [one], None, tried.result.notes))

    def _rank(self, tried: Tried) -> tuple[float, ...]:
        """More is better: bounds that are kept, where the objective does not count them itself; the objective; and
        where nothing is good, how near it comes."""
        told = tried.result.serving
        waits = self._excess(told["ttft_s"]["mean"], (told["tpot_s"] or {"mean": 0.0})["mean"])
        near = -waits if tried.share == 0.0 and self.bounds else 0.0
        if self.objective in OF_GOODPUT:
            return near, self.merit(tried)
        return float(tried.share >= self.traffic.share), near, self.merit(tried)

    def _name(self, here: Offered, candidate: Candidate) -> str:
        return name_of_service(candidate.keys, here.space.cluster.gpus)

    def _tell(self, what: str, share: float) -> None:
        if self.progress is not None:
            self.progress(what, share)


def merits(tried: Tried) -> tuple[float, ...]:
    """A front's: tokens/s a GPU, and what a user sees of them."""
    return tried.result.tokens_per_s_per_gpu, tried.result.serving["tokens_per_s_per_user"] or 0.0
