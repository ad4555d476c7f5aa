"""A parallel plan of a scenario."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, field_validator, model_validator

from ..errors import InputError, shorten
from ..registry import Registry
from ..units import PositiveCount
from .section import Degree, OneOf, Section, refuse

Axis = Literal["tsp", "tp", "sp", "pp", "dp"]
Value = TypeVar("Value")
#: A key that the simulator chooses where it is not stated, or stated as ``auto``.
Chosen = Annotated[Value | None, BeforeValidator(lambda value: None if value == "auto" else value)]
Recomputation = Literal["none", "selective", "cheap", "full"]


def registered(module: str, registry: str) -> OneOf:
    """Names in a registry of a room that is imported when the first one is read: it loads numpy."""

    def names() -> Sequence[str]:
        found: Registry[Any] = getattr(import_module(f"tspsim.{module}"), registry)
        return found.names()

    return OneOf(names)


CollectiveKind = Annotated[str, registered("network", "KINDS")]
CollectiveAlgorithm = Annotated[str, registered("network", "ALGORITHMS")]


class Placement(Section):
    """Which axes run along the node, and which along rails across nodes; the first named is innermost."""

    node: tuple[Axis, ...] = ()
    rails: tuple[Axis, ...] = ()

    @model_validator(mode="after")
    def _once(self) -> Placement:
        axes = (*self.node, *self.rails)
        twice = next((axis for axis in axes if axes.count(axis) > 1), None)
        if twice:
            raise refuse(f"axis '{twice}' is placed twice; name each axis once, in node or in rails")
        return self


class Plan(Section):
    """One way to spread the model over the cluster. Degrees left out are one, dp the GPUs that are left."""

    name: str = Field(description="1 to 60 printable characters, unique in the scenario")
    tsp: Degree = Field(1, description="folded tensor and sequence parallelism")
    tp: Degree = Field(1, description="tensor parallelism")
    sp: Degree = Field(1, description="sequence (context) parallelism")
    pp: Degree = Field(1, description="pipeline stages")
    vpp: Degree = Field(1, description="virtual stages a pipeline rank")
    ep: Degree = Field(1, description="ranks that experts are spread over, taken from tp, tsp, sp and dp in this order")
    dp: Degree | None = Field(None, description="replicas; the GPUs that are left when not stated")
    partition: Literal["zigzag", "contiguous"] = "zigzag"
    exchange: Literal["all_gather", "ring", "ulysses"] = "all_gather"
    sequence_regions: StrictBool = Field(False, description="reduce-scatter and all-gather around the norms")
    overlap: StrictBool | None = Field(None, description="exchanges beside compute; default: the scheme's")
    overlap_chunks: Annotated[PositiveCount, Field(le=1024)] = 4
    recomputation: Recomputation | None = Field(None, description="default: full in training, else none")
    micro_batch: PositiveCount | None = Field(None, description="sequences; default: 1 in training, else all")
    schedule: Annotated[str, registered("parallel.pipeline", "ORDERS")] = Field(
        "1f1b", description="of a pipeline; interleaved with vpp > 1"
    )
    stage_layers: tuple[Annotated[StrictInt, Field(ge=0)], ...] = Field(
        (), description="layers of every chunk; the first may be the embedding alone, the last the head; default: even"
    )
    zero: Annotated[int, Field(ge=0, le=3)] = Field(0, description="what replicas divide: 3 is FSDP")
    shard_group: Degree | None = Field(None, description="ranks that divide it (hybrid sharding); default: all")
    expert_dispatch: Annotated[str, registered("parallel.dispatch", "DISPATCHES")] = Field(
        "ranks", description="a token travels once to each rank of its experts by a library or at the links' rate, or "
        "once to each expert"
    )  # fmt: skip
    expert_overlap: Annotated[str, registered("parallel.dispatch", "OVERLAPS")] = Field(
        "none", description="what hides dispatch and combine: shared experts, and a backward behind another's forward"
    )
    expert_balance: Annotated[str, registered("parallel.balance", "BALANCES")] = Field(
        "busiest", description="what ranks get of an uneven load; busiest: all are counted as the one that has most"
    )
    tsp_schedule: Literal["auto", "published"] = Field(
        "auto", description="what the keys below are where they are not stated: fastest here, or TSP word by word"
    )
    weight_transport: Chosen[Literal["ring", "multi_ring", "gather"]] = Field(
        None, description="how TSP brings the MLP's weights: round a ring, round several, or gathered in pieces"
    )
    mlp_pieces: Chosen[Annotated[PositiveCount, Field(le=1024)]] = Field(
        None, description="pieces that gather brings them in"
    )
    head_groups: Chosen[Degree] = Field(None, description="groups of heads that TSP attends; published: one a rank")
    context_transport: Chosen[Literal["ring", "multi_ring"]] = Field(
        None, description="exchange: ring over one link of a GPU, or in pieces over all of them"
    )
    overlap_by: Chosen[Literal["heads", "blocks"]] = Field(
        None, description="what overlapped gathers of K and V are cut by: heads, or blocks of tokens"
    )
    algorithms: dict[CollectiveKind, CollectiveAlgorithm] = Field({}, description="kind of collective: its algorithm")
    placement: Placement | None = None

    @field_validator("name")
    @classmethod
    def _printable(cls, value: str) -> str:
        if not (1 <= len(value) <= 60 and value.isprintable() and value.strip()):
            raise refuse(f"'{shorten(value)}' is not allowed; a name has 1 to 60 printable characters")
        return value

    @model_validator(mode="after")
    def _folded_alone(self) -> Plan:
        if self.tsp > 1 and (self.tp > 1 or self.sp > 1):
            raise refuse(f"tsp: {self.tsp} folds tp and sp onto one axis; leave tp and sp out beside it")
        return self

    @property
    def ranks_per_replica(self) -> int:
        """GPUs one copy of the model takes."""
        return math.prod((self.tsp, self.tp, self.sp, self.pp))

    def degrees(self, gpus: int) -> dict[str, int]:
        """The size of every axis on ``gpus`` GPUs, dp filled in; the product of all but ``ep`` is ``gpus``.

        Raises
        ------
        InputError
            The replica does not divide the GPUs, or a stated dp does not use them all.
        """
        replica, remainder = self.ranks_per_replica, gpus % self.ranks_per_replica
        degrees = {axis: int(getattr(self, axis)) for axis in ("tsp", "tp", "sp", "pp")}
        stated = " x ".join(f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1) or "1"
        if remainder:
            raise InputError(
                f"{stated} = {replica} GPUs a replica do not divide the cluster's {gpus}"
                + (f"; {remainder} would be left over" if replica <= gpus else ""),
                key=f"plans.{self.name}",
            )
        if self.dp is not None and self.dp * replica != gpus:
            raise InputError(
                f"{self.dp} replicas of {replica} GPUs are {self.dp * replica}, but the cluster has {gpus}; "
                f"use {gpus // replica} or leave dp out",
                key=f"plans.{self.name}.dp",
            )
        return {**degrees, "ep": self.ep, "dp": gpus // replica}
