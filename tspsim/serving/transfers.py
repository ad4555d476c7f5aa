"""Transfers of caches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CacheTransfer:
    """A transfer of a request's cache."""

    #: Number of the request.
    request: int
    #: Time of the first request, and of the last byte.
    start_s: float
    end_s: float
    #: Names of replicas or tiers.
    source: str
    destination: str
    size_bytes: float
    #: Seconds of it that the request waited for.
    exposed_s: float
