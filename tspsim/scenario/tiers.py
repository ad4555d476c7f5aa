"""Cache tiers of a replica: its hosts' memory, and a store that all replicas share."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from ..base.units import BytesPerSecond, PositiveBytes, Seconds
from .section import Section, refuse


class Tier(Section):
    """A place where blocks of prompts are kept that GPU memory evicts."""

    size: PositiveBytes = Field(description="host: bytes per GPU; remote: bytes of the whole store")
    bandwidth: BytesPerSecond | None = Field(
        None, description="bandwidth per GPU; default of the host: what copies reach of the node's link to it"
    )
    latency: Seconds = Field(0.0, description="time before the first byte of a load")
    write: Literal["through", "evicted"] = Field(
        "through", description="through: blocks are copied when computed; evicted: when the GPU evicts them"
    )


class Tiers(Section):
    """Tiers searched after a replica's own cache, the host before the store."""

    host: Tier | None = Field(None, description="memory of the nodes' hosts: each replica has its own")
    remote: Tier | None = Field(None, description="a store that all replicas of the pool share; needs a bandwidth")
    overlap: bool = Field(True, description="load layer by layer while the rest of the prompt is prefilled")

    @model_validator(mode="after")
    def _something(self) -> Tiers:
        if self.host is None and self.remote is None:
            raise refuse("states no tier; state host, remote or both")
        if self.remote is not None and self.remote.bandwidth is None:
            raise refuse("remote has no bandwidth; state what a GPU reads from the store at, such as 10 GB/s")
        return self

    @model_serializer(mode="wrap")
    def _as_stated(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Stated keys."""
        return {key: value for key, value in handler(self).items() if key in self.model_fields_set}
