"""Tiers behind a replica's cache: the memory of its host, and a store that all replicas share."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from ..base.units import BytesPerSecond, PositiveBytes, Seconds
from .section import Section, refuse


class Tier(Section):
    """Where blocks of prompts are kept that a GPU's memory forgets."""

    size: PositiveBytes = Field(description="host: of every GPU; remote: of all together")
    bandwidth: BytesPerSecond | None = Field(
        None, description="of every GPU; default of the host: what copies reach of the node's link to it"
    )
    latency: Seconds = Field(0.0, description="before the first byte of a load")
    write: Literal["through", "evicted"] = Field(
        "through", description="blocks are copied when they are computed, or when the GPU forgets them"
    )


class Tiers(Section):
    """What is looked for behind a replica's own cache, the host before the store."""

    host: Tier | None = Field(None, description="memory of the nodes' hosts: each replica has its own")
    remote: Tier | None = Field(None, description="a store that all replicas of the pool share; needs a bandwidth")
    overlap: bool = Field(True, description="a load goes on layer by layer while the rest of the prompt is read")

    @model_validator(mode="after")
    def _something(self) -> Tiers:
        if self.host is None and self.remote is None:
            raise refuse("states no tier; state host, remote or both")
        if self.remote is not None and self.remote.bandwidth is None:
            raise refuse("remote has no bandwidth; state what a GPU reads from the store at, such as 10 GB/s")
        return self

    @model_serializer(mode="wrap")
    def _as_stated(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What is stated."""
        return {key: value for key, value in handler(self).items() if key in self.model_fields_set}
