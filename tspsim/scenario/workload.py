"""The workload of a scenario: the model, the pass, numeric types, and what is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails

from ..base.errors import InputError, did_you_mean, shorten
from ..base.strict import OneOf
from ..base.units import Bytes, Count, PositiveCount
from ..model import load_model
from ..model.attention import cache_names
from ..model.parts import WeightClass
from ..operators import DTYPES
from ..operators.dtypes import products
from ..parallel import Optimizer, Unequal
from ..parallel.draft import DRAFTS
from ..parallel.work import ADAMW, StatedWork
from ..steps import STEPS, Load, Speculation, Streams
from ..steps.load import ONE_STREAM
from ..traffic import LENGTHS, Lengths, OneKind
from ..traffic.lengths import shorthand
from . import acceptance
from .engine_options import EngineOptions
from .section import Name, Section, refuse

Precision = Annotated[str, OneOf(products)]


def _type(value: Any) -> Any:
    if not isinstance(value, str) or value not in DTYPES:
        raise refuse(f"unknown type '{shorten(value)}'{did_you_mean(str(value), DTYPES)}")
    return value


WeightType = Annotated[str, OneOf(DTYPES.names), BeforeValidator(_type)]
ByClass = dict[WeightClass, WeightType]
CacheType = Annotated[str, OneOf(cache_names)]


class PrecisionSpec(Section):
    """Numeric types of a served model; what is not stated is as in its checkpoint."""

    weights: WeightType | ByClass | None = Field(
        None, description="all weights but the embedding tables; types below eight bits apply to experts alone if "
        "there are any; or by class of weights"
    )  # fmt: skip
    activations: WeightType | ByClass | None = Field(
        None, description="operands of products; default: the weights' type if the device multiplies it, else bf16"
    )
    kv: CacheType | None = Field(None, description="type of the KV cache; default: the checkpoint's, else bf16")


#: Acceptance rate of drafts if none is stated or measured.
RATE = 0.7
#: Most sequences of unequal length in a step, each of which is drawn, packed and assigned.
MOST_LENGTHS = 1_000_000


class SpeculationSpec(Section):
    """Speculative decoding: drafts that every step verifies."""

    tokens: Annotated[Count, Field(le=15)] = Field(description="drafted tokens per sequence")
    accepted: Annotated[float, Field(ge=1, le=16)] | None = Field(
        None, description="mean tokens that a sequence advances per step; default: from the rate below"
    )
    rate: Annotated[float, Field(ge=0, le=1)] = Field(
        RATE,
        description="share of drafts accepted at every position if `accepted` is not stated; with traffic, default: "
        "the model's measured rates, if there are any",
    )
    positions: Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(max_length=15)] | None = Field(
        None, description="instead: share of drafts accepted at each position if all before it were"
    )
    prompts: acceptance.Prompts = Field(
        acceptance.USUAL,
        description="traffic: kind of prompt whose measured acceptance is taken: coding, random tokens behind the "
        "model's chat template, or random tokens alone; coding's if the kind was not measured",
    )
    mode: Literal["expected", "sampled"] = Field(
        "expected", description="traffic: a sequence advances by the mean every step, or by a drawn number"
    )
    draft: Annotated[str, OneOf(DRAFTS.names)] = Field("mtp", description="drafter")
    model: str | None = Field(None, description="draft: model; the draft model, on the same GPUs")
    tree: Annotated[tuple[PositiveCount, ...], Field(max_length=15)] | None = Field(
        None,
        description="tree of drafts: number at each depth, `tokens` in all; `positions` are then shares per depth at "
        "which one of its drafts is right; default: measured shares of one draft per depth",
    )

    @property
    def depth(self) -> int:
        """Most drafts that can be accepted."""
        return len(self.tree) if self.tree else self.tokens

    @model_validator(mode="after")
    def _possible(self) -> SpeculationSpec:
        if self.tree is not None and sum(self.tree) != self.tokens:
            sum_in_words = " + ".join(map(str, self.tree))
            raise refuse(
                f"tree: {sum_in_words} are {sum(self.tree)} drafts, and tokens {self.tokens}; they are as many"
            )
        if DRAFTS.get(self.draft).whole != (self.model is not None):
            needs = "needs model, which drafts" if self.model is None else "has no model of its own; use draft: model"
            raise refuse(f"draft: {self.draft} {needs}")
        if self.accepted is not None and self.accepted > self.depth + 1:
            deep = f"{self.tokens} drafts" if not self.tree else f"{self.depth} drafts of a path"
            raise refuse(f"accepted: {self.accepted:g} is more than the {deep} and one")
        if self.positions is not None:
            if len(self.positions) != self.depth:
                place = "depth" if self.tree else "draft"
                some = f"a tree {self.depth} deep" if self.tree else f"{self.tokens} drafts"
                raise refuse(f"positions: {len(self.positions)} shares for {some}; state one a {place}")
            beside = next((name for name in ("accepted", "rate") if name in self.model_fields_set), None)
            if beside and getattr(self, beside) is not None:
                raise refuse(f"{beside} and positions both say how many drafts are accepted; leave one out")
        usual = {"accepted": None, "rate": RATE, "positions": None}  # as a scenario that is written out has them
        stated = [name for name, value in usual.items() if getattr(self, name) != value]
        if self.prompts != acceptance.USUAL and stated:
            raise refuse(f"prompts choose among measured acceptances, and {stated[0]} states one; leave one out")
        return self

    def rates(self, model: str) -> tuple[tuple[float, ...], str]:
        """Share of drafts accepted at each position if all before it were, and the source.

        The source is ``stated``, that of a measurement of the model, or ``assumed``.
        """
        if self.positions is not None:
            return self.positions, "stated"
        if self.accepted is not None:
            return (acceptance.rate_of(self.accepted, self.depth),) * self.depth, "stated"
        measurement = None if "rate" in self.model_fields_set else acceptance.measured(model, self.draft, self.prompts)
        if measurement is not None:
            alone = "; of one draft at each depth, no more for the others of a tree" if self.tree else ""
            return measurement.rates(self.depth), measurement.source + alone
        return (self.rate,) * self.depth, "stated" if "rate" in self.model_fields_set else "assumed"

    def served(self, model: str) -> SpeculationSpec:
        """A copy with the acceptance of a model filled in."""
        if self.accepted is not None:
            return self
        length = acceptance.length_of(self.rates(model)[0])
        return self.model_copy(update={"accepted": min(length, self.depth + 1.0)})

    def speculation(self) -> Speculation:
        """The drafts as steps take them; without a stated ``accepted``, 1 + Σ Π rate tokens per step."""
        rates = self.positions if self.positions is not None else (self.rate,) * self.depth
        expected = acceptance.length_of(rates)
        accepted = expected if self.accepted is None else self.accepted
        try:
            model = load_model(self.model) if self.model else None
        except InputError as error:
            raise error.at(key="workload.speculation.model") from None
        return Speculation(self.tokens, accepted, self.draft, self.tree or (), model)


class Workload(StatedWork, Section):
    """The model, and what every replica computes in one step (with traffic: the model that is served)."""

    KEYS_BEHIND: ClassVar = {
        "precision": ("document", "adapters"),
        "runtime_reserve": ("causal", "routing", "multi_token"),
    }

    model_config = ConfigDict(json_schema_extra=lambda schema: schema["required"].remove("pass"))

    model: Name = Field(description="catalog name, YAML file, or a Hugging Face config.json")
    pass_: Annotated[str, OneOf(STEPS.names)] = Field(alias="pass", description="required without traffic")
    sequence: PositiveCount = Field(1, description="tokens per sequence, or per prompt")
    sequences_per_replica: PositiveCount = Field(1, description="sequences, or prompts, per replica")
    chunk: PositiveCount | None = Field(
        None, description="prefill: prompt tokens per pass; default: all. mixed: another spelling of sequence"
    )  # fmt: skip
    cached: Count = Field(
        0, description="prefill, mixed: cached tokens of every prompt before those of `sequence`"
    )  # fmt: skip
    batch: PositiveCount | None = Field(
        None, description="decode, mixed, verify: decoding sequences per replica. prefill: another spelling of "
        "sequences_per_replica"
    )  # fmt: skip
    context: PositiveCount | Annotated[tuple[PositiveCount, ...], Field(min_length=1, max_length=4096)] | None = Field(
        None, description="decode, mixed, verify: cached tokens per sequence, or several lengths in equal parts. "
        "prefill: another spelling of sequence"
    )  # fmt: skip
    speculation: SpeculationSpec | None = Field(None, description="verify: drafted tokens, and how many are accepted")
    streams: Streams | None = Field(None, description="decode: streams that work on a sequence together")
    global_batch: PositiveCount | None = Field(
        None, description="sequences per step over all replicas, instead of sequences_per_replica"
    )
    lengths: Annotated[Lengths, OneKind(LENGTHS, shorthand)] | None = Field(
        None, description="distribution of the lengths of the global batch's sequences; cut to `sequence`"
    )
    length_seed: Count = Field(0, description="seed of drawn lengths")
    precision: Precision | PrecisionSpec = Field(
        "bf16", description="type of the layers' products (attention and tables stay in bf16); of serving steps, the "
        "types of weights, activations and cache"
    )  # fmt: skip
    stack: Name = Field("ideal", description="software stack, from the catalog of stacks, or a YAML file")
    engine: EngineOptions = Field(
        {},
        description="traffic: options of the serving engine by their own names, such as max_num_seqs; `policy` names "
        "another scheduler than the stack's",
    )
    optimizer: Optimizer = Field(ADAMW, description="of a training step: a name, or its bytes")
    runtime_reserve: Bytes = Field(
        float(2 * 2**30), description="memory per GPU for context, collective buffers, fragmentation; default 2 GiB"
    )

    @model_validator(mode="after")
    def _one_batch(self) -> Workload:
        if self.global_batch is not None and "sequences_per_replica" in self.model_fields_set:
            raise refuse("global_batch and sequences_per_replica both say how much a step is; leave one out")
        return self

    @model_validator(mode="after")
    def _drawn(self) -> Workload:
        if self.lengths is None:
            return self
        if self.global_batch is None:
            raise refuse("lengths are of a global batch; state global_batch")
        beside = next((key for key in ("document", "multi_token") if getattr(self, key)), None)
        if beside is not None:
            raise refuse(f"{beside} is not built beside lengths; leave it out")
        return self

    def unequal(self) -> Unequal:
        """The step's sequences of unequal length, drawn from ``length_seed``."""
        if self.lengths is None:
            return Unequal(())
        if self.batch_of(1) > MOST_LENGTHS:
            problem = f"{self.batch_of(1):,} sequences of unequal length; at most {MOST_LENGTHS:,} are dealt out"
            raise InputError(problem, key="workload.global_batch")
        drawn = self.lengths.draw(np.random.default_rng([self.length_seed, 0]), self.batch_of(1), "prompt_tokens")
        kept = np.minimum(drawn, self.sequence)
        return Unequal(tuple(kept.tolist()), int((drawn - kept).sum()))

    def sequences_of(self, replicas: int, plan: str = "") -> int:
        """Sequences of each of ``replicas`` replicas in a step.

        Raises
        ------
        InputError
            The global batch does not divide by the replicas.
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
        """Sequences of a step over ``replicas`` replicas: the global batch, or the sum of what each has."""
        return self.global_batch or self.sequences_per_replica * replicas

    def with_sequences(self, sequences: int) -> Workload:
        """A copy with ``sequences`` per replica, whatever the batch was; a batch of unequal lengths stays."""
        if self.lengths is not None:
            return self
        return self.model_copy(update={"sequences_per_replica": sequences, "global_batch": None})

    @model_validator(mode="before")
    @classmethod
    def _of_its_step(cls, data: Any) -> Any:
        """Check the keys that size a step: required ones are stated, others belong to the step; apply spellings."""
        if not isinstance(data, Mapping) or not isinstance(data.get("pass"), str) or data["pass"] not in STEPS:
            return data
        step, wrong = STEPS.get(data["pass"]), []
        spelt = step.spellings.items()
        same = {key: meant for key, meant in spelt if data.get(key) is not None and data.get(meant) is None}
        data = {same.get(key, key): value for key, value in data.items() if key not in same.values()}
        amounts = dict.fromkeys(key for kind in STEPS.values() for key in (*kind.needs, *kind.takes))
        for key in amounts:
            stated = data.get(key) is not None
            if key in step.needs and not stated:
                wrong.append(InitErrorDetails(type="missing", loc=(key,), input=data))
            elif stated and key not in (*step.needs, *step.takes):
                users = [kind.name for kind in STEPS.values() if key in (*kind.needs, *kind.takes)]
                error = refuse(
                    f"is of {', '.join(users)}; a {step.title} takes {', '.join((*step.needs, *step.takes))}"
                )
                wrong.append(InitErrorDetails(type=error, loc=(key,), input=data[key]))
        if wrong:
            fields = cls.model_fields.items()
            spellings = {spelling for name, field in fields for spelling in (name, field.alias)} | {*step.spellings}
            # Unknown keys are reported too, since one may be a misspelt required key.
            strange = (key for key in data if key not in spellings)
            wrong.extend(InitErrorDetails(type="extra_forbidden", loc=(str(key),), input=data[key]) for key in strange)
            raise ValidationError.from_exception_data(cls.__name__, wrong)
        return data

    @model_validator(mode="after")
    def _every_context(self) -> Workload:
        lengths = len(self.context) if isinstance(self.context, tuple) else 1
        if self.batch is not None and lengths > self.batch:
            raise refuse(f"context: {lengths} lengths for a batch of {self.batch}; state at most one a sequence")
        return self

    @model_validator(mode="after")
    def _branches_behind_something(self) -> Workload:
        branch = self.streams.branch if self.streams else None
        contexts = self.context if isinstance(self.context, tuple) else (self.context,)
        short = next(
            (context for context in contexts if context is not None and branch is not None and context <= branch), None
        )
        if short is not None:
            raise refuse(f"streams.branch: {branch} tokens of a context of {short} leave none to share; use fewer")
        return self

    @model_validator(mode="after")
    def _types_of_its_step(self) -> Workload:
        if isinstance(self.precision, PrecisionSpec) and not STEPS.get(self.pass_).serves:
            serving = [kind.name for kind in STEPS.values() if kind.serves]
            raise refuse(f"precision: types by class and of a cache are of {', '.join(serving)}; name one type")
        return self

    def load(self) -> Load:
        """The load of a serving step."""
        contexts = self.context if isinstance(self.context, tuple) else (self.context,) if self.context else ()
        prompts = "sequence" in STEPS.get(self.pass_).needs
        return Load(
            prompts=self.sequences_per_replica if prompts else 0,
            prompt=self.sequence if prompts else 0,
            cached=self.cached,
            chunk=self.chunk,
            batch=self.batch or 0,
            contexts=contexts,
            speculation=self.speculation.speculation() if self.speculation else None,
            streams=self.streams or ONE_STREAM,
        )
