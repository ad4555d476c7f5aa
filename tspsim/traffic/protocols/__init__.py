"""How benchmarks count: one registered class a file."""

from __future__ import annotations

from . import aiperf, inferencex, mlperf, plain, vllm_bench
from .base import Protocol, shorthand

PROTOCOLS = Protocol.registry

__all__ = ["PROTOCOLS", "Protocol", "aiperf", "inferencex", "mlperf", "plain", "shorthand", "vllm_bench"]
