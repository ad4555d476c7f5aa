"""Groups of served runs whose errors are told apart, and which runs the stacks' numbers were fitted on."""

from __future__ import annotations

import zlib

from ...serving import POLICIES
from .run import ServedRun

DENSE = ("llama", "qwen3-32b")
NVIDIA = ("h", "b", "gb")
#: Stack → what its runs had when the numbers were fitted: versions that were told apart later move no run.
FITTED_AS = {"trtllm@1.0": "trtllm", "vllm@0.16": "vllm@0.17"}


def group_of(run: ServedRun) -> str:
    """The group of a run."""
    plan, groups = run.plan, POLICIES.get(run.policy).groups
    nvidia = plan.device.startswith(NVIDIA)
    if run.prefill is not None:
        return "disaggregated"
    if run.concurrency is None:
        return "offline"
    if plan.drafts:
        return "drafts"
    if not nvidia:
        return (groups.mi355x or run.policy) if plan.device == "mi355x" else "MI300X and MI325X"
    return (groups.dense if plan.model.startswith(DENSE) else groups.experts) or run.policy


def key_of(run: ServedRun) -> str:
    """What makes a configuration: runs of one that were measured twice are fitted on together or not at all."""
    plan = run.plan
    parts = (
        run.policy, FITTED_AS.get(plan.stack, plan.stack), plan.model, plan.device, plan.tp, plan.dp, plan.ep,
        plan.weights, plan.kv, plan.drafts, run.prompt, run.output, run.concurrency, run.replicas,
        run.prefill is not None,
    )  # fmt: skip
    return "|".join(map(str, parts))


def fitted(run: ServedRun) -> bool:
    """Whether the stacks' numbers were fitted on it: a third of the configurations, by a hash of what they are."""
    return zlib.crc32(key_of(run).encode()) % 3 == 0
