"""The loop of reinforcement learning around a training step: who generates, who judges, and what is trained beside.

Its presence makes a question one of whole iterations: :mod:`tspsim.loop` answers it.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, StrictBool, StrictInt, model_serializer

from ..base.strict import OneOf
from ..base.units import PositiveCount
from ..parallel.state.reshard import INTERLEAVED, WAYS
from ..traffic import LENGTHS, Lengths, OneKind
from ..traffic.lengths import shorthand
from .engine_options import EngineOptions
from .pools import stated
from .section import Name, Section
from .spread import Spread
from .workload import Precision, PrecisionSpec

#: Keys of a rollout that are not of its spread.
OWN = ("nodes", "way", "ahead", "engine")


class Rollout(Spread):
    """How a plan generates: degrees of a replica of its engine, on the GPUs that train or on nodes of their own."""

    model_config = ConfigDict(extra="allow", json_schema_extra=lambda schema: Rollout.complete(schema))

    nodes: PositiveCount | None = Field(
        None, description="of the cluster's last ones, for generation alone; default: the GPUs that train generate"
    )
    way: Annotated[str, OneOf(WAYS.names)] = Field(
        INTERLEAVED.name, description="who gathers the weights, where the same GPUs train and generate"
    )
    ahead: StrictBool = Field(
        False, description="with nodes: the next rollouts are made while the last ones are trained on, one update old"
    )
    engine: EngineOptions = Field({}, description="options of the serving engine by their own names")

    @property
    def degree_keys(self) -> dict[str, Any]:
        """Degrees and switches as a plan that serves states them."""
        stated_keys = self.model_fields_set - {*OWN, "name"}
        keys = {name: value for name in sorted(stated_keys) if (value := getattr(self, name)) is not None}
        return {"recomputation": "none", **keys}

    @model_serializer(mode="wrap")
    def _as_stated(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What differs from the defaults; the way always."""
        return stated(handler(self), self, keep=("way",))


class Loop(Section):
    """One iteration: rollouts are generated, other models read them, and models are trained on them.

    The workload is the actor's training, whose ``sequence`` is the length that rollouts are packed into.
    """

    rollouts: PositiveCount = Field(description="prompts of an iteration, each answered once")
    prompt: Annotated[Lengths, OneKind(LENGTHS, shorthand)] = Field(description="tokens")
    output: Annotated[Lengths, OneKind(LENGTHS, shorthand)] = Field(description="tokens generated")
    forwards: dict[Name, Name] = Field(
        {}, description="models that read all rollouts before the update, such as {reference: NAME, reward: NAME}"
    )
    updates: dict[Name, Name] = Field({}, description="models trained beside the actor, such as {critic: NAME}")
    mini_batches: PositiveCount = Field(1, description="steps of every optimizer an iteration")
    stack: Name = Field("ideal", description="the software that generates, from the catalog of stacks")
    precision: Precision | PrecisionSpec = Field("bf16", description="of generation")
    seed: Annotated[StrictInt, Field(ge=0)] = Field(0, description="of drawn lengths")
