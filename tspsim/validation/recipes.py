"""How published recipes of Megatron-Core ran a model with experts: what of it was in CUDA graphs, how tokens travelled,
and what hid their exchanges, where a row says nothing of it.

Read in NVIDIA-NeMo/Megatron-Bridge, ``scripts/performance/configs`` (``cuda_graph_impl``, ``cuda_graph_scope``,
``moe_token_dispatcher_type``, ``moe_a2a_overlap``), its pull requests, and its skills. Nothing here is a number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .frameworks import USUAL_STACK, overlapped_by_recipe, stack_of
from .recipe_rows import RowFacts, RowsOfRecipe, recipe_of

#: Dispatchers that Megatron-Bridge's guide (docs.nvidia.com, MoE Dispatcher Selection Guide) names first: HybridEP in
#: NVL72 domains, DeepEP elsewhere.
DISPATCHERS = {"gb200": "links", "gb300": "links"}


@dataclass(frozen=True)
class MoERecipe(RowsOfRecipe):
    """What some rows with experts ran."""

    #: Version of ``megatron-core``; empty: launched kernel by kernel.
    version: str = ""
    #: Values of a plan's ``expert_dispatch`` and ``expert_overlap``; empty: as :data:`DISPATCHERS` says, and as
    #: :func:`tspsim.validation.frameworks.overlapped_by_recipe` does.
    dispatch: str = ""
    overlap: str = ""
    #: Sequences of a micro-batch and chunks of a stage of the recipe, where its page repeats an older container's.
    micro_batch: int = 0
    chunks: int = 0


BRIDGE, RACKS = "Megatron-Bridge", ("gb200", "gb300")
#: The first that holds is meant.
RECIPES = (
    # Selective recomputation of Moonlight: ``moe_router_fusion`` and ``apply_rope_fusion`` False, ``alltoall``
    # (src/megatron/bridge/recipes/moonlight/moonlight_16b.py).
    MoERecipe("perf-activation-recompute", "moonlight", version="unfused", dispatch="experts"),
    # DGX Cloud's scripts of 25.05 pin NVIDIA/NeMo at 7a8f1cc: ``MegatronTokenDropCallback`` (a plain ``alltoall``,
    # experts filled to their capacity), no ``moe_router_fusion``; rotary embedding is fused in Llama 4 alone.
    MoERecipe("dgxc-benchmarking/blob/v25.05", "deepseekv3", version="unfused-padded", dispatch="experts"),
    MoERecipe("dgxc-benchmarking/blob/v25.05", "llama4", version="unfused-router-padded", dispatch="experts"),
    MoERecipe("MoE-ModelZoo", devices=RACKS, version="whole-graphs"),
    # Tokens are dropped and filled up to a capacity, so that whole iterations can be captured; on B200 Qwen3 30B alone
    # has graphs, on H100 no model (qwen3/workload_base_configs.py, 0fa501a). A plain ``alltoall`` alone drops
    # ("moe_expert_capacity_factor only works with alltoall token dispatcher", utils/moe_token_drop.py).
    MoERecipe(BRIDGE, devices=RACKS, until="25.09", version="whole-graphs", dispatch="experts"),
    MoERecipe(BRIDGE, "qwen330b", ("b200",), until="25.09", version="whole-graphs", dispatch="experts"),
    MoERecipe(BRIDGE, devices=("b200", "h100"), since="25.09", until="25.09", version="padded", dispatch="experts"),
    # Whole iterations from 26.06 on (pull requests 3983, 4226, 4249, 4606, 4173, 4498; 5168 of Kimi-K2).
    MoERecipe(BRIDGE, "qwen3", (*RACKS, "b200", "b300"), ("mxfp8",), "26.06", version="whole-graphs"),
    MoERecipe(BRIDGE, "deepseekv3", (*RACKS, "b300"), ("mxfp8",), "26.06", version="whole-graphs"),
    MoERecipe(BRIDGE, "gptoss", RACKS, ("mxfp8",), "26.06", version="whole-graphs-yarn"),
    MoERecipe(BRIDGE, "kimik2", ("gb300",), ("mxfp8",), "26.08", version="whole-graphs"),
    # ``moe_router, moe_preprocess`` alone, or ``attn`` too (qwen3_workload_base_configs.py, 01b2977;
    # deepseek_workload_base_configs.py, 0426418; gpt_oss_workload_base_configs.py, 07eea52).
    MoERecipe(BRIDGE, "qwen330b", ("gb300", "b300"), version="router-graphs"),
    MoERecipe(BRIDGE, "qwen330b", ("h100",), ("bf16",), version="router-graphs"),
    # The first without dropped tokens ("2X slower than 25.09 … with dropless", issue 1998): a plain ``alltoall`` that
    # is hidden, without graphs, until HybridEP took its place (pull request 2477). Its micro-batch is one sequence and
    # its stage 12 chunks in every copy (qwen3/workload_base_configs.py, redai-infra 1d613c7, seonjinn e578f14,
    # okoge-kaz bf75c65); the page of 25.11 has 25.09's two, and 24 chunks, which no recipe had.
    MoERecipe(
        BRIDGE,
        "qwen330b",
        ("h100",),
        ("fp8",),
        "25.11",
        "25.11",
        dispatch="experts",
        overlap="micro_batches",
        micro_batch=1,
        chunks=12,
    ),
    MoERecipe(BRIDGE, "qwen330b", ("h100",), ("fp8",), "26.02", "26.02", dispatch="experts", overlap="micro_batches"),
    MoERecipe(BRIDGE, "qwen330b", ("b200",), until="26.02", version="router-graphs", dispatch="experts"),
    MoERecipe(BRIDGE, "qwen330b", ("b200",), version="graphs"),
    MoERecipe(BRIDGE, "deepseekv3", ("b300",), since="26.04.01", version="graphs"),
    # No ``moe_flex_dispatcher_backend``: a plain ``alltoall`` (GB300 in bf16; B300's first recipe, ``ep`` 64).
    MoERecipe(BRIDGE, "gptoss", ("gb300",), ("bf16",), version="graphs-yarn", dispatch="experts"),
    MoERecipe(BRIDGE, "gptoss", ("b300",), until="26.02", version="graphs-yarn", dispatch="experts"),
    MoERecipe(BRIDGE, "gptoss", (*RACKS, "b300"), version="graphs-yarn"),
    MoERecipe(BRIDGE, "gptoss", version="yarn"),
    MoERecipe(BRIDGE, devices=RACKS, version="graphs"),
    # ``alltoall``; 25.11 hid it on B200 ("disable moe_a2a_overlap due to CPU overhead", pull request 1760).
    MoERecipe(BRIDGE, "qwen3235b", ("b200",), until="25.11", dispatch="experts", overlap="micro_batches"),
    MoERecipe(BRIDGE, "qwen3235b", ("b200", "b300"), dispatch="experts"),
    MoERecipe(BRIDGE, "qwen3235b", ("h100",), dispatch="experts", overlap="micro_batches"),
)


@dataclass(frozen=True)
class HowRun:
    """The stack, ``expert_dispatch`` and ``expert_overlap`` of a published run with experts, and its micro-batch and
    chunks where its page has another container's (0: as the page says)."""

    stack: str
    dispatch: str
    overlap: str
    micro_batch: int = 0
    chunks: int = 0


def how_run(row: RowFacts) -> HowRun:
    """How a row with experts ran.

    >>> bridge = "Megatron-Bridge"
    >>> how_run(RowFacts(bridge, "Qwen3_30B_a3B", "h100", "fp8", notes="NeMo 26.04 container"))
    HowRun(stack='megatron-core', dispatch='ranks', overlap='none', micro_batch=0, chunks=0)
    >>> how_run(RowFacts(bridge, "Qwen3_30B_a3B", "gb300", "mxfp8", notes="NeMo 26.08 container"))
    HowRun(stack='megatron-core@whole-graphs', dispatch='links', overlap='micro_batches', micro_batch=0, chunks=0)
    >>> how_run(RowFacts(bridge, "Qwen3-30B-A3B", "h100", "bf16", notes="EP overlap on; HybridEP"))
    HowRun(stack='megatron-core@router-graphs', dispatch='ranks', overlap='micro_batches', micro_batch=0, chunks=0)
    """
    stack = stack_of(row.address)
    recipe = (recipe_of(RECIPES, row) if stack == USUAL_STACK else None) or MoERecipe()
    overlap = recipe.overlap or overlapped_by_recipe(row.address, row.notes, row.model, row.device, row.precision)
    if re.search(r"\bEP overlap (?:on|\+)", row.notes):
        overlap = "micro_batches"
    version = f"{stack}@{recipe.version}" if recipe.version else stack
    dispatch = recipe.dispatch or DISPATCHERS.get(row.device, "ranks")
    return HowRun(version, dispatch, overlap, recipe.micro_batch, recipe.chunks)
