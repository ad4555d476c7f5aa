"""The type of a stack's YAML file, and its loading."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictBool, model_validator

from tspsim.base import catalog
from tspsim.base.errors import InputError, UnknownNameError
from tspsim.base.provenance import Provenance
from tspsim.base.strict import Strict
from tspsim.base.units import Count, FlopsPerSecond, PositiveCount, Seconds, duration, flops
from tspsim.steps import Step

from ..base.stated import Expected, Stated
from .activation_store import ACTIVATION_STORES
from .engine_spec import EngineSpec
from .stack import LAUNCH_NAMES, Stack

Factor = Annotated[float, Field(ge=1.0, le=20.0, allow_inf_nan=False)]
Lower = Annotated[float, Field(ge=0.3, le=1.0)]
Upper = Annotated[float, Field(ge=1.0, le=20.0)]
#: A registered store of activations; the error for an unknown name offers the nearest.
StoreName = Annotated[str, AfterValidator(lambda name: ACTIVATION_STORES.get(name).name)]
BytesPerWeight = Annotated[float, Field(ge=0.0, le=64.0, allow_inf_nan=False)]
Launches = Annotated[float, Field(ge=0.0, le=1000.0, allow_inf_nan=False)]
Tensors = Annotated[float, Field(ge=2.0, le=20.0, allow_inf_nan=False)]
BytesPerLogit = Annotated[float, Field(ge=0.0, le=64.0, allow_inf_nan=False)]

#: Key with a unit → field of :class:`Stack`; all are seconds but ``attention``.
WITH_UNITS = {
    "kernel": "kernel_s",
    "collective": "collective_s",
    "message": "message_s",
    "expert": "expert_s",
    "collective_per_rank": "collective_s_per_rank",
    "step": "step_s",
    "layout_token": "layout_token_s",
    "attention": "attention_flops_per_s",
}
#: Keys that are no single value.
SECTIONS = ("name", "description", "libraries", "vendors", "steps", "engine", "versions")
#: Kinds of step that a stack may run: a forward alone, training, steps of a serving engine.
StepKind = Literal["forward", "training", "serving"]


def _roles(stated: Stated[dict[str, float]]) -> Stated[dict[str, float]]:
    for name in stated.value:
        if name not in LAUNCH_NAMES:
            raise UnknownNameError("operator", name, LAUNCH_NAMES)
    return stated


#: Kernels launched per operator, by its name (:func:`tspsim.parallel.stack.launch_name`).
Launched = Annotated[Stated[dict[str, Launches]], AfterValidator(_roles)]


def kind_of(step: Step) -> StepKind:
    """The kind of a step, as stacks state it."""
    return "training" if step.trains else "serving" if step.serves else "forward"


class VersionSpec(EngineSpec):
    """What differs in a version of a stack: its engine, its host, the spread of its measured runs."""

    kernel: Expected[Seconds] | None = Field(None, description="host time of a kernel")
    collective: Expected[Seconds] | None = Field(None, description="host time of a collective")
    collective_per_rank: Expected[Seconds] | None = Field(None, description="host time of a collective per other rank")
    expert: Stated[Seconds] | None = Field(None, description="host time per local expert")
    role_launches: Launched | None = Field(None, description="launches that differ in this version")
    reads_counts: Stated[StrictBool] | None = Field(None, description="host waits to read rows per expert")
    spread: Stated[tuple[Lower, Upper]] | None = Field(
        None, description="90 % interval of measured step time over the simulated one"
    )


class StackSpec(Strict):
    """A framework as its users run it; what is not stated costs nothing."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    description: str = Field("", max_length=2000)
    vendors: Stated[tuple[str, ...]] | None = Field(None, description="vendors of its devices; default: all")
    steps: Stated[tuple[StepKind, ...]] | None = Field(None, description="steps that it can run; default: all")
    kernel: Expected[Seconds] | None = Field(None, description="host time of a kernel")
    collective: Expected[Seconds] | None = Field(None, description="host time of a collective")
    message: Expected[Seconds] | None = Field(None, description="host time of a message")
    collective_per_rank: Expected[Seconds] | None = Field(None, description="host time of a collective per other rank")
    expert: Stated[Seconds] | None = Field(None, description="host time per local expert of a product of experts")
    role_launches: Launched | None = Field(None, description="operator by role → kernels launched for one")
    cast_launches: Stated[Launches] | None = Field(
        None, description="further kernels that scale and cast the operands of a product in eight bits or fewer"
    )
    exchange_launches: Stated[tuple[Launches, Launches]] | None = Field(
        None, description="kernels launched for an all-to-all with experts: by a library, by a plain all-to-all"
    )
    reads_counts: Stated[StrictBool] | None = Field(
        None, description="in training the host waits after a choice of experts to read the rows of each"
    )
    ahead_without_experts: Stated[StrictBool] | None = Field(
        None, description="for models without routed experts the host runs ahead of the device: launches cost nothing"
    )
    queues_chunks: Stated[StrictBool] | None = Field(
        None, description="with several chunks per stage, the device alone waits for messages of other stages"
    )
    traffic_factor: Stated[Factor] | None = Field(None, description="bytes of unfused kernels over fused ones")
    loss_factor: Stated[Factor] | None = Field(None, description="bytes of the loss and its gradient over a fused one")
    softmax_bytes: Stated[BytesPerLogit] | None = Field(
        None, description="bytes of a logit's softmax that the loss keeps beside logit and gradient; default 4 (fp32)"
    )
    accumulation_bytes: Stated[BytesPerWeight] | None = Field(None, description="beyond writing a gradient in bf16")
    optimizer_state: Stated[BytesPerWeight] | None = Field(
        None, description="bytes per parameter of master weights and moments, if a workload states no optimizer"
    )
    activation_factor: Stated[Factor] | None = Field(None, description="kept activations over those of fused kernels")
    activation_store: Stated[StoreName] | None = Field(None, description="type of kept activations; a plan's wins")
    remakes: Stated[tuple[Literal["norms", "products"], ...]] | None = Field(
        None, description="what backwards of its fused kernels recompute, whatever a plan recomputes"
    )
    remakes_in_backward: Stated[StrictBool] | None = Field(
        None, description="recomputed activations are computed inside their backward's kernel"
    )
    exchange_units: Stated[PositiveCount] | None = Field(
        None, description="multiprocessors of exchanges with experts, which kernels beside them lack"
    )
    exchange_library: Stated[str] | None = Field(
        None, description="library of exchanges with experts, if a node's file has several"
    )
    attention: Stated[FlopsPerSecond] | None = Field(None, description="highest rate of its attention kernel")
    flash_attention: Stated[StrictBool] | None = None
    libraries: dict[str, Stated[str]] = Field(
        {}, description="kernel family, or family and type: the library that runs it instead of the device's own"
    )
    clocks: Stated[Literal["sustained", "burst"]] | None = Field(
        None, description="clock of the device in its steps; default: sustained, products follow each other"
    )
    reduced_bytes: Stated[BytesPerWeight] | None = Field(None, description="bytes of a gradient element in reductions")
    reduces_once: Stated[StrictBool] | None = Field(
        None, description="gradients of ZeRO 2 and 3 are summed after the last micro-batch alone"
    )
    keeps_whole: Stated[tuple[Literal["pipelines", "experts"], ...]] | None = Field(
        None,
        description="when weights of ZeRO 3 are gathered once per step, and gradients summed after its last backward",
    )
    gathered_copy_bytes: Stated[BytesPerWeight] | None = Field(None, description="per weight, out of gather's buffer")
    reduced_copy_bytes: Stated[BytesPerWeight] | None = Field(None, description="per gradient, into the sum's buffer")
    norm_tensors: Stated[tuple[Tensors, Tensors, Tensors]] | None = Field(
        None,
        description="tensors of the residual stream moved by a norm: forward, recomputed, backward; 4 in one kernel",
    )
    casts_apart: Stated[StrictBool] | None = Field(
        None, description="separate kernels cast and transpose the operands of products in eight bits"
    )
    choice_kernels: Stated[tuple[Count, Count, Count, Count, Count]] | None = Field(
        None,
        description="kernels that choose a token's experts if no single one does: over all scores, over few numbers,"
        " top-k searches; in a backward over all scores, over few numbers",
    )
    layout_token: Stated[Seconds] | None = Field(
        None, description="time per token of the kernel that counts tokens per destination rank before an exchange"
    )
    expert_bias_bytes: Stated[tuple[BytesPerWeight, BytesPerWeight, BytesPerWeight, BytesPerWeight]] | None = Field(
        None,
        description="bytes per output element of separate kernels that add experts' biases: of gate and up in a forward"
        " and a backward, of down in both",
    )
    clip_passes: Stated[Annotated[float, Field(ge=0.0, le=8.0)]] | None = Field(
        None, description="further reads or writes of gradients to clip them by their norm"
    )
    regathers_context: Stated[StrictBool] | None = Field(
        None, description="keys and values are gathered again for the backward, and not kept"
    )
    row_copies: Stated[Annotated[float, Field(ge=0.0, le=8.0)]] | None = Field(
        None, description="further reads and writes of rows that tp gathers or scatters"
    )
    overlap_gradients: Stated[StrictBool] | None = None
    overlap_weights: Stated[StrictBool] | None = None
    step: Stated[Seconds] | None = Field(None, description="time of every step, whatever its size")
    spread: Stated[tuple[Lower, Upper]] | None = Field(
        None, description="90 % interval of measured step time over the simulated one"
    )
    spread_on: Stated[tuple[str, ...]] | None = Field(
        None, description="devices whose whole runs gave the spread, kernels' and transfers' errors in it"
    )
    engine: EngineSpec | None = Field(None, description="serving engine: graphs, padding, host, memory")
    versions: dict[str, VersionSpec] = Field({}, description="what differs in a version of the engine")

    @model_validator(mode="after")
    def _devices_have_a_spread(self) -> StackSpec:
        if self.spread_on is not None and self.spread is None:
            raise ValueError("spread_on names devices of a spread that is not stated: state spread too")
        return self

    def version(self, name: str) -> StackSpec:
        """The stack in one of its versions; raises UnknownNameError if there is none of the name."""
        if name not in self.versions:
            raise UnknownNameError(f"version of {self.name}", name, self.versions)
        own = self.versions[name]
        stated = {key: getattr(own, key) for key in own.model_fields_set if key in EngineSpec.model_fields}
        update: dict[str, Any] = {"name": f"{self.name}{catalog.VERSION}{name}"}
        if stated or self.engine is not None:
            update["engine"] = (self.engine or EngineSpec()).model_copy(update=stated)
        host = ("kernel", "collective", "collective_per_rank", "expert", "reads_counts", "spread")
        update |= {key: getattr(own, key) for key in host if getattr(own, key) is not None}
        if own.role_launches is not None:
            usual = {} if self.role_launches is None else self.role_launches.value
            update["role_launches"] = own.role_launches.model_copy(update={"value": usual | own.role_launches.value})
        return self.model_copy(update=update)

    def runs(self, vendor: str, step: Step) -> bool:
        """Whether it states that it runs such a step on a vendor's devices, or states nothing."""
        return self.on(vendor) and (self.steps is None or kind_of(step) in self.steps.value)

    def on(self, vendor: str) -> bool:
        """Whether it states that it runs on a vendor's devices, or states nothing."""
        return self.vendors is None or vendor in self.vendors.value

    def check(self, device: str, vendor: str, step: Step) -> None:
        """Refuse a device or step that the stack does not run; the error names stacks that do.

        Parameters
        ----------
        device, vendor
            Names of the cluster's.

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
        """The facts as schemes and the engine read them."""
        stated = {key: getattr(self, key) for key in type(self).model_fields if key not in SECTIONS}
        values: dict[str, Any] = {
            WITH_UNITS.get(key, key): entry.value for key, entry in stated.items() if entry is not None
        }
        values["role_launches"] = () if self.role_launches is None else tuple(sorted(self.role_launches.value.items()))
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
    """Whether a catalog's stack states that it runs somewhere; False for one that cannot be read."""
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
    if isinstance(value, dict):
        return ", ".join(f"{name} {number:g}" for name, number in value.items())
    if isinstance(value, tuple) and all(isinstance(part, str) for part in value):
        return " and ".join(value)
    return " to ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _basis(entry: Stated[Any]) -> str:
    return "assumed" if isinstance(entry, Expected) and entry.range is not None else "fitted"


def load_stack(name: str) -> StackSpec:
    """A stack by its catalog name or file, or ``NAME@VERSION`` of the catalog.

    Raises
    ------
    InputError
        There is no such stack or version (the error offers the nearest), or its file is wrong.
    """
    base, version = catalog.versioned(name)
    spec = catalog.load("stacks", base, StackSpec)
    return spec.version(version) if version else spec
