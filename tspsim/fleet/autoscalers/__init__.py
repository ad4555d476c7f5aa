"""How many replicas a service has: one registered class a file."""

from __future__ import annotations

from . import fixed, target
from .base import Autoscaler

AUTOSCALERS = Autoscaler.registry

__all__ = ["AUTOSCALERS", "Autoscaler", "fixed", "target"]
