"""The same number of replicas under any load."""

from __future__ import annotations

from pydantic import Field

from ...base.units import PositiveNumber
from .base import Autoscaler


class FixedReplicas(Autoscaler):
    """A constant number of replicas."""

    name = "fixed"
    of: PositiveNumber = Field(description="replicas")

    def wanted(self, rate: float, replicas: int) -> int:
        return self.of

    def in_words(self) -> str:
        return f"always {self.of:,}"


Autoscaler.registry.register(FixedReplicas)
