"""The work of one step: the model's pass, its size, and what training keeps."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from pydantic import Field, StrictBool, model_validator

from ..base.errors import did_you_mean, shorten
from ..base.memo import once
from ..base.quick import stated_fields
from ..base.strict import refuse, section
from ..base.units import PositiveCount
from ..model import Architecture
from ..model.parts import BF16, Formats
from ..steps import FORWARD_STEP, STEPS, Batch, Load, Row, ServingStep, Step
from .adapters import Adapters
from .lengths import ALIKE, Unequal
from .routing import BALANCED, ExpertRouting
from .stack import IDEAL, Stack

#: Bytes per parameter.
Bytes = Annotated[float, Field(ge=0, le=1000)]


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Training bytes per parameter: a name from :data:`OPTIMIZERS`, or the parts.

    ``weights`` and ``gradients`` are kept; ``state`` holds the fp32 master weights and both moments of Adam;
    ``temporaries`` what an unfused step allocates; ``buffers`` what replicas never divide, such as the buckets of DDP.
    """

    __pydantic_config__ = section("Training bytes per parameter: a name, or the parts.")

    name: Annotated[str, Field(min_length=1, max_length=200, description="how answers call it")] = "stated"
    weights: Annotated[Bytes, Field(description="bytes per parameter of the weights that layers multiply with")]
    gradients: Annotated[Bytes, Field(description="bytes per parameter of gradients")]
    state: Annotated[Bytes, Field(description="bytes per parameter of master weights and moments")]
    temporaries: Annotated[Bytes, Field(description="bytes per parameter that an unfused step allocates")] = 0.0
    buffers: Annotated[Bytes, Field(description="bytes per parameter that replicas never divide")] = 0.0

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value not in OPTIMIZERS:
            raise refuse(f"unknown optimizer '{shorten(value)}'{did_you_mean(value, OPTIMIZERS)}")
        return asdict(OPTIMIZERS[value])

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "enum": sorted(OPTIMIZERS)}, handler(schema)]}

    @property
    def bytes_per_parameter(self) -> float:
        """Sum of weights, gradients, state, temporaries and buffers."""
        return self.weights + self.gradients + self.state + self.temporaries + self.buffers


#: Mixed-precision Adam keeps bf16 weights and gradients, fp32 master weights and two fp32 moments
#: (Rajbhandari et al. 2020, ZeRO, §3.1: 2 + 2 + 12). An unfused step also holds an fp32 copy of the gradients
#: and the fp32 update.
ADAMW = Optimizer(name="adamw", weights=2.0, gradients=2.0, state=12.0)
OPTIMIZERS = {optimizer.name: optimizer for optimizer in (ADAMW, replace(ADAMW, name="adamw-unfused", temporaries=8.0))}


#: The load of a step that does not serve.
NOTHING = Load()


@dataclass(frozen=True, kw_only=True)
class StatedWork:
    """What a file states of a step's work and the package reads (:class:`tspsim.scenario.Workload`)."""

    document: Annotated[
        PositiveCount | None, Field(description="tokens per document packed into a sequence; default: one document")
    ] = None
    adapters: Annotated[Adapters | None, Field(description="low-rank adapters; the model itself is frozen")] = None
    causal: Annotated[StrictBool, Field(description="whether a token attends only to tokens before it")] = True
    routing: Annotated[ExpertRouting, Field(description="balance of tokens over experts")] = BALANCED
    multi_token: Annotated[StrictBool, Field(description="train the model's modules for further tokens (MTP)")] = False


@dataclass(frozen=True)
class Work(StatedWork):
    """The work of one step: ``sequences`` of ``sequence`` tokens in every replica.

    Attributes
    ----------
    pass_
        Name of the step (:data:`tspsim.steps.STEPS`).
    routing
        Distribution of tokens over experts.
    multi_token
        Whether the model's MTP modules are trained.
    document
        Tokens of the documents packed into a sequence, which attend only themselves; None: one per sequence.
    adapters
        Adapters beside the frozen model, which is then kept in ``precision`` alone.
    stack
        The software.
    load, formats
        Of a serving step: its load, and types of weights and cache; ``precision`` is then the type of its fastest
        products.
    unequal
        Sequences of all ``replicas`` if they differ in length; ``sequence`` is then the longest.
    host_bytes_per_s, host_reads_bytes_per_s
        Rate between a GPU and its host's memory, per direction; rate at which the host's processors read a GPU's share
        of that memory (0: unknown).
    weight_bytes
        Bytes of a weight element of the training whose forward this is; 0: those of ``precision``.
    """

    pass_: str
    sequence: int
    sequences: int
    precision: str
    optimizer: Optimizer
    runtime_reserve_bytes: float
    stack: Stack = IDEAL
    load: Load = NOTHING
    formats: Formats = BF16
    unequal: Unequal = ALIKE
    replicas: int = 1
    host_bytes_per_s: float = 0.0
    host_reads_bytes_per_s: float = 0.0
    weight_bytes: float = 0.0

    @once
    def step(self) -> Step:
        return STEPS.get(self.pass_)

    @once
    def stated(self) -> frozenset[str]:
        """Fields that differ from their defaults."""
        return stated_fields(self)

    @property
    def reduced_bytes(self) -> float:
        """Bytes of a gradient element in reductions between replicas."""
        stated = self.stack.reduced_bytes
        return self.optimizer.gradients if stated is None else stated

    @property
    def batch(self) -> Batch:
        """Rows of a replica's step: sequences, or the documents packed into them; in serving steps of all passes."""
        if self.step.serves:
            passes = self.step.passes(self.load, 1)
            rows = tuple(row for batch in passes for row in batch.rows)
            return Batch(rows, self.causal, sum(batch.head_tokens for batch in passes))
        if self.unequal.tokens:
            counts = Counter(self.unequal.tokens)
            return Batch(tuple(Row(tokens, 0, count) for tokens, count in sorted(counts.items())), self.causal)
        context = self.document or self.sequence
        return Batch((Row(context, 0, self.sequence * self.sequences // context),), self.causal)

    @property
    def tokens_per_replica(self) -> float:
        """Tokens of a replica's step; with unequal sequences the mean over replicas."""
        if self.unequal.tokens:
            return self.unequal.total / self.replicas
        return self.batch.tokens if self.step.serves else self.sequence * self.sequences

    def tokens_of(self, replicas: int) -> float:
        """Tokens of the step over ``replicas`` replicas."""
        return self.unequal.total if self.unequal.tokens else self.tokens_per_replica * replicas

    def one_forward(self, sequences: int) -> Work:
        """One forward of one micro-batch, or of one pass of a serving step."""
        if self.step.serves:
            return replace(self, load=replace(self.load, chunk=None))
        kept = self.optimizer.weights if self.step.trains and self.adapters is None else self.weight_bytes
        return replace(self, pass_=FORWARD_STEP.name, sequences=sequences, weight_bytes=kept)

    @property
    def counted_tokens(self) -> float:
        """Tokens of a replica's step that its rate counts."""
        step = self.step
        return step.counted(self.load) if isinstance(step, ServingStep) else self.tokens_per_replica

    def counted_over(self, replicas: int) -> float:
        """Tokens of the step over ``replicas`` replicas that its rate counts."""
        return self.unequal.total if self.unequal.tokens else self.counted_tokens * replicas

    def flops_per_token(self, model: Architecture) -> float:
        """Model FLOPs of a token's whole pass, without those of dropped assignments."""
        kept = 1.0 - self.dropped_share(model)
        return self.step.flops_per_token(model, self.batch, kept=kept, frozen=self.adapters is not None)

    def block_flops_per_token(self, model: Architecture) -> float:
        """FLOPs of a token's forward through one block: the mean over all blocks, or over those after leading dense
        ones, whichever is less."""
        kept = 1.0 - self.dropped_share(model)
        every = self.batch.layer_flops_per_token(model, kept)
        if model.experts is None or not model.experts.first_dense:
            return every
        repeating = replace(model, experts=replace(model.experts, first_dense=0))
        return min(every, self.batch.layer_flops_per_token(repeating, kept))

    def dropped_share(self, model: Architecture) -> float:
        """Share of the assignments of tokens to experts that is dropped; 0 without experts."""
        return self.routing.dropped(model.experts.count) if model.experts is not None else 0.0
