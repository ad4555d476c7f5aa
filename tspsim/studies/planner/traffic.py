"""The best plans for requests: every spread of replicas and pools, at the load that bounds allow, on every offer.

Obvious plans are simulated first: every size of tensor parallelism behind a load-aware router, experts over ranks and
attention replicas, pools from 1P1D on, and the other routers. Then every plan is bounded in closed form from a few of
its steps (:mod:`.rates`), and the most promising are simulated (:mod:`.service_trials`). The best plan then gets
variants: other routers, a limit on sequences, drafts, pushed caches. The leaders are served as ``tspsim run`` serves
them, and ranked by that; plans of equal parts are compared on one part (:mod:`.service_part`). The budget is counted
work (:mod:`.effort`), shared evenly by the offers; at least one plan is always simulated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from ...base.display import Progress
from ...base.errors import UnknownNameError
from ...parallel import SEARCH_RULES, scheme_axes
from ...parallel.draft import DRAFTS
from ...scenario import Scenario
from ...serving.deployment import Deployment
from ...serving.policies import POLICIES
from ...serving.routers import ROUTERS
from ..front import front_of
from ..purchase.offers import expand
from ..query import Library
from .effort import SearchEffort
from .limit import Limits
from .service_answer import stated_keys
from .service_demand import bounded_by, demand_of
from .service_names import name_of_service, plain
from .service_space import ServiceCandidate, ServiceSpace, rate
from .service_trials import ServiceTrials, TrafficOffer
from .spreads import spreads
from .step_budgets import budgets, keys_with, why_not_the_step_s
from .traffic_answer import OBJECTIVES, ServiceUnderLoad, TrafficPlanned, goodput

#: Shares of an offer's budget after which no more obvious plans, closed forms and new plans are tried.
OBVIOUS, BOUNDING, SEARCHING = 0.55, 0.7, 0.85
#: Obvious plans that are simulated under any budget: one of one pool, and one of two.
ALWAYS = 2
#: Share of the whole budget for the search; the rest serves the best again as ``tspsim run`` does.
SEARCH = 0.6
#: Least plans per offer that are served whole, and how near the best further ones must be.
LEADERS, NEARLY = 2, 0.93
#: Plans whose closed form serves less than this share of the best simulated plan are skipped.
HOPE = 0.6
#: Plans whose prompt step is compared with the best plan's.
READINGS = 12


class TrafficPlanner:
    """Plans a scenario with traffic; parameters as of :func:`~.choose.planner_of`.

    Objectives are :data:`.traffic_answer.OBJECTIVES`; None: goodput per dollar, without bounds tokens per dollar.
    Limits such as ``tpot<=50ms`` and ``ttft<=2s`` replace the scenario's bounds.

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
        progress: Progress | None = None,
    ) -> None:
        assert scenario.traffic is not None
        kept = Limits.of(limits, serves=True)
        self.traffic = bounded_by(scenario.traffic, kept.limits)
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
        keys = tuple(key for key in SEARCH_RULES if SEARCH_RULES.get(key).of_requests)
        self.searched = ("tp", "pp", "dp", "ep", *keys, self.load_name)
        self.effort = SearchEffort(math.inf if budget_s is None else budget_s)
        self.trials = ServiceTrials(
            self.traffic,
            bounds,
            self.merit,
            self.demand,
            self.library,
            kept,
            stated=frozenset(plan.name for plan in self.stated),
            effort=self.effort,
            tell=self._tell,
        )

    def _searched_on(self, space: ServiceSpace) -> tuple[str, ...]:
        """Keys searched on a cluster: those of every spread of a replica, and options of the engine (tokens and
        sequences of a step, chunked prefill)."""
        every = spreads(space.question.model, space.question.work.step, space.cluster.gpus)
        spread = dict.fromkeys(key for keys in every for key in keys if key not in self.searched)
        policy = Deployment(space.question, space.question.plans[0], dict(self.scenario.workload.engine), {}).policy
        options = policy.token_option, policy.chunk_option, policy.sequence_option
        keys = (*self.searched[:4], *spread, *self.searched[4:-1], *filter(None, options))
        return *dict.fromkeys(keys), self.load_name

    @property
    def load_name(self) -> str:
        """The key of the traffic that is chosen with a plan."""
        return "concurrency" if self.traffic.arrivals.closed else "rate"

    def run(self) -> TrafficPlanned:
        """The best plans, the stated ones and the front; Ctrl-C ends with the results so far.

        Raises
        ------
        InfeasibleError
            No legal plan fits.
        """
        offers = expand(self.scenario)
        answer: TrafficPlanned | None = None
        interrupted = False
        searching = self.effort.part(SEARCH)
        for number, offered in enumerate(offers):
            self._tell(offered.name, number / len(offers))
            effort = searching.part(1.0 / (len(offers) - number))
            space = self.trials.space_of(offered)
            here = TrafficOffer(offered.name, offered, space, effort)
            if answer is None:
                answer = TrafficPlanned(
                    self.scenario, space.question, self.objective, self._searched_on(space), bounds=self.bounds
                )
            try:
                self._search(here, answer)
            except KeyboardInterrupt:
                interrupted = True
            answer.contenders += here.contenders
            searching.add(effort)
            if interrupted:
                break
        self.effort.add(searching)
        assert answer is not None
        answer.interrupted = interrupted
        answer.complete &= not interrupted
        return self._concluded(answer)

    def _concluded(self, answer: TrafficPlanned) -> TrafficPlanned:
        answer.check_any()
        try:
            self._serve_leaders(answer)
        except KeyboardInterrupt:
            answer.interrupted, answer.complete = True, False
        answer.contenders = [service for service in answer.contenders if service.parts == 1]
        answer.check_any()
        ranked = self._ranked(answer.contenders)
        distinct: dict[tuple[str, str], ServiceUnderLoad] = {}
        for tried in ranked:
            distinct.setdefault((tried.offer, plain(tried.keys)), tried)
        every = list(distinct.values())
        answer.best = tuple(every[: self.top])
        first: dict[str, ServiceUnderLoad] = {}
        for tried in every:
            first.setdefault(tried.offer, tried)
        answer.by_offer = tuple(first.values())
        answer.stated = tuple(distinct.get((service.offer, plain(service.keys)), service) for service in answer.stated)
        answer.kept = not self.bounds or answer.best[0].kept
        answer.front = tuple(
            sorted(
                (service for name in first for service in front_of([t for t in ranked if t.offer == name], merits)),
                key=lambda tried: (tried.offer, -tried.result.tokens_per_s_per_gpu),
            )
        )
        return answer

    def _ranked(self, services: Sequence[ServiceUnderLoad]) -> list[ServiceUnderLoad]:
        """Plans of every offer, those served whole first, the best first."""
        return sorted(
            services, key=lambda tried: (not tried.whole, *(-merit for merit in self.trials.rank(tried)), tried.name)
        )

    def _serve_leaders(self, answer: TrafficPlanned) -> None:
        """Serve the best plans of every offer, and stated ones, as ``tspsim run`` does; the best of all first."""
        first: dict[str, list[ServiceUnderLoad]] = {}
        for tried in self._ranked(answer.contenders):
            mine = first.setdefault(tried.offer, [])
            if all(plain(tried.keys) != plain(other.keys) for other in mine):
                mine.append(tried)
        leaders: list[tuple[int, ServiceUnderLoad]] = []
        for mine in first.values():
            most = self.merit(mine[0])
            near = [
                service
                for service in mine
                if self.merit(service) >= NEARLY * most or self.merit(service) >= most / NEARLY
            ]
            chosen = [
                *mine[: max(LEADERS, self.top)],
                *(service for service in near if service not in mine[: self.top]),
            ]
            chosen = chosen[: 2 * max(LEADERS, self.top)]
            chosen += [service for service in answer.stated if service.offer == mine[0].offer and service not in chosen]
            leaders += list(enumerate(chosen))
        served: dict[tuple[str, str], ServiceUnderLoad] = {}
        try:
            for place, tried in sorted(leaders, key=lambda pair: pair[0]):
                key = (tried.offer, plain(tried.keys))
                if key in served or (place and self.effort.passed()):
                    continue
                done = min(0.99, self.effort.spent_s / max(1e-9, self.effort.budget_s))
                self._tell(f"{tried.offer}: {tried.name}", done)
                served[key] = self.trials.whole(tried)
        finally:
            answer.contenders += served.values()

    # --- the search -----------------------------------------------------------------------------------------

    def _search(self, here: TrafficOffer, answer: TrafficPlanned) -> None:
        """One offer: stated plans, closed forms of all, the promising ones, variants of the best."""
        for plan in here.scenario.plans if self.stated else ():
            keys = stated_keys(plan)
            keys.pop("name")
            service = self.trials.run(here, answer, ServiceCandidate(keys, here.scenario), plan.name, whole=True)
            answer.stated += (service,) if service is not None else ()
        obvious = here.space.obvious()
        here.candidates += obvious
        here.effort.closed(len(obvious))
        for number, candidate in enumerate(obvious):
            if number >= ALWAYS and here.contenders and (here.passed(OBVIOUS) or not self._hopeful(here, candidate)):
                answer.complete &= not here.passed(OBVIOUS)
                break
            self.trials.run(here, answer, candidate)
        for candidate in self._all(here):
            answer.bounded += 1
            here.effort.closed()
            if candidate.expected:
                here.candidates.append(candidate)
            if here.passed(BOUNDING) and here.candidates:
                answer.complete = False
                break
        here.candidates.sort(key=lambda candidate: -self._hoped(candidate))
        for candidate in here.candidates:
            if here.contenders and (here.passed(SEARCHING) or not self._hopeful(here, candidate)):
                answer.complete &= not here.passed(SEARCHING)
                break
            self.trials.run(here, answer, candidate)
        for variant in self._variants(here):
            if here.passed(1.0):
                answer.complete = False
                break
            self.trials.run(here, answer, variant)
        self._finer(here, answer)
        self._explain(here, answer)

    def _explain(self, here: TrafficOffer, answer: TrafficPlanned) -> None:
        """Why the plan with the fastest prompt step does not serve best."""
        best = max(here.contenders, key=self.trials.rank, default=None)
        if best is None or "pools" in best.keys:
            return
        more = {key: best.keys[key] for key in ("engine",) if key in best.keys}
        not_spread = ("engine", "speculation", "router")
        one_pool = (candidate for candidate in here.candidates if "pools" not in candidate.keys and candidate.expected)
        spread = [{k: value for k, value in candidate.keys.items() if k not in not_spread} for candidate in one_pool]
        gpus, names = here.space.cluster.gpus, dict[str, dict[str, Any]]()
        for keys in spread:
            if math.prod(int(keys.get(axis, 1)) for axis in (*scheme_axes(), "pp")) == gpus:
                names.setdefault(name_of_service(keys, gpus), keys)
        own = here.space.reading({key: value for key, value in best.keys.items() if key != "name"}, best.name)
        others = [here.space.reading({**keys, **more}, name) for name, keys in list(names.items())[:READINGS]]
        here.effort.closed(len(others))
        clients = int(best.load.get("concurrency", 1))
        if own is not None:
            said = why_not_the_step_s(own, [other for other in others if other is not None], clients)
            several = f"{here.name}: " if self.scenario.offers else ""
            answer.notes += (several + said,) if said else ()

    def _finer(self, here: TrafficOffer, answer: TrafficPlanned) -> None:
        """The best plan between its clients and the next power of two on either side."""
        best = max(here.contenders, key=self.trials.rank, default=None)
        if best is None or not self.trials.free_clients:
            return
        candidate = ServiceCandidate({key: value for key, value in best.keys.items() if key != "name"}, here.scenario)
        for clients in (int(best.load["concurrency"]) * 3 // 2, int(best.load["concurrency"]) * 3 // 4):
            if clients and not here.passed(1.0):
                self.trials.at_clients(here, answer, candidate, best.name, clients)

    def _all(self, here: TrafficOffer) -> Iterator[ServiceCandidate]:
        """One-pool plans and two-pool plans in turn, so that a short search sees both."""
        both = [here.space.usual(), here.space.split()]
        while both:
            for source in list(both):
                candidate = next(source, None)
                if candidate is None:
                    both.remove(source)
                else:
                    yield candidate

    def _hoped(self, candidate: ServiceCandidate) -> float:
        """Expected requests/s within bounds; where no load keeps them, the negative excess of the best."""
        hoped = rate(candidate, self.bounds)
        if hoped or not candidate.expected:
            return hoped
        return -min(self.trials.excess(load.ttft_s, load.tpot_s) for load in candidate.expected)

    def _hopeful(self, here: TrafficOffer, candidate: ServiceCandidate) -> bool:
        """Whether a plan may serve more than the best, by its closed form."""
        most = max(goodput(tried) for tried in here.contenders)
        return rate(candidate, self.bounds) > HOPE * most or not most

    def _variants(self, here: TrafficOffer) -> Iterator[ServiceCandidate]:
        """Variants of the best plan so far: other drafts, fewer sequences, pushed caches."""
        best = max(here.contenders, key=self.trials.rank, default=None)
        if best is None:
            return
        expected = next(
            (candidate.expected for candidate in here.candidates if plain(candidate.keys) == plain(best.keys)), ()
        )
        for keys in self._further(here, best):
            yield ServiceCandidate(keys, here.scenario, expected)

    def _further(self, here: TrafficOffer, best: ServiceUnderLoad) -> Iterator[dict[str, Any]]:
        keys = {key: value for key, value in best.keys.items() if key != "name"}
        if "pools" not in keys and int(best.result.settings.get("replicas") or 1) > 1:
            yield from ({**keys, "router": router} for router in ROUTERS.names())
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
        if "pools" not in keys:
            deployment = here.space.deployment(ServiceCandidate(keys, here.scenario).plan("tried"))
            yield from (keys_with(keys, options) for options in budgets(deployment, self.demand.prompt))
        limit = POLICIES.get(best.result.settings["engine"]["scheduler"]).sequence_option
        if not self.traffic.arrivals.closed and limit and "pools" not in keys:
            yield {**keys, "engine": {**keys.get("engine", {}), limit: 64}}

    def _tell(self, what: str, share: float) -> None:
        if self.progress is not None:
            self.progress(what, share)


def merits(tried: ServiceUnderLoad) -> tuple[float, ...]:
    """The front's merits: tokens/s per GPU, and tokens/s per user."""
    return tried.result.tokens_per_s_per_gpu, tried.result.serving["tokens_per_s_per_user"] or 0.0
