"""The figures of a fleet's entry: of the cluster, of a class of jobs; taken from the answer, not computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...base.units import duration, percent
from .sort import Figure

#: Keys of a class's waits, and their names.
WAITS = {"mean_wait_s": "mean wait", "p50_wait_s": "half wait up to", "p95_wait_s": "95 % wait up to"}


def whole(fleet: Mapping[str, Any]) -> list[Figure]:
    """Figures of the cluster."""
    figures = [Figure(key, key, fleet[key], percent(fleet[key])) for key in ("productive", "allocated")]
    for key, name, unit in (("energy_kwh", "energy", "kWh"), ("cost_usd", "cost", "USD")):
        if fleet[key] is not None:
            figures.append(Figure(key, name, fleet[key], f"{fleet[key]:,.0f} {unit}"))
    return figures


def of_class(kind: Mapping[str, Any]) -> list[Figure]:
    """Figures of a class of jobs."""
    figures = [
        Figure("done", "jobs done", kind["done"], f"{kind['done']:,} of {kind['jobs']:,}"),
        Figure("gpu_hours", "GPU-hours", kind["gpu_hours"], f"{kind['gpu_hours']:,.0f}"),
        *(
            Figure(key, name, kind[key], "–" if kind[key] is None else duration(kind[key]))
            for key, name in WAITS.items()
        ),
        Figure("restarts", "restarts", kind["restarts"], f"{kind['restarts']:,}"),
    ]
    return figures + ([Figure("late", "late", kind["late"], f"{kind['late']:,}")] if "late" in kind else [])
