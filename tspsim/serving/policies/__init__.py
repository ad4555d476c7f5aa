"""Schedulers of serving engines: one file each, registered under the engine's name."""

from . import atom as _atom
from . import sglang as _sglang
from . import static as _static
from . import trtllm as _trtllm
from . import vllm as _vllm
from .base import POLICIES, Policy, ReplicaGroup

__all__ = ["POLICIES", "Policy", "ReplicaGroup"]

for _policy in (_vllm.VLLM, _sglang.SGLANG, _trtllm.TRTLLM, _atom.ATOM, _static.STATIC):
    POLICIES.register(_policy)
