"""The software behind a published source whose rows do not name it: its stack and its adapters."""

from __future__ import annotations

import math
import re
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
    "2104.04473": "megatron-2022@2021",  # Narayanan et al. 2021, before FlashAttention
}
#: All other sources ran Megatron-Core: NeMo, Megatron-Bridge, DGX Cloud recipes, MLPerf.
USUAL_STACK = "megatron-core"

#: For tables whose rows name their framework in words: a word of group, source or note, in lower case → its stack.
#: The first word that occurs decides. Notes come first, because they say what was switched off.
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
#: The most common software, for rows that name none.
USUAL_PLAIN = "fsdp2"
#: Stack → how the names of models start, in small letters and digits, whose benchmarks ran one of its versions: NeMo
#: Automodel's page has FlexAttn for gpt-oss alone (docs/performance-summary.mdx, "Kernel Optimizations"), and these
#: four families as of 2025-10-02 (docs/performance-summary.md@01926a5).
VERSIONS = {
    "automodel": (("gptoss", "flex"), ("deepseekv3", "2025.10"), ("kimik2", "2025.10"), ("qwen3moe", "2025.10")),
}


def version_run(stack: str, model: str) -> str:
    """The stack in the version that its benchmarks of a model ran.

    >>> version_run("automodel", "gpt-oss-20b"), version_run("automodel", "kimi-k2"), version_run("fsdp2", "gpt-oss")
    ('automodel@flex', 'automodel@2025.10', 'fsdp2')
    >>> version_run("automodel", "Llama3 70B")
    'automodel'
    """
    name = re.sub(r"[^a-z0-9]", "", model.lower())
    version = next((version for start, version in VERSIONS.get(stack, ()) if name.startswith(start)), "")
    return f"{stack}@{version}" if version else stack


def stack_in_words(*texts: str) -> str:
    """The stack of a run, by the words that name its framework.

    >>> stack_in_words("torchtitan H100", "PR 1690", "no compile"), stack_in_words("somebody's trainer")
    ('torchtitan-eager', 'fsdp2')
    >>> [stack_in_words(words) for words in ("Axolotl, FSDP", "Axolotl with Liger", "Accelerate, DeepSpeed ZeRO-3")]
    ['hf-trainer', 'fsdp2', 'deepspeed']
    """
    whole = " ".join(texts).lower()
    return next((stack for word, stack in WORDS.items() if word in whole), USUAL_PLAIN)


#: Words of rows or sources, in lower case, whose benchmarks replace the router by a fixed assignment.
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


#: Releases of DGX Cloud's DeepSeek-V3 → what H100 recomputes: ``mla_up_proj`` (deepseek_v3/setup.sh of 25.05);
#: ``mla_up_proj mlp moe`` (``RM`` of 25.08's launch.sh), nearest to whole layers.
DEEPSEEKS_OF_DGX_CLOUD = {"25.05": "cheap", "25.08": "full"}


def recomputed_by_recipe(address: str, model: str, gpus: int) -> str | None:
    """The recomputation of a published recipe, for tables that leave it to the recipe; None if unknown.

    NeMo Automodel's benchmarks have ``activation_checkpointing: true`` (examples/llm_benchmark), except on one GPU
    and for gpt-oss 20B. Of DGX Cloud's DeepSeek-V3 see :data:`DEEPSEEKS_OF_DGX_CLOUD`.

    >>> sources = ("NVIDIA-NeMo/Automodel", "NeMo", "dgxc-benchmarking/blob/v25.05.04")
    >>> [recomputed_by_recipe(source, "DeepSeek-V3 671B", 1024) for source in sources]
    ['full', None, 'cheap']
    """
    if "deepseek" in model.lower() and (release := re.search(r"dgxc-benchmarking/blob/v(\d+\.\d+)", address)):
        return DEEPSEEKS_OF_DGX_CLOUD.get(release.group(1))
    if "Automodel" not in address:
        return None
    return "none" if gpus == 1 or "oss 20b" in model.lower().replace("-", " ") else "full"


#: Models whose Megatron-Bridge recipes in MXFP8 hide exchanges with experts behind another micro-batch, on which GPUs,
#: from which container on: with whole iterations in CUDA graphs and a fused grouped MLP they set ``moe_a2a_overlap``
#: (NVIDIA-NeMo/Megatron-Bridge, pull requests 3983 and 4226 of DeepSeek-V3, 4249 and 4606 of Qwen3, 4173 of gpt-oss,
#: all on the branch of 26.06; 5168 of Kimi-K2, which came too late for it). Nothing before them did.
OVERLAPPED = {
    "deepseekv3": (("gb200", "gb300"), "26.06"),
    "qwen3": (("b200", "b300", "gb200", "gb300"), "26.06"),
    "gptoss": (("gb200", "gb300"), "26.06"),
    "kimik2": (("gb300",), "26.08"),
}


def overlapped_by_recipe(address: str, notes: str, model: str, device: str, precision: str) -> str:
    """What hides exchanges with experts in a published recipe.

    >>> about = "Megatron-Bridge", "NeMo 26.06.01 container"
    >>> [overlapped_by_recipe(*about, model, "gb300", "mxfp8") for model in ("GPT OSS 120B", "Kimi_K2")]
    ['micro_batches', 'none']
    """
    container = re.search(r"NeMo (\d+\.\d+)", notes)
    if container is None or "Megatron-Bridge" not in address or precision != "mxfp8":
        return "none"
    name = re.sub(r"[^a-z0-9]", "", model.lower())
    hidden = (
        name.startswith(start) and device in devices and container.group(1) >= since
        for start, (devices, since) in OVERLAPPED.items()
    )
    return "micro_batches" if any(hidden) else "none"


#: Words of a row's notes → its fabric, where it is not the GPU's usual one: nodes of InternEvo's runs have four
#: ports of 100 Gb/s for eight GPUs.
FABRICS = {"4x100Gb RoCE per node": "roce-50g"}
#: Words of sources that train DeepSeek-V3 with its multi-token-prediction module, unless the model's name says
#: otherwise: they count 260 GFLOP per token, and 249 in the runs "w/o MTP".
WITH_FURTHER_TOKENS = ("Megatron-Bridge", "dgxc-benchmarking")


def further_tokens(model: str, source: str) -> bool:
    """Whether a run trains multi-token-prediction modules.

    >>> [further_tokens(model, "Megatron-Bridge") for model in ("DeepSeekV3", "DeepSeekV3 (w/o MTP)", "Kimi_K2")]
    [True, False, False]
    """
    name = model.lower()
    deepseek = re.sub(r"[^a-z0-9]", "", name).startswith("deepseekv3")
    usual = deepseek and "w/o mtp" not in name and any(word in source for word in WITH_FURTHER_TOKENS)
    return usual or "w/ mtp" in name


def layers_of_chunks(source: str, model: Architecture, chunks: int) -> tuple[int, ...]:
    """Layers of every pipeline chunk, for recipes that spread them unevenly; empty for the others.

    Recipes of the 61 layers of DeepSeek-V3 and Kimi-K2 in 4, 8 or 16 chunks fill all but the last, which has the loss
    and the module for a further token (Megatron-Bridge, ``set_deepseek_v3_pipeline_model_parallel_layout``; NeMo's
    performance scripts, ``map_pp_vp_to_layout``). DGX Cloud's of 25.05 has a layer less in the first and two less in
    the last (NVIDIA/NeMo 7a8f1cc, scripts/performance/llm/pretrain_deepseek_v3.py). NeMo Automodel gives what is left
    over to the first chunks (components/distributed/pipelining/functional.py, generate_hf_model_fqn_per_model_part).

    >>> from tspsim.model import load_model
    >>> [layers_of_chunks("Megatron-Bridge", load_model("deepseek-v3"), chunks) for chunks in (4, 32)]
    [(16, 16, 16, 13), ()]
    >>> layers_of_chunks("dgxc-benchmarking/blob/v25.05.04", load_model("deepseek-v3"), 8)
    (7, 8, 8, 8, 8, 8, 8, 6)
    >>> layers_of_chunks("NVIDIA-NeMo/Automodel", load_model("deepseek-v3"), 32)[27:]
    (2, 2, 1, 1, 1)
    """
    if "Automodel" in source:
        per_chunk, more = divmod(model.layers, chunks)
        return (per_chunk + 1,) * more + (per_chunk,) * (chunks - more) if more else ()
    if model.layers == 61 and chunks in (4, 8, 16) and any(word in source for word in WITH_FURTHER_TOKENS):
        per_chunk = 64 // chunks
        if "dgxc-benchmarking/blob/v25.05" in source:
            return (per_chunk - 1, *[per_chunk] * (chunks - 2), per_chunk - 2)
        return (per_chunk,) * (chunks - 1) + (61 - per_chunk * (chunks - 1),)
    return ends_alone(model.layers, chunks)


def ends_alone(layers: int, chunks: int) -> tuple[int, ...]:
    """Layers of every chunk if embedding and head count as one layer each; empty if layers divide evenly without them,
    or do not divide with them.

    NeMo's recipes of Llama 3.1 405B set Megatron-Core's ``account_for_embedding_in_pipeline_split`` and
    ``account_for_loss_…``.

    >>> ends_alone(126, 64)[:3], ends_alone(30, 32)[-2:], ends_alone(80, 16)
    ((1, 2, 2), (1, 0), ())
    """
    if chunks < 2 or layers % chunks == 0 or (layers + 2) % chunks:
        return ()
    per_chunk = (layers + 2) // chunks
    return (per_chunk - 1, *[per_chunk] * (chunks - 2), per_chunk - 1)


#: Part of a source's address, how a model's name starts, GPUs → layers of a pipeline chunk in the recipe, where the
#: table beside it repeats another run's number of chunks: NVIDIA-NeMo/Automodel has VP 8 for both runs of DeepSeek-V3,
#: its deepseek_v3_te_deepep.yaml has ``layers_per_stage: 2`` and deepseek_v3_te_deepep_1024.yaml 4, in every version
#: (examples/benchmark/configs@604375a, before the table, @037e04a, and examples/llm_benchmark/deepseek@2c92df1).
LAYERS_OF_CHUNKS = {("Automodel", "deepseekv3", 1024): 4}


def chunks_by_recipe(address: str, model: Architecture, gpus: int, stages: int) -> int | None:
    """Chunks of a stage by a recipe that contradicts the table beside it; None: as the row has it.

    >>> from tspsim.model import load_model
    >>> [chunks_by_recipe("NVIDIA-NeMo/Automodel", load_model("deepseek-v3"), gpus, stages=4) for gpus in (256, 1024)]
    [None, 4]
    """
    name = re.sub(r"[^a-z0-9]", "", model.name.lower())
    for (part, start, ranks), layers in LAYERS_OF_CHUNKS.items():
        if part in address and name.startswith(start) and gpus == ranks:
            return math.ceil(model.layers / (layers * stages))
    return None


def turns_of(words: str, notes: str, stages: int) -> int:
    """Turns of gradient accumulation that each drain the pipeline: NeMo Automodel's local batches, as its page
    counts them; 1 for other sources, whose number counts micro-batches.

    >>> [turns_of(source, "local batch 8, GA 4", stages=4) for source in ("NeMo/Automodel", "dgxc-benchmarking")]
    [4, 1]
    """
    match = re.search(r"\bGA (\d+)\b", notes)
    return int(match.group(1)) if match and stages > 1 and "automodel" in words.lower() else 1


#: Part of a source's address → rank and target products of its adapters, and the adapters of routed experts.
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
    """Rank and target products of a run's adapters, and the adapters of experts; rank 0 if the model's name has none.

    Megatron-Core's ``latent`` attention has no linear_qkv module for an adapter.
    """
    if "lora" not in model.lower():
        return 0, (), "none"
    rank, targets, experts = next((adapters for part, adapters in ADAPTERS.items() if part in address), USUAL_ADAPTERS)
    if latent and stack_of(address) in ("primus", USUAL_STACK):
        targets = tuple(target for target in targets if target != "qkv") or targets
    return rank, targets, experts
