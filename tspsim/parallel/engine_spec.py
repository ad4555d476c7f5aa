"""The section ``engine`` of a stack's YAML: what a serving engine does beside its kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PositiveInt, StrictBool, field_validator
from pydantic_core import PydanticCustomError

from tspsim import operators
from tspsim.base.provenance import Provenance
from tspsim.base.units import Bytes, PositiveCount, Seconds, duration, gib

from .engine_memory import EngineLimits, MemoryRule, Pages, StateRule
from .paces import ROUTED, Pace
from .serving_engine import Graphs, Prior, Scheduler, Selection, ServingEngine, Sizes
from .stated import Expected, StackSection, Stated

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Factor = Annotated[float, Field(ge=1.0, le=20.0, allow_inf_nan=False)]
BytesPerLogit = Annotated[float, Field(ge=0.0, le=256.0, allow_inf_nan=False)]
Part = Literal["weights", "activations", "graphs", "context"]
#: Operators by the name of their class.
FAMILIES = frozenset(
    name
    for name, thing in vars(operators).items()
    if isinstance(thing, type) and issubclass(thing, operators.Operator) and name in operators.__all__
)
#: A size, or from where on every so many.
Size = PositiveInt | tuple[PositiveInt, PositiveInt]


class GraphsSpec(StackSection):
    """Batches whose decode pass is captured: ``sizes`` are numbers, then pairs (from here on, every so many)."""

    source: str = Field(min_length=3, max_length=2000)
    sizes: tuple[Size, ...] = Field(min_length=1)
    most: PositiveInt
    per_slot: PositiveInt | None = Field(None, description="at most so many times the sequences that may run at once")
    with_most: StrictBool = Field(False, description="the largest is captured where the sizes leave it out")
    unit: Literal["tokens", "sequences"] = "tokens"
    with_drafts: tuple[Size, ...] | None = Field(None, description="sizes where drafts are verified, if others")
    pads: StrictBool = Field(True, description="smaller batches are padded to the next size")
    pieces: StrictBool = Field(False, description="other passes run in pieces, to the same largest size")

    def facts(self) -> Graphs:
        """The same as engines read it."""
        return Graphs(
            _sizes(self.sizes),
            self.most,
            self.per_slot,
            self.with_most,
            self.unit == "sequences",
            None if self.with_drafts is None else _sizes(self.with_drafts),
            self.pads,
            self.pieces,
        )


def _sizes(stated: tuple[Size, ...]) -> Sizes:
    numbers = tuple(size for size in stated if isinstance(size, int))
    return Sizes(numbers, tuple(size for size in stated if not isinstance(size, int)))


class ReserveSpec(StackSection):
    """Memory that an engine's scripts keep free: the sum of its parts, but at least ``least``."""

    fixed: Bytes = 0.0
    token: Bytes = Field(0.0, description="for every token of the largest pass")
    graph: Bytes = Field(0.0, description="for every sequence of the largest graph")
    rank: Bytes = Field(0.0, description="for every GPU of a replica")
    least: Bytes = 0.0


class MemorySpec(StackSection):
    """Caches get ``share`` · (visible memory − ``before``) − ``after`` − ``reserve``."""

    source: str = Field(min_length=3, max_length=2000)
    share: Share = 1.0
    before: tuple[Part, ...] = ()
    after: tuple[Part, ...] = ()
    reserve: ReserveSpec = ReserveSpec()

    def facts(self) -> MemoryRule:
        """The same as engines read it."""
        kept = self.reserve
        reserve = (kept.fixed, kept.token, kept.graph, kept.rank)
        return MemoryRule(self.share, self.before, self.after, reserve, kept.least)


class SchedulerSpec(StackSection):
    """Who decides what a step does."""

    source: str = Field(min_length=3, max_length=2000)
    name: str = Field(min_length=1, max_length=200)
    options: dict[str, Any] = Field({}, description="of the scheduler, by their real names")
    share: str = Field("", max_length=200, description="the engine's own name for its share of memory")
    shares_tokens: StrictBool = Field(False, description="attention replicas share the tokens of a pass")

    def facts(self) -> Scheduler:
        """The same as engines read it."""
        return Scheduler(self.name, self.options, self.share, self.shares_tokens)


class LimitsSpec(StackSection):
    """The most of a pass, and of sequences at once, on GPUs of ``memory`` and more."""

    memory: Bytes = 0.0
    tokens: PositiveCount
    sequences: PositiveCount
    but: tuple[str, ...] = Field((), description="words of names of GPUs that have the limits of less memory")
    source: str = Field("", max_length=2000, description="version and line, where it is not that of all")

    def facts(self) -> EngineLimits:
        """The same as engines read it."""
        return EngineLimits(self.memory, self.tokens, self.sequences, self.but)


class PagesSpec(StackSection):
    """Tokens of a block where an attention backend of its own runs models of some kinds of attention."""

    tokens: PositiveInt
    attention: tuple[str, ...] = Field(min_length=1, description="kinds of attention, as models name them")
    devices: tuple[str, ...] = Field((), description="words of names of GPUs; all when left out")
    backend: str = Field("", max_length=200, description="as the engine calls it")
    source: str = Field(min_length=3, max_length=2000)

    def facts(self) -> Pages:
        """The same as engines read it."""
        return Pages(self.tokens, self.attention, self.devices)

    def provenance(self, what: str) -> Provenance:
        """The row of a report."""
        where = " and ".join(self.attention) + (f" on {', '.join(self.devices)}" if self.devices else "")
        pages = f"{self.tokens} tokens ({self.backend})" if self.backend else f"{self.tokens} tokens"
        return Provenance(f"{what} of {where}", pages, self.source, "library")


class PaceSpec(Expected[Factor]):
    """How much longer some kernels take on some GPUs than the measured ones."""

    devices: tuple[str, ...] = Field(min_length=1, description="names of GPUs")
    kernels: tuple[str, ...] = Field(
        (), description="types, classes of operators, `routed`, or several of them in a text; all when left out"
    )
    least: Seconds = Field(0.0, ge=0.0, description="and none of them takes less")

    @field_validator("kernels")
    @classmethod
    def _known(cls, kernels: tuple[str, ...]) -> tuple[str, ...]:
        allowed = {*operators.DTYPES, *FAMILIES, *operators.MEMORY_BOUND_OPS, ROUTED}
        if wrong := sorted({word for kernel in kernels for word in kernel.split()} - allowed):
            raise PydanticCustomError("kernels", "no kernel is '{wrong}'; known: {known}",
                                      {"wrong": wrong[0], "known": ", ".join(sorted(allowed))})  # fmt: skip
        return kernels

    def facts(self) -> Pace:
        """The same as engines read it."""
        return Pace(self.value, self.devices, self.kernels, self.least)

    def provenance(self, what: str) -> Provenance:
        """The row of a report."""
        of = " of " + ", ".join(self.kernels) if self.kernels else ""
        least = f", at least {duration(self.least)}" if self.least else ""
        low, high = self.ends
        value = f"{self.value:g} ({low:g} to {high:g}){least}"
        return Provenance(f"{what}{of} on {', '.join(self.devices)}", value, self.source, "assumed")


class StatesSpec(StackSection):
    """How states of linear attention are kept, and up to where a prompt's beginning is found again."""

    kept: Literal["blocks", "pool", "never"] = Field(description="in blocks of the cache, in a pool, or not at all")
    inflates: StrictBool = Field(False, description="a block of a layer with attention covers a state of another")
    align: dict[str, PositiveInt] = Field({}, description="kind of attention → tokens of which a block has a multiple")
    inside: tuple[PagesSpec, ...] = Field(
        (), description="kernels that write states from inside a piece, and what blocks are multiples of for them"
    )
    at: Literal["pieces", "last", "every"] = Field("pieces", description="which states of a prompt are kept")
    live: PositiveInt = Field(1, description="states of a sequence that runs")
    copies: PositiveInt = Field(1, description="states of the pool for each sequence that may run")
    share: float = Field(0.0, ge=0.0, le=100.0, description="memory of the pool over that of tokens")
    grid: PositiveCount = Field(0, description="tokens: pieces of prompts keep a state at a multiple; 0: at blocks")
    decoding: PositiveCount = Field(0, description="the same while answers are put out")
    every: PositiveCount = Field(0, description="tokens of a prompt behind which a state is kept besides")
    source: str = Field(min_length=3, max_length=2000)

    def facts(self) -> StateRule:
        """The same as engines read it."""
        return StateRule(inside=facts(self.inside), **self.model_dump(exclude={"source", "inside"}))


class SelectionSpec(StackSection):
    """Choosing experts by biased sigmoids where the engine's one kernel for it does not take their number."""

    per_group: PositiveInt = Field(description="experts of a group that it takes, in powers of two altogether")
    counts: tuple[PositiveInt, ...] = Field((), description="further numbers of experts that have a kernel")
    kernels: PositiveInt = Field(description="that run instead")
    each: Expected[Seconds] = Field(description="time of one in a graph")
    but: tuple[str, ...] = Field((), description="words of names of GPUs on which one kernel takes any number")
    gate: PositiveCount = Field(0, description="kernels of a gate of shared experts, and of their sum with the others")
    source: str = Field(min_length=3, max_length=2000)

    def facts(self) -> Selection:
        """The same as engines read it."""
        return Selection(self.per_group, self.counts, self.kernels, facts(self.each), self.but, self.gate)


def _families(stated: Stated[dict[str, int]]) -> Stated[dict[str, int]]:
    """Refuse names that are no class of operators."""
    names = {name.split()[0] for name in stated.value}
    if wrong := sorted(names - FAMILIES):
        near = ", ".join(sorted(FAMILIES))
        raise PydanticCustomError(
            "family", "no operator is a {wrong}; they are {near}", {"wrong": wrong[0], "near": near}
        )
    return stated


class EngineSpec(StackSection):
    """How a serving engine runs a model; what is left out costs nothing."""

    kernels: Stated[str] | None = Field(None, description="first word of its kernels' libraries")
    libraries: dict[str, Stated[str]] = Field(
        {}, description="family and types → the library that it runs instead, by the first words of its name"
    )
    graphs: GraphsSpec | None = None
    saved: Expected[Seconds] | None = Field(None, description="what a graph saves of a product measured alone")
    saved_types: dict[str, Expected[Seconds]] = Field({}, description="type of operands → the same, if different")
    fused_quantising: Stated[tuple[str, ...]] | None = Field(
        None, description="types to which the kernel before a product casts its input"
    )
    separate_quantising: Stated[tuple[str, ...]] | None = Field(
        None, description="types to which a separate kernel casts every product's input, after norms too"
    )
    step: Expected[Seconds] | None = Field(None, description="host time per step")
    sequence: Expected[Seconds] | None = Field(None, description="host time per sequence of a step")
    hidden: Stated[Share] | None = Field(None, description="share of both that runs beside the device")
    layer: Expected[Seconds] | None = Field(None, description="time per layer of small kernels that programs leave out")
    routed: Expected[Seconds] | None = Field(None, description="the same, in addition, per layer with routed experts")
    drafted: Expected[Seconds] | None = Field(
        None, description="host time between the passes of a verify step, while the device waits"
    )
    selection: SelectionSpec | None = None
    launched: Annotated[Stated[dict[str, PositiveInt]], AfterValidator(_families)] | None = Field(
        None, description="class of operators → kernels that the host launches for one"
    )
    skew: Expected[Seconds] | None = Field(None, description="wait in a collective per doubling of its ranks")
    skews: dict[str, Expected[Seconds]] = Field({}, description="device → the same, if different")
    front_end: Expected[Seconds] | None = Field(None, description="from arrival to schedule and first token to client")
    hosts: dict[str, Expected[Factor]] = Field({}, description="device → how much slower its host is")
    paces: tuple[PaceSpec, ...] = Field(
        (), description="kernels that take longer on some GPUs than measured ones: the first that holds"
    )
    memory: MemorySpec | None = None
    context: Expected[Bytes] | None = Field(None, description="memory of the runtime")
    peer: Expected[Bytes] | None = Field(None, description="memory of communication per other GPU of a replica")
    graph_memory: Expected[Bytes] | None = Field(None, description="memory of captured graphs")
    logit: Expected[BytesPerLogit] | None = Field(None, description="bytes per logit while the largest pass samples")
    block: Stated[PositiveInt] | None = Field(None, description="tokens of a block of the cache")
    pages: tuple[PagesSpec, ...] = Field((), description="where blocks have other tokens: the first that holds")
    states: StatesSpec | None = Field(None, description="of linear attention: how they are kept")
    context_workspace: Stated[PositiveCount] | None = Field(
        None, description="most tokens of cached latents expanded to keys and values at once; default: whole contexts"
    )
    limits: Stated[tuple[LimitsSpec, ...]] | None = None
    few_tokens: Stated[PositiveCount] | None = Field(
        None, description="tokens of a pass if attention replicas reach experts by low-latency messages"
    )
    slots: Stated[PositiveCount] | None = Field(None, description="sequences that may run at once, if stated")
    norms_all: Stated[StrictBool] | None = Field(
        None, description="the last norm is of all tokens of a pass, not only of those that output one"
    )
    scheduler: SchedulerSpec | None = Field(None, description="of requests, and options of it")

    def engine(self, name: str) -> ServingEngine:
        """The facts as programs and capacities read them."""
        stated = {_READ_AS.get(key, key): facts(getattr(self, key)) for key in EngineSpec.model_fields}
        if stated["limits"] is not None:
            stated["limits"] = tuple(sorted(stated["limits"], key=lambda limits: limits.memory_bytes))
        return ServingEngine(name, **{key: value for key, value in stated.items() if value is not None})

    def provenance(self, stack: str) -> Iterator[Provenance]:
        """Stated facts with their sources."""
        for key in type(self).model_fields:
            entry = getattr(self, key)
            what = f"stack {stack}: {key.replace('_', ' ')}"
            if isinstance(entry, dict):
                for name, part in entry.items():
                    yield Provenance(f"{what} on {name}", _text(key, part), part.source, _basis(part))
            elif isinstance(entry, tuple):
                for part in entry:
                    yield part.provenance(what)
            elif isinstance(entry, GraphsSpec):
                value = f"{' '.join(map(str, entry.sizes))}, to {entry.most} {entry.unit}"
                yield Provenance(what, value, entry.source, "library")
            elif isinstance(entry, SelectionSpec):
                yield Provenance(
                    what, f"{entry.kernels} kernels of {_text('each', entry.each)}", entry.source, "library"
                )
            elif isinstance(entry, StatesSpec):
                yield Provenance(f"{what} of linear attention", entry.kept, entry.source, "library")
            elif isinstance(entry, MemorySpec):
                yield Provenance(what, f"{entry.share:.0%}", entry.source, "library")
            elif isinstance(entry, SchedulerSpec):
                stated = ", ".join(f"{option} {setting}" for option, setting in entry.options.items())
                yield Provenance(what, f"{entry.name} ({stated})" if stated else entry.name, entry.source, "library")
            elif isinstance(entry, Stated):
                yield Provenance(what, _text(key, entry), entry.source, _basis(entry))


#: Keys of a file that :class:`ServingEngine` names with their unit.
_READ_AS = {
    "context": "context_bytes",
    "peer": "peer_bytes",
    "graph_memory": "graph_bytes",
    "logit": "logit_bytes",
    "block": "block_tokens",
}


def facts(stated: Any) -> Any:
    """What engines read of what a file states: a section's own facts, a value without its source, one that differs
    between installations with its range; of many each."""
    if hasattr(stated, "facts"):
        return stated.facts()
    if isinstance(stated, Expected):
        return Prior(stated.value, *stated.ends)
    if isinstance(stated, Stated):
        return facts(stated.value)
    if isinstance(stated, dict):
        return {key: facts(value) for key, value in stated.items()}
    return tuple(map(facts, stated)) if isinstance(stated, tuple) else stated


def _basis(entry: Stated[Any]) -> str:
    return "assumed" if isinstance(entry, Expected) and entry.range is not None else "library"


#: Keys whose values are bytes, and keys without a unit; other floats are seconds.
_BYTES, _BARE = ("context", "peer", "graph_memory"), ("hosts", "paces", "logit", "hidden")


def _text(key: str, entry: Stated[Any]) -> str:
    """A value as reports print it."""

    def plain(value: Any) -> str:
        if isinstance(value, tuple):
            texts = (
                part if isinstance(part, str) else f"{part.tokens} tokens, {part.sequences} sequences" for part in value
            )
            return "; ".join(texts)
        if isinstance(value, float) and key not in _BARE:
            return gib(value) if key in _BYTES else duration(value)
        return str(value)

    if isinstance(entry, Expected) and entry.range is not None:
        return f"{plain(entry.value)} ({' to '.join(map(plain, entry.range))})"
    return plain(entry.value)
