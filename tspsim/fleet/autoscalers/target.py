"""A target of requests/s per replica, as Kubernetes scales."""

from __future__ import annotations

from math import ceil
from typing import Annotated

from pydantic import Field

from ...traffic.kind import Rate
from .base import Autoscaler


class Target(Autoscaler):
    """The horizontal pod autoscaler of Kubernetes on requests/s: replicas times actual over target load, rounded up;
    within the tolerance nothing changes (its documentation, "Algorithm details")."""

    name = "target"
    rate: Rate = Field(description="requests/s that a replica should have")
    tolerance: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.1, description="relative deviation from the target without scaling"
    )

    def wanted(self, rate: float, replicas: int) -> int:
        if replicas and abs(rate / (replicas * self.rate) - 1.0) <= self.tolerance:
            return replicas
        return ceil(rate / self.rate * (1.0 - 1e-12))

    def in_words(self) -> str:
        return f"{self.rate:g} requests/s a replica, within {self.tolerance:.0%}"


Autoscaler.registry.register(Target)
