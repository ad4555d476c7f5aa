"""Partial recomputation: registered methods that choose layers of a pipeline's chunk.

    block     the first n layers of every chunk (Megatron-Core's ``--recompute-method block``)
    every     every n-th layer, from the first on (torchtitan's ``selective_ac_option`` as a number)
    uniform   all layers in groups of n: only a group's input is kept, and the group is recomputed as a whole
              (Megatron-Core's ``--recompute-method uniform``)

Other layers keep everything. ``--recompute-num-layers`` counts per chunk, as n does here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from ..base.memo import remembered
from ..base.registry import Registry
from ..base.strict import OneOf
from ..base.units import PositiveCount

#: Recomputation of a layer (:mod:`tspsim.parallel.recompute`).
KEPT, ATTENTION, CHEAP, FULL = "none", "selective", "cheap", "full"
#: A layer inside a group that is recomputed as a whole: not even its input is kept.
INSIDE = "inside"


@dataclass(frozen=True)
class RecomputeMethod:
    """A method to choose recomputed layers."""

    #: Its name in plans, and a line for people.
    name: str
    summary: str
    #: (index of a layer in its chunk, n of the plan) → whether it is recomputed.
    recomputed: Callable[[int, int], bool]
    #: n of the plan → layers recomputed together; usually 1.
    group: Callable[[int], int] = lambda layers: 1
    #: Its word in names of plans, before the number.
    word: str = ""
    #: Framework → its name for the method.
    launched: Mapping[str, str] = field(default_factory=dict)


RECOMPUTE_METHODS: Registry[RecomputeMethod] = Registry(
    "recomputation method", "tspsim.recompute_methods", RecomputeMethod
)
BLOCK = RECOMPUTE_METHODS.register(
    RecomputeMethod(
        "block", "the first layers of every chunk", lambda index, layers: index < layers, launched={"megatron": "block"}
    )
)
RECOMPUTE_METHODS.register(
    RecomputeMethod(
        "every",
        "every so-many-th layer",
        lambda index, layers: index % layers == 0,
        word="/",
        launched={"torchtitan": "selective_ac_option"},
    )
)
RECOMPUTE_METHODS.register(
    RecomputeMethod(
        "uniform",
        "all, in groups of layers",
        lambda index, layers: True,
        group=lambda layers: layers,
        word="u",
        launched={"megatron": "uniform"},
    )
)


@dataclass(frozen=True)
class PartialRecompute:
    """Some layers of every chunk, by a method of :data:`RECOMPUTE_METHODS`."""

    layers: Annotated[PositiveCount, Field(description="n of the method, per chunk of a stage")]
    method: Annotated[
        str,
        OneOf(RECOMPUTE_METHODS.names),
        Field(description="the first n layers, every n-th layer, or all in groups of n"),
    ] = BLOCK.name

    @property
    def group(self) -> int:
        """Layers recomputed together."""
        return RECOMPUTE_METHODS.get(self.method).group(self.layers)

    @property
    def word(self) -> str:
        """Its word in names of plans, after what is recomputed."""
        return f"{RECOMPUTE_METHODS.get(self.method).word}{self.layers}"

    def by_layer(self, recomputation: str, layers: int) -> tuple[str, ...]:
        """The recomputation of each of a chunk's layers.

        >>> [PartialRecompute(2, method).by_layer("full", 3) for method in ("block", "every", "uniform")]
        [('full', 'full', 'none'), ('full', 'none', 'full'), ('full', 'inside', 'full')]
        """
        return _by_layer(self, recomputation, layers)


@remembered(4096)
def _by_layer(partly: PartialRecompute, recomputation: str, layers: int) -> tuple[str, ...]:
    method, group = RECOMPUTE_METHODS.get(partly.method), partly.group
    return tuple(
        (INSIDE if index % group else recomputation) if method.recomputed(index, partly.layers) else KEPT
        for index in range(layers)
    )
