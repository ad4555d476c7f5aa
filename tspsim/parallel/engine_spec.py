"""The section ``engine`` of a stack's YAML: what a serving engine does beside its kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import create_model

from tspsim.base.provenance import Provenance
from tspsim.base.strict import Strict, keys_that_state, stated_in
from tspsim.base.units import duration, gib

from ..base.stated import Expected, Stated
from .engine_memory import MemoryRule, StateRule
from .paces import Pace
from .serving_engine import Graphs, Prior, Scheduler, Selection, ServingEngine

if TYPE_CHECKING:
    _EngineKeys = Strict
else:
    _EngineKeys = create_model("_EngineKeys", __base__=Strict, **keys_that_state(ServingEngine))


class EngineSpec(_EngineKeys):
    """How a serving engine runs a model; what is not stated costs nothing."""

    def engine(self, name: str) -> ServingEngine:
        """The facts as programs and capacities read them."""
        stated = {field: facts(entry) for field, entry in stated_in(self, ServingEngine).items()}
        if "limits" in stated:
            stated["limits"] = tuple(sorted(stated["limits"], key=lambda limits: limits.memory_bytes))
        return ServingEngine(name, **stated)

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
                    what, f"{entry.kernels} kernels of {_text('each', entry.kernel_time)}", entry.source, "library"
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


def facts(stated: Any) -> Any:
    """What engines read of what a file states: a section as it is, a value without its source, one that differs
    between installations with its range; of many each."""
    if isinstance(stated, Pace):
        return stated
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
