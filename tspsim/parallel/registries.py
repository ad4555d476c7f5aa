"""Facts of schemes that plans and jobs read: their options, how they share contexts, and schemes by name.

A plan's degrees select its scheme, and schemes write programs of plans, so this registry lies below both. The whole
scheme is :class:`~tspsim.parallel.scheme.Scheme`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..base.registry import Registry
from .search_rule import SearchRule


@dataclass(frozen=True)
class Option:
    """A key that a registered object adds to a scenario's plan.

    Attributes
    ----------
    type
        Type of a stated value: any that pydantic accepts, or a registry, one of whose names it is.
    default
        Value if none is stated; None: the plan's ``options`` lack it.
    summary
        A line for people.
    search
        What a search over plans does with it.
    """

    name: str
    type: Any
    default: Any
    summary: str = ""
    search: SearchRule | None = None


# --- sharing of contexts ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ContextShare:
    """How the ranks of a replica share the contexts of a serving step."""

    #: Axis of the ranks that each hold a part of the tokens of the same heads; empty: one rank holds all.
    axis: str = ""
    #: Number of those ranks.
    ranks: int = 1
    #: Parts that heads are divided into during the projections of queries, keys and values, during attention, and in
    #: the output projection. If ``projected`` exceeds ``attended``, queries are gathered first; if ``own`` does, a rank
    #: takes only its own heads of the merged output.
    projected: int = 1
    attended: int = 1
    own: int = 1
    #: Ranks that whole sequences are assigned to.
    sequences: int = 1
    #: Default decode exchange.
    usual: str = "tree"
    #: Batch multiplier per rank: replicas whose sequences a rank keeps, or attends for others.
    copies: float = 1
    #: Share of the sequences whose caches are on hosts.
    hosts: float = 0.0
    #: Whether every rank keeps all index keys, though ranks share contexts.
    whole_keys: bool = False

    @property
    def gathers(self) -> bool:
        """Whether queries of other ranks' heads are gathered first."""
        return self.projected > self.attended

    @property
    def keeps_all(self) -> bool:
        """Whether a rank's output projection takes all heads that it attended."""
        return self.own == self.attended


def in_heads(parts: int) -> ContextShare:
    """A share that divides heads alone."""
    return ContextShare(projected=parts, attended=parts, own=parts)


# --- registry of schemes ----------------------------------------------------------------------------------------


class SchemeFacts(Protocol):
    """Facts of a scheme that plans and jobs read, described at :class:`~tspsim.parallel.scheme.Scheme`.

    Their arguments are ``Any``, since plans and jobs are defined above this module.
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
    def tensor_ranks(self) -> Callable[[Any], int]: ...


class _Schemes(Registry[SchemeFacts]):
    """Registry of schemes, which share no axes."""

    def register(self, thing: SchemeFacts) -> SchemeFacts:
        axes = getattr(thing, "axes", ())
        for other in self._objects.values():
            shared = sorted({*axes} & {*other.axes})
            if shared and other.name != thing.name:
                raise ValueError(f"axis '{shared[0]}' of scheme '{thing.name}' is one of scheme '{other.name}' already")
        return super().register(thing)


SCHEME_FACTS: Registry[SchemeFacts] = _Schemes("scheme", "tspsim.schemes")
