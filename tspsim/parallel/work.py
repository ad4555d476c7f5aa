"""What one step has to do, as facts: the model's pass, how much of it, and what is kept while training."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from pydantic import Field, model_validator

from ..base.errors import did_you_mean, shorten
from ..base.memo import once
from ..base.quick import stated_fields
from ..base.strict import refuse, section
from ..model import Architecture
from ..model.parts import BF16, Formats
from ..steps import FORWARD_STEP, STEPS, Batch, Load, Row, ServingStep, Step
from .adapters import Adapters
from .lengths import ALIKE, Unequal
from .routing import BALANCED, ExpertRouting
from .stack import IDEAL, Stack

#: Of a parameter.
Bytes = Annotated[float, Field(ge=0, le=1000)]


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Bytes a parameter while training: a name from :data:`OPTIMIZERS`, or the parts.

    ``state`` holds the fp32 master weights and both moments of Adam; ``temporaries`` what an unfused step
    makes; ``buffers`` what replicas never divide, such as the buckets of DDP.
    """

    __pydantic_config__ = section("Bytes a parameter while training: a name, or the parts.")

    name: Annotated[str, Field(min_length=1, max_length=200, description="how answers call it")] = "stated"
    weights: Annotated[Bytes, Field(description="bytes a parameter of the weights that layers multiply with")]
    gradients: Annotated[Bytes, Field(description="bytes a parameter of gradients")]
    state: Annotated[Bytes, Field(description="bytes a parameter of master weights and moments")]
    temporaries: Annotated[Bytes, Field(description="bytes a parameter that an unfused step makes")] = 0.0
    buffers: Annotated[Bytes, Field(description="bytes a parameter that replicas never divide")] = 0.0

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
        """Of weights, gradients, state, temporaries and buffers together."""
        return self.weights + self.gradients + self.state + self.temporaries + self.buffers


#: Mixed-precision Adam keeps bf16 weights and gradients, fp32 master weights and two fp32 moments
#: (Rajbhandari et al. 2020, ZeRO, §3.1: 2 + 2 + 12). An unfused step also holds an fp32 copy of the gradients
#: and the fp32 update.
ADAMW = Optimizer(name="adamw", weights=2.0, gradients=2.0, state=12.0)
OPTIMIZERS = {optimizer.name: optimizer for optimizer in (ADAMW, replace(ADAMW, name="adamw-unfused", temporaries=8.0))}


#: Of a step that serves nobody.
NOTHING = Load()


@dataclass(frozen=True)
class Work:
    """What one step has to do: ``sequences`` of ``sequence`` tokens in every replica.

    ``pass_`` names the step (:data:`tspsim.steps.STEPS`); ``routing`` is how tokens fall on experts; with
    ``multi_token`` the model's modules for further tokens are trained.
    ``document`` tokens are packed beside each other in a sequence and attend only themselves (None: one a sequence).
    With ``adapters`` the model itself is frozen, and kept in ``precision`` alone. ``stack`` is the software. A serving
    step has a ``load`` and weights and cache in ``formats``; its ``precision`` is the type of its fastest products.
    ``unequal`` are the sequences of all ``replicas`` where they differ in length; ``sequence`` is then the longest.
    ``host_bytes_per_s`` joins a GPU and its host's memory, each way; at ``host_reads_bytes_per_s`` the host's
    processors read a GPU's part of it (0: not known). ``weight_bytes`` of a weight element are those of the training
    whose forward this is (0: those of ``precision``).
    """

    pass_: str
    sequence: int
    sequences: int
    precision: str
    optimizer: Optimizer
    runtime_reserve_bytes: float
    causal: bool = True
    routing: ExpertRouting = BALANCED
    multi_token: bool = False
    document: int | None = None
    adapters: Adapters | None = None
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
        """Its fields that do not stand at their default."""
        return stated_fields(self)

    @property
    def reduced_bytes(self) -> float:
        """Bytes of a gradient's element while replicas sum it."""
        stated = self.stack.reduced_bytes
        return self.optimizer.gradients if stated is None else stated

    @property
    def batch(self) -> Batch:
        """What a replica's step has to do: sequences, or the documents packed into them, from their start; of a serving
        step the rows of all its passes."""
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
        """Tokens of a replica's step; of sequences of unequal length the mean over replicas."""
        if self.unequal.tokens:
            return self.unequal.total / self.replicas
        return self.batch.tokens if self.step.serves else self.sequence * self.sequences

    def tokens_of(self, replicas: int) -> float:
        """Tokens of the step of so many replicas."""
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
        """Tokens of the step of so many replicas that its rate counts."""
        return self.unequal.total if self.unequal.tokens else self.counted_tokens * replicas

    def flops_per_token(self, model: Architecture) -> float:
        """Model FLOPs of a token's whole pass, without what experts drop."""
        kept = 1.0 - self.dropped_share(model)
        return self.step.flops_per_token(model, self.batch, kept=kept, frozen=self.adapters is not None)

    def block_flops_per_token(self, model: Architecture) -> float:
        """FLOPs of a token's forward through one block: mean over all blocks, or over those that repeat behind dense
        ones at the start, whichever is less."""
        kept = 1.0 - self.dropped_share(model)
        every = self.batch.layer_flops_per_token(model, kept)
        if model.experts is None or not model.experts.first_dense:
            return every
        repeating = replace(model, experts=replace(model.experts, first_dense=0))
        return min(every, self.batch.layer_flops_per_token(repeating, kept))

    def dropped_share(self, model: Architecture) -> float:
        """Share of the assignments of tokens to experts that is dropped; 0 without experts."""
        return self.routing.dropped(model.experts.count) if model.experts is not None else 0.0
