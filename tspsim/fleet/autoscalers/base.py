"""How many replicas a service has: the family of autoscalers."""

from __future__ import annotations

from typing import Any, ClassVar

from ...base.registry import Registry
from ...traffic.kind import Kind


class Autoscaler(Kind):
    """A rule from load to replicas; the service's ``min`` and ``max`` bound the result."""

    registry: ClassVar[Registry[Any]] = Registry("kind of autoscaler", "tspsim.autoscalers")

    def wanted(self, rate: float, replicas: int) -> int:
        """Replicas for ``rate`` requests/s, where the service has ``replicas``."""
        raise NotImplementedError


Autoscaler.registry.of = type[Autoscaler]
