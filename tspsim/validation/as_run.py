"""How published recipes of AMD's Megatron-LM and Primus, and of NeMo of 2024 and 2025, ran where a row does not say it.

Read in AMD-AGI/Primus, ``examples/megatron/configs``, in ROCm's pages of Primus and Megatron-LM v25.9 and v25.10, in
NVIDIA/NeMo-Framework-Launcher, NVIDIA/NeMo and NVIDIA/dgxc-benchmarking. Nothing here is a number that a run was
measured at.
"""

from __future__ import annotations

from dataclasses import dataclass

from .frameworks import stack_of
from .recipe_rows import RowFacts, RowsOfRecipe, recipe_of


@dataclass(frozen=True)
class AsRun(RowsOfRecipe):
    """A recipe that rows do not state: what rows it is of, and what ran."""

    #: Version of the source's stack; empty: the stack as it is.
    version: str = ""
    #: Value of a plan's ``expert_dispatch``; empty: as other recipes have it.
    dispatch: str = ""
    #: What is recomputed, in the words of the published tables.
    recompute: str = ""
    #: How a benchmark routes tokens, in words of :func:`.frameworks.as_routed`; empty: by random scores.
    routing: str = ""
    #: Tokens of the examples that a sequence packs; 0: it is one.
    example: int = 0


#: ``moe_router_force_load_balancing: true`` with Primus-Turbo's DeepEP: its dispatcher gives a token the next k
#: experts, arange over tokens and choices modulo the experts (AMD-AGI/Primus, backends/megatron/core/extensions,
#: PrimusTurboDeepEPTokenDispatcher.dispatch_preprocess; ``even``, the default, since pull request 875 of July 2026). A
#: trace of March 2026 has it: kernels of 0.79 ms for 8,192 tokens of DeepSeek-V3, which take 0.56 to one rank and 1.4
#: to four (profile/profile_analysis.md).
ROUND_ROBIN = "round robin"

#: The first that matches a row is its recipe.
RECIPES = (
    # Llama 3.1 70B has ``use_torch_fsdp2: true`` everywhere. Eight nodes: ``--micro_batch_size 1 --global_batch_size
    # 256 --recompute_num_layers 12`` in BF16, 4, 256 and 80 in FP8 (ROCm's page of Primus, "Multi-node training").
    # What one node of MI325X recomputes with micro-batches of 1 is nowhere: MI300X's file, for 192 GB, has 80 layers.
    AsRun("projection.md", "llama3170b", types=("bf16",), gpus=64, version="fsdp2", recompute="full block, 12 layers"),
    AsRun("projection.md", "llama3170b", types=("fp8",), gpus=64, version="fsdp2", recompute="full"),
    AsRun("projection.md", "llama3170b", version="fsdp2"),
    # The run's log prints its arguments: ``moe_permute_fusion``, ``gradient_accumulation_fusion``,
    # ``moe_enable_deepep``, ``moe_use_legacy_grouped_gemm`` False, ``moe_token_dispatcher_type alltoall``.
    AsRun("03_primus", "mixtral", version="unfused", dispatch="experts"),
    # configs/MI300X/llama3.1_8B-pretrain.yaml, configs/MI355X/deepseek_v2_lite-*.yaml:
    # ``gradient_accumulation_fusion: false``. Those of Qwen3 and MiniMax-M2.5 have it.
    AsRun("train_amd_prim", "llama318b", version="separate-sums"),
    # ``apply_rope_fusion: false`` for latent attention (primus/configs/models/megatron/deepseek_v2_base.yaml).
    AsRun("AMD-AGI/Primus", "deepseekv2lite", notes="forced balance", version="deepseek-v2", routing=ROUND_ROBIN),
    AsRun("AMD-AGI/Primus", "deepseekv2lite", version="deepseek-v2"),
    # examples/customer_package/run_qwen3_235b_a22b_pretrain_mi355x.sh (98641be), which runs the schedules of the page:
    # ``RECOMPUTE_LAYERS`` 0. The page: no overlap of replicas' exchanges.
    AsRun("primus_pipeline", "qwen3235b", version="pipeline", recompute="none", routing=ROUND_ROBIN),
    # configs/MI355X/qwen3_*.yaml, minimax_m2.5-*.yaml: ``main_grads_dtype``, ``exp_avg_dtype`` bf16.
    AsRun("AMD-AGI/Primus", "qwen3", version="precision-aware", routing=ROUND_ROBIN),
    AsRun("AMD-AGI/Primus", "minimaxm25", version="precision-aware", routing=ROUND_ROBIN),
    # Megatron's ``--use-torch-fsdp2``.
    AsRun(notes=".*torch FSDP2", version="fsdp2"),
    # launcher_scripts/conf/config.yaml: ``NVTE_FUSED_ATTN: 0`` until pull request 422 of August 2024, after 24.07.
    # Fine-tuning packs SQuAD's examples to 4,096 tokens (the page's remark): of about 130 words, taken as 256 tokens.
    AsRun("NVIDIA/NeMo", ".*(sft|lora)", notes=r"NeMo 24\.0[357]", version="flash-attention-2", example=256),
    AsRun("NVIDIA/NeMo", notes=r"NeMo 24\.0[357]", version="flash-attention-2"),
    # ``NVTE_FUSED_ATTN=0``: nemo_megatron/configure.sh@143b90d of v24.11.1 (1 in 8f5cbb3 of v25.02),
    # nemotron/configure.sh@35a9aec and @8f5cbb3 of v24.11 and v25.02, for 340b alone.
    AsRun("dgxc-benchmarking/blob/v24.11", "gpt3", version="flash-attention-2"),
    AsRun("dgxc-benchmarking/blob/v25.02", "nemotron4340b", version="flash-attention-2"),
    # Their scripts pass no recipe of fp8 to NeMo's, so that it is delayed scaling ("ds"), whose ranks agree
    # (NVIDIA/NeMo, scripts/performance and mixed_precision.py); MaxText, in the same repository, has no such thing.
    AsRun("dgxc-benchmarking/blob/v25.0", ".*(llama31|gpt3|nemotron4|grok)", types=("fp8",), version="delayed-reduced"),
    AsRun("dgxc-benchmarking", ".*maxtext", types=("fp8",), version="delayed"),
    AsRun("performance_long_sequence", types=("fp8",), version="delayed-reduced"),
    # train_llama3_8b_h100_fp8.sh: ``--fp8-amax-history-len 1024``, no ``--fp8-recipe``, no ``--tp-only-amax-red``.
    AsRun("Megatron-LM/blob/main/examples/llama", types=("fp8",), version="delayed-reduced"),
    # ``FP8_REDUCE_AMAX: False`` in most submissions.
    AsRun("mlcommons", types=("fp8",), version="delayed"),
    AsRun("ROCm/TransformerEngine", types=("fp8",), version="delayed"),
)


def as_run(row: RowFacts) -> AsRun:
    """The recipe of a row; one that says nothing if none is known.

    >>> as_run(RowFacts("tech_blogs/projection.md", "Llama 3.1 70B", precision="bf16", gpus=64)).recompute
    'full block, 12 layers'
    >>> as_run(RowFacts("04_megatron-pyxis", "Llama 3.1 70B", notes="ROCm Megatron-LM, torch FSDP2")).version
    'fsdp2'
    """
    return recipe_of(RECIPES, row) or AsRun()


def stack_as_run(address: str, recipe: AsRun) -> str:
    """The source's stack in the recipe's version; empty if the recipe has none.

    >>> stack_as_run("03_primus", AsRun(version="fsdp2")), stack_as_run("03_primus", AsRun())
    ('primus@fsdp2', '')
    """
    return f"{stack_of(address)}@{recipe.version}" if recipe.version else ""
