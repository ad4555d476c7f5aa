"""Steps of torchtitan and Primus on MI350X and MI355X against runs that nothing was fitted on."""

from __future__ import annotations

from typing import Any

import pytest

import tspsim
from tspsim.base import catalog
from tspsim.hardware import load_device
from tspsim.operators import Computes, Gemm, GroupedGemm, Role
from tspsim.parallel import load_stack
from tspsim.step.result import PlanResult


def stepped(device: str, workload: dict[str, Any], **plan: Any) -> PlanResult:
    scenario = {
        "name": "step", "cluster": {"device": device, "nodes": 1}, "workload": {"pass": "training", **workload},
        "plans": [{"name": "P", "zero": 3, "micro_batch": 1, **plan}],
    }  # fmt: skip
    (answer,) = tspsim.simulate(tspsim.load(scenario)).plans
    return answer


def test_plain_pytorch_runs_its_own_attention_where_it_was_measured() -> None:
    for name in ("torchtitan", "torchtitan-eager"):
        libraries = dict(load_stack(name).stack().libraries)
        used = {
            device: load_device(device).with_engine("", libraries).kernel("attention_backward", "bf16").library
            for device in ("mi355x", "mi350x", "mi300x", "h200")
        }
        assert used["mi355x"] == used["mi350x"] == "torch_sdpa" != used["mi300x"]
        assert "SDPA" in used["h200"]


def test_attentions_part_of_a_step_of_torchtitan_without_primus_turbo() -> None:
    # AMD's profile (ROCm blog, primus-deep-dive: Llama 3.1 70B, MI325X): 26.95 % flash attention, 67.43 % products.
    # With AITER's kernels it would be 11 %.
    work = {"model": "llama-3.1-70b", "sequence": "8Ki", "sequences_per_replica": 1, "stack": "torchtitan"}
    answer = stepped("mi355x", work, recomputation="full")
    by_kind = answer.compute_by_kind_s
    assert by_kind["attention"] / by_kind["gemm"] == pytest.approx(26.95 / 67.43, rel=0.2)


@pytest.mark.parametrize(("model", "measured"), [("llama-3.1-8b", 8143.0), ("llama-3.1-70b", 1176.0)])
def test_torchtitan_on_mi350x_by_the_rates_of_its_pull_request(model: str, measured: float) -> None:
    # pytorch/torchtitan pull request 4779: MFU of 20.5 and 24.6 % of 2.3 PFLOP/s, scores counted whole. No more:
    # with every layer recomputed 1.03 and 1.03 of the rate, with every second 1.13 and 1.14.
    work = {"model": model, "sequence": "8Ki", "sequences_per_replica": 1, "stack": "torchtitan-eager"}
    answer = stepped("mi350x", work, recomputation="full")
    assert answer.tokens_per_s_per_gpu == pytest.approx(measured, rel=0.1)


@pytest.fixture(scope="module")
def balanced(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Qwen3-30B with a balanced benchmark's choice: the next eight experts, all on a rank."""
    text = catalog.locate("models", "qwen3-30b-a3b").read_text()
    file = tmp_path_factory.mktemp("models") / "balanced.yaml"
    file.write_text(text.replace("width: 768", "width: 768, groups: 16, kept_groups: 1").replace("-a3b\n", "-rr\n", 1))
    return str(file)


@pytest.mark.parametrize(
    ("version", "measured_s", "rel"),
    [
        # AMD-AGI/Primus@31c71fa, agent/workspace/qwen3_fp8_tw_gfx950_20261010/README.md: its third figure and its
        # first, from whose difference the factor of unfused activations is.
        ("turbo-grouped", 7.9156, 0.05),
        ("turbo-grouped-unfused", 8.8940, 0.05),
        # tech_blogs/moe_package_2.0: 26,058.7 tokens/s a GPU with legacy grouped products, which are in bf16.
        ("precision-aware", 64 * 4096 / 26058.7, 0.15),
    ],
)
def test_a_step_of_qwen3_30b_in_fp8(version: str, measured_s: float, rel: float, balanced: str) -> None:
    work = {
        "model": balanced, "sequence": "4Ki", "sequences_per_replica": 64, "stack": f"primus@{version}",
        "precision": "fp8",
    }  # fmt: skip
    answer = stepped("mi355x", work, ep=8, zero=1, micro_batch=8, recomputation="none")
    assert answer.step_time_s == pytest.approx(measured_s, rel=rel)


def test_legacy_grouped_products_are_in_bf16_beside_others_in_fp8() -> None:
    experts = GroupedGemm(4096, 1536, 2048, "fp8", 16, role=Role.EXPERTS_GATE_UP, computes=Computes.OUTPUT)
    output = Gemm(4096, 2048, 4096, "fp8", role=Role.OUTPUT)
    for name, dtype, casts in (("primus", "bf16", 0.0), ("primus@turbo-grouped", "fp8", 2.0)):
        stack = load_stack(name).stack()
        assert [kernel.dtype for kernel in stack.run([experts, output]) if isinstance(kernel, Gemm)] == [dtype, "fp8"]
        assert stack.launches_of(experts) - stack.launches_of(experts.read_as("bf16", None)) == casts
        assert stack.launches_of(output) - stack.launches_of(output.read_as("bf16", None)) == 2.0
