"""Plans that serve requests: replicas over a cluster's GPUs, or two pools, each with what closed forms expect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...parallel.dispatch import DISPATCHES
from ...question import Question, cluster_of, look_up_pool
from ...scenario import Plan as PlanKeys
from ...scenario import Scenario
from ...serving.answer import deployment_of
from ...serving.deployment import Deployment
from ..query import Library
from .limit import Limits
from .rates import Demand, Engine, Expected, apart, best_of, loads, together, tried
from .spreads import spreads, with_experts

#: Means that closed forms give may be so much above a bound that requests keep it all the same.
SLACK = 1.25
#: Replicas of a pool take no more GPUs than so many.
MOST_RANKS = 64
#: Sequences of a step that ways to decode are compared by.
TYPICAL = 64


@dataclass(frozen=True)
class Candidate:
    """A plan on one offer's cluster: its keys, and the loads that closed forms expect of it."""

    keys: Mapping[str, Any]
    scenario: Scenario = field(repr=False)
    expected: tuple[Expected, ...] = field(default=(), repr=False)

    def best(self, bounds: Mapping[str, float]) -> Expected | None:
        """The load that is expected to serve most within bounds, or nearly."""
        return best_of(self.expected, bounds, SLACK)

    def plan(self, name: str) -> PlanKeys:
        """As a scenario's plan; raises ValueError."""
        keys = {"recomputation": "none", **self.keys} if "pools" not in self.keys else self.keys
        return PlanKeys.model_validate({**keys, "name": name})


class ServiceSpace:
    """All plans of one offer.

    Parameters
    ----------
    scenario
        With traffic, and without offers.
    library
        Look-ups that remember.
    """

    def __init__(self, scenario: Scenario, demand: Demand, library: Library, limits: Limits) -> None:
        self.scenario, self.demand, self.library, self.limits = scenario, demand, library, limits
        self.cluster = cluster_of(scenario, library.lookups)
        self.question = self.look_up(PlanKeys.model_validate({"name": "any", "recomputation": "none"}))

    def look_up(self, plan: PlanKeys) -> Question:
        """The question with this plan alone."""
        return self.library.look_up(self.scenario.model_copy(update={"plans": (plan,)}))

    def deployment(self, plan: PlanKeys) -> Deployment:
        """How it serves; raises InputError where it is not legal."""
        question = self.look_up(plan)
        return deployment_of(question, question.plans[0], self.library.lookups)

    # --- one pool -------------------------------------------------------------------------------------------

    def usual(self) -> Iterator[Candidate]:
        """Replicas that read prompts and write answers, simplest first."""
        for keys in spreads(self.question.model, self.question.work.step, self.cluster.gpus):
            if self.limits.admits(keys):
                yield self.expected(keys)

    def expected(self, keys: Mapping[str, Any]) -> Candidate:
        """A plan of one pool with its loads; with none where it is not legal or has no room."""
        candidate = Candidate(dict(keys), self.scenario)

        def find() -> list[Expected]:
            deployment = self.deployment(candidate.plan("tried"))
            if deployment.refusal(self.demand.prompt + self.demand.output) is not None:
                return []
            return together(Engine(deployment, self.demand, 1))

        return replace(candidate, expected=tuple(tried(find)))

    # --- two pools ------------------------------------------------------------------------------------------

    def split(self) -> Iterator[Candidate]:
        """Pools that read and pools that write, with as many replicas of each as match best."""
        gpus = self.cluster.gpus
        if gpus < 2:
            return
        readers, writers = self._replicas("prefill"), self._replicas("decode")
        for reading, reader in readers:
            for writing, writer in writers:
                found = self._matched(gpus, (reading, reader), (writing, writer))
                if found is not None:
                    yield found

    def _matched(
        self, gpus: int, reader: tuple[dict[str, Any], Engine], writer: tuple[dict[str, Any], Engine]
    ) -> Candidate | None:
        """With the numbers of replicas that serve most; None where they do not fill the cluster."""
        best: Candidate | None = None
        for x in range(1, gpus // ranks(reader[0]) + 1):
            left = gpus - x * ranks(reader[0])
            if left < ranks(writer[0]) or left % ranks(writer[0]):
                continue
            y = left // ranks(writer[0])
            expected = apart(replace(reader[1], replicas=x), replace(writer[1], replicas=y))
            pools = {"prefill": {"replicas": x, **reader[0]}, "decode": {"replicas": y, **writer[0]}}
            candidate = Candidate({"pools": pools}, self.scenario, tuple(expected))
            if rate(candidate, self.demand.bounds) > (rate(best, self.demand.bounds) if best else 0.0):
                best = candidate
        return best

    def _replicas(self, name: str) -> list[tuple[dict[str, Any], Engine]]:
        """Replicas of a pool on fewer GPUs than there are: plain tensor parallelism, and experts over the ranks."""
        found = []
        gpus, experts = self.cluster.gpus, self.question.model.experts is not None
        for size in loads(min(gpus // 2, MOST_RANKS)):
            ways: list[list[dict[str, Any]]] = [[{"tp": size} if size > 1 else {}]]
            if experts and size > 1:
                ways.append([{"tp": size, "ep": size}])
                spread = [{"dp": size, **more} for more in with_experts({}, 1, size)]
                ways.append([keys for keys in spread if name == "decode" or not of_decoding(keys)])
            for alike in ways:
                made = [(keys, self._engine(keys, name)) for keys in alike if self.limits.admits(keys)]
                able = [(keys, engine) for keys, engine in made if engine is not None]
                # Of ways to bring tokens to experts the fastest for what the pool does.
                fastest = min(able, key=lambda way: busy_s(way[1], name), default=None)
                found += [fastest] if fastest else []
        return found

    def _engine(self, keys: dict[str, Any], name: str) -> Engine | None:
        """One replica of a pool, if it is legal and has room for a request."""
        pools = {"prefill": {"replicas": 1, **keys}, "decode": {"replicas": 1, **keys}}

        def find() -> list[Engine]:
            entry = PlanKeys.model_validate({"name": "tried", "pools": pools})
            question = look_up_pool(self.scenario, entry, name, self.library.lookups)
            options = dict(self.scenario.workload.engine)
            place = {key: f"workload.engine.{key}" for key in options}
            speculation = self.scenario.workload.speculation if name == "decode" else None
            deployment = Deployment(question, question.plans[0], options, place, speculation)
            refused = deployment.refusal(self.demand.prompt + self.demand.output)
            return [] if refused is not None else [Engine(deployment, self.demand, 1)]

        return next(iter(tried(find)), None)


def of_decoding(keys: Mapping[str, Any]) -> bool:
    """Whether tokens go to experts by kernels for small messages."""
    return DISPATCHES.get(keys["expert_dispatch"]).element_bytes is not None


def busy_s(engine: Engine, name: str) -> float:
    """Seconds of what a pool's replica does: a prompt, or a step of many sequences."""
    return engine.shared_read_s if name == "prefill" else engine.step_s(min(engine.most, TYPICAL))


def ranks(keys: Mapping[str, Any]) -> int:
    """GPUs of a pool's replica."""
    return int(keys.get("tp", 1)) * int(keys.get("dp", 1))


def rate(candidate: Candidate, bounds: Mapping[str, float]) -> float:
    """Requests/s that closed forms expect within bounds, or nearly."""
    best = candidate.best(bounds)
    return best.requests_per_s if best else 0.0
