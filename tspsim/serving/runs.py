"""The data of one point of a serving answer."""

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

    #: Name and value of the point on a curve: ``concurrency`` or ``rate``; empty for other arrivals.
    label: Mapping[str, float]
    #: The entry ``serving`` (:func:`tspsim.serving.metrics.measure`).
    metrics: Mapping[str, Any]
    #: 90 % ranges (low, high) of ``ttft_s``, ``tpot_s`` (their means) and ``output_tokens_per_s``.
    ranges: Mapping[str, tuple[float, float]]
    #: Requests that count and ended.
    waits: Waits = field(repr=False)
    #: Names of the replicas, and their logs.
    names: tuple[str, ...] = ()
    logs: tuple[StepLog, ...] = field(default=(), repr=False)
    transfers: tuple[CacheTransfer, ...] = field(default=(), repr=False)
    #: Tokens in the cache of one attention replica; None: no limit.
    capacity_tokens: int | None = None
    #: Front-end seconds of every request.
    front_end_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """A point of ``curve``."""
        ends = {name: {"low": low, "high": high} for name, (low, high) in self.ranges.items()}
        return {**self.label, **self.metrics, "range": ends}
