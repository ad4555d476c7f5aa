"""Facts of schemes that plans and jobs read: options, axes, context sharing.

A plan's degrees select its scheme, and schemes write programs of plans, so this registry lies below both. The whole
scheme is :class:`~tspsim.parallel.scheme.Scheme`.
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
    search: Sought | None = None


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

    def rank_bytes(self, use: CacheUse, context: int) -> float:
        """Bytes that a rank keeps of a sequence with ``context`` tokens in a layer: attended heads over its part of the
        tokens, and states of its own heads."""
        keys = context * use.shared_token_bytes if self.whole_keys else 0.0
        divided = replace(use, sequence_bytes=0.0, shared_token_bytes=0.0) if keys else replace(use, sequence_bytes=0.0)
        growing = divided.rank_bytes(context, self.attended, self.ranks) + keys
        kept = self.copies * (growing + use.sequence_bytes / min(self.own, use.state_heads))
        return kept * (1.0 - self.hosts) if self.hosts else kept


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
    def whole_ranks(self) -> Callable[[Any], int]: ...


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


def mesh_axes() -> tuple[str, ...]:
    """Mesh axes from the one with most communication to the one with least: all schemes', stages, replicas. The default
    placement lays them out in this order, the first along the node."""
    return *scheme_axes(), "pp", "dp"


def scheme_axes() -> tuple[str, ...]:
    """Axes that schemes spread a replica over."""
    return tuple(dict.fromkeys(axis for scheme in SCHEME_FACTS.values() for axis in scheme.axes))


def scheme_name(degrees: Mapping[str, int]) -> str:
    """The scheme that degrees select: the one whose own axes have several ranks, or the default."""
    usual, *others = sorted(SCHEME_FACTS.values(), key=lambda scheme: not scheme.usual)
    return next((scheme.name for scheme in others if any(degrees.get(axis, 1) > 1 for axis in scheme.axes)), usual.name)
