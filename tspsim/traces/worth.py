"""What an operator takes: the kinds of kernels beside its own, and how much each is worth to it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..base.memo import remembered
from .kinds import HEAVY, KINDS

Floats = NDArray[np.float64]

#: Kinds of kernels that an operator takes beside its own: those that stand for its own, and helpers.
TAKES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gemm": ((), ("quantize", "copy", "reduction", "elementwise", "memset", "memcpy", "activation", "router")),
    "grouped_gemm": (
        ("gemm",),
        (
            "permute",
            "quantize",
            "router",
            "activation",
            "copy",
            "reduction",
            "elementwise",
            "memset",
            "memcpy",
            "sample",
        ),
    ),
    "attention": ((), ("rope", "cache", "copy", "norm", "quantize", "elementwise", "reduction", "memset", "memcpy")),
    "linear_attention": (
        ("attention", "convolution"),
        ("norm", "copy", "elementwise", "reduction", "activation", "cache"),
    ),
    "norm": (("reduction",), ("elementwise", "copy", "quantize", "memcpy")),
    # Eager frameworks run products, sums and copies one by one instead of these two.
    "activation": (("elementwise",), ("copy", "quantize")),
    "rope": (("elementwise",), ("norm", "copy", "cache", "memcpy")),
    # Eager frameworks append to a cache by copying it.
    "cache": (("copy",), ("quantize", "memcpy", "elementwise")),
    "router": (
        ("permute",),
        ("reduction", "elementwise", "copy", "memset", "memcpy", "sample", "activation", "quantize"),
    ),
    "permute": (("router",), ("copy", "elementwise", "quantize", "reduction", "memset", "memcpy", "embedding")),
    "quantize": (("copy",), ("memset",)),
    "elementwise": ((), ("copy", "reduction", "memcpy")),
    "copy": (("memcpy", "quantize"), ("elementwise",)),
    "embedding": ((), ("copy", "memcpy", "elementwise", "reduction", "memset", "sample")),
    "sample": (("reduction",), ("elementwise", "copy", "memcpy", "memset", "router", "embedding")),
    "loss": (("reduction",), ("elementwise", "copy", "memset")),
    "optimizer": (("elementwise",), ("copy", "reduction", "memset", "memcpy")),
    "all_reduce": (("exchange",), ()),
    "all_gather": (("exchange", "broadcast"), ("copy",)),
    "reduce_scatter": (("exchange",), ("copy",)),
    "broadcast": (("exchange",), ()),
    "send_recv": (("exchange",), ()),
    "all_to_all": (("send_recv", "dispatch", "combine", "exchange"), ()),
    "dispatch": (("all_to_all", "send_recv", "exchange"), ("combine",)),
    "combine": (("all_to_all", "send_recv", "exchange"), ("dispatch",)),
}
#: Kinds whose operators often run as several kernels of their own kind.
SEVERAL = frozenset({"attention", "linear_attention", "grouped_gemm", "optimizer"})

#: The worth of an operator's first kernel of its own kind, of a kernel that stands for it, and of a helper; then the
#: costs of a left-over kernel and of an empty operator, and the worth of a further kernel. Only their order matters:
#: small kernels never outweigh a heavy one. Whole numbers keep equal assignments equal, whatever was added before them.
OWN, STANDS_FOR, HELPS = 60.0, 30.0, 2.0
#: Worth of a small kernel beside a product or attention: where a small operator is next to it too, it is of that.
HELPS_HEAVY = 1.0
HEAVIER = 4.0
LEFT, EMPTY, FURTHER = 6.0, 10.0, 8.0
#: Worth of a further kernel of a product that joins several weights: surplus kernels go to it first, because some
#: frameworks do not join the weights.
FURTHER_OF_JOINED = 18.0
NEVER = -(2.0**26)


class Worth:
    """The worth of a lane's kernels to an operator of a kind: as its first, as a further one, and as a helper."""

    __slots__ = ("_within", "first", "further", "gone", "helped", "helper")

    def __init__(self, first: Floats, further: Floats, helper: Floats) -> None:
        self.first, self.further, self.helper = first, further, helper
        #: Sums: of helpers before every place, and of what goes on with a run up to every kernel.
        self.helped = np.concatenate([[0.0], np.cumsum(helper)])
        self.gone = np.cumsum(np.maximum(further, helper))
        self._within: dict[tuple[int, int], Worth] = {}

    def within(self, window: slice) -> Worth:
        """The same of a stretch of the kernels."""
        if window.stop - window.start == len(self.first):
            return self
        own = self._within.get((window.start, window.stop))
        if own is None:
            own = Worth(self.first[window], self.further[window], self.helper[window])
            self._within[window.start, window.stop] = own
        return own


@remembered(256)
def table(kind: str, several: bool, joins: bool, chain: bool = False) -> tuple[Floats, Floats, Floats]:
    """Worth by kind of kernel, in the order of KINDS. ``several``: operators of the kind often run as several kernels.
    ``joins``: the operator is one product of several weights, which some frameworks run one by one.
    ``chain``: the simulation counts several kernels for it, which are of any small kind."""
    first, further, helper = (np.full(len(KINDS), NEVER) for _ in range(3))
    own, helpers = TAKES.get(kind, ((), ()))
    if chain:
        own = (*own, *helpers)
    weight = HEAVIER if kind in HEAVY else 1.0
    for word in (kind, *own):
        worth = weight * (OWN if word == kind else STANDS_FOR)
        place = KINDS.index(word)
        first[place] = worth
        again = FURTHER_OF_JOINED if joins else FURTHER
        further[place] = 0.9 * worth if several else again * (HEAVIER if word in HEAVY else 1.0)
    for word in helpers:
        small = kind in HEAVY and word != "quantize"
        helper[KINDS.index(word)] = HELPS_HEAVY if small else HELPS
    return first, further, helper
