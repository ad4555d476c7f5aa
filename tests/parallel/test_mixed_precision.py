"""fp32 weights under torch.autocast: what is cast, how wide the residual stream is, and times that others measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.engine import architecture, job_of, programs_of

import tspsim
from tspsim.operators import Computes, Gemm, MemoryBound, Operator, Role
from tspsim.parallel import Job, load_stack, scheme_of
from tspsim.parallel.interleave import flat
from tspsim.parallel.mixed_precision import MIXED_PRECISIONS
from tspsim.parallel.state.memory import kept_activations, peak_memory
from tspsim.program import Compute

TOKENS, HIDDEN = 1024, 512


def trained(stack: str, **plan: Any) -> Job:
    """A step of one micro-batch of an ungated model with a head."""
    model = architecture(HIDDEN, gated=False, vocab=1000)
    job = job_of(model, pass_="training", sequence=TOKENS, **{"recomputation": "none", **plan})
    return replace(job, work=replace(job.work, stack=load_stack(stack).stack()))


def kernels(job: Job) -> list[Operator]:
    return [each for line in flat(programs_of(job)[0]) if isinstance(line, Compute) for each in line.operators]


def moved(job: Job, name: str) -> float:
    return sum(each.size_bytes for each in kernels(job) if isinstance(each, MemoryBound) and each.name == name)


def multiplied(job: Job) -> float:
    """Weights that products read forward."""
    products = [each for each in kernels(job) if isinstance(each, Gemm) and each.computes is Computes.OUTPUT]
    return float(sum(product.batch * product.n * product.k for product in products))


def test_every_weight_is_cast_once_a_forward_and_its_gradient_once_a_backward() -> None:
    """autocast caches a cast until its context ends; 4 bytes are read and 2 written, or the reverse."""
    job = trained("autocast")
    assert moved(job, "cast weights") == moved(job, "cast gradients") == 6.0 * multiplied(job)
    again = trained("autocast", recomputation="full")
    layers = 6.0 * (multiplied(again) - multiplied(job))
    assert layers > 0.0 and moved(again, "cast weights") == moved(job, "cast weights") + layers
    assert moved(again, "cast gradients") == moved(job, "cast gradients")
    assert moved(trained("ideal"), "cast weights") == 0.0


def test_the_stream_is_in_fp32_around_norms() -> None:
    """Fused: 4 + 2 read, 4 + 2 written; backward 2 + 4 + 4 and 4 + 2. In bf16: four tensors of 2, both ways."""

    def norms(stack: str, computes: Computes) -> set[float]:
        found = [each for each in kernels(trained(stack)) if isinstance(each, MemoryBound) and each.op == "add_rmsnorm"]
        return {each.size_bytes / (TOKENS * HIDDEN) for each in found if each.computes is computes}

    back = {each.computes for each in kernels(trained("ideal")) if each.role is Role.NORM} - {Computes.OUTPUT}
    (backward,) = back
    assert norms("ideal", Computes.OUTPUT) == norms("ideal", backward) == {8.0}
    assert norms("autocast", Computes.OUTPUT) == {12.0} and norms("autocast", backward) == {16.0}
    assert norms("autocast@eager", Computes.OUTPUT) == {24.0 + 3.0}, "a sum of two types"
    assert norms("autocast@eager", backward) == {44.0 + 3.0}, "and a cast to the wider one"


def test_memory_keeps_a_wide_stream_and_narrow_weights() -> None:
    wide, narrow = trained("autocast"), trained("ideal")
    kept = [kept_activations(job, 1, job.model.blocks[0]) for job in (wide, narrow)]
    assert kept[0] - kept[1] == 2 * 2.0 * TOKENS * HIDDEN, "the layer's input and the middle, 2 bytes more each"
    parts = [peak_memory(job, scheme_of(job.plan).residency) for job in (wide, narrow)]
    assert parts[0]["narrow_weights"] == parts[0]["weights"] and "narrow_weights" not in parts[1]
    assert {kind.name for kind in MIXED_PRECISIONS.values() if kind.casts_nothing} == {"parameters"}


@pytest.mark.parametrize(
    ("stack", "measured_ms", "least", "most"),
    [
        ("autocast", 93.0, 0.95, 1.08),
        ("autocast@scores", 130.0, 0.95, 1.08),
        ("autocast@eager-scores", 300.0, 1.05, 1.15),
    ],
)
def test_gpt_2_of_124m_on_an_a100(stack: str, measured_ms: float, least: float, most: float, tmp_path: Path) -> None:
    """Karpathy, "Let's reproduce GPT-2 (124M)", chapters of the video (2024-06): 16 sequences of 1,024, bf16 300 ms,
    torch.compile 130, flash attention and a vocabulary of 50,304 93. Nothing is fitted on them."""
    model = {
        "name": "gpt2", "layers": 12, "hidden": 768, "attention": {"heads": 12, "kv_heads": 12, "head_dim": 64},
        "mlp": {"width": 3072, "gated": False}, "embedding": {"vocab": 50304, "tied": True}, "source": "the paper",
    }  # fmt: skip
    (tmp_path / "gpt2.yaml").write_text(yaml.safe_dump(model))
    asked = {
        "name": "gpt2",
        "cluster": {"device": "a100-80gb", "nodes": 1, "gpus_per_node": 1},
        "workload": {
            "model": str(tmp_path / "gpt2.yaml"), "pass": "training", "sequence": 1024, "sequences_per_replica": 16,
            "stack": stack,
        },
        "plans": [{"name": "one", "micro_batch": 16, "recomputation": "none"}],
    }  # fmt: skip
    (plan,) = tspsim.simulate(tspsim.load(asked)).plans
    assert least < measured_ms / 1e3 / plan.step_time_s < most
