"""The demand of a search: requests in a few numbers, and the bounds on their latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...base.errors import InputError
from ...scenario.traffic import Slo, TrafficSpec
from .limit import Limit
from .rates import Demand


def demand_of(traffic: TrafficSpec, bounds: Mapping[str, float]) -> Demand:
    """The requests in a few numbers."""
    first = traffic.points()[0]
    if first.arrivals.searches:
        first = first.at_rate(1.0)
    requests = first.draw()
    prompt, output = (
        max(1, round(float(lengths.mean()))) for lengths in (requests.prompt_tokens, requests.output_tokens)
    )
    return Demand(prompt, output, bounds)


def bounded_by(traffic: TrafficSpec, limits: Sequence[Limit]) -> TrafficSpec:
    """The traffic with the bounds of limits in place of its own; raises InputError."""
    if not limits:
        return traffic
    update: dict[str, float] = {}
    for limit in limits:
        if limit.name not in ("ttft", "tpot") or limit.compare != "<=":
            problem = f"requests may be limited by ttft<=…, tpot<=… and schemes=…, not by {limit}"
            raise InputError(problem, key="--limit")
        update[limit.name] = limit.value
    fresh = Slo.model_construct(ttft=None, tpot=None, e2e=None, share=None)
    slo = (traffic.slo or fresh).model_copy(update=update)
    return traffic.model_copy(update={"slo": slo})
