"""Megatron-LM: ``pretrain_gpt.py``. Flags: megatron/training/arguments.py and megatron/core of NVIDIA/Megatron-LM, as
of Megatron-Core 0.15 (``000c4ac2``); the backends of the flexible dispatcher as of 0.16."""

from __future__ import annotations

from itertools import groupby

from ...parallel.pipeline import order_of
from .command import Command, degree_flags
from .training import TRAINERS, TrainingRun, torchrun

#: Recomputation as ``--recompute-modules`` calls it; modules of experts and latents are added where a model has them.
MODULES = {"selective": ["core_attn"], "cheap": ["layernorm"]}
#: Types of GEMMs as ``--fp8-recipe`` calls them.
RECIPES = {"fp8": "tensorwise", "fp8_block": "blockwise", "mxfp8": "mxfp8"}
#: ZeRO level as ``--data-parallel-sharding-strategy`` calls it.
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
NAME = "megatron"


class Megatron:
    """``pretrain_gpt.py``."""

    name = NAME
    vendors = ("nvidia", "amd")
    beside = "the model's arguments, its tokenizer and data, the optimizer's rate"

    def command(self, run: TrainingRun) -> Command:
        plan, job, cannot = run.plan, run.job, list[str]()
        words = [*torchrun(run), "pretrain_gpt.py"]
        words += degree_flags(
            ("--tensor-model-parallel-size", plan.tp),
            ("--context-parallel-size", plan.sp),
            ("--pipeline-model-parallel-size", plan.pp),
            ("--expert-model-parallel-size", plan.ep),
        )
        words += _tensors(run, cannot) + _stages(run, cannot) + _experts(run, cannot) + _replicas(run, cannot)
        words += ["--seq-length", str(job.work.sequence), "--micro-batch-size", str(job.sequences)]
        words += ["--global-batch-size", str(run.batch)]
        words += _recomputed(run, cannot) + _types(run, cannot)
        if not job.work.stack.flash_attention:
            words += ["--attention-backend", "unfused"]
        if job.work.stack.compiles and job.work.stack.loss_factor is None:
            words.append("--cross-entropy-loss-fusion")
        if job.multi_token:
            words += ["--mtp-num-layers", str(job.multi_token)]
        if job.work.adapters is not None:
            cannot.append(f"adapters of rank {job.work.adapters.rank}: Megatron-Bridge has them")
        # Before Blackwell its kernels and transfers must be launched in order; with FSDP they must not.
        ordered = (plan.tp > 1 or plan.sp > 1) and not run.fully_sharded
        return Command(words, cannot, exports={"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if ordered else {})


def _tensors(run: TrainingRun, cannot: list[str]) -> list[str]:
    """Tensor parallelism and sequence shards."""
    plan, words = run.plan, list[str]()
    if plan.sequence_regions and plan.tp > 1:
        words.append("--sequence-parallel")
    if plan.overlap and plan.tp > 1:
        if plan.sequence_regions:
            words.append("--tp-comm-overlap")
        else:
            cannot.append("overlap of tensor-parallel sums without sequence_regions")
    if plan.sp > 1 and (kind := run.exchange(NAME, cannot)) is not None:
        words += ["--cp-comm-type", kind]
    return words


def _stages(run: TrainingRun, cannot: list[str]) -> list[str]:
    """The pipeline, and the order of axes."""
    plan, words = run.plan, list[str]()
    if plan.pp > 1 and not run.even:
        words += ["--pipeline-model-parallel-layout", layout(run)]
    elif plan.vpp > 1:
        words += ["--num-virtual-stages-per-pipeline-rank", str(plan.vpp)]
    if plan.accumulation > 1:
        cannot.append(f"accumulation {plan.accumulation}: its pipeline empties once a step")
    if NAME not in order_of(plan.schedule, plan.vpp).launched:
        cannot.append(f"schedule {plan.schedule}: it runs 1F1B, interleaved with virtual stages")
    if not run.placed_as("tp", "sp", "dp", "pp"):
        if run.placed_as("tp", "sp", "pp", "dp"):
            words.append("--use-tp-pp-dp-mapping")
        else:
            cannot.append("placement: ranks stand in the order tp, sp, dp, pp, or tp, sp, pp, dp")
    return words


def layout(run: TrainingRun) -> str:
    """Chunks of the pipeline in Megatron's letters: E the embedding, t a layer, m one for further tokens, L the loss.

    ``Et*7|(t*8|)*14t*7L``, written out: equal neighbours are folded.
    """
    texts = [f"t*{layers}" if layers > 1 else "t" * layers for layers in run.chunks]
    texts[0] = f"E{texts[0]}"
    texts[-1] += "m" * run.job.multi_token + "L"
    first, *middle, last = texts
    folded = [(text, len(list(group))) for text, group in groupby(middle)]
    return first + "|" + "".join(f"({text}|)*{count}" if count > 1 else f"{text}|" for text, count in folded) + last


def _experts(run: TrainingRun, cannot: list[str]) -> list[str]:
    """Experts, their dispatch, and its overlap."""
    plan, job, words = run.plan, run.job, list[str]()
    if job.model.experts is None:
        return words
    words.append("--moe-grouped-gemm")
    if job.work.routing.capacity_factor is not None:
        words += ["--moe-expert-capacity-factor", f"{job.work.routing.capacity_factor:g}"]
    if plan.ep == 1:
        return words
    words += ["--expert-tensor-parallel-size", "1"]
    flexible = plan.dispatch.launched.get(NAME)
    if flexible is None and plan.dispatch.phases is None and not plan.dispatch.sums_before_return:
        words += ["--moe-token-dispatcher-type", "alltoall"]
    elif flexible is not None and run.vendor == "nvidia":
        words += ["--moe-token-dispatcher-type", "flex", "--moe-flex-dispatcher-backend", flexible]
    else:
        cannot.append(f"expert_dispatch {plan.expert_dispatch} on GPUs of {run.vendor}")
        words += ["--moe-token-dispatcher-type", "alltoall"]
    if plan.hiding.micro_batches:
        words.append("--overlap-moe-expert-parallel-comm")
        if run.job.interleaving.defers_weights:
            words.append("--delay-wgrad-compute")
        if plan.pp > 1 and plan.vpp == 1:
            cannot.append("expert_overlap micro_batches without virtual stages: it asks for vpp above 1")
        if plan.recomputation == "full":
            cannot.append("recomputation full beside expert_overlap micro_batches: it refuses both together")
    elif plan.hiding.shared_beside:
        if "flex" in words:
            cannot.append("shared experts beside the dispatch: only its alltoall dispatcher has that")
        else:
            words.append("--moe-shared-expert-overlap")
    return words


def _replicas(run: TrainingRun, cannot: list[str]) -> list[str]:
    """Sharding over replicas, and the overlap of its exchanges."""
    plan, stack, words = run.plan, run.job.work.stack, list[str]()
    if run.copies == 1:
        return words
    if plan.zero == 1:
        words.append("--use-distributed-optimizer")
    elif plan.zero > 1:
        words += ["--use-megatron-fsdp", "--data-parallel-sharding-strategy", SHARDING[plan.zero]]
        words += ["--ckpt-format", "fsdp_dtensor"]
    if plan.zero and plan.shard_group is not None and plan.shard_group < run.copies:
        words += ["--num-distributed-optimizer-instances", str(run.copies // plan.shard_group)]
    if stack.overlap_gradients:
        words.append("--overlap-grad-reduce")
        words += ["--overlap-param-gather"] if plan.zero and stack.overlap_weights else []
    elif plan.zero and stack.overlap_weights:
        cannot.append("weights gathered beside the forward while gradients are summed after the backward")
    return words


def _recomputed(run: TrainingRun, cannot: list[str]) -> list[str]:
    """Recomputation in the backward."""
    plan, model = run.plan, run.job.model
    if plan.recomputation == "none":
        return []
    partly = run.some_layers(NAME, cannot)
    if plan.recomputation == "full":
        method, layers = partly or ("uniform", 1)
        words = ["--recompute-granularity", "full", "--recompute-method", method]
        return [*words, "--recompute-num-layers", str(layers)]
    if partly is not None:
        cannot.append(f"recomputation {plan.recomputation} of some layers: of all")
    if plan.recomputation not in MODULES:
        cannot.append(f"recomputation {plan.recomputation}")
        return []
    modules = list(MODULES[plan.recomputation])
    if plan.recomputation == "cheap":
        modules += ["moe_act"] if model.experts is not None else []
        modules += ["mla_up_proj"] if model.latent is not None else []
        if any(not block.experts for block in model.blocks):
            cannot.append("recomputation cheap: activations of dense MLPs are kept")
    return ["--recompute-granularity", "selective", "--recompute-modules", *modules]


def _types(run: TrainingRun, cannot: list[str]) -> list[str]:
    """Types of GEMMs and of summed gradients."""
    work, words = run.job.work, ["--bf16"]
    if work.precision in RECIPES:
        words += ["--fp8-format", "hybrid", "--fp8-recipe", RECIPES[work.precision]]
    elif work.precision == "nvfp4":
        words += ["--fp4-format", "e2m1", "--fp4-recipe", "nvfp4"]
    elif work.precision != "bf16":
        cannot.append(f"products in {work.precision}")
    size = work.optimizer.gradients
    if size not in (2.0, 4.0):
        cannot.append(f"gradients of {size:g} bytes: its own have 4, or 2 with --grad-reduce-in-bf16")
    return words + (["--grad-reduce-in-bf16"] if size == 2.0 else [])


MEGATRON = TRAINERS.register(Megatron())
