"""What one point of a serving answer was made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .log import StepLog
from .transfers import CacheTransfer
from .waits import Waits


@dataclass(frozen=True)
class ServingRun:
    """A plan under one load."""

    #: What the point of a curve is told by: ``concurrency`` or ``rate``; empty where the arrivals have neither.
    label: Mapping[str, float]
    #: The entry ``serving`` (:func:`tspsim.serving.metrics.measure`).
    metrics: Mapping[str, Any]
    #: (low, high) of ``ttft_s``, ``tpot_s`` (their means) and ``output_tokens_per_s``, nine times of ten.
    ranges: Mapping[str, tuple[float, float]]
    #: Requests that count and ended.
    waits: Waits = field(repr=False)
    #: Of every replica: what it is called, and its runs of steps.
    names: tuple[str, ...] = ()
    logs: tuple[StepLog, ...] = field(default=(), repr=False)
    transfers: tuple[CacheTransfer, ...] = field(default=(), repr=False)
    #: What the cache of one attention replica holds; None: no limit.
    capacity_tokens: int | None = None
    #: That every request takes before an engine sees it.
    front_end_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """A point of ``curve``."""
        ends = {name: {"low": low, "high": high} for name, (low, high) in self.ranges.items()}
        return {**self.label, **self.metrics, "range": ends}
