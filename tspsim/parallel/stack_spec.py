"""The type of a stack's YAML, and how one is loaded."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from tspsim import catalog
from tspsim.provenance import Provenance
from tspsim.units import FlopsPerSecond, Seconds, duration, flops

from .stack import Stack

Value = TypeVar("Value")
Factor = Annotated[float, Field(ge=1.0, le=20.0, allow_inf_nan=False)]
Lower = Annotated[float, Field(ge=0.3, le=1.0)]
Upper = Annotated[float, Field(ge=1.0, le=20.0)]
BytesPerWeight = Annotated[float, Field(ge=0.0, le=64.0, allow_inf_nan=False)]

#: Keys whose values have a unit → the field of :class:`Stack` that names it; all are times but ``attention``.
WITH_UNITS = {
    "kernel": "kernel_s",
    "collective": "collective_s",
    "message": "message_s",
    "expert": "expert_s",
    "collective_per_rank": "collective_s_per_rank",
    "step": "step_s",
    "attention": "attention_flops_per_s",
}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Stated(_Section, Generic[Value]):
    """A value and where it is from."""

    value: Value
    source: str = Field(min_length=3, max_length=2000)


class StackSpec(_Section):
    """A framework as its users run it; what is left out costs nothing."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    description: str = Field("", max_length=2000)
    kernel: Stated[Seconds] | None = Field(None, description="host time of a kernel")
    collective: Stated[Seconds] | None = Field(None, description="host time of a collective")
    message: Stated[Seconds] | None = Field(None, description="host time of a message")
    collective_per_rank: Stated[Seconds] | None = Field(None, description="and of every other rank of its group")
    expert: Stated[Seconds] | None = Field(None, description="host time of each local expert in a product of experts")
    traffic_factor: Stated[Factor] | None = Field(None, description="bytes of unfused kernels over fused ones")
    loss_factor: Stated[Factor] | None = Field(None, description="bytes of the loss and its gradient over a fused one")
    accumulation_bytes: Stated[BytesPerWeight] | None = Field(None, description="beyond writing a gradient in bf16")
    activation_factor: Stated[Factor] | None = Field(None, description="kept activations over those of fused kernels")
    attention: Stated[FlopsPerSecond] | None = Field(None, description="the most its attention kernel reaches")
    flash_attention: Stated[StrictBool] | None = None
    overlap_gradients: Stated[StrictBool] | None = None
    overlap_weights: Stated[StrictBool] | None = None
    step: Stated[Seconds] | None = Field(None, description="of every step, whatever its size")
    spread: Stated[tuple[Lower, Upper]] | None = Field(
        None, description="factors of a step's time between which nine of ten measured ones lie"
    )

    def stack(self) -> Stack:
        """The same facts as the schemes and the engine read them."""
        stated = {key: getattr(self, key) for key in type(self).model_fields if key not in ("name", "description")}
        values = {WITH_UNITS.get(key, key): entry.value for key, entry in stated.items() if entry is not None}
        return Stack(self.name, **values)

    def provenance(self) -> tuple[Provenance, ...]:
        """What is stated, with its source."""
        return tuple(
            Provenance(f"stack {self.name}: {key.replace('_', ' ')}", _text(key, entry.value), entry.source, "fitted")
            for key in type(self).model_fields
            if isinstance(entry := getattr(self, key), Stated)
        )


def _text(key: str, value: object) -> str:
    """A value as reports print it."""
    if isinstance(value, float) and key in WITH_UNITS:
        return flops(value, decimals=1) if key == "attention" else duration(value)
    return " to ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def load_stack(name: str) -> StackSpec:
    """A stack by its catalog name or file.

    Raises
    ------
    InputError
        No such stack (the nearest is named), or its file is wrong.
    """
    return catalog.load("stacks", name, StackSpec)
