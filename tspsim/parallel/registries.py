"""Schemes by name, and what plans and jobs read of one.

A plan's degrees say which scheme it has, and a scheme writes programs of plans: the registry stands below both. The
whole of a scheme is :class:`~tspsim.parallel.scheme.Scheme`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..base.registry import Registry
from .context_share import ContextShare
from .option import Option


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
