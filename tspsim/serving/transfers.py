"""Caches that went from one place to another."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CacheTransfer:
    """Bytes of a request's cache that went from one place to another."""

    #: Its number.
    request: int
    #: When it was asked for, and when the last byte had come.
    start_s: float
    end_s: float
    #: Names of replicas or tiers.
    source: str
    destination: str
    size_bytes: float
    #: Seconds of it that the request waited for.
    exposed_s: float
