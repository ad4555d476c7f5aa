"""Which software a published source ran, where its rows do not say: its stack, and its adapters."""

from __future__ import annotations

from dataclasses import replace

from tspsim.model import Architecture

#: Part of a source's address → the stack its runs used.
STACKS = {
    "llm-foundry": "llm-foundry",
    "InternEvo": "internevo",
    "Automodel": "automodel",
    "torchtitan": "torchtitan",
    "Primus": "primus",
    "03_primus": "primus",  # hisohara/ai-scripts, training/03_primus
    "train_amd_prim": "primus",  # DmitriiNikolaevAtAmd/tprimat
    "2407.21783": "llama-3",
}
#: Everything else that is published ran on Megatron-Core: NeMo, Megatron-Bridge, DGX Cloud recipes, MLPerf.
USUAL_STACK = "megatron-core"

#: Of tables whose rows name their framework in words: a word of group, source or note, in lower case → its stack; the
#: first that is there. Notes come first, for they say what was switched off.
WORDS = {
    "no compile": "torchtitan-eager",
    "torchtitan docs/performance.md": "torchtitan-eager",  # of 2024, before blocks were compiled
    "megatron-deepspeed": "megatron-2022",
    "torchtitan": "torchtitan",
    "kempnerforge": "kempnerforge",
    "automodel": "automodel",
    "llm-foundry": "llm-foundry",
    "mosaic": "llm-foundry",
    "internevo": "internevo",
    "nanotron": "nanotron",
    "primus": "primus",
    "megatron": "megatron-core",
    "nemo": "megatron-core",
    "mlperf": "megatron-core",
    "torchtune": "torchtitan-eager",
    "liger": "fsdp2",  # fused kernels under Hugging Face's trainers
    "unsloth": "fsdp2",
    "deepspeed": "deepspeed",
    "hugging face": "hf-trainer",
    "huggingface": "hf-trainer",
    "transformers": "hf-trainer",
    "accelerate": "hf-trainer",
    "axolotl": "hf-trainer",
    "llama-factory": "hf-trainer",
    "llamafactory": "hf-trainer",
    "fms-fsdp": "fsdp1",
    "foundation-model-stack": "fsdp1",
    "fsdp1": "fsdp1",
}
#: Software nobody named: what most people run.
USUAL_PLAIN = "fsdp2"


def stack_in_words(*texts: str) -> str:
    """The stack of a run whose framework stands in words.

    >>> stack_in_words("torchtitan H100", "PR 1690", "no compile"), stack_in_words("somebody's trainer")
    ('torchtitan-eager', 'fsdp2')
    >>> [stack_in_words(each) for each in ("Axolotl, FSDP", "Axolotl with Liger", "Accelerate, DeepSpeed ZeRO-3")]
    ['hf-trainer', 'fsdp2', 'deepspeed']
    """
    whole = " ".join(texts).lower()
    return next((stack for word, stack in WORDS.items() if word in whole), USUAL_PLAIN)


#: Words of a row or its source, in lower case, of benchmarks whose gate is no router.
NEIGHBOURS = ("fake balanced gate", "automodel")


def as_routed(model: Architecture, *texts: str) -> Architecture:
    """The model as a benchmark routes its tokens.

    NeMo Automodel's benchmarks send every token to the next k neighbouring experts, round and round
    (``FakeBalancedGate``: arange over tokens and choices, modulo the experts; components/moe/layers.py), so that a
    token's experts lie on a rank or two of one node.

    >>> from tspsim.model import load_model
    >>> v3 = load_model("deepseek-v3")
    >>> as_routed(v3, "mock data, fake balanced gate").experts.groups, as_routed(v3, "a run").experts.groups
    (32, 8)
    """
    whole, experts = " ".join(texts).lower(), model.experts
    if experts is None or experts.count % experts.topk or not any(word in whole for word in NEIGHBOURS):
        return model
    return replace(model, experts=replace(experts, groups=experts.count // experts.topk, kept_groups=1))


def recomputed_by_recipe(address: str, model: str, gpus: int) -> str | None:
    """What a published recipe recomputes where the table leaves it to the recipe; None where nobody knows.

    NeMo Automodel's benchmarks have ``activation_checkpointing: true`` (examples/llm_benchmark), but on one GPU and of
    gpt-oss 20B.

    >>> [recomputed_by_recipe(source, "Qwen2.5 32B [LoRA]", 8) for source in ("NVIDIA-NeMo/Automodel", "NeMo")]
    ['full', None]
    """
    if "Automodel" not in address:
        return None
    return "none" if gpus == 1 or "oss 20b" in model.lower().replace("-", " ") else "full"


#: Part of a source's address → rank and products of its adapters, and what routed experts get.
ADAPTERS: dict[str, tuple[int, tuple[str, ...], str]] = {
    # MLPerf Training's Llama 2 70B LoRA reference: rank 16 on attention's products (rules, and the rows' notes).
    "mlcommons": (16, ("qkv", "output"), "none"),
    # NeMo Automodel's PEFT benchmarks match all linear layers, rank 16; GroupedExpertsLoRA has a pair an expert.
    "Automodel": (16, ("qkv", "output", "gate_up", "down"), "each"),
    # Primus's packed recipes: rank 32 on linear_qkv, linear_proj, linear_fc1 and linear_fc2; experts of the legacy
    # grouped product, which these recipes choose, have no modules of those names.
    "Primus": (32, ("qkv", "output", "gate_up", "down"), "none"),
}
#: NeMo's and Megatron-Bridge's LoRA recipes for performance: rank 16 on QKV alone.
USUAL_ADAPTERS: tuple[int, tuple[str, ...], str] = (16, ("qkv",), "none")


def stack_of(address: str) -> str:
    """The catalog name of the stack behind a source."""
    return next((stack for part, stack in STACKS.items() if part in address), USUAL_STACK)


def adapters_of(model: str, address: str, *, latent: bool = False) -> tuple[int, tuple[str, ...], str]:
    """Rank and products of a run's adapters, and what experts get; rank 0 where the model's name speaks of none.

    Megatron-Core's ``latent`` attention has no linear_qkv for an adapter to stand beside.
    """
    if "lora" not in model.lower():
        return 0, (), "none"
    rank, targets, experts = next((found for part, found in ADAPTERS.items() if part in address), USUAL_ADAPTERS)
    if latent and stack_of(address) in ("primus", USUAL_STACK):
        targets = tuple(target for target in targets if target != "qkv") or targets
    return rank, targets, experts
