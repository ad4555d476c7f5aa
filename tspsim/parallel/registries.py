"""What plans and jobs read of schemes: the keys that a scheme, or an object that it asks, adds to those of every plan,
how it shares the contexts of a serving step, and schemes by name.

A plan's degrees say which scheme it has, and a scheme writes programs of plans: the registry stands below both. The
whole of a scheme is :class:`~tspsim.parallel.scheme.Scheme`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..base.registry import Registry
from .sought import Sought


@dataclass(frozen=True)
class Option:
    """A key of a scenario's plan: its name, the type that a stated value must have (any that pydantic knows, or a
    registry, one of whose names it is), the value where none is stated, a line for people, and what a search over plans
    does with it. The plan's ``options`` have it, unless it is None."""

    name: str
    type: Any
    default: Any
    summary: str = ""
    search: Sought | None = None


# --- which part of the contexts of a serving step a rank holds ------------------------------------------------


@dataclass(frozen=True)
class ContextShare:
    """How the ranks of a replica share contexts."""

    #: Ranks along it hold a part of the tokens of the same heads each; empty where one holds them all.
    axis: str = ""
    #: How many those are.
    ranks: int = 1
    #: Parts that heads are cut into while queries, keys and values are made, while they are attended, and while
    #: outputs go through the output projection. Where ``projected`` is more than ``attended`` queries are gathered
    #: first; where ``own`` is, a rank takes only its own heads of what was merged.
    projected: int = 1
    attended: int = 1
    own: int = 1
    #: Ranks that whole sequences are dealt to.
    sequences: int = 1
    #: The exchange of plans that name none.
    usual: str = "tree"
    #: Replicas whose sequences a rank keeps all of, or as many as it attends of where others attend none.
    copies: float = 1
    #: Part of the sequences whose caches hosts keep.
    hosts: float = 0.0
    #: Keys of an indexer stand whole on every rank, though they share contexts.
    whole_keys: bool = False

    @property
    def gathers(self) -> bool:
        """Whether queries of other ranks' heads come first."""
        return self.projected > self.attended

    @property
    def keeps_all(self) -> bool:
        """Whether a rank's output projection takes all heads that it attended."""
        return self.own == self.attended


def in_heads(parts: int) -> ContextShare:
    """Heads are divided, and nothing else."""
    return ContextShare(projected=parts, attended=parts, own=parts)


# --- schemes by name, and what plans and jobs read of one -----------------------------------------------------


class SchemeFacts(Protocol):
    """What plans and jobs read of a scheme; each is described at :class:`~tspsim.parallel.scheme.Scheme`.

    Plans and jobs are defined above this module, so that what is asked of one takes any.
    """

    @property
    def name(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def axes(self) -> tuple[str, ...]: ...
    @property
    def token_axis(self) -> str: ...
    @property
    def alone(self) -> str: ...
    @property
    def usual(self) -> bool: ...
    @property
    def unequal(self) -> bool: ...
    @property
    def folds(self) -> bool: ...
    @property
    def options(self) -> tuple[Option, ...]: ...
    @property
    def groups(self) -> Callable[[Any], Mapping[str, Mapping[str, int]]]: ...
    @property
    def context(self) -> Callable[[Any], ContextShare]: ...
    @property
    def shards(self) -> Callable[[Any], int]: ...
    @property
    def head_shards(self) -> Callable[[Any], int]: ...
    @property
    def whole_ranks(self) -> Callable[[Any], int]: ...


class _Schemes(Registry[SchemeFacts]):
    """Schemes, each with axes of its own."""

    def register(self, thing: SchemeFacts) -> SchemeFacts:
        axes = getattr(thing, "axes", ())
        for other in self._objects.values():
            shared = sorted({*axes} & {*other.axes})
            if shared and other.name != thing.name:
                raise ValueError(f"axis '{shared[0]}' of scheme '{thing.name}' is one of scheme '{other.name}' already")
        return super().register(thing)


SCHEME_FACTS: Registry[SchemeFacts] = _Schemes("scheme", "tspsim.schemes")
