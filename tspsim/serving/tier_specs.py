"""Cache tiers of a plan's replicas, from those of its scenario."""

from __future__ import annotations

from ..network import host_bandwidth
from ..network.specs import NodeSpec
from ..parallel.state.capacity import Capacity
from ..scenario.tiers import Tier, Tiers
from .tiers import TierSpec

#: Context length for the bytes of a token, so that windows and states count as at that length.
TYPICAL = 8192


def tier_specs(tiers: Tiers, node: NodeSpec, capacity: Capacity, dp_size: int = 1) -> list[TierSpec]:
    """The host first, then the store.

    For times and for a host's memory (counted per GPU), a token's bytes are those of a GPU of the fullest stage; the
    store holds a token once.
    """
    gpu_bytes = max(capacity.sequence_bytes(TYPICAL)) / TYPICAL
    specs = []
    if tiers.host is not None:
        bandwidth = tiers.host.bandwidth or host_bandwidth(node)
        specs.append(spec("host", tiers.host, tiers.host.size * dp_size, gpu_bytes, gpu_bytes / bandwidth))
    if tiers.remote is not None:
        assert tiers.remote.bandwidth is not None
        seconds = gpu_bytes / tiers.remote.bandwidth
        specs.append(spec("remote", tiers.remote, tiers.remote.size, whole_bytes(capacity), seconds, shared=True))
    return specs


def spec(
    name: str, tier: Tier, size_bytes: float, token_bytes: float, token_s: float, *, shared: bool = False
) -> TierSpec:
    """One tier."""
    evicts = tier.write == "evicted"
    return TierSpec(name, size_bytes, token_bytes, token_s, tier.latency, evicts, shared)


def whole_bytes(capacity: Capacity) -> float:
    """Bytes of a token, stored once."""
    kept = (count * use.bytes_of(TYPICAL) for stage in capacity.stages for use, count in stage.uses.items())
    return sum(kept) / TYPICAL
