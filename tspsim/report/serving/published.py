"""Published measurements that a scenario states, as data of figures."""

from __future__ import annotations

from math import nan

from tspsim.scenario.published import PublishedRuns
from tspsim.step.result import Result

from .view import Published


def published_of(result: Result) -> list[Published]:
    """Points of ``traffic.published``, by name in their order; empty where the scenario states none."""
    stated = (result.scenario.get("traffic") or {}).get("published") or ()
    curves = [entry if isinstance(entry, PublishedRuns) else PublishedRuns.model_validate(entry) for entry in stated]
    return [
        Published(
            name=curve.name,
            load=point.load,
            per_user=point.per_user or nan,
            per_gpu=point.tokens_per_s_per_gpu or nan,
            ttft_s=point.ttft or nan,
            tpot_s=point.tpot or nan,
            source=curve.source,
        )
        for curve in curves
        for point in curve.points
    ]
