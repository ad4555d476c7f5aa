"""Launch options of published runs: scheduler options, memory, and type of the cache, by engine and model.

InferenceX's scripts are read at SemiAnalysisAI/InferenceX, ``benchmarks/single_node`` (843c6254 and before) and, of
Llama-3.3-70B, ``benchmarks/70b_*`` of its beginnings; ATOM's at ROCm/ATOM, ``.github/benchmark/*.json``. They change
from month to month; the values here are from the time of the rows' measurement, or the nearest time before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: Tokens of a step in TensorRT-LLM's runs beyond the longest prompt, which is not cut.
BESIDE = 4096


@dataclass(frozen=True)
class MeasuredRun:
    """A row's own numbers, which a script depends on."""

    model: str
    device: str
    tp: int
    prompt: int
    output: int
    concurrency: int


@dataclass(frozen=True)
class Script:
    """The launch options: scheduler options, the engine's share of memory, and the type of the cache ("": the
    checkpoint's own)."""

    options: dict[str, Any]
    memory: float | None = None
    kv: str = ""


def inferencex(engine: str, run: MeasuredRun) -> Script:
    """The script of an engine and a model."""
    return INFERENCEX[engine](run)


def _vllm(run: MeasuredRun) -> Script:
    """Options for vLLM. Prefix caching is off in all scripts."""
    blackwell = run.device.startswith(("b", "gb"))
    if run.model.startswith("llama"):
        return Script({"max_num_batched_tokens": 8192, "max_num_seqs": 512}, 0.9, "fp8")
    if run.model.startswith("gpt-oss"):
        slots = 512 if blackwell else run.concurrency
        return Script({"max_num_batched_tokens": 8192, "max_num_seqs": slots}, 0.9, "fp8" if blackwell else "bf16")
    if run.model.startswith("minimax"):
        if run.device == "h200":
            budget = 16384 if run.concurrency <= 32 else 32768
            return Script({"max_num_batched_tokens": budget, "max_num_seqs": 512}, 0.95, "fp8")
        return Script({"max_num_batched_tokens": 2 * run.prompt, "max_num_seqs": 1024}, 0.9, "fp8")
    return Script({"max_num_batched_tokens": 8192, "max_num_seqs": run.concurrency}, 0.9)


def _sglang(run: MeasuredRun) -> Script:
    """Options for SGLang. The radix cache is off in all scripts."""
    polled = 30 if run.concurrency >= 16 else 10
    if run.model.startswith("glm"):
        options = {"chunked_prefill_size": 32768, "max_prefill_tokens": 32768}
        return Script(options | {"max_running_requests": run.concurrency}, 0.85, "fp8")
    if run.model.startswith("qwen3.5"):
        if run.device == "h200":
            options = {"chunked_prefill_size": 16384, "max_prefill_tokens": 16384, "max_running_requests": 128}
            return Script(options, 0.8, "fp8")
        options = {"chunked_prefill_size": 32768, "max_prefill_tokens": 32768, "max_running_requests": 128}
        return Script(options | {"scheduler_recv_interval": polled}, 0.82, "fp8")
    if run.device == "h200":
        slots = 512 if run.prompt == run.output else 256
        options = {"chunked_prefill_size": 32768, "max_prefill_tokens": 32768, "max_running_requests": slots}
        return Script(options, 0.82)
    options = {"chunked_prefill_size": 16384, "max_prefill_tokens": 16384, "max_running_requests": 256}
    return Script(options | {"scheduler_recv_interval": polled}, 0.85, "fp8")


def _sglang_block_fp8(run: MeasuredRun) -> Script:
    """Options for DeepSeek in fp8 on Blackwell: its chunks differ from those in fp4."""
    polled = 30 if run.concurrency >= 16 and run.tp == 8 else 10
    chunk, slots, memory = (32768, 128, 0.82) if run.tp == 8 else (8192, 32, 0.95)
    options = {"chunked_prefill_size": chunk, "max_prefill_tokens": chunk, "max_running_requests": slots}
    return Script(options | {"scheduler_recv_interval": polled}, memory, "fp8")


def _sglang_fp4(run: MeasuredRun) -> Script:
    """Options for Qwen3.5 in fp4 on B200: the same polling interval at any load (qwen3.5_fp4_b200.sh, 088fe66)."""
    options = {"chunked_prefill_size": 32768, "max_prefill_tokens": 32768}
    options |= {"max_running_requests": max(128, run.concurrency), "scheduler_recv_interval": 30}
    return Script(options, 0.85, "fp8")


def _sglang_drafts(run: MeasuredRun) -> Script:
    """Options for Qwen3.5 in fp8 on B200 with its multi-token-prediction module (qwen3.5_fp8_b200_mtp.sh, 83fafdd)."""
    options = {"chunked_prefill_size": 32768, "max_prefill_tokens": 32768, "max_running_requests": run.concurrency}
    polled = 30 if run.concurrency >= 16 else 10
    return Script(options | {"scheduler_recv_interval": polled}, 0.9, "fp8")


def _trtllm(run: MeasuredRun) -> Script:
    """Options for TensorRT-LLM. Block reuse is off in all scripts."""
    options: dict[str, Any]
    if run.model.startswith("llama"):
        options = {"max_num_tokens": 16384, "max_batch_size": 2048}
        if run.prompt == run.output == 1024 and run.tp < 8:
            options |= {"batch_wait_timeout_iters": 20, "batch_wait_max_tokens_ratio": 0.9}
        return Script(options, None, "fp8")
    if run.model.startswith("gpt-oss"):
        if run.device == "h200":
            return Script({"max_num_tokens": 20000, "max_batch_size": run.concurrency}, 0.85)
        return Script({"max_num_tokens": 20000, "max_batch_size": 512}, 0.85, "fp8")
    options = {"max_num_tokens": -(-(run.concurrency + run.prompt + 64) // 64) * 64, "max_batch_size": 2048}
    if trtllm_degrees(run)[1] > 1:
        balance = {"enable_balance": True, "timeout_iters": 60, "batching_wait_iters": 0}
        options["attention_dp_config"] = tuple(balance.items())
    return Script(options, 0.75, "fp8")


def trtllm_degrees(run: MeasuredRun) -> tuple[int, int, int]:
    """Attention's ranks and replicas, and ranks of whole experts, of DeepSeek-R1 on H200 (dsr1_fp8_h200_trt_slurm.sh,
    InferenceMAX ff7e462 and InferenceX b5ebafa; nvidia-master.yaml 525079a, "for all sequence lengths, EP=TP"):
    replicas where more than 64 clients send prompts of 1 Ki, or more than 32 of 8 Ki."""
    replicas = run.tp if run.concurrency > (32 if run.prompt > 4096 else 64) else 1
    return run.tp // replicas, replicas, run.tp


#: Scripts by engine.
INFERENCEX: dict[str, Callable[[MeasuredRun], Script]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "sglang fp8": _sglang_block_fp8,
    "sglang fp4": _sglang_fp4,
    "sglang drafts": _sglang_drafts,
    "trtllm": _trtllm,
}


#: Sequences of TensorRT-LLM by default in aiconfigurator's generator, and its tokens of a pass beside sequences and
#: prompt (generator/rule_plugin/benchmark/trtllm.rule, 581e459).
SLOTS, GENERATED = 128, 1500


def defaults(engine: str, run: MeasuredRun) -> Script:
    """Options of aiconfigurator's gap analysis, which names none. Engines run with their defaults, with two exceptions:
    the generator configures TensorRT-LLM, and SGLang where it mixes passes (benchmark/sglang.rule, a2d8002). SGLang's
    max_prefill_tokens of 1,500 beyond the prompt is left out: it would allow only two prompts of 1,000 per pass, and
    runs of the fitted third had more. Caches are in bf16."""
    if engine == "vllm":
        return Script({"max_num_batched_tokens": 8192, "max_num_seqs": 1024}, 0.9)
    if engine.startswith("sglang"):
        options: dict[str, Any] = {"chunked_prefill_size": 8192, "max_prefill_tokens": 16384}
        return Script(options | ({"enable_mixed_chunk": True} if engine == "sglang mixed" else {}), None)
    slots = max(SLOTS, run.concurrency)
    return Script({"max_num_tokens": slots + run.prompt + GENERATED, "max_batch_size": slots}, 0.9)
