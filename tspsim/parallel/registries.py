"""What plans and jobs read of schemes: their keys, axes, and how they share contexts.

Keys that a scheme, or an object that it asks, adds to those of every plan.

Which part of the contexts of a serving step a rank holds.

Schemes by name, and what plans and jobs read of one.

A plan's degrees say which scheme it has, and a scheme writes programs of plans: the registry stands below both. The
whole of a scheme is :class:`~tspsim.parallel.scheme.Scheme`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..base.registry import Registry
from ..model.attention import CacheUse
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

    def rank_bytes(self, use: CacheUse, context: int) -> float:
        """What a rank keeps of a sequence with so many tokens, in a layer: heads that are attended together over its
        part of the tokens, and states of its own heads."""
        keys = context * use.shared_token_bytes if self.whole_keys else 0.0
        divided = replace(use, sequence_bytes=0.0, shared_token_bytes=0.0) if keys else replace(use, sequence_bytes=0.0)
        growing = divided.rank_bytes(context, self.attended, self.ranks) + keys
        kept = self.copies * (growing + use.sequence_bytes / min(self.own, use.state_heads))
        return kept * (1.0 - self.hosts) if self.hosts else kept


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


def mesh_axes() -> tuple[str, ...]:
    """Mesh axes, from the one whose ranks talk most to the one whose ranks talk least: those of all schemes, stages and
    replicas. The default placement puts them on the graph in this order, the first along the node."""
    return *scheme_axes(), "pp", "dp"


def scheme_axes() -> tuple[str, ...]:
    """Those that schemes spread a replica over."""
    return tuple(dict.fromkeys(axis for scheme in SCHEME_FACTS.values() for axis in scheme.axes))


def scheme_name(degrees: Mapping[str, int]) -> str:
    """The scheme that degrees ask for: the one whose own axes have several ranks, or the usual one."""
    usual, *others = sorted(SCHEME_FACTS.values(), key=lambda scheme: not scheme.usual)
    return next((scheme.name for scheme in others if any(degrees.get(axis, 1) > 1 for axis in scheme.axes)), usual.name)
