"""The loop of reinforcement learning around a training step: generation, judging models, and models trained beside.

A scenario with a loop asks for whole iterations; :mod:`tspsim.loop` answers it.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, StrictBool, StrictInt, model_serializer

from ..base.strict import OneOf
from ..base.units import PositiveCount
from ..parallel.state.reshard import INTERLEAVED, RESHARD_METHODS
from ..traffic import LENGTHS, Lengths, OneKind
from ..traffic.lengths import shorthand
from .engine_options import EngineOptions
from .pools import stated
from .section import Name, Section
from .spread import Spread
from .workload import Precision, PrecisionSpec

#: Keys of a rollout beside those of its spread.
OWN = ("nodes", "way", "ahead", "engine")


class Rollout(Spread):
    """How a plan generates: degrees of an engine replica, on the GPUs that train or on nodes of their own."""

    model_config = ConfigDict(extra="allow", json_schema_extra=lambda schema: Rollout.complete(schema))

    nodes: PositiveCount | None = Field(
        None, description="how many of the cluster's last nodes generate only; default: the GPUs that train generate"
    )
    way: Annotated[str, OneOf(RESHARD_METHODS.names)] = Field(
        INTERLEAVED.name, description="how weights are gathered for generation, where the same GPUs train and generate"
    )
    ahead: StrictBool = Field(
        False, description="with nodes: the next rollouts are generated during training, with weights one update old"
    )
    engine: EngineOptions = Field({}, description="options of the serving engine by their own names")

    @property
    def degree_keys(self) -> dict[str, Any]:
        """Degrees and switches, as a serving plan states them."""
        stated_keys = self.model_fields_set - {*OWN, "name"}
        keys = {name: value for name in sorted(stated_keys) if (value := getattr(self, name)) is not None}
        return {"recomputation": "none", **keys}

    @model_serializer(mode="wrap")
    def _as_stated(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Stated keys, and ``way`` always."""
        return stated(handler(self), self, keep=("way",))


class Loop(Section):
    """One iteration: rollouts are generated, judged by other models, and trained on.

    The workload is the actor's training; its ``sequence`` is the length that rollouts are packed into.
    """

    rollouts: PositiveCount = Field(description="prompts per iteration, each answered once")
    prompt: Annotated[Lengths, OneKind(LENGTHS, shorthand)] = Field(description="tokens of a prompt")
    output: Annotated[Lengths, OneKind(LENGTHS, shorthand)] = Field(description="tokens generated for a prompt")
    forwards: dict[Name, Name] = Field(
        {}, description="models that read all rollouts before the update, such as {reference: NAME, reward: NAME}"
    )
    updates: dict[Name, Name] = Field({}, description="models trained beside the actor, such as {critic: NAME}")
    mini_batches: PositiveCount = Field(1, description="optimizer steps per iteration")
    stack: Name = Field("ideal", description="software that generates, from the catalog of stacks")
    precision: Precision | PrecisionSpec = Field("bf16", description="precision of generation")
    seed: Annotated[StrictInt, Field(ge=0)] = Field(0, description="seed of drawn lengths")
