"""The workload of a scenario: the model, the pass, and what is kept and trained of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictInt, field_validator, model_validator

from ..errors import InputError, did_you_mean, shorten
from ..steps import SERVING_STEPS, STEPS
from ..units import Bytes, PositiveCount
from .section import Name, OneOf, Section, refuse

Precision = Literal["bf16", "fp8", "fp8_block", "mxfp8", "mxfp4", "nvfp4"]
AdapterTarget = Literal["qkv", "output", "gate_up", "down"]
BytesPerParameter = Annotated[float, Field(ge=0, le=1000)]


class OptimizerSpec(Section):
    """Bytes a parameter while training: a name from :data:`OPTIMIZERS`, or the parts.

    ``state`` holds the fp32 master weights and both moments of Adam; ``temporaries`` what an unfused step
    makes; ``buffers`` what replicas never divide, such as the buckets of DDP.
    """

    name: Name = "stated"
    weights: BytesPerParameter
    gradients: BytesPerParameter
    state: BytesPerParameter
    temporaries: BytesPerParameter = 0.0
    buffers: BytesPerParameter = 0.0

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value not in OPTIMIZERS:
            raise refuse(f"unknown optimizer '{shorten(value)}'{did_you_mean(value, OPTIMIZERS)}")
        return {"name": value, **OPTIMIZERS[value]}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "enum": sorted(OPTIMIZERS)}, handler(schema)]}

    @property
    def bytes_per_parameter(self) -> float:
        return self.weights + self.gradients + self.state + self.temporaries + self.buffers


#: Mixed-precision Adam keeps bf16 weights and gradients, fp32 master weights and two fp32 moments
#: (Rajbhandari et al. 2020, ZeRO, §3.1: 2 + 2 + 12). An unfused step also holds an fp32 copy of the gradients
#: and the fp32 update.
OPTIMIZERS: dict[str, dict[str, float]] = {
    "adamw": {"weights": 2.0, "gradients": 2.0, "state": 12.0, "temporaries": 0.0},
    "adamw-unfused": {"weights": 2.0, "gradients": 2.0, "state": 12.0, "temporaries": 8.0},
}


class RoutingSpec(Section):
    """How evenly tokens fall on experts; all wait for the busiest rank (:mod:`tspsim.parallel.routing`)."""

    load: Literal["balanced", "zipf", "dirichlet", "measured"] = "balanced"
    skew: Annotated[float, Field(ge=0, le=10)] = Field(
        0.0, description="Zipf exponent, or 1 / concentration; 0 is even"
    )
    seed: Annotated[StrictInt, Field(ge=0)] = 0
    shares: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(max_length=4096)] = Field(
        (), description="measured: tokens an expert, in any unit"
    )
    capacity_factor: Annotated[float, Field(gt=0, le=100)] | None = Field(
        None, description="an expert takes at most this many times the mean, the rest is dropped; default: no limit"
    )

    @model_validator(mode="after")
    def _complete(self) -> RoutingSpec:
        if (self.load == "measured") != bool(sum(self.shares)):
            raise refuse("load: measured needs shares, one number an expert, not all zero; other loads take none")
        return self


class AdaptersSpec(Section):
    """Low-rank adapters beside frozen weights (LoRA)."""

    rank: Annotated[PositiveCount, Field(le=65536)]
    targets: Annotated[tuple[AdapterTarget, ...], Field(min_length=1)] = ("qkv", "output", "gate_up", "down")
    experts: Literal["each", "shared", "none"] = Field(
        "each", description="of routed experts: a pair each, one pair for those of a rank, or none"
    )

    @field_validator("targets")
    @classmethod
    def _once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        twice = next((target for target in value if value.count(target) > 1), None)
        if twice is not None:
            raise refuse(f"'{twice}' is named twice; name each product once")
        return value


class Workload(Section):
    """What every replica computes in one step."""

    model: Name = Field(description="catalog name, YAML file, or a Hugging Face config.json")
    pass_: Annotated[str, OneOf(lambda: (*STEPS, *SERVING_STEPS))] = Field(alias="pass")
    sequence: PositiveCount = Field(description="tokens a sequence")
    sequences_per_replica: PositiveCount = 1
    global_batch: PositiveCount | None = Field(
        None, description="sequences of a step over all replicas, instead of sequences_per_replica"
    )
    precision: Precision = Field("bf16", description="of the layers' products; attention and tables stay in bf16")
    document: PositiveCount | None = Field(
        None, description="tokens of the documents packed into a sequence; default: one document"
    )
    adapters: AdaptersSpec | None = Field(None, description="low-rank adapters; the model itself is frozen")
    stack: Name = Field("ideal", description="the software, from the catalog of stacks, or a YAML file")
    optimizer: OptimizerSpec = OptimizerSpec(name="adamw", **OPTIMIZERS["adamw"])
    runtime_reserve: Bytes = Field(
        float(2 * 2**30), description="a GPU's context, collective buffers and fragmentation; default 2 GiB"
    )
    causal: StrictBool = True
    routing: RoutingSpec = Field(RoutingSpec(), description="how evenly tokens fall on experts")
    multi_token: StrictBool = Field(False, description="train the model's modules for further tokens (MTP)")

    @model_validator(mode="after")
    def _one_batch(self) -> Workload:
        if self.global_batch is not None and "sequences_per_replica" in self.model_fields_set:
            raise refuse("global_batch and sequences_per_replica both say how much a step is; leave one out")
        return self

    def sequences_of(self, replicas: int, plan: str = "") -> int:
        """Sequences that each of some replicas works on in a step.

        Raises
        ------
        InputError
            The global batch does not divide over them.
        """
        if self.global_batch is None:
            return self.sequences_per_replica
        if self.global_batch % replicas:
            of_plan = f" of plan '{plan}'" if plan else ""
            raise InputError(
                f"{self.global_batch} sequences do not divide over {replicas} replicas{of_plan}; "
                f"use a multiple of {replicas}, or other degrees",
                key="workload.global_batch",
            )
        return self.global_batch // replicas

    def batch_of(self, replicas: int) -> int:
        """Sequences of a step that some replicas share: the global batch, or what each of them has."""
        return self.global_batch or self.sequences_per_replica * replicas

    def with_sequences(self, sequences: int) -> Workload:
        """The same with so many sequences a replica, whatever the batch was."""
        return self.model_copy(update={"sequences_per_replica": sequences, "global_batch": None})

    @field_validator("pass_")
    @classmethod
    def _supported(cls, value: str) -> str:
        if value not in STEPS:
            raise refuse(f"'{value}' comes with serving; use {' or '.join(STEPS)}")
        return value
