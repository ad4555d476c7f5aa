"""Measures of a run's clients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measures:
    """Means over requests, and their medians.

    ``kv_tokens``: capacity of one attention replica's cache; None: no limit, or unknown.
    """

    ttft_s: float
    tpot_s: float
    median_ttft_s: float
    median_tpot_s: float
    output_tokens_per_s: float
    tokens_per_s: float
    e2e_s: float = float("nan")
    preemptions: int = 0
    kv_tokens: int | None = None
