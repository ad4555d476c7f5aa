"""What one point of a serving answer was made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .log import StepLog
from .transfers import Transfer
from .waits import Waits


@dataclass(frozen=True)
class ServingRun:
    """A plan under one load.

    Attributes
    ----------
    label
        What the point of a curve is told by: ``concurrency`` or ``rate``; empty where the arrivals have neither.
    metrics
        The entry ``serving`` (:func:`tspsim.serving.metrics.measure`).
    ranges
        (low, high) of ``ttft_s``, ``tpot_s`` (their means) and ``output_tokens_per_s``, nine times of ten.
    waits
        Requests that count and ended.
    names, logs
        Of every replica: what it is called, and its runs of steps.
    capacity_tokens
        What the cache of one attention replica holds; None: no limit.
    front_end_s
        That every request takes before an engine sees it.
    """

    label: Mapping[str, float]
    metrics: Mapping[str, Any]
    ranges: Mapping[str, tuple[float, float]]
    waits: Waits = field(repr=False)
    names: tuple[str, ...] = ()
    logs: tuple[StepLog, ...] = field(default=(), repr=False)
    transfers: tuple[Transfer, ...] = field(default=(), repr=False)
    capacity_tokens: int | None = None
    front_end_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """A point of ``curve``."""
        ends = {name: {"low": low, "high": high} for name, (low, high) in self.ranges.items()}
        return {**self.label, **self.metrics, "range": ends}
