"""Groups of served runs whose errors are told apart, and which runs the stacks' numbers were fitted on."""

from __future__ import annotations

import zlib

from .run import ServedRun

DENSE = ("llama", "qwen3-32b")
NVIDIA = ("h", "b", "gb")


def group_of(run: ServedRun) -> str:
    """The group of a run."""
    plan = run.plan
    nvidia = plan.device.startswith(NVIDIA)
    if run.prefill is not None:
        return "disaggregated"
    if run.concurrency is None:
        return "offline"
    if plan.drafts:
        return "drafts"
    if not nvidia:
        amd = {"atom": "MI355X ATOM", "vllm": "MI355X plug-in", "sglang": "MI355X plug-in"}[run.policy]
        return amd if plan.device == "mi355x" else "MI300X and MI325X"
    if plan.model.startswith(DENSE):
        return "dense SGLang" if run.policy == "sglang" else "dense vLLM and TensorRT-LLM"
    if run.policy == "vllm":
        return "vLLM experts"
    return "SGLang experts" if run.policy == "sglang" else "TensorRT-LLM experts"


def key_of(run: ServedRun) -> str:
    """What makes a configuration: runs of one that were measured twice are fitted on together or not at all."""
    plan = run.plan
    parts = (
        run.policy, plan.stack.removesuffix("@1.0"), plan.model, plan.device, plan.tp, plan.dp, plan.ep,
        plan.weights, plan.kv, plan.drafts, run.prompt, run.output, run.concurrency, run.replicas,
        run.prefill is not None,
    )  # fmt: skip
    return "|".join(map(str, parts))


def fitted(run: ServedRun) -> bool:
    """Whether the stacks' numbers were fitted on it: a third of the configurations, by a hash of what they are."""
    return zlib.crc32(key_of(run).encode()) % 3 == 0
