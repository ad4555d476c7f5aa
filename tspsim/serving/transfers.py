"""Caches that went from one place to another."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Transfer:
    """Bytes of a request's cache that went from one place to another.

    Attributes
    ----------
    request
        Its number.
    start_s, end_s
        When it was asked for, and when the last byte had come.
    source, destination
        Names of replicas or tiers.
    exposed_s
        Seconds of it that the request waited for.
    """

    request: int
    start_s: float
    end_s: float
    source: str
    destination: str
    size_bytes: float
    exposed_s: float
