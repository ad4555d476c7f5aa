"""How tokens travel to their experts, and what hides it: registered objects that ``expert`` asks.

Those that know where experts are: :mod:`tspsim.parallel.dispatches`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..base.registry import Registry
from ..model import Experts
from ..network import places_reached
from .reasons import CHANGES_NUMBERS
from .routing import ExpertRouting

#: There, back, of these the shares that leave their node.
NodeShares = tuple[float, float, float, float]


@dataclass(frozen=True)
class ExpertDispatch:
    """A way for tokens to reach their experts: n tokens a rank are n·copies rows before each all-to-all, (N − 1)/N of
    which leave the rank.
    """

    name: str
    #: (N ranks of an expert group, experts) → copies of a token that its rank hands out, to itself included.
    copies: Callable[[int, Experts], float]
    #: What a token got from the experts of one rank is summed before it goes back.
    sums_before_return: bool = True
    #: Algorithms of the all-to-alls there and back (:mod:`tspsim.network`); None: a plain one.
    phases: tuple[str, str] | None = None
    #: Bytes of an element on its way to the experts, scales included; None: an activation's.
    element_bytes: float | None = None
    #: By the type that a serving step's experts multiply: bytes of an element on its way to them, scales included,
    #: where tokens are quantised before they leave; others travel as they are.
    quantised: Mapping[str, float] = field(default_factory=dict, hash=False)
    #: Every rank of the group gets all tokens and adds what its experts make of them: an all-gather and a
    #: reduce-scatter instead of all-to-alls.
    gathers: bool = False
    #: (routing, experts, ranks) → of the bytes of a random placement, those that still travel, there and back.
    left: Callable[[ExpertRouting, Experts, int], tuple[float, float]] = lambda routing, experts, ranks: (1.0, 1.0)
    #: (routing, experts, ranks, nodes) → the same where experts are placed on nodes first, and of those bytes the
    #: shares that leave their node, there and back; None: placed on ranks, and they leave as chance has it.
    by_nodes: Callable[[ExpertRouting, Experts, int, int], NodeShares] | None = None
    #: Every rank keeps the contexts of all sequences of the group, and gets the new keys and values of all.
    everywhere: bool = False
    #: (routing, experts, ranks) → what a reader of such a plan has to know; empty: nothing.
    note: Callable[[ExpertRouting, Experts, int], str] = lambda routing, experts, ranks: ""
    #: (routing, experts, ranks) → what it lacks; None where nothing.
    check: Callable[[ExpertRouting, Experts, int], str | None] = lambda routing, experts, ranks: None
    #: Why the planner does not try it where nobody names it; empty: it does.
    why_not: str = ""
    #: Whether a backward can take the same ways.
    trains: bool = True
    #: It is of training whose products multiply in eight bits or fewer.
    eight_bits: bool = False
    #: What a plan's name says of it.
    word: str = ""
    #: What has to be there for it, in words; empty: nothing that every machine does not have.
    assumption: str = ""
    #: Its buffers are made for the few tokens of a decoding step.
    few_tokens: bool = False
    #: What frameworks and engines call it that have it by name (:mod:`tspsim.studies.launch`), by theirs
    #: (of an engine that has another library there behind it the vendor of the GPUs).
    launched: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def searched(self) -> bool:
        return not self.why_not


def distinct_ranks(ranks: int, experts: Experts) -> float:
    """D(N, k): ranks that hold the experts of one token, chosen at random, in the groups it may choose from.

    >>> few, many = Experts(256, 8, 2048), Experts(256, 8, 2048, groups=8, kept_groups=4)
    >>> [round(distinct_ranks(ranks, few), 3) for ranks in (1, 8, 64)]
    [1.0, 5.251, 7.576]
    >>> [round(distinct_ranks(ranks, many), 3) for ranks in (1, 2, 8, 64)]
    [1.0, 1.965, 3.955, 7.498]
    """
    return places_reached(ranks, experts.topk, experts.groups, experts.kept_groups, experts.count)


#: Bytes of an element in fp8 with a scale of four bytes for each 128 elements.
SCALED_FP8 = 1.0 + 4.0 / 128.0
#: What of the products' types travels so: DeepEP's normal kernels take tokens in fp8 with such scales and no other
#: (deepseek-ai/DeepEP, README: "FP8 dispatching and BF16 combining"), and engines quantise before them where experts
#: are quantised in blocks; with one scale a tensor they send bf16 (vLLM 0.15, ``deepep_ht_prepare_finalize.py``).
IN_BLOCKS = {"fp8_block": SCALED_FP8}

DISPATCHES: Registry[ExpertDispatch] = Registry("expert dispatch", "tspsim.expert_dispatch", ExpertDispatch)
#: Once to each rank of its experts, by the node's expert-parallel library (DeepEP, mori).
DISPATCHES.register(
    ExpertDispatch(
        "ranks",
        distinct_ranks,
        phases=("dispatch", "combine"),
        quantised=IN_BLOCKS,
        launched={
            "megatron": "deepep",
            "torchtitan": "deepep",
            "vllm": "deepep_high_throughput",
            "vllm amd": "mori_high_throughput",
            "sglang": "normal",
        },
    )
)
#: The same rows as fast as links carry them (HybridEP on NVL72).
DISPATCHES.register(
    ExpertDispatch(
        "links",
        distinct_ranks,
        quantised=IN_BLOCKS,
        launched={"megatron": "hybridep"},
        word="xl",
        assumption="a library that moves tokens to experts as fast as links carry them, as HybridEP does in an NVL72 "
        "domain",
    )
)
#: Once to each of its experts (Megatron-Core's all-to-all dispatcher).
DISPATCHES.register(
    ExpertDispatch(
        "experts",
        lambda ranks, experts: float(experts.topk),
        sums_before_return=False,
        word="xe",
        launched={"torchtitan": "standard"},
    )
)


#: As ``ranks``, tokens on their way to experts in fp8 with a scale for each 128 elements, gradients on theirs too; sums
#: come back in bf16 (DeepSeek-V3, arXiv:2412.19437, §3.3.3).
DISPATCHES.register(
    ExpertDispatch(
        "ranks_fp8",
        distinct_ranks,
        phases=("dispatch", "combine"),
        element_bytes=SCALED_FP8,
        eight_bits=True,
        why_not=CHANGES_NUMBERS,
        word="x8",
        launched={"vllm": "deepep_high_throughput", "vllm amd": "mori_high_throughput", "sglang": "normal"},
        assumption="tokens travel to their experts in eight bits, as products of eight bits read them",
    )
)
#: Small messages in fp8 with a scale for each 128 elements (DeepEP's and mori's low-latency kernels), for decoding.
DISPATCHES.register(
    ExpertDispatch(
        "low_latency",
        distinct_ranks,
        phases=("dispatch_low_latency", "combine_low_latency"),
        element_bytes=SCALED_FP8,
        trains=False,
        few_tokens=True,
        launched={"vllm": "deepep_low_latency", "vllm amd": "mori_low_latency", "sglang": "low_latency"},
    )
)
#: All tokens to all ranks (vLLM's default, ``allgather_reducescatter``).
DISPATCHES.register(
    ExpertDispatch(
        "gather",
        lambda ranks, experts: float(ranks),
        gathers=True,
        trains=False,
        launched={"vllm": "allgather_reducescatter", "vllm amd": "allgather_reducescatter", "sglang": "none"},
    )
)


@dataclass(frozen=True)
class ExpertOverlap:
    """What hides the exchanges with experts."""

    name: str
    #: Shared experts run beside the dispatch, not before it.
    shared_beside: bool = False
    #: One micro-batch's forward runs between the pieces of another's backward (:mod:`tspsim.parallel.interleave`).
    micro_batches: bool = False
    #: A serving step's batch is cut into two, whose pieces take turns (SGLang's two-batch overlap, vLLM's dual batch).
    halves: bool = False
    #: What a plan's name says of it.
    word: str = ""


OVERLAPS: Registry[ExpertOverlap] = Registry("expert overlap", "tspsim.expert_overlap", ExpertOverlap)
OVERLAPS.register(ExpertOverlap("none"))
OVERLAPS.register(ExpertOverlap("shared_experts", shared_beside=True, word="sh"))
OVERLAPS.register(ExpertOverlap("micro_batches", shared_beside=True, micro_batches=True, word="mi"))
OVERLAPS.register(ExpertOverlap("two_batches", shared_beside=True, halves=True, word="tb"))
