"""Launch options of published prefill and decode workers, and attention replicas that rows leave out.

Read at SemiAnalysisAI/InferenceX, ``benchmarks/multi_node/srt-slurm-recipes`` (792d8aa4 and 20e07441) and
``.github/configs/nvidia-master.yaml`` (of DeepSeek-R1 in fp4 on GB200, 525079ad), and NVIDIA/srt-slurm,
``recipes/b200-fp4/8k1k.yaml`` (5917791). A recipe's ``max_batch_size`` is often less than a worker's clients: the
others wait before they decode. This wait is most of the time to the first token and keeps the batch small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .scripts import MeasuredRun


@dataclass(frozen=True)
class DecodeWorkers:
    """A run that rows state, and its decode workers: their number and their GPUs; ``narrow``: four-bit weights."""

    run: MeasuredRun
    narrow: bool
    workers: int
    gpus: int


@dataclass(frozen=True)
class Recipe:
    """Options of prefill and decode workers; ``replicates_*``: each GPU has the attention of its own requests, even if
    the row's labels disagree."""

    prefill: dict[str, Any] = field(default_factory=dict)
    decode: dict[str, Any] = field(default_factory=dict)
    replicates_prefill: bool = False
    replicates_decode: bool = False


#: TensorRT-LLM's ``max_batch_size`` of decode workers, from the recipes' names: for Kimi-K2.5 by prompt, workers and
#: GPUs per worker; for DeepSeek-R1 by device, four-bit weights, prompt and clients.
KIMI_SLOTS = {(1024, 4, 8): 128, (1024, 5, 4): 8, (8192, 4, 8): 1, (8192, 5, 4): 16, (8192, 4, 4): 32}
R1_SLOTS = {
    ("gb200", False, 1024, 4): 1, ("gb200", False, 8192, 6): 1, ("gb200", False, 8192, 18): 4,
    ("gb200", False, 8192, 63): 16, ("b200", False, 1024, 1920): 48, ("b200", False, 1024, 4096): 512,
}  # fmt: skip


def _trtllm(stated: DecodeWorkers) -> Recipe:
    """Options for TensorRT-LLM. Prefill does not overlap passes, and block reuse is off."""
    run = stated.run
    short = run.prompt <= 1024
    if run.model == "deepseek-r1" and run.device == "gb200" and stated.narrow:
        tokens, prompts, slots = (4608, 4, 128) if short else (8448, 1, 32)
    else:
        tokens, prompts = (16384, 16) if short else (16384, 2)
        kimi = KIMI_SLOTS.get((run.prompt, stated.workers, stated.gpus), 128)
        r1 = R1_SLOTS.get((run.device, stated.narrow, run.prompt, run.concurrency), 128)
        slots = kimi if run.model.startswith("kimi") else r1
    prefill = {"max_num_tokens": tokens, "max_batch_size": prompts, "disable_overlap_scheduler": True}
    common = {"enable_block_reuse": False}
    return Recipe(prefill | common, {"max_batch_size": slots, "free_gpu_memory_fraction": 0.8} | common)


def _sglang(stated: DecodeWorkers) -> Recipe:
    """Options for DeepSeek-R1 on B200. Chunk size and running requests are per worker, and its attention replicas share
    them."""
    wide = stated.run.concurrency >= 1024
    chunk = 65536 if wide else 32768
    common = {"disable_radix_cache": True, "mem_fraction_static": 0.85}
    prefill = {"chunked_prefill_size": chunk, "max_prefill_tokens": chunk}
    return Recipe(prefill | common, {"max_running_requests": 2048 if wide else 512} | common)


def _vllm(stated: DecodeWorkers) -> Recipe:
    """Options for Kimi-K2.5 on GB200: prefill workers use attention replicas and no chunks; decode workers use
    attention replicas if they have more GPUs than a tray."""
    prefill = {"max_num_batched_tokens": 16384, "max_num_seqs": 1024, "enable_chunked_prefill": False}
    replicates = stated.gpus > 4
    slots = 4096 if replicates else 1024 if stated.run.prompt <= 1024 else 16
    common = {"enable_prefix_caching": False, "gpu_memory_utilization": 0.9}
    return Recipe(prefill | common, {"max_num_batched_tokens": 10240, "max_num_seqs": slots} | common, True, replicates)


RECIPES: dict[str, Callable[[DecodeWorkers], Recipe]] = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}
