"""Schedulers of serving engines: one file each, registered under the engine's name."""

from . import vllm as _vllm
from .base import POLICIES, Policy

__all__ = ["POLICIES", "Policy"]

for _each in (_vllm.VLLM,):
    POLICIES.register(_each)
