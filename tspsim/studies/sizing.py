"""Machines for a recorded trace: the best plan of every offer, and the fewest machines that keep the bounds.

The plan is searched on one machine, at the highest rate of the trace that keeps the bounds; the wanted rate over that
rate is the first estimate of the number. Then the whole trace, with its bursts, is served by that many machines behind
one router, and by more or fewer, until they keep the bounds and one machine less does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..base.display import Pictured, Progress, html_table, progress_bar
from ..base.errors import InfeasibleError, InputError
from ..base.units import digits, duration, parse, share_beside
from ..scenario import Scenario, load
from ..serving.answer import deployment_of
from ..serving.bounds import kept_in_words
from ..serving.deployment import Deployment
from ..serving.points import LoadedRun, point
from ..serving.pooled import PooledDeployment
from ..serving.steady import figures
from ..step.question import look_up
from ..traffic.traces import RequestTrace, read_trace
from .launch import LAUNCHERS, launch
from .planner.query import read_budget
from .planner.traffic import TrafficPlanner
from .planner.traffic_answer import ServiceUnderLoad
from .purchase.costs import Rates, rates_of
from .purchase.offers import expand

if TYPE_CHECKING:
    import pandas

#: Most nodes of one machine, where fewer have no room for the model; and the fabric between them.
MOST_NODES, FABRIC = 8, "rails-400g"
#: Most numbers of machines that are tried.
MOST_TRIES = 16


@dataclass(frozen=True)
class Sized:
    """One offer: the number of machines that serve the trace; or why none do."""

    offer: str
    error: str = ""
    machines: int = 0
    nodes: int = 0
    gpus: int = 0
    plan: ServiceUnderLoad | None = None
    #: Metrics of all machines under the trace.
    served: Mapping[str, Any] | None = None
    #: Requests/s within the bounds on one machine.
    requests_per_s_each: float = 0.0
    #: Why one machine less is not enough; empty where there is none.
    fewer: str = ""
    rates: Rates | None = None
    deployment: Deployment | None = None
    scenario: Scenario | None = None

    @property
    def router(self) -> str:
        """Name of the router in front of the replicas."""
        return str(self.plan.result.settings.get("router", "round_robin")) if self.plan else ""

    @property
    def pools(self) -> dict[str, int]:
        """Replicas of all machines: ``prefill`` and ``decode``, or ``replicas`` where each does both."""
        if self.deployment is None:
            return {}
        return {name or "replicas": count for name, _, count, _ in self.deployment.engines()}

    @property
    def size_in_words(self) -> str:
        """Nodes and GPUs."""
        return f"{self.nodes:,} node{'s' * (self.nodes > 1)}, {self.gpus:,} GPU{'s' * (self.gpus > 1)}"

    @property
    def replicas_in_words(self) -> list[str]:
        """Number of replicas of each kind."""
        alone = {"replicas": "replica"}
        return [f"{count} {alone.get(name, name) if count == 1 else name}" for name, count in self.pools.items()]

    @property
    def usd_per_hour(self) -> float | None:
        """Price of all GPUs, on the basis that ranks."""
        return self.rates.usd * self.gpus if self.rates is not None and self.rates.usd else None

    @property
    def launch(self) -> str:
        """Its launch script; empty where it does not serve, or its engine has no launcher."""
        if self.deployment is None or self.scenario is None:
            return ""
        engine = self.deployment.engine.scheduler
        return launch(engine, self.scenario, self.deployment) if engine in LAUNCHERS else ""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        if self.error:
            return {"name": self.offer, "error": self.error}
        assert self.plan is not None and self.served is not None and self.rates is not None
        return {
            "name": self.offer,
            "machines": self.machines,
            "nodes": self.nodes,
            "gpus": self.gpus,
            "plan": dict(self.plan.keys),
            "router": self.router,
            "replicas": self.pools,
            "requests_per_s_each": self.requests_per_s_each,
            "usd_per_hour": {basis: usd * self.gpus for basis, usd in self.rates.usd_per_gpu_hour.items()},
            "bounds": self.served["bounds"],
            "ttft_s": self.served["ttft_s"],
            "tpot_s": self.served["tpot_s"],
            "fewer": self.fewer,
        }

    def in_words(self) -> str:
        """The offer in a sentence or two."""
        if self.error:
            return f"{self.offer}: {self.error}."
        assert self.plan is not None and self.served is not None
        counts = " : ".join(self.replicas_in_words)
        nodes = self.size_in_words
        usd = self.usd_per_hour
        price = f", ${digits(usd)} an hour ({self.rates.basis})" if usd is not None and self.rates else ""
        bounds = self.served["bounds"]
        fewer = f" {self.fewer}." if self.fewer else ""
        fewer += "" if self.served["steady"] else " The trace ends in the ramp: ramp and drain are in that share."
        return (
            f"{self.offer}: {nodes}{price}: {self.plan.name}, {counts}, router {self.router}; "
            f"{share_beside(bounds['share'], bounds['wanted'])} of requests keep the bounds.{fewer}"
        )


@dataclass(frozen=True)
class Sizing(Pictured):
    """Every offer, cheapest first; those that cannot serve last."""

    scenario: Scenario
    rate: float
    sized: tuple[Sized, ...]

    @property
    def question_in_words(self) -> str:
        """The model, the rate, and the bounds."""
        work, traffic = self.scenario.workload, self.scenario.traffic
        assert traffic is not None
        model = next((size.deployment.question.model for size in self.sized if size.deployment is not None), None)
        named = model.name if model is not None else str(work.model)
        bounds = " and ".join(
            f"{name.upper()} ≤ {duration(bound)}" for name, bound in traffic.bounds(work.model).items()
        )
        return f"{digits(self.rate)} requests/s to {named} under {work.stack}, {bounds or 'without bounds'}"

    def __repr__(self) -> str:
        lines = [f"  {size.in_words()}" for size in self.sized]
        return "\n".join([f"<Sizing {self.scenario.name}, {digits(self.rate)} requests/s", *lines]) + ">"

    def _repr_html_(self) -> str:
        rows = [(size.offer, size.in_words().partition(": ")[2]) for size in self.sized]
        return html_table(f"{self.scenario.name}, {digits(self.rate)} requests/s", ("offer", "machines"), rows)

    def to_frame(self) -> pandas.DataFrame:
        """One row per offer: dollars/h on the basis that ranks, nodes, GPUs, plan, router, share within bounds."""
        import pandas

        rows = [
            {
                "usd_per_hour": size.usd_per_hour, "nodes": size.nodes, "gpus": size.gpus, "machines": size.machines,
                "requests_per_s_each": size.requests_per_s_each, "plan": size.plan.name if size.plan else None,
                "router": size.router, "share": size.served["bounds"]["share"] if size.served else None,
                "error": size.error or None,
            }
            for size in self.sized
        ]  # fmt: skip
        return pandas.DataFrame(rows, index=pandas.Index([size.offer for size in self.sized], name="offer"))

    def to_json(self) -> dict[str, Any]:
        """Plain data (docs/json.md)."""
        return {
            "schema": 1,
            "scenario": self.scenario.to_dict(),
            "size": {"requests_per_s": self.rate, "offers": [size.to_json() for size in self.sized]},
        }


def question_of(
    trace: str,
    *,
    model: str,
    stack: str,
    slo: Mapping[str, str],
    offers: Sequence[str],
    overrides: Sequence[str] = (),
) -> Scenario:
    """The question as a scenario with one offer per device.

    Raises
    ------
    InputError
        The trace, the model, a bound or an offer is wrong.
    """
    recorded = read_trace(trace)
    if not len(recorded.arrival_s):
        raise InputError("has lengths and no arrival times; a size needs both (arrival_s or timestamp_s)", file=trace)
    if not recorded.rate:
        raise InputError("has all its requests at one moment, which is no rate to size for", file=trace)
    more = {"prefix": {"kind": "hash_ids"}} if recorded.hashes else {}
    document = {
        "name": f"size-{recorded.name}",
        "workload": {"model": model, "stack": stack},
        "traffic": {"arrivals": {"kind": "trace", "file": trace, "rate": "highest"}, "slo": dict(slo), **more},
        "plans": [{"name": "any"}],
        "offers": [{"name": name, "cluster": {"device": name, "nodes": 1}} for name in offers],
    }
    return load(document, list(overrides))


def bounds_of(text: str) -> dict[str, str]:
    """Bounds as ``--slo`` writes them.

    >>> bounds_of("ttft=2s, tpot=40ms")
    {'ttft': '2s', 'tpot': '40ms'}
    """
    bounds: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or not value.strip():
            raise InputError(f"'{part}' is no bound; state such as ttft=2s,tpot=40ms,share=0.95", key="--slo")
        bounds[name.strip()] = float(value) if name.strip() == "share" and _number(value) else value.strip()
    if not bounds:
        raise InputError("states no bound; state such as ttft=2s,tpot=40ms", key="--slo")
    return bounds


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def rate_of(text: str | None, trace: RequestTrace) -> float:
    """The rate to size for in requests/s: the trace's own, or the stated one; raises InputError."""
    if text is None:
        return trace.rate
    return float(parse(text if "/" in text else f"{text} requests/s", "requests/s", positive=True))


def size(
    trace: str,
    *,
    slo: str | Mapping[str, str],
    model: str,
    on: Sequence[str],
    stack: str = "vllm",
    rate: str | float | None = None,
    overrides: Sequence[str] = (),
    budget: str | float | None = "2 min",
    progress: Progress | None = None,
) -> Sizing:
    """Machines for a recorded trace, as ``tspsim size`` counts them.

    Parameters
    ----------
    trace
        A file, or the name of a catalog trace.
    slo
        ``ttft=2s,tpot=40ms``, or a mapping of the same.
    on
        Devices to offer.
    rate
        Mean requests/s to size for; None: the trace's own.
    budget
        Budget of the search for plans, as ``--budget`` takes it.
    progress
        Called with the work done so far; None: a bar in a terminal or a notebook.

    Raises
    ------
    InputError
        The trace, a bound, the model or an offer is wrong.
    KeyboardInterrupt
        Ctrl-C; there is no answer before all machines were tried.
    """
    bounds = bounds_of(slo) if isinstance(slo, str) else slo
    question = question_of(trace, model=model, stack=stack, slo=bounds, offers=on, overrides=overrides)
    wanted = rate_of(None if rate is None else str(rate), read_trace(trace))
    with progress_bar(progress) as callback:
        return sized(question, wanted, budget_s=read_budget(budget), progress=callback)


def sized(
    scenario: Scenario, rate: float, *, budget_s: float | None = None, progress: Progress | None = None
) -> Sizing:
    """Machines of every offer for the scenario's trace at a mean rate.

    Raises
    ------
    InputError
        A cluster or the workload is wrong.
    """
    offers = expand(scenario)
    each_s = None if budget_s is None else budget_s / len(offers)
    answers = []
    for number, offered in enumerate(offers):

        def tell(what: str, share: float, number: int = number) -> None:
            if progress is not None:
                progress(what, (number + share) / len(offers))

        try:
            answers.append(_sized(offered, rate, each_s, tell))
        except InfeasibleError as error:
            answers.append(Sized(offered.name, str(error)))
    ranked = sorted(answers, key=lambda size: (bool(size.error), size.usd_per_hour or math.inf, size.gpus))
    return Sizing(scenario, rate, tuple(ranked))


def _sized(offered: Scenario, rate: float, budget_s: float | None, tell: Progress) -> Sized:
    scenario, best = _best(offered, budget_s, tell)
    if not best.kept:
        missed = best.result.serving.get("bounds")
        return Sized(offered.name, f"keeps the bounds at no rate ({kept_in_words(missed) if missed else best.name})")
    good_per_s = float(figures(best.result.serving)["goodput_requests_per_s"] or 0.0)
    machines = max(1, math.ceil(rate / float(best.load.get("rate") or good_per_s)))
    tries: dict[int, tuple[LoadedRun, Deployment]] = {}

    def keeps(count: int) -> bool:
        tell(f"{offered.name}: {count} machines", 0.8)
        if count not in tries:
            deployment, served = _of_machines(scenario, best, count)
            assert served.traffic is not None
            one = point(deployment, served.traffic.at_rate(rate), ranges=False)
            if one.interrupted:
                raise KeyboardInterrupt
            tries[count] = one, deployment
        return bool(tries[count][0].run.metrics["bounds"]["kept"])

    while not keeps(machines) and len(tries) < MOST_TRIES:
        machines = max(machines + 1, math.ceil(1.05 * machines))
    while machines > 1 and len(tries) < MOST_TRIES and keeps(machines - 1):
        machines -= 1
    one, deployment = tries[machines]
    if not one.run.metrics["bounds"]["kept"]:
        return Sized(offered.name, f"{machines} machines do not keep the bounds, and more were not tried")
    less = tries.get(machines - 1)
    fewer = f"With one machine less {kept_in_words(less[0].run.metrics['bounds'])}" if less else ""
    question = look_up(scenario)
    nodes = machines * question.cluster.nodes
    rates = rates_of(scenario, question.cluster, question.device)
    return Sized(
        offered.name, "", machines, nodes, machines * question.cluster.gpus, best, one.run.metrics, good_per_s, fewer,
        rates, deployment, _of_machines(scenario, best, machines)[1],
    )  # fmt: skip


def _best(offered: Scenario, budget_s: float | None, tell: Progress) -> tuple[Scenario, ServiceUnderLoad]:
    """The best plan on the smallest machine with enough memory, and that machine."""
    nodes = 1
    while True:
        cluster = offered.cluster
        if nodes > 1:
            update = {"nodes": nodes, "fabric": getattr(cluster, "fabric", None) or FABRIC}
            cluster = cluster.model_copy(update=update)  # type: ignore[union-attr]
        scenario = offered.model_copy(update={"cluster": cluster})
        try:
            planner = TrafficPlanner(scenario, stated=False, top=1, budget_s=budget_s, progress=tell)
            answer = planner.run()
            if answer.interrupted:
                raise KeyboardInterrupt
            return scenario, answer.best[0]
        except InfeasibleError:
            nodes *= 2
            if nodes > MOST_NODES or not hasattr(cluster, "nodes"):
                raise


def _of_machines(scenario: Scenario, best: ServiceUnderLoad, count: int) -> tuple[Deployment, Scenario]:
    """``count`` machines behind one router; with two pools one larger cluster, which caches cross."""
    plan, cluster = best.source_scenario.plans[0], scenario.cluster
    if plan.pools is None:
        stated = scenario.model_copy(update={"plans": (plan,)})
        question = look_up(stated)
        return replace(deployment_of(question, question.plans[0]), machines=count), stated
    if count > 1:
        parts = {
            name: pool.model_copy(update={"replicas": count * (pool.replicas or 1)})
            for name, pool in plan.pools.members().items()
        }
        plan = plan.model_copy(update={"pools": plan.pools.model_copy(update=parts)})
        update = {"nodes": count * getattr(cluster, "nodes", 1), "fabric": getattr(cluster, "fabric", None) or FABRIC}
        cluster = cluster.model_copy(update=update)  # type: ignore[union-attr]
    stated = scenario.model_copy(update={"plans": (plan,), "cluster": cluster})
    question = look_up(stated)
    deployment = deployment_of(question, question.plans[0])
    assert isinstance(deployment, PooledDeployment)
    return deployment, stated
