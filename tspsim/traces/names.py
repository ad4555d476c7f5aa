"""The kind of a kernel, from its name and the operator that launched it.

Rules register under ``tspsim.kernel_names``. The last registered rule is tried first, so that an extension's rules come
before the shipped ones (:mod:`.framework_names`, :mod:`.library_names`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..base.memo import once, remembered
from ..base.registry import Registry, changes
from .kinds import HEAVY, MOVES, UNKNOWN
from .symbols import in_snake_case, own_name, readable


@dataclass(frozen=True)
class KernelNames:
    """Names of kernels of one library.

    Parameters
    ----------
    name, summary
        The rule's name, and the libraries of its kernels.
    kinds
        Kind (:data:`tspsim.traces.kinds.KINDS`) → regular expressions for the kernel's name; the first match, in
        the order given, gives the kind.
    operators
        The same for the operator that launched the kernel (``aten::mm``), used where no name matches.
    guesses
        Words that give the kind where neither the kernel's name nor its operator matches.
    waits
        Regular expressions of kernels that only wait for other ranks before their exchange begins.
    """

    name: str
    summary: str
    kinds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    operators: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    guesses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    waits: tuple[str, ...] = ()

    @once
    def _patterns(self) -> tuple[list[tuple[Any, str]], ...]:
        return tuple(
            [(re.compile("|".join(patterns)), kind) for kind, patterns in table.items()]
            for table in (self.kinds, self.operators, self.guesses)
        )

    def kind_of(self, kernel: str) -> str | None:
        """The kind of a kernel by its name; None where no pattern of the rule matches."""
        return next((kind for pattern, kind in self._patterns[0] if pattern.search(kernel)), None)

    def kind_of_operator(self, operator: str) -> str | None:
        """The kind of a kernel by the operator that launched it."""
        return next((kind for pattern, kind in self._patterns[1] if pattern.search(operator)), None)

    def guess(self, kernel: str) -> str | None:
        """The kind of a kernel by a word in its name."""
        return next((kind for pattern, kind in self._patterns[2] if pattern.search(kernel)), None)


KERNEL_NAMES: Registry[KernelNames] = Registry("rule of kernel names", "tspsim.kernel_names", KernelNames)


def kind_of(kernel: str, operator: str = "") -> str:
    """The kind of a kernel by all rules: by its name, else by its operator, else by a word in its name, else
    ``unknown``.

    >>> kind_of("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'all_reduce'
    >>> kind_of("triton_poi_fused_7", "aten::silu"), kind_of("my_kernel")
    ('activation', 'unknown')
    """
    return _kind_of(kernel, operator, changes())[0]


def guessed(kernel: str, operator: str = "") -> bool:
    """Whether only a word in its name gives a kernel's kind.

    >>> guessed("my_softmax"), guessed("nvjet_tst_64x8_64x16_4x1_v_bz_TNT")
    (True, False)
    """
    return _kind_of(kernel, operator, changes())[1]


#: Kinds of kernels whose name several operators have.
_OF_ANY = frozenset({"elementwise", "exchange", "send_recv"})


@remembered(65_536)
def _kind_of(kernel: str, operator: str, version: int) -> tuple[str, bool]:
    rules = tuple(reversed(KERNEL_NAMES.values()))
    named = _named(rules, readable(kernel)) or _named(rules, kernel)
    # One elementwise kernel serves many operators, one of RCCL every collective, one of NCCL every
    # exchange of messages: their names seldom state which.
    if (kind := next((kind for kind in named if kind not in _OF_ANY), None)) is not None:
        return kind, False
    launched = next(
        (kind for rule in rules if operator and (kind := rule.kind_of_operator(operator)) is not None), None
    )
    if launched is not None or named:
        return launched or named[0], False
    name = readable(kernel)
    # What a kernel is called says more than its namespaces and the types that it is made for. Where it says only that
    # elements move, these may say whose (the experts'), yet make no product of it.
    own, whole = (_guesses(rules, text) for text in (own_name(name), name))
    if (kind := next((kind for kind in own if kind not in MOVES), None)) is not None:
        return kind, True
    if own:
        return next((kind for kind in whole if kind not in MOVES | HEAVY), own[0]), True
    if whole:
        return next((kind for kind in whole if kind not in MOVES), whole[0]), True
    return UNKNOWN, False


def _named(rules: Sequence[KernelNames], kernel: str) -> list[str]:
    return [kind for rule in rules if (kind := rule.kind_of(kernel)) is not None]


def _guesses(rules: Sequence[KernelNames], name: str) -> list[str]:
    """The kinds that words in a name say, as it is written and with its words apart."""
    texts = (name, in_snake_case(name))
    return [kind for text in texts for rule in rules if (kind := rule.guess(text)) is not None]


def waits(kernel: str) -> bool:
    """Whether a kernel only waits for other ranks; its time is no transfer."""
    return _waits(kernel, changes())


#: Types of eight bits and fewer, as libraries write them in names of kernels.
_NARROW = re.compile(
    r"fp8|e4m3|e5m2|mxfp|nvfp4|fp4|_f8_|f8f8|_[fb]8[fbhns8]*_|int8|int4|w4a16|w8a8|a8w8|a4w4", re.IGNORECASE
)


@remembered(65_536)
def narrow(kernel: str) -> bool:
    """Whether a kernel's name states operands of eight bits or fewer.

    >>> narrow("fp8_ptp128c::GemmKernel"), narrow("sm90_xmma_gemm_bf16f32_bf16f32_f32_tn_n")
    (True, False)
    """
    return _NARROW.search(kernel) is not None


@remembered(65_536)
def _waits(kernel: str, version: int) -> bool:
    name = readable(kernel)
    return any(re.search(pattern, name) for rule in KERNEL_NAMES.values() for pattern in rule.waits)
