"""The type of a stack's YAML, and how one is loaded."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictBool, model_validator

from tspsim.base import catalog
from tspsim.base.errors import InputError, UnknownNameError
from tspsim.base.provenance import Provenance
from tspsim.base.strict import Strict
from tspsim.base.units import FlopsPerSecond, PositiveCount, Seconds, duration, flops
from tspsim.steps import Step

from ..base.stated import Expected, Stated
from .activation_store import ACTIVATION_STORES
from .engine_spec import EngineSpec
from .stack import Stack

Factor = Annotated[float, Field(ge=1.0, le=20.0, allow_inf_nan=False)]
Lower = Annotated[float, Field(ge=0.3, le=1.0)]
Upper = Annotated[float, Field(ge=1.0, le=20.0)]
#: A registered store of activations; an unknown name is told with the nearest.
StoreName = Annotated[str, AfterValidator(lambda name: ACTIVATION_STORES.get(name).name)]
BytesPerWeight = Annotated[float, Field(ge=0.0, le=64.0, allow_inf_nan=False)]
BytesPerLogit = Annotated[float, Field(ge=0.0, le=64.0, allow_inf_nan=False)]

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
#: Keys that are no single value.
SECTIONS = ("name", "description", "libraries", "vendors", "steps", "engine", "versions")
#: What a stack may be of: a forward alone, training, steps of a serving engine.
StepKind = Literal["forward", "training", "serving"]


def kind_of(step: Step) -> StepKind:
    """Which of the kinds that a stack states a step is of."""
    return "training" if step.trains else "serving" if step.serves else "forward"


class VersionSpec(EngineSpec):
    """What of a stack is otherwise in a version of it: its engine, its host, how far its measured runs lie apart."""

    kernel: Expected[Seconds] | None = Field(None, description="host time of a kernel")
    collective_per_rank: Expected[Seconds] | None = Field(None, description="of a collective, for every other rank")
    spread: Stated[tuple[Lower, Upper]] | None = Field(
        None, description="factors of a step's time between which nine of ten measured ones of it lie"
    )


class StackSpec(Strict):
    """A framework as its users run it; what is left out costs nothing."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    description: str = Field("", max_length=2000)
    vendors: Stated[tuple[str, ...]] | None = Field(None, description="whose devices it runs on; without it, all")
    steps: Stated[tuple[StepKind, ...]] | None = Field(None, description="what it can run; without it, everything")
    kernel: Expected[Seconds] | None = Field(None, description="host time of a kernel")
    collective: Expected[Seconds] | None = Field(None, description="host time of a collective")
    message: Expected[Seconds] | None = Field(None, description="host time of a message")
    collective_per_rank: Expected[Seconds] | None = Field(None, description="and of every other rank of its group")
    expert: Stated[Seconds] | None = Field(None, description="host time of each local expert in a product of experts")
    traffic_factor: Stated[Factor] | None = Field(None, description="bytes of unfused kernels over fused ones")
    loss_factor: Stated[Factor] | None = Field(None, description="bytes of the loss and its gradient over a fused one")
    softmax_bytes: Stated[BytesPerLogit] | None = Field(
        None, description="of a logit that the loss keeps beside it and its gradient; 4 where left out: in fp32"
    )
    accumulation_bytes: Stated[BytesPerWeight] | None = Field(None, description="beyond writing a gradient in bf16")
    optimizer_state: Stated[BytesPerWeight] | None = Field(
        None, description="bytes a parameter of master weights and moments, where a workload states no optimizer"
    )
    activation_factor: Stated[Factor] | None = Field(None, description="kept activations over those of fused kernels")
    activation_store: Stated[StoreName] | None = Field(None, description="of kept activations; a plan's comes first")
    remakes: Stated[tuple[Literal["norms", "products"], ...]] | None = Field(
        None, description="what backwards of its fused kernels make again rather than keep, whatever a plan recomputes"
    )
    remakes_in_backward: Stated[StrictBool] | None = Field(
        None, description="activations made again are made by the kernel of their backward"
    )
    exchange_units: Stated[PositiveCount] | None = Field(
        None, description="multiprocessors of exchanges with experts, which kernels beside them lack"
    )
    exchange_library: Stated[str] | None = Field(
        None, description="of exchanges with experts, where a node's file has several"
    )
    attention: Stated[FlopsPerSecond] | None = Field(None, description="the most its attention kernel reaches")
    flash_attention: Stated[StrictBool] | None = None
    libraries: dict[str, Stated[str]] = Field(
        {}, description="by kernel family, or family and type: the library that runs in the place of the device's own"
    )
    clocks: Stated[Literal["sustained", "burst"]] | None = Field(
        None, description="of the device in its steps; sustained where left out: products follow each other"
    )
    reduced_bytes: Stated[BytesPerWeight] | None = Field(None, description="of a gradient's element on its way")
    reduces_once: Stated[StrictBool] | None = Field(
        None, description="gradients of ZeRO 2 and 3 are summed behind the last micro-batch alone"
    )
    keeps_whole: Stated[tuple[Literal["pipelines", "experts"], ...]] | None = Field(
        None,
        description="where weights of ZeRO 3 are gathered once a step, and gradients summed behind its last backward",
    )
    gathered_copy_bytes: Stated[BytesPerWeight] | None = Field(None, description="a weight, out of the gather's buffer")
    reduced_copy_bytes: Stated[BytesPerWeight] | None = Field(None, description="a gradient, into the sum's buffer")
    expert_bias_bytes: Stated[tuple[BytesPerWeight, BytesPerWeight, BytesPerWeight, BytesPerWeight]] | None = Field(
        None,
        description="an element of what products make, to add experts' biases by kernels of their own: of gate and up"
        " in a forward and a backward, of down in both",
    )
    clip_passes: Stated[Annotated[float, Field(ge=0.0, le=8.0)]] | None = Field(
        None, description="how often gradients are read or written once more to clip them by their norm"
    )
    regathers_context: Stated[StrictBool] | None = Field(
        None, description="gathered keys and values are gathered again for the backward, and not kept"
    )
    row_copies: Stated[Annotated[float, Field(ge=0.0, le=8.0)]] | None = Field(
        None, description="how often rows that tp gathers or scatters are read and written once more"
    )
    overlap_gradients: Stated[StrictBool] | None = None
    overlap_weights: Stated[StrictBool] | None = None
    step: Stated[Seconds] | None = Field(None, description="of every step, whatever its size")
    spread: Stated[tuple[Lower, Upper]] | None = Field(
        None, description="factors of a step's time between which nine of ten measured ones lie"
    )
    spread_on: Stated[tuple[str, ...]] | None = Field(
        None, description="devices whose whole runs gave the spread: what kernels and transfers err is in it there"
    )
    engine: EngineSpec | None = Field(None, description="of a serving engine: graphs, padding, host, memory")
    versions: dict[str, VersionSpec] = Field({}, description="what is otherwise in a version of the engine")

    @model_validator(mode="after")
    def _devices_have_a_spread(self) -> StackSpec:
        if self.spread_on is not None and self.spread is None:
            raise ValueError("spread_on names devices of a spread that is not stated: state spread too")
        return self

    def version(self, name: str) -> StackSpec:
        """The stack as one of its versions; raises UnknownNameError where there is none of the name."""
        if name not in self.versions:
            raise UnknownNameError(f"version of {self.name}", name, self.versions)
        own = self.versions[name]
        stated = {key: getattr(own, key) for key in own.model_fields_set if key in EngineSpec.model_fields}
        update: dict[str, Any] = {"name": f"{self.name}{catalog.VERSION}{name}"}
        if stated or self.engine is not None:
            update["engine"] = (self.engine or EngineSpec()).model_copy(update=stated)
        host = ("kernel", "collective_per_rank", "spread")
        update |= {key: getattr(own, key) for key in host if getattr(own, key) is not None}
        return self.model_copy(update=update)

    def runs(self, vendor: str, step: Step) -> bool:
        """Whether it runs such a step on a vendor's devices, as far as it says."""
        return self.on(vendor) and (self.steps is None or kind_of(step) in self.steps.value)

    def on(self, vendor: str) -> bool:
        """Whether it runs on a vendor's devices, as far as it says."""
        return self.vendors is None or vendor in self.vendors.value

    def check(self, device: str, vendor: str, step: Step) -> None:
        """Refuse a pair that nobody can run; names those that can.

        Parameters
        ----------
        device, vendor
            Of the cluster, by name.

        Raises
        ------
        InputError
            It does not run on the device, or runs no such step.
        """
        if self.runs(vendor, step):
            return
        if self.on(vendor):
            assert self.steps is not None
            problem = f"'{self.name}' runs {' and '.join(self.steps.value)} steps, not {step.name}"
        else:
            assert self.vendors is not None
            vendors = " and ".join(self.vendors.value)
            problem = f"'{self.name}' runs on devices of {vendors}; {device} is one of {vendor}"
        able = [name for name in catalog.names("stacks") if _runs(name, vendor, step)]
        raise InputError(f"{problem} (those that do: {', '.join(able)})", key="workload.stack")

    def stack(self) -> Stack:
        """The same facts as the schemes and the engine read them."""
        stated = {key: getattr(self, key) for key in type(self).model_fields if key not in SECTIONS}
        values: dict[str, Any] = {
            WITH_UNITS.get(key, key): entry.value for key, entry in stated.items() if entry is not None
        }
        values["libraries"] = tuple(sorted((kernel, entry.value) for kernel, entry in self.libraries.items()))
        if self.engine is not None:
            values["engine"] = self.engine.engine(self.name)
        return Stack(self.name, **values)

    def provenance(self) -> tuple[Provenance, ...]:
        """What is stated, with its source."""
        own = [
            Provenance(f"stack {self.name}: {key.replace('_', ' ')}", _text(key, entry), entry.source, _basis(entry))
            for key in type(self).model_fields
            if key not in SECTIONS and isinstance(entry := getattr(self, key), Stated)
        ]
        runs = [
            Provenance(f"stack {self.name}: {kernel}", entry.value, entry.source, "stated")
            for kernel, entry in self.libraries.items()
        ]
        return *own, *runs, *(self.engine.provenance(self.name) if self.engine else ())


def _runs(name: str, vendor: str, step: Step) -> bool:
    """Whether a catalog's stack says that it runs somewhere; one that cannot be read does not."""
    try:
        return catalog.load("stacks", name, StackSpec).runs(vendor, step)
    except InputError:
        return False


def _text(key: str, entry: Stated[Any]) -> str:
    """A value as reports print it."""
    value = entry.value
    if isinstance(value, float) and key in WITH_UNITS:
        text = flops(value, decimals=1) if key == "attention" else duration(value)
        if isinstance(entry, Expected) and entry.range is not None:
            text += f" ({' to '.join(map(duration, entry.ends))})"
        return text
    if isinstance(value, tuple) and all(isinstance(part, str) for part in value):
        return " and ".join(value)
    return " to ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _basis(entry: Stated[Any]) -> str:
    return "assumed" if isinstance(entry, Expected) and entry.range is not None else "fitted"


def load_stack(name: str) -> StackSpec:
    """A stack by its catalog name or file, or ``NAME@VERSION`` of a catalog one.

    Raises
    ------
    InputError
        No such stack or version (the nearest is named), or its file is wrong.
    """
    base, version = catalog.versioned(name)
    spec = catalog.load("stacks", base, StackSpec)
    return spec.version(version) if version else spec
