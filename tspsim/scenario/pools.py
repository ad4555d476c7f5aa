"""Pools of a serving plan (disaggregated serving): replicas that only prefill, and replicas that only decode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from ..base.errors import InputError
from ..base.units import PositiveNumber, Seconds
from .cluster import ClusterChoice
from .engine_options import EngineOptions
from .section import MOST_RANKS, Name, Section, refuse
from .spread import Spread
from .tiers import Tiers


class Pool(Spread):
    """Equal replicas of one phase. Degrees are those of a replica, ``dp`` its attention data parallelism."""

    model_config = ConfigDict(extra="allow", json_schema_extra=lambda schema: Pool.complete(schema))

    replicas: Annotated[PositiveNumber, Field(le=MOST_RANKS)] | None = Field(
        None, description="number of replicas; default: as many as the remaining GPUs hold"
    )
    cluster: ClusterChoice | None = Field(None, description="a cluster of its own; default: the scenario's")
    router: Name = Field("round_robin", description="a registered router, which assigns requests to replicas")
    engine: EngineOptions = Field({}, description="options of the serving engine by their own names")
    tiers: Tiers | None = Field(None, description="where blocks of prompts are kept that GPUs evict")

    @model_validator(mode="before")
    @classmethod
    def _no_name(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "name" in data:
            raise refuse("a pool has no name of its own; the plan has one")
        return data

    @property
    def ranks(self) -> int:
        """GPUs of one replica."""
        return self.ranks_per_replica * (self.dp or 1)

    @property
    def degree_keys(self) -> dict[str, Any]:
        """Degrees and switches, as a plan states them."""
        stated_keys = self.model_fields_set - {"replicas", "cluster", "router", "engine", "tiers"}
        keys = {name: value for name in sorted(stated_keys) if (value := getattr(self, name)) is not None}
        return {"recomputation": "none", **keys, "dp": self.dp or 1}

    @model_serializer(mode="wrap")
    def _as_stated(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Stated keys, and ``replicas`` always."""
        return stated(handler(self), self, keep=("replicas",))


class Pools(Section):
    """A prefill pool and a decode pool; KV caches are transferred from the first to the second."""

    prefill: Pool
    decode: Pool
    transfer: Literal["push", "pull"] = Field(
        "pull", description="push: KV caches are sent layer by layer during prefill; pull: as a whole after it"
    )
    handshake: Seconds = Field(
        1e-3, description="time from the end of a prefill until the decode replica asks for the cache; with pull alone"
    )
    first_token: Literal["prefill", "decode"] = Field(
        "decode", description="pool that streams the first token: prefill at once, or decode together with the second"
    )
    fabric: Name | None = Field(None, description="fabric between pools on clusters of their own; default: each's own")

    def placed(self, gpus: int, gpus_per_node: int, plan: str) -> dict[str, range]:
        """Ranks of every pool by its name.

        Pools on the scenario's cluster follow one another, the one with larger replicas first so that they fill
        nodes; on a cluster of its own a pool starts at rank 0.

        Raises
        ------
        InputError
            The pools do not fit the cluster, leave GPUs over, or a replica that fits a node would span two; or a pool
            on its own cluster does not state its replicas.
        """
        key = f"plans.{plan}.pools"
        here = {name: pool for name, pool in self.members().items() if pool.cluster is None}
        counts = self._replicas(here, gpus, key)
        placed, first = {}, 0
        for name in sorted(here, key=lambda name: -here[name].ranks):
            ranks, start = here[name].ranks, first
            first += counts[name] * ranks
            placed[name] = range(start, first)
            for begin in range(start, first, ranks):
                if ranks <= gpus_per_node and begin // gpus_per_node != (begin + ranks - 1) // gpus_per_node:
                    replica = f"a replica on GPUs {begin} to {begin + ranks - 1}"
                    replica += f" would stand on two nodes of {gpus_per_node}"
                    raise InputError(f"{replica}; use degrees that fill nodes", key=f"{key}.{name}")
        for name, pool in self.members().items():
            if pool.cluster is not None:
                if pool.replicas is None:
                    raise InputError("is required of a pool on a cluster of its own", key=f"{key}.{name}.replicas")
                placed[name] = range(pool.ranks * pool.replicas)
        return placed

    @staticmethod
    def _replicas(here: Mapping[str, Pool], gpus: int, key: str) -> dict[str, int]:
        """Replicas of each pool on one cluster; together they take all GPUs."""
        open_ = [name for name, pool in here.items() if pool.replicas is None]
        if len(open_) > 1:
            raise InputError("prefill and decode leave `replicas` out; state one of them", key=key)
        needed = {name: pool.ranks * (pool.replicas or 1) for name, pool in here.items()}
        if sum(needed.values()) > gpus:
            sizes = " and ".join(f"{name} {size}" for name, size in needed.items())
            raise InputError(
                f"pools take {sum(needed.values())} GPUs ({sizes}), but the cluster has {gpus}; use fewer replicas or "
                "a larger cluster",
                key=key,
            )
        stated = sum(pool.ranks * (pool.replicas or 0) for pool in here.values())
        counts = {name: pool.replicas or (gpus - stated) // pool.ranks for name, pool in here.items()}
        left = gpus - sum(counts[name] * pool.ranks for name, pool in here.items())
        if here and left:
            raise InputError(f"pools leave {left} of the cluster's {gpus} GPUs without work", key=key)
        return counts

    def members(self) -> dict[str, Pool]:
        """Both pools by name."""
        return {"prefill": self.prefill, "decode": self.decode}

    @model_serializer(mode="wrap")
    def _as_stated(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Stated keys."""
        return stated(handler(self), self)

    @model_validator(mode="after")
    def _somewhere(self) -> Pools:
        if self.prefill.cluster is not None and self.decode.cluster is not None:
            raise refuse("both pools have a cluster of their own; state one of them as the scenario's")
        return self


def stated(data: dict[str, Any], section: Section, keep: tuple[str, ...] = ()) -> dict[str, Any]:
    """The stated keys of a section's plain data, and ``keep``."""
    return {key: value for key, value in data.items() if key in keep or key in section.model_fields_set}
