"""The type of a stack's YAML file, and its loading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, create_model, model_validator

from tspsim.base import catalog
from tspsim.base.errors import InputError, UnknownNameError
from tspsim.base.provenance import Provenance
from tspsim.base.strict import Strict, keys_that_state, stated_in
from tspsim.base.units import Quantity, duration, flops
from tspsim.steps import Step

from ..base.stated import Expected, Stated
from .engine_spec import EngineSpec
from .stack import Stack

#: Kinds of step that a stack may run: a forward alone, training, steps of a serving engine.
StepKind = Literal["forward", "training", "serving"]


def kind_of(step: Step) -> StepKind:
    """The kind of a step, as stacks state it."""
    return "training" if step.trains else "serving" if step.serves else "forward"


#: Keys of a stack that a version may state anew; names of kernels launched are added to the stack's.
_OF_VERSIONS = (
    "kernel", "collective", "collective_per_rank", "message", "expert", "role_launches", "reads_counts", "pads_experts",
    "spread",
    "accumulation_bytes", "reduced_bytes", "gathered_copy_bytes", "reduced_copy_bytes", "libraries", "optimizer_state",
    "overlap_gradients", "overlap_weights", "exchange_units", "interleaving", "node_launches", "exchange_slowdown",
    "rotation_factors", "column_inputs", "sums_beside_weights", "quantised_gathers",
    "tensor_scales",
    "mixed_precision", "flash_attention", "score_bytes", "loss_factor", "softmax_bytes",
    "keeps_whole", "attention_factors", "awaits_sends", "collection", "expert_bias_bytes", "exchange_launches",
    "expert_accumulation_bytes", "experts_in_bf16", "expert_activation_factor",
)  # fmt: skip

if TYPE_CHECKING:
    _StackKeys = Strict
    _VersionKeys = EngineSpec
else:
    _StackKeys = create_model("_StackKeys", __base__=Strict, **keys_that_state(Stack))
    _VersionKeys = create_model("_VersionKeys", __base__=EngineSpec, **keys_that_state(Stack, _OF_VERSIONS))


class VersionSpec(_VersionKeys):
    """What differs in a version of a stack: its engine, its host, the spread of its measured runs."""


class StackSpec(_StackKeys):
    """A framework as its users run it; what is not stated costs nothing."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    description: str = Field("", max_length=2000)
    vendors: Stated[tuple[str, ...]] | None = Field(None, description="vendors of its devices; default: all")
    steps: Stated[tuple[StepKind, ...]] | None = Field(None, description="steps that it can run; default: all")
    engine: EngineSpec | None = Field(None, description="serving engine: graphs, padding, host, memory")
    versions: dict[str, VersionSpec] = Field({}, description="what differs in a version of the engine")

    @model_validator(mode="after")
    def _devices_have_a_spread(self) -> StackSpec:
        stated = stated_in(self, Stack)
        if "spread_on" in stated and "spread" not in stated:
            raise ValueError("spread_on names devices of a spread that is not stated: state spread too")
        return self

    @model_validator(mode="after")
    def _kernels_are_counted_once(self) -> StackSpec:
        stated = stated_in(self, Stack)
        for factor in ("traffic_factor", "expert_activation_factor"):
            if "eager" in stated and factor in stated:
                raise ValueError(f"eager counts kernels whose bytes {factor} multiplies: state one of the two")
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
        update |= {key: getattr(own, key) for key in _OF_VERSIONS if key in own.model_fields_set}
        usual, more = (stated_in(stack, Stack).get("role_launches") for stack in (self, own))
        if usual is not None and more is not None:
            update["role_launches"] = more.model_copy(update={"value": usual.value | more.value})
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
        values = {field: _value(entry) for field, entry in stated_in(self, Stack).items()}
        if self.engine is not None:
            values["engine"] = self.engine.engine(self.name)
        return Stack(self.name, **values)

    def provenance(self) -> tuple[Provenance, ...]:
        """What is stated, with its source."""
        stated = {key: entry for key in _StackKeys.model_fields if (entry := getattr(self, key)) is not None}
        libraries = stated.pop("libraries")
        own = [
            Provenance(f"stack {self.name}: {key.replace('_', ' ')}", _text(entry), entry.source, _basis(entry))
            for key, entry in stated.items()
        ]
        runs = [
            Provenance(f"stack {self.name}: {kernel}", entry.value, entry.source, "stated")
            for kernel, entry in libraries.items()
        ]
        return *own, *runs, *(self.engine.provenance(self.name) if self.engine else ())


def _runs(name: str, vendor: str, step: Step) -> bool:
    """Whether a catalog's stack states that it runs somewhere; False for one that cannot be read."""
    try:
        return catalog.load("stacks", name, StackSpec).runs(vendor, step)
    except InputError:
        return False


def _value(stated: Any) -> Any:
    """A value without its source, or several by name; by name in order."""
    value = stated.value if isinstance(stated, Stated) else {name: entry.value for name, entry in stated.items()}
    return tuple(sorted(value.items())) if isinstance(value, dict) else value


def _text(entry: Stated[Any]) -> str:
    """A value as reports print it."""
    value = entry.value
    units = [part.dimension for part in type(entry).model_fields["value"].metadata if isinstance(part, Quantity)]
    if isinstance(value, float) and units:
        text = duration(value) if units == ["s"] else flops(value, decimals=1)
        if isinstance(entry, Expected) and entry.range is not None:
            text += f" ({' to '.join(map(duration, entry.ends))})"
        return text
    if isinstance(value, dict):
        numbers = {name: part if isinstance(part, tuple) else (part,) for name, part in value.items()}
        return ", ".join(f"{name} {' and '.join(f'{number:g}' for number in part)}" for name, part in numbers.items())
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
