"""The best plans for requests: every spread of replicas and pools, at the load that bounds allow, on every offer.

Obvious plans are simulated first: every size of tensor parallelism behind a load-aware router, experts over ranks and
attention replicas, pools from 1P1D on, and the other routers. Then every plan is bounded in closed form from a few of
its steps (:mod:`.rates`), and the most promising are simulated. Clients of a closed loop are doubled or halved while
that serves more within the bounds; for open arrivals the highest rate within the bounds is searched roughly. The best
plan then gets variants: other routers, a limit on sequences, drafts, pushed caches. The leaders are served as ``tspsim
run`` serves them, and ranked by that; plans of equal parts are compared on one part (:mod:`.service_part`). The budget
is counted work (:mod:`.effort`), shared evenly by the offers; at least one plan is always simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...base.display import Progress
from ...base.errors import InputError, TspsimError, UnknownNameError
from ...parallel import SOUGHT, scheme_axes
from ...parallel.draft import DRAFTS
from ...scenario import Scenario
from ...scenario.traffic import TrafficSpec
from ...serving.answer import notes_of_runs, result_of
from ...serving.deployment import Deployment
from ...serving.highest import NEAR, four_digits, highest_rate
from ...serving.points import point, steady_entries
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
from .service_part import keys_of_part, part_of, parts_of, under
from .service_space import ServiceCandidate, ServiceSpace, rate
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
#: Most requests of a search's run (otherwise ten per client), and least per client, so that warm-up and drain leave a
#: steady part.
REQUESTS, LEAST_A_CLIENT = 640, 8
#: Plans whose prompt step is compared with the best plan's.
READINGS = 12
#: Most clients; steps down from a rough rate that is too high for a longer run.
MOST_CLIENTS, DOWN = 8192, 4


@dataclass
class TrafficOffer:
    """The search on one offer's cluster."""

    name: str
    scenario: Scenario
    space: ServiceSpace
    effort: SearchEffort
    candidates: list[ServiceCandidate] = field(default_factory=list)
    known: list[ServiceUnderLoad] = field(default_factory=list)

    #: ServiceUnderLoad plans, as text.
    seen: set[str] = field(default_factory=set)
    #: Number of equal parts of the cluster → the plans on one part.
    smaller: dict[int, ServiceSpace] = field(default_factory=dict)

    def passed(self, share: float) -> bool:
        """Whether this share of the budget is spent."""
        return self.effort.passed(share)


@dataclass(frozen=True)
class EqualPart:
    """One of the equal parts of a plan, simulated in place of the whole."""

    deployment: Deployment
    parts: int = 1


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
        keys = tuple(key for key in SOUGHT if SOUGHT.get(key).of_requests)
        self.searched = ("tp", "pp", "dp", "ep", *keys, self.load_name)
        self.effort = SearchEffort(math.inf if budget_s is None else budget_s)

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
            space = ServiceSpace(offered, self.demand, self.library, self.kept_limits)
            here = TrafficOffer(offered.name, offered, space, effort)
            if answer is None:
                answer = TrafficPlanned(
                    self.scenario, space.question, self.objective, self._searched_on(space), bounds=self.bounds
                )
            try:
                self._search(here, answer)
            except KeyboardInterrupt:
                interrupted = True
            answer.known += here.known
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
        answer.known = [service for service in answer.known if service.parts == 1]
        answer.check_any()
        ranked = self._ranked(answer.known)
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
            services, key=lambda tried: (not tried.whole, *(-merit for merit in self._rank(tried)), tried.name)
        )

    def _serve_leaders(self, answer: TrafficPlanned) -> None:
        """Serve the best plans of every offer, and stated ones, as ``tspsim run`` does; the best of all first."""
        first: dict[str, list[ServiceUnderLoad]] = {}
        for tried in self._ranked(answer.known):
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
                served[key] = self._whole(tried)
        finally:
            answer.known += served.values()

    # --- the search -----------------------------------------------------------------------------------------

    def _search(self, here: TrafficOffer, answer: TrafficPlanned) -> None:
        """One offer: stated plans, closed forms of all, the promising ones, variants of the best."""
        for plan in here.scenario.plans if self.stated else ():
            keys = stated_keys(plan)
            keys.pop("name")
            service = self._try(here, answer, ServiceCandidate(keys, here.scenario), plan.name, whole=True)
            answer.stated += (service,) if service is not None else ()
        obvious = here.space.obvious()
        here.candidates += obvious
        here.effort.closed(len(obvious))
        for number, candidate in enumerate(obvious):
            if number >= ALWAYS and here.known and (here.passed(OBVIOUS) or not self._hopeful(here, candidate)):
                answer.complete &= not here.passed(OBVIOUS)
                break
            self._try(here, answer, candidate)
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
        self._explain(here, answer)

    def _explain(self, here: TrafficOffer, answer: TrafficPlanned) -> None:
        """Why the plan with the fastest prompt step does not serve best."""
        best = max(here.known, key=self._rank, default=None)
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
        best = max(here.known, key=self._rank, default=None)
        if best is None or not self._free_clients:
            return
        candidate = ServiceCandidate({key: value for key, value in best.keys.items() if key != "name"}, here.scenario)
        for clients in (int(best.load["concurrency"]) * 3 // 2, int(best.load["concurrency"]) * 3 // 4):
            if clients and not here.passed(1.0):
                served = self._served(here, candidate, best.name)
                self._at(here, answer, candidate, served, self._with_clients(clients))

    @property
    def _free_clients(self) -> bool:
        """Whether clients of a closed loop are searched, between bounds; a stated curve is served as stated."""
        return bool(self.bounds) and self.traffic.arrivals.closed and len(self.traffic.points()) == 1

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
        return -min(self._excess(load.ttft_s, load.tpot_s) for load in candidate.expected)

    def _excess(self, ttft_s: float, tpot_s: float) -> float:
        """The worst ratio of a latency to its bound."""
        waits = {"ttft": ttft_s, "tpot": tpot_s}
        return max([waits[name] / bound for name, bound in self.bounds.items() if name in waits], default=0.0)

    def _hopeful(self, here: TrafficOffer, candidate: ServiceCandidate) -> bool:
        """Whether a plan may serve more than the best, by its closed form."""
        most = max(goodput(tried) for tried in here.known)
        return rate(candidate, self.bounds) > HOPE * most or not most

    def _variants(self, here: TrafficOffer) -> Iterator[ServiceCandidate]:
        """Variants of the best plan so far: other drafts, fewer sequences, pushed caches."""
        best = max(here.known, key=self._rank, default=None)
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

    # --- one plan -------------------------------------------------------------------------------------------

    def _try(
        self,
        here: TrafficOffer,
        answer: TrafficPlanned,
        candidate: ServiceCandidate,
        name: str | None = None,
        whole: bool = False,
    ) -> ServiceUnderLoad | None:
        """The plan at its best load, if it is legal and fits; ``whole``: on the whole cluster."""
        if plain(candidate.keys) in here.seen:
            return None
        here.seen.add(plain(candidate.keys))
        name = name or self._name(here, candidate)
        self._tell(f"{here.name}: {name}", 0.0)
        here.effort.priced()
        try:
            served = self._served(here, candidate, name, whole)
            refused = served.deployment.refusal(self.demand.prompt + self.demand.output)
            if refused is not None:
                answer.refused += ((name, refused),)
                return None
            loads = self._loads(here, candidate, served)
            services = [self._at(here, answer, candidate, served, traffic) for traffic in loads]
        except (TspsimError, ValueError) as error:
            answer.refused += ((name, str(error)),)
            if isinstance(error, InputError) and name in {stated.name for stated in self.stated}:
                answer.wrong = answer.wrong or error
            return None
        return max(services, key=self._rank, default=None)

    def _served(self, here: TrafficOffer, candidate: ServiceCandidate, name: str, whole: bool = False) -> EqualPart:
        """The deployment to simulate: the whole plan, or one of many equal parts."""
        deployment, cluster = here.space.deployment(candidate.plan(name)), here.space.cluster
        replicas = sum(count for _, _, count, _ in deployment.engines())
        parts = 1 if whole else parts_of(here.scenario, candidate.keys, replicas, cluster.gpus // cluster.nodes)
        if parts == 1:
            return EqualPart(deployment)
        space = here.smaller.get(parts)
        if space is None:
            scenario = part_of(here.scenario, parts)
            here.smaller[parts] = space = ServiceSpace(scenario, self.demand, self.library, self.kept_limits)
        fewer = ServiceCandidate(keys_of_part(candidate.keys, parts), space.scenario)
        part = space.deployment(fewer.plan(name))
        # A plan that spreads something over all GPUs has no such parts.
        alike = parts * sum(count for _, _, count, _ in part.engines()) == replicas
        return EqualPart(part, parts) if alike else EqualPart(deployment)

    def _loads(self, here: TrafficOffer, candidate: ServiceCandidate, served: EqualPart) -> Iterator[TrafficSpec]:
        """Loads to try, each depending on the result of the one before."""
        arrivals = self.traffic.arrivals
        if not arrivals.closed:
            points = self.traffic.points()
            if self.looks_for_rate:
                expected = candidate.best(self.bounds)
                start = expected.requests_per_s / served.parts if expected else None
                highest = highest_rate(served.deployment, self.traffic, rough=True, start=start)
                here.effort.served(highest.served)
                trace = arrivals.trace()
                most = 2 * highest.requests if trace is None else min(2 * highest.requests, len(trace))
                longer = self.traffic.model_copy(update={"requests": most})
                rate_ = served.parts * highest.rate if highest.rate else points[0].arrivals.mean_rate or 0.01
                for _ in range(DOWN if highest.rate else 1):
                    yield longer.at_rate(four_digits(rate_))
                    if here.known[-1].kept:
                        break
                    rate_ /= 1.0 + NEAR
            else:
                yield points[0]
            return
        stated = [int(point.arrivals.most or 1) for point in self.traffic.points()]
        powers = [1 << power for power in range(MOST_CLIENTS.bit_length())]
        sizes = powers if self._free_clients else sorted(stated)
        expected = candidate.best(self.bounds)
        wanted = expected.clients if expected else max(stated)
        start = min(range(len(sizes)), key=lambda index: abs(math.log(sizes[index] / wanted)))
        rank = self._rank_of_last(here)
        yield self._with_clients(sizes[start])
        best, index = rank(), start
        # Up while requests keep the bounds, else down, as long as that improves.
        step = 1 if here.known[-1].kept else -1
        while 0 <= index + step < len(sizes) and not here.passed(1.0):
            index += step
            yield self._with_clients(sizes[index])
            if rank() <= best:
                break
            best = rank()

    def _rank_of_last(self, here: TrafficOffer) -> Callable[[], tuple[float, ...]]:
        return lambda: self._rank(here.known[-1])

    def _with_clients(self, clients: int) -> TrafficSpec:
        """A closed loop of ``clients`` clients, long enough for a steady part."""
        requests = max(min(10 * clients, REQUESTS), LEAST_A_CLIENT * clients)
        arrivals = self.traffic.arrivals.model_copy(update={"concurrency": (clients,)})
        return self.traffic.model_copy(update={"arrivals": arrivals, "requests": requests})

    def _at(
        self,
        here: TrafficOffer,
        answer: TrafficPlanned,
        candidate: ServiceCandidate,
        served: EqualPart,
        traffic: TrafficSpec,
    ) -> ServiceUnderLoad:
        """A plan under one load."""
        deployment, parts = served.deployment, served.parts
        load = under(traffic, 1.0 / parts) if parts > 1 else traffic
        one = point(deployment, load, ranges=False, steady=False)
        if one.interrupted:
            raise KeyboardInterrupt
        metrics = dict(one.run.metrics)
        if metrics["steady"] is None and (metrics["bounds"] is None or metrics["bounds"]["kept"]):
            # Ramp and drain only flatter: a run that misses the bounds with them misses them in a longer run too.
            metrics |= steady_entries(deployment, load, one.run.waits)
            one = replace(one, run=replace(one.run, metrics=metrics))
        here.effort.served(max(metrics["requests"], (metrics["steady"] or {}).get("run_requests", 0)))
        answer.simulated += 1
        notes = tuple(notes_of_runs(deployment, [metrics], one))
        result = result_of(deployment, one, [one], None, notes)
        plan = candidate.plan(deployment.plan.name)
        scenario = here.scenario.model_copy(update={"plans": (plan,), "traffic": traffic, "offers": ()})
        keys = {**candidate.keys, "name": plan.name}
        kept = metrics["bounds"] or {"share": 1.0, "kept": True}
        label = dict(traffic.arrivals.label)
        tried = ServiceUnderLoad(
            keys, result, scenario, here.name, label, float(kept["share"]), bool(kept["kept"]), parts=parts
        )
        here.known.append(tried)
        return tried

    def _whole(self, tried: ServiceUnderLoad) -> ServiceUnderLoad:
        """The plan as ``tspsim run`` serves it: the highest rate to two per cent where one is searched, all requests of
        the scenario, and its ranges."""
        space = ServiceSpace(tried.asked, self.demand, self.library, self.kept_limits)
        deployment = space.deployment(tried.asked.plans[0])
        traffic, highest = self.traffic, None
        assert tried.asked.traffic is not None
        if self.looks_for_rate:
            highest = highest_rate(deployment, traffic)
            self.effort.served(highest.served)
            if highest.rate is None:
                return replace(tried, kept=False)
            traffic = traffic.model_copy(update={"requests": highest.requests}).at_rate(highest.rate)
        else:
            traffic = traffic.model_copy(update={"arrivals": tried.asked.traffic.arrivals})
        one = point(deployment, traffic)
        if one.interrupted:
            raise KeyboardInterrupt
        metrics = one.run.metrics
        self.effort.served(3 * max(metrics["requests"], (metrics["steady"] or {}).get("run_requests", 0)))
        result = result_of(deployment, one, [one], highest, tuple(notes_of_runs(deployment, [metrics], one)))
        kept = metrics["bounds"] or {"share": 1.0, "kept": True}
        scenario = tried.asked.model_copy(update={"traffic": traffic})
        return replace(
            tried, result=result, asked=scenario, load=one.run.label, share=float(kept["share"]),
            kept=bool(kept["kept"]), whole=True, parts=1,
        )  # fmt: skip

    @property
    def looks_for_rate(self) -> bool:
        """Whether the highest rate within the bounds of open arrivals is searched."""
        arrivals = self.traffic.arrivals
        if arrivals.closed or not self.bounds:
            return False
        return arrivals.searches or bool(arrivals.mean_rate and arrivals.trace() is None)

    def _rank(self, tried: ServiceUnderLoad) -> tuple[float, ...]:
        """Rank of a service, more is better: kept bounds (if the objective does not count them), then the objective;
        where no request keeps them, how near it comes."""
        serving = tried.result.serving
        waits = self._excess(serving["ttft_s"]["mean"], (serving["tpot_s"] or {"mean": 0.0})["mean"])
        near = -waits if tried.share == 0.0 and self.bounds else 0.0
        return float(tried.kept), near, self.merit(tried)

    def _name(self, here: TrafficOffer, candidate: ServiceCandidate) -> str:
        return name_of_service(candidate.keys, here.space.cluster.gpus)

    def _tell(self, what: str, share: float) -> None:
        if self.progress is not None:
            self.progress(what, share)


def merits(tried: ServiceUnderLoad) -> tuple[float, ...]:
    """The front's merits: tokens/s per GPU, and tokens/s per user."""
    return tried.result.tokens_per_s_per_gpu, tried.result.serving["tokens_per_s_per_user"] or 0.0
