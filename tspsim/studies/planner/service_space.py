"""Plans that serve requests: replicas over a cluster's GPUs, or two pools, each with its closed-form loads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from ...parallel.dispatch import DISPATCHES
from ...scenario import PlanSpec as PlanKeys
from ...scenario import Scenario
from ...serving.answer import deployment_of
from ...serving.deployment import Deployment
from ...step.question import Question, cluster_of, look_up_pool
from ..query import Library
from .limit import Limits
from .rates import ClosedFormEngine, Demand, ExpectedLoad, apart, best_of, loads, together, tried
from .service_part import ranks_of
from .spreads import spreads, with_experts
from .step_budgets import Reading, budgets, keys_with

#: Closed-form means may exceed a bound by this factor while requests still keep it.
SLACK = 1.25
#: Most GPUs of a pool's replica.
MOST_RANKS = 64
#: From this number of replicas on, only equal pools are tried.
MANY = 64
#: The router of the obvious plans.
OBVIOUS_ROUTER = "least_load"
#: Sequences of a step by which decode pools are compared.
TYPICAL = 64


@dataclass(frozen=True)
class ServiceCandidate:
    """A plan on one offer's cluster: its keys, and its loads in closed form."""

    keys: Mapping[str, Any]
    scenario: Scenario = field(repr=False)
    expected: tuple[ExpectedLoad, ...] = field(default=(), repr=False)

    def best(self, bounds: Mapping[str, float]) -> ExpectedLoad | None:
        """The load with most requests within bounds, with some slack."""
        return best_of(self.expected, bounds, SLACK)

    def plan(self, name: str) -> PlanKeys:
        """The plan as a scenario's plan; raises ValueError."""
        keys = {"recomputation": "none", **self.keys} if "pools" not in self.keys else self.keys
        return PlanKeys.model_validate({**keys, "name": name})


class ServiceSpace:
    """All plans of one offer.

    Parameters
    ----------
    scenario
        With traffic, and without offers.
    library
        Memoizing look-ups.
    """

    def __init__(self, scenario: Scenario, demand: Demand, library: Library, limits: Limits) -> None:
        self.scenario, self.demand, self.library, self.limits = scenario, demand, library, limits
        self.cluster = cluster_of(scenario, library.lookups)
        self.question = self.look_up(PlanKeys.model_validate({"name": "any", "recomputation": "none"}))

    def look_up(self, plan: PlanKeys) -> Question:
        """The question with only this plan."""
        return self.library.look_up(self.scenario.model_copy(update={"plans": (plan,)}))

    def deployment(self, plan: PlanKeys) -> Deployment:
        """The plan's deployment. Raises InputError where it is not legal."""
        question = self.look_up(plan)
        return deployment_of(question, question.plans[0], self.library.lookups)

    # --- what anybody would try first -----------------------------------------------------------------------

    def obvious(self) -> list[ServiceCandidate]:
        """The obvious services with their closed-form loads: the kinds in turn, of each kind the best expected first.

        Tensor parallelism of every size with replicas that fill the cluster, behind a load-aware router; with experts
        the same with expert parallelism, and attention replicas that share experts; 1P1D to nP1D and 1PnD of replicas
        of one size; for long prompts, schedules that divide tokens.
        """
        gpus = self.cluster.gpus
        sizes = [size for size in loads(min(gpus, 4 * self.cluster.gpus_per_node)) if gpus % size == 0]
        whole: list[dict[str, Any]] = [{"tp": size} if size > 1 else {} for size in sizes]
        if self.question.model.experts is not None:
            whole += [{"tp": size, "ep": size} for size in sizes if size > 1]
            whole += with_experts({}, 1, gpus)
        plain = [self.expected(keys, self._routed(keys)) for keys in whole if self.limits.admits(keys)]
        long = [self.expected(keys) for keys in self.of_long_contexts(sizes) if self.limits.admits(keys)]
        split = [self._halved(one, size) for one, size in zip(whole, sizes, strict=False) if self.limits.admits(one)]
        kinds = [plain, [candidate for pools in split for candidate in pools], long]
        for kind in kinds:
            kind.sort(key=lambda candidate: -rate(candidate, self.demand.bounds))
        return [
            candidate
            for pair in zip_longest(*kinds)
            for candidate in pair
            if candidate is not None and candidate.expected
        ]

    def of_long_contexts(self, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Plans with all GPUs on one prompt or context. Where a prompt has more tokens than the model's width, weights
        move to tokens, with the engine's step budget and with whole prompts per step; where heads cannot divide the
        cache as far, contexts are divided by tokens."""
        model, gpus = self.question.model, self.cluster.gpus
        experts = {"ep": gpus} if model.experts is not None else {}
        if gpus not in sizes or gpus == 1:
            return
        if self.demand.prompt > model.hidden:
            folded = {"tsp": gpus, **experts}
            yield folded
            for deployment in tried(lambda: [self.deployment(ServiceCandidate(folded, self.scenario).plan("tried"))]):
                yield from (keys_with(folded, options) for options in budgets(deployment, self.demand.prompt))
        if any(use.grows and use.heads < gpus for use in model.cache_uses()):
            yield {"tp": gpus, **experts, "dcp": gpus, "decode_exchange": "all_to_all"}

    def _routed(self, keys: Mapping[str, Any]) -> dict[str, Any]:
        """With a load-aware router, where the plan has several replicas."""
        several = "expert_dispatch" not in keys and int(keys.get("tp", 1)) < self.cluster.gpus
        return {**keys, **({"router": OBVIOUS_ROUTER} if several else {})}

    def _halved(self, one: Mapping[str, Any], size: int) -> Iterator[ServiceCandidate]:
        """Pools of equal replicas: one prefill replica, a quarter, a half, all but one."""
        replicas = self.cluster.gpus // size
        readers = {1, replicas // 4, replicas // 2, replicas - 1} if replicas < MANY else {replicas // 2}
        both = [self._engine(dict(one), name) for name in ("prefill", "decode")] if replicas > 1 else [None, None]
        reader, writer = both
        if reader is None or writer is None:
            return
        for count in sorted(readers - {0, replicas}):
            expected = apart(replace(reader, replicas=count), replace(writer, replicas=replicas - count))
            parts = {"prefill": count, "decode": replicas - count}
            pools = {name: {"replicas": number, **one} for name, number in parts.items()}
            yield ServiceCandidate({"pools": pools}, self.scenario, tuple(expected))

    def reading(self, keys: Mapping[str, Any], name: str) -> Reading | None:
        """The time in which a one-pool plan reads a prompt; None where it is not legal, or does not fit."""

        def find() -> list[Reading]:
            deployment = self.deployment(ServiceCandidate(keys, self.scenario).plan("tried"))
            refused = deployment.refusal(self.demand.prompt + self.demand.output)
            return [] if refused is not None else [Reading(name, ClosedFormEngine(deployment, self.demand, 1))]

        return next(iter(tried(find)), None)

    # --- one pool -------------------------------------------------------------------------------------------

    def usual(self) -> Iterator[ServiceCandidate]:
        """Replicas that read prompts and write answers, simplest first."""
        for keys in spreads(self.question.model, self.question.work.step, self.cluster.gpus):
            if self.limits.admits(keys):
                yield self.expected(keys)

    def expected(self, keys: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> ServiceCandidate:
        """A one-pool plan with its loads; no loads where it is not legal or does not fit. ``more``: its keys with those
        that closed forms ignore."""
        candidate = ServiceCandidate(dict(more or keys), self.scenario)

        def find() -> list[ExpectedLoad]:
            deployment = self.deployment(candidate.plan("tried"))
            if deployment.refusal(self.demand.prompt + self.demand.output) is not None:
                return []
            return together(ClosedFormEngine(deployment, self.demand, 1))

        return replace(candidate, expected=tuple(tried(find)))

    # --- two pools ------------------------------------------------------------------------------------------

    def split(self) -> Iterator[ServiceCandidate]:
        """Pools that read and pools that write, with the best matching numbers of replicas."""
        gpus = self.cluster.gpus
        if gpus < 2:
            return
        readers, writers = self._replicas("prefill"), self._replicas("decode")
        for reading, reader in readers:
            for writing, writer in writers:
                matched = self._matched(gpus, (reading, reader), (writing, writer))
                if matched is not None:
                    yield matched

    def _matched(
        self,
        gpus: int,
        reader: tuple[dict[str, Any], ClosedFormEngine],
        writer: tuple[dict[str, Any], ClosedFormEngine],
    ) -> ServiceCandidate | None:
        """The pools with the numbers of replicas that serve most; None where they cannot fill the cluster."""
        best: ServiceCandidate | None = None
        for x in range(1, gpus // ranks_of(reader[0]) + 1):
            left = gpus - x * ranks_of(reader[0])
            if left < ranks_of(writer[0]) or left % ranks_of(writer[0]):
                continue
            y = left // ranks_of(writer[0])
            expected = apart(replace(reader[1], replicas=x), replace(writer[1], replicas=y))
            pools = {"prefill": {"replicas": x, **reader[0]}, "decode": {"replicas": y, **writer[0]}}
            candidate = ServiceCandidate({"pools": pools}, self.scenario, tuple(expected))
            if rate(candidate, self.demand.bounds) > (rate(best, self.demand.bounds) if best else 0.0):
                best = candidate
        return best

    def _replicas(self, name: str) -> list[tuple[dict[str, Any], ClosedFormEngine]]:
        """Replicas of a pool on at most half of the GPUs: plain tensor parallelism, and experts over ranks."""
        replicas = []
        gpus, experts = self.cluster.gpus, self.question.model.experts is not None
        for size in loads(min(gpus // 2, MOST_RANKS)):
            ways: list[list[dict[str, Any]]] = [[{"tp": size} if size > 1 else {}]]
            if name == "prefill" and size > 1 and self.demand.prompt > self.question.model.hidden:
                ways.append([{"tsp": size, **({"ep": size} if experts else {})}])
            if experts and size > 1:
                ways.append([{"tp": size, "ep": size}])
                spread = [{"dp": size, **more} for more in with_experts({}, 1, size)]
                ways.append([keys for keys in spread if name == "decode" or not of_decoding(keys)])
            for alike in ways:
                engines = [(keys, self._engine(keys, name)) for keys in alike if self.limits.admits(keys)]
                able = [(keys, engine) for keys, engine in engines if engine is not None]
                # Of the expert dispatches the fastest for the pool's task.
                fastest = min(able, key=lambda way: busy_s(way[1], name), default=None)
                replicas += [fastest] if fastest else []
        return replicas

    def _engine(self, keys: dict[str, Any], name: str) -> ClosedFormEngine | None:
        """One replica of a pool; None where it is not legal or has no room for a request."""
        pools = {"prefill": {"replicas": 1, **keys}, "decode": {"replicas": 1, **keys}}

        def find() -> list[ClosedFormEngine]:
            entry = PlanKeys.model_validate({"name": "tried", "pools": pools})
            question = look_up_pool(self.scenario, entry, name, self.library.lookups)
            options = dict(self.scenario.workload.engine)
            place = {key: f"workload.engine.{key}" for key in options}
            speculation = self.scenario.workload.speculation if name == "decode" else None
            deployment = Deployment(question, question.plans[0], options, place, speculation)
            refused = deployment.refusal(self.demand.prompt + self.demand.output)
            return [] if refused is not None else [ClosedFormEngine(deployment, self.demand, 1)]

        return next(iter(tried(find)), None)


def of_decoding(keys: Mapping[str, Any]) -> bool:
    """Whether the dispatch uses kernels for small messages."""
    return DISPATCHES.get(keys["expert_dispatch"]).element_bytes is not None


def busy_s(engine: ClosedFormEngine, name: str) -> float:
    """Seconds of a pool replica's task: a prompt, or a step of many sequences."""
    return engine.shared_read_s if name == "prefill" else engine.step_s(min(engine.most, TYPICAL))


def rate(candidate: ServiceCandidate, bounds: Mapping[str, float]) -> float:
    """Requests/s within bounds by the closed form, with some slack."""
    best = candidate.best(bounds)
    return best.requests_per_s if best else 0.0
