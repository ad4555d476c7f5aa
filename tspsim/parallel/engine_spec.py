"""The section ``engine`` of a stack's YAML: what a serving engine does beside its kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PositiveInt, StrictBool
from pydantic_core import PydanticCustomError

from tspsim.base.provenance import Provenance
from tspsim.base.strict import Strict
from tspsim.base.units import Bytes, PositiveCount, Seconds, duration, gib

from ..base.stated import Expected, Stated
from .engine_memory import EngineLimits, MemoryRule, Pages, StateRule
from .paces import FAMILIES, Factor, Pace
from .serving_engine import Graphs, Prior, Scheduler, Selection, ServingEngine

Share = Annotated[float, Field(ge=0.0, le=1.0)]
BytesPerLogit = Annotated[float, Field(ge=0.0, le=256.0, allow_inf_nan=False)]


def _families(stated: Stated[dict[str, int]]) -> Stated[dict[str, int]]:
    """Refuse names that are no class of operators."""
    names = {name.split()[0] for name in stated.value}
    if wrong := sorted(names - FAMILIES):
        near = ", ".join(sorted(FAMILIES))
        raise PydanticCustomError(
            "family", "no operator is a {wrong}; they are {near}", {"wrong": wrong[0], "near": near}
        )
    return stated


class EngineSpec(Strict):
    """How a serving engine runs a model; what is not stated costs nothing."""

    kernels: Stated[str] | None = Field(None, description="first word of its kernels' libraries")
    libraries: dict[str, Stated[str]] = Field(
        {}, description="family and types → the library that it runs instead, by the first words of its name"
    )
    graphs: Graphs | None = None
    saved: Expected[Seconds] | None = Field(None, description="time that a graph saves of a product measured alone")
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
    selection: Selection | None = None
    launched: Annotated[Stated[dict[str, PositiveInt]], AfterValidator(_families)] | None = Field(
        None, description="class of operators → kernels that the host launches for one"
    )
    skew: Expected[Seconds] | None = Field(None, description="wait in a collective per doubling of its ranks")
    skews: dict[str, Expected[Seconds]] = Field({}, description="device → the same, if different")
    front_end: Expected[Seconds] | None = Field(None, description="from arrival to schedule and first token to client")
    hosts: dict[str, Expected[Factor]] = Field({}, description="device → slowdown of its host")
    paces: tuple[Pace, ...] = Field(
        (), description="kernels that take longer on some GPUs than measured; the first entry that applies"
    )
    memory: MemoryRule | None = None
    context: Expected[Bytes] | None = Field(None, description="memory of the runtime")
    peer: Expected[Bytes] | None = Field(None, description="memory of communication per other GPU of a replica")
    graph_memory: Expected[Bytes] | None = Field(None, description="memory of captured graphs")
    logit: Expected[BytesPerLogit] | None = Field(None, description="bytes per logit while the largest pass samples")
    block: Stated[PositiveInt] | None = Field(None, description="tokens of a block of the cache")
    pages: tuple[Pages, ...] = Field((), description="other sizes of blocks; the first entry that applies")
    states: StateRule | None = Field(None, description="how states of linear attention are kept")
    context_workspace: Stated[PositiveCount] | None = Field(
        None, description="most tokens of cached latents expanded to keys and values at once; default: whole contexts"
    )
    limits: Stated[tuple[EngineLimits, ...]] | None = None
    few_tokens: Stated[PositiveCount] | None = Field(
        None, description="tokens of a pass if attention replicas reach experts by low-latency messages"
    )
    slots: Stated[PositiveCount] | None = Field(None, description="sequences that may run at once, if stated")
    norms_all: Stated[StrictBool] | None = Field(
        None, description="the last norm is of all tokens of a pass, not only of those that output one"
    )
    scheduler: Scheduler | None = Field(None, description="scheduler of requests, and its options")

    def engine(self, name: str) -> ServingEngine:
        """The facts as programs and capacities read them."""
        stated = {_READ_AS.get(key, key): facts(getattr(self, key)) for key in EngineSpec.model_fields}
        stated["paces"] = self.paces
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
            elif isinstance(entry, Graphs):
                value = f"{' '.join(map(str, entry.sizes))}, to {entry.most} {entry.unit}"
                yield Provenance(what, value, entry.source, "library")
            elif isinstance(entry, Selection):
                yield Provenance(
                    what, f"{entry.kernels} kernels of {_text('each', entry.each)}", entry.source, "library"
                )
            elif isinstance(entry, StateRule):
                yield Provenance(f"{what} of linear attention", entry.kept, entry.source, "library")
            elif isinstance(entry, MemoryRule):
                yield Provenance(what, f"{entry.share:.0%}", entry.source, "library")
            elif isinstance(entry, Scheduler):
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
    """What engines read of what a file states: a section as it is, a value without its source, one that differs
    between installations with its range; of many each."""
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
