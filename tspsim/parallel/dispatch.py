"""Dispatch of tokens to experts, and overlap of its exchanges: registered objects.

Dispatches that use the placement of experts: :mod:`tspsim.parallel.dispatches`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..base.registry import Registry
from ..model import Experts
from ..network import places_reached
from .reasons import CHANGES_NUMBERS
from .routing import ExpertRouting

#: Share of bytes in dispatch and in combine, and of these the shares that leave their node.
NodeShares = tuple[float, float, float, float]


@dataclass(frozen=True)
class ExpertDispatch:
    """How tokens reach their experts: n tokens per rank are n·copies rows before each all-to-all, of which (N − 1)/N
    leave the rank.
    """

    name: str
    #: (N ranks of an expert group, experts) → copies of a token that its rank sends, to itself included.
    copies: Callable[[int, Experts], float]
    #: Whether a token's results from one rank are summed before they return.
    sums_before_return: bool = True
    #: Algorithms of the all-to-alls of dispatch and combine (:mod:`tspsim.network`); None: a plain one.
    phases: tuple[str, str] | None = None
    #: Bytes of an element in the dispatch, scales included; None: an activation's.
    element_bytes: float | None = None
    #: Type that a serving step's experts multiply → bytes of an element in the dispatch, scales included, for tokens
    #: that are quantised before it; other types are sent unchanged.
    quantised: Mapping[str, float] = field(default_factory=dict, hash=False)
    #: Whether every rank of the group gets all tokens and adds its experts' results: an all-gather and a reduce-scatter
    #: instead of all-to-alls.
    gathers: bool = False
    #: (routing, experts, ranks) → bytes over those of a random placement, in dispatch and in combine.
    left: Callable[[ExpertRouting, Experts, int], tuple[float, float]] = lambda routing, experts, ranks: (1.0, 1.0)
    #: (routing, experts, ranks, nodes) → the same with experts placed on nodes first, and the shares of these bytes
    #: that leave their node; None: experts are placed on ranks, and bytes leave nodes as at random.
    by_nodes: Callable[[ExpertRouting, Experts, int, int], NodeShares] | None = None
    #: Whether every rank keeps the contexts of all sequences of the group, and receives all new keys and values.
    everywhere: bool = False
    #: (routing, experts, ranks) → a note for readers of such a plan; empty: none.
    note: Callable[[ExpertRouting, Experts, int], str] = lambda routing, experts, ranks: ""
    #: (routing, experts, ranks) → what it lacks; None if nothing.
    check: Callable[[ExpertRouting, Experts, int], str | None] = lambda routing, experts, ranks: None
    #: Why the planner skips it unless named; empty: it does not.
    why_not: str = ""
    #: Whether training can use it.
    trains: bool = True
    #: Whether it is for training with products in eight bits or fewer.
    eight_bits: bool = False
    #: Its word in names of plans.
    word: str = ""
    #: What it requires beyond every machine, in words; empty: nothing.
    assumption: str = ""
    #: Whether its buffers are sized for the few tokens of a decode step.
    few_tokens: bool = False
    #: Whether the host waits, in every layer, until it can read how many rows each expert gets: a library's messages
    #: of any size are received into buffers of the size that it then allocates.
    counts_on_host: bool = False
    #: Framework or engine → its name for it (:mod:`tspsim.studies.launch`); an engine with another library there has
    #: the vendor of the GPUs after its name.
    launched: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def searched(self) -> bool:
        return not self.why_not

    @property
    def layout(self) -> str:
        """How rows come to a serving rank's experts (:attr:`tspsim.operators.FusedMoE.layout`): buffers for few tokens
        have places for every expert."""
        if self.gathers:
            return ""
        return "masked" if self.few_tokens else "contiguous"


def distinct_ranks(ranks: int, experts: Experts) -> float:
    """D(N, k): mean number of ranks with the experts of one token, chosen at random in the groups it may choose from.

    >>> few, many = Experts(256, 8, 2048), Experts(256, 8, 2048, groups=8, kept_groups=4)
    >>> [round(distinct_ranks(ranks, few), 3) for ranks in (1, 8, 64)]
    [1.0, 5.251, 7.576]
    >>> [round(distinct_ranks(ranks, many), 3) for ranks in (1, 2, 8, 64)]
    [1.0, 1.965, 3.955, 7.498]
    """
    return places_reached(ranks, experts.topk, experts.groups, experts.kept_groups, experts.count)


#: Bytes of an fp8 element with a four-byte scale per 128 elements.
SCALED_FP8 = 1.0 + 4.0 / 128.0
#: Product types that are dispatched in fp8: DeepEP's normal kernels take tokens in fp8 with such scales and no other
#: (deepseek-ai/DeepEP, README: "FP8 dispatching and BF16 combining"), and engines quantise before them if experts are
#: quantised in blocks; with one scale per tensor they send bf16 (vLLM 0.15, ``deepep_ht_prepare_finalize.py``).
IN_BLOCKS = {"fp8_block": SCALED_FP8}

DISPATCHES: Registry[ExpertDispatch] = Registry("expert dispatch", "tspsim.expert_dispatch", ExpertDispatch)
#: A copy to each rank of a token's experts, by the node's expert-parallel library (DeepEP, mori).
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
        counts_on_host=True,
    )
)
#: The same copies at the links' rate (HybridEP on NVL72).
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
#: A copy to each of a token's experts (Megatron-Core's all-to-all dispatcher).
DISPATCHES.register(
    ExpertDispatch(
        "experts",
        lambda ranks, experts: float(experts.topk),
        sums_before_return=False,
        word="xe",
        launched={"torchtitan": "standard"},
    )
)


#: Like ``ranks``, with tokens and their gradients dispatched in fp8 with a scale per 128 elements; sums return in bf16
#: (DeepSeek-V3, arXiv:2412.19437, §3.3.3).
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
        counts_on_host=True,
        assumption="tokens travel to their experts in eight bits, as products of eight bits read them",
    )
)
#: Small messages in fp8 with a scale per 128 elements (low-latency kernels of DeepEP and mori), for decoding.
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
    """How the exchanges with experts are hidden."""

    name: str
    #: Shared experts run beside the dispatch, not before it.
    shared_beside: bool = False
    #: One micro-batch's forward is interleaved with another's backward (:mod:`tspsim.parallel.interleave`).
    micro_batches: bool = False
    #: A serving step's batch is cut into two interleaved halves (SGLang's two-batch overlap, vLLM's dual batch).
    halves: bool = False
    #: Its word in names of plans.
    word: str = ""


OVERLAPS: Registry[ExpertOverlap] = Registry("expert overlap", "tspsim.expert_overlap", ExpertOverlap)
OVERLAPS.register(ExpertOverlap("none"))
OVERLAPS.register(ExpertOverlap("shared_experts", shared_beside=True, word="sh"))
OVERLAPS.register(ExpertOverlap("micro_batches", shared_beside=True, micro_batches=True, word="mi"))
OVERLAPS.register(ExpertOverlap("two_batches", shared_beside=True, halves=True, word="tb"))
