"""Trials of services: a plan is served under loads, on the whole cluster or on one of many equal parts of it.

Clients of a closed loop are doubled or halved while that serves more within the bounds; for open arrivals the highest
rate within the bounds is searched roughly. A leader is then served whole, as ``tspsim run`` serves it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ...base.display import Progress
from ...base.errors import InputError, TspsimError
from ...scenario import Scenario
from ...scenario.traffic import TrafficSpec
from ...serving.answer import notes_of_runs, result_of
from ...serving.deployment import Deployment
from ...serving.highest import NEAR, four_digits, highest_rate
from ...serving.points import point, steady_entries
from ..query import Library
from .effort import SearchEffort
from .limit import Limits
from .rates import Demand
from .service_names import name_of_service, plain
from .service_part import keys_of_part, part_of, parts_of, under
from .service_space import ServiceCandidate, ServiceSpace
from .traffic_answer import ServiceUnderLoad, TrafficPlanned

#: Most requests of a search's run (otherwise ten per client), and least per client, so that warm-up and drain leave a
#: steady part.
REQUESTS, LEAST_A_CLIENT = 640, 8
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
    contenders: list[ServiceUnderLoad] = field(default_factory=list)
    #: Tried plans, as text.
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


class ServiceTrials:
    """The trials of one search.

    Parameters
    ----------
    merit
        What is to be high, of a service under a load.
    stated
        Names of the scenario's own plans: an error in one of them is the user's.
    effort
        Counts what is served whole; a trial counts for its offer.
    tell
        Called with a plan before its trial, and the share that is done.
    """

    def __init__(
        self,
        traffic: TrafficSpec,
        bounds: Mapping[str, float],
        merit: Callable[[ServiceUnderLoad], float],
        demand: Demand,
        library: Library,
        limits: Limits,
        *,
        stated: frozenset[str],
        effort: SearchEffort,
        tell: Progress,
    ) -> None:
        self.traffic, self.bounds, self.merit, self.demand = traffic, bounds, merit, demand
        self.library, self.limits, self.stated, self.effort, self.tell = library, limits, stated, effort, tell

    def space_of(self, scenario: Scenario) -> ServiceSpace:
        """The services on a scenario's cluster."""
        return ServiceSpace(scenario, self.demand, self.library, self.limits)

    @property
    def free_clients(self) -> bool:
        """Whether clients of a closed loop are searched, between bounds; a stated curve is served as stated."""
        return bool(self.bounds) and self.traffic.arrivals.closed and len(self.traffic.points()) == 1

    @property
    def looks_for_rate(self) -> bool:
        """Whether the highest rate within the bounds of open arrivals is searched."""
        arrivals = self.traffic.arrivals
        if arrivals.closed or not self.bounds:
            return False
        return arrivals.searches or bool(arrivals.mean_rate and arrivals.trace() is None)

    def rank(self, tried: ServiceUnderLoad) -> tuple[float, ...]:
        """Rank of a service, more is better: kept bounds (if the objective does not count them), then the objective;
        where no request keeps them, how near it comes."""
        serving = tried.result.serving
        waits = self.excess(serving["ttft_s"]["mean"], (serving["tpot_s"] or {"mean": 0.0})["mean"])
        near = -waits if tried.share == 0.0 and self.bounds else 0.0
        return float(tried.kept), near, self.merit(tried)

    def excess(self, ttft_s: float, tpot_s: float) -> float:
        """The worst ratio of a latency to its bound."""
        waits = {"ttft": ttft_s, "tpot": tpot_s}
        return max([waits[name] / bound for name, bound in self.bounds.items() if name in waits], default=0.0)

    def run(
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
        name = name or name_of_service(candidate.keys, here.space.cluster.gpus)
        self.tell(f"{here.name}: {name}", 0.0)
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
            if isinstance(error, InputError) and name in self.stated:
                answer.wrong = answer.wrong or error
            return None
        return max(services, key=self.rank, default=None)

    def at_clients(
        self, here: TrafficOffer, answer: TrafficPlanned, candidate: ServiceCandidate, name: str, clients: int
    ) -> None:
        """A plan under another number of clients."""
        served = self._served(here, candidate, name)
        self._at(here, answer, candidate, served, self._with_clients(clients))

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
            here.smaller[parts] = space = self.space_of(scenario)
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
                    if here.contenders[-1].kept:
                        break
                    rate_ /= 1.0 + NEAR
            else:
                yield points[0]
            return
        stated = [int(point.arrivals.most or 1) for point in self.traffic.points()]
        powers = [1 << power for power in range(MOST_CLIENTS.bit_length())]
        sizes = powers if self.free_clients else sorted(stated)
        expected = candidate.best(self.bounds)
        wanted = expected.clients if expected else max(stated)
        start = min(range(len(sizes)), key=lambda index: abs(math.log(sizes[index] / wanted)))
        rank = self._rank_of_last(here)
        yield self._with_clients(sizes[start])
        best, index = rank(), start
        # Up while requests keep the bounds, else down, as long as that improves.
        step = 1 if here.contenders[-1].kept else -1
        while 0 <= index + step < len(sizes) and not here.passed(1.0):
            index += step
            yield self._with_clients(sizes[index])
            if rank() <= best:
                break
            best = rank()

    def _rank_of_last(self, here: TrafficOffer) -> Callable[[], tuple[float, ...]]:
        return lambda: self.rank(here.contenders[-1])

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
        here.contenders.append(tried)
        return tried

    def whole(self, tried: ServiceUnderLoad) -> ServiceUnderLoad:
        """The plan as ``tspsim run`` serves it: the highest rate to two per cent where one is searched, all requests of
        the scenario, and its ranges."""
        space = self.space_of(tried.source_scenario)
        deployment = space.deployment(tried.source_scenario.plans[0])
        traffic, highest = self.traffic, None
        assert tried.source_scenario.traffic is not None
        if self.looks_for_rate:
            highest = highest_rate(deployment, traffic)
            self.effort.served(highest.served)
            if highest.rate is None:
                return replace(tried, kept=False)
            traffic = traffic.model_copy(update={"requests": highest.requests}).at_rate(highest.rate)
        else:
            traffic = traffic.model_copy(update={"arrivals": tried.source_scenario.traffic.arrivals})
        one = point(deployment, traffic)
        if one.interrupted:
            raise KeyboardInterrupt
        metrics = one.run.metrics
        self.effort.served(3 * max(metrics["requests"], (metrics["steady"] or {}).get("run_requests", 0)))
        result = result_of(deployment, one, [one], highest, tuple(notes_of_runs(deployment, [metrics], one)))
        kept = metrics["bounds"] or {"share": 1.0, "kept": True}
        scenario = tried.source_scenario.model_copy(update={"traffic": traffic})
        return replace(
            tried, result=result, source_scenario=scenario, load=one.run.label, share=float(kept["share"]),
            kept=bool(kept["kept"]), whole=True, parts=1,
        )  # fmt: skip
