"""Training steps whose forward and backward micro-batches run beside each other, as DualPipe's do, and others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.strangers import Recorder

import tspsim
from tspsim import traces
from tspsim.step.question import look_up
from tspsim.traces.lay import lay
from tspsim.traces.overlaps import interleaved
from tspsim.traces.scenario import guess
from tspsim.traces.scenario_text import lines

LAYERS, WIDTH = 4, 7168
PRODUCT = "void deep_gemm::fp8_gemm_kernel<{}u, {}u, 128u, 128u, 128u, 1u, 6u, 128u, 1u, (deep_gemm::GemmType)0>"
GROUPED = "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, {}u, {}u, 8u, 128u, 128u, (deep_gemm::GemmType)1>"
EXCHANGE = "void deep_ep::internode::{}<false, 8, false>(int4*, float*, int*)"
MESSAGES = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
ALL_TO_ALL: dict[str, Any] = {
    "Collective name": "all_to_allv", "dtype": "BFloat16", "In msg nelems": 8 * 4096 * WIDTH, "Group size": 64,
    "Process Group Name": "7", "Process Group Description": "EXPERT_MODEL_PARALLEL_GROUP",
}  # fmt: skip
NORM = "void layer_norm::ln_{}_kernel<layer_norm::Kernel_traits<__nv_bfloat16, __nv_bfloat16, 7168u>>"
CAST = "void per_token_cast_to_fp8<__nv_bfloat16, 128>"


class Step:
    """A stage's layers, forward and backward, with exchanges on a stream of their own."""

    def __init__(self, *, beside: bool, narrow: bool = True, again: bool = True, plain: bool = False) -> None:
        self.run, self.beside, self.narrow, self.again = Recorder(launch_us=1.0), beside, narrow, again
        self.plain = plain
        with self.run.note("ProfilerStep#1"):
            if beside:
                for _ in range(LAYERS):
                    self.layer_of_both()
            else:
                for part in ("forward", "backward"):
                    for _ in range(LAYERS):
                        getattr(self, part)()
        self.run.wait()

    def of(self, phase: str, *names: str, us: float = 100.0) -> None:
        with self.run.note(f"LAYER({phase})"):
            for name in names:
                self.run.launch(name, us)

    def exchange(self, phase: str, name: str) -> float:
        """Begins behind what computes, and is waited for unless another micro-batch computes."""
        with self.run.note(f"{name}({phase})"):
            end = self.run.launch(
                MESSAGES if self.plain else EXCHANGE.format(name), 900.0, stream=27, after=self.run.ends.get(7, 0.0),
                **(ALL_TO_ALL if self.plain else {}),
            )  # fmt: skip
        if not self.beside:
            self.run.ends[7] = max(self.run.ends.get(7, 0.0), end)
        return end

    def arrives(self, end: float) -> None:
        self.run.ends[7] = max(self.run.ends.get(7, 0.0), end)

    def attends(self) -> None:
        self.of("F", NORM.format("fwd"), CAST, PRODUCT.format(2112, WIDTH), PRODUCT.format(24576, 1536))
        self.of("F", "void flash::compute_attn_ws<Flash_fwd_kernel_traits<192, 128, 128>>", us=900.0)
        self.of("F", PRODUCT.format(WIDTH, 16384), NORM.format("fwd"), "sm90_xmma_gemm_bf16f32_bf16f32_f32_tn_n")
        self.of("F", CAST, us=40.0)

    def multiplies(self) -> None:
        self.of("F", *([] if self.narrow else [CAST]), GROUPED.format(4096, WIDTH), "swiglu_forward", us=600.0)
        self.of("F", GROUPED.format(WIDTH, 2048), us=400.0)

    def multiplies_back(self) -> None:
        norms = [NORM.format("fwd")] * self.again
        self.of("B", "cast_back_impl<__nv_fp8x2_e4m3>", *norms, us=80.0)
        self.of("B", GROUPED.format(2048, WIDTH), "swiglu_backward", GROUPED.format(WIDTH, 4096), us=600.0)
        self.of("W", *["void deep_gemm::fp8_wgrad_gemm_kernel<2048u, 7168u>"] * 2, us=500.0)

    def attends_back(self) -> None:
        self.of("B", PRODUCT.format(16384, WIDTH))
        self.of("B", "void flash::FlashAttnBwd<Flash_bwd_kernel_traits<192, 128>>", us=2500.0)
        self.of("B", PRODUCT.format(1536, 24576), PRODUCT.format(WIDTH, 2112), NORM.format("bwd"))
        self.of("W", *["void deep_gemm::fp8_wgrad_gemm_kernel<1536u, 24576u>"] * 3, us=200.0)

    def forward(self) -> None:
        self.attends()
        self.exchange("F", "dispatch")
        self.multiplies()
        self.exchange("F", "combine")

    def backward(self) -> None:
        self.exchange("B", "dispatch")
        self.multiplies_back()
        self.exchange("B", "combine")
        self.attends_back()

    def layer_of_both(self) -> None:
        back = self.exchange("B", "dispatch")
        self.attends()
        self.arrives(back)
        sent = self.exchange("F", "dispatch")
        self.multiplies_back()
        back = self.exchange("B", "combine")
        self.arrives(sent)
        self.multiplies()
        self.arrives(back)
        self.exchange("F", "combine")
        self.attends_back()

    def read(self, folder: Path) -> traces.Trace:
        path = folder / "stage.json"
        groups = [{"pg_name": "7", "pg_desc": "EXPERT_MODEL_PARALLEL_GROUP", "pg_size": 64, "ranks": list(range(64))}]
        path.write_text(json.dumps(self.run.kineto("h800", world=64, groups=groups if self.plain else ())))
        return traces.read([path])


@pytest.mark.parametrize("beside", (True, False))
def test_micro_batches_beside_each_other_are_told_from_those_that_wait(beside: bool, tmp_path: Path) -> None:
    trace = Step(beside=beside).read(tmp_path)
    text = "\n".join(lines(trace))
    plan = yaml.safe_load(text)["plans"][0]
    assert plan["ep"] == 64 and plan["pp"] == 16 and plan["recomputation"] == "cheap"
    assert ("expert_overlap" in plan) == beside == ("beside the other's products" in text)
    assert plan["expert_dispatch"] == "ranks_fp8" and plan["activation_store"] == "fp8_products"
    # The framework is not known, nor is the order of its pipeline.
    assert "schedule" not in plan
    assert lay(trace, look_up(tspsim.load(yaml.safe_load(text)))).matched_share > 0.95


def test_what_is_cast_behind_an_exchange_travelled_in_sixteen_bits(tmp_path: Path) -> None:
    run = guess(Step(beside=True, narrow=False, again=False).read(tmp_path))
    assert not run.dispatch and run.recomputes == "none" and run.keeps_narrow and run.interleaved > 0.3


def test_a_trace_without_phases_shows_no_order(tmp_path: Path) -> None:
    step = Step(beside=True)
    for event in step.run.events:
        if event["name"].endswith(")") and event["cat"] == "user_annotation":
            event["name"] = "layer"
    assert interleaved(step.read(tmp_path)) == 0.0


@pytest.mark.parametrize("beside", (True, False))
def test_plain_all_to_alls_are_exchanges_with_experts(beside: bool, tmp_path: Path) -> None:
    """NCCL has one kernel for messages and all-to-alls; what PyTorch records tells them apart."""
    trace = Step(beside=beside, plain=True).read(tmp_path)
    assert trace.time_by("kind")["all_to_all"] > 0.0 and "send_recv" not in trace.time_by("kind")
    scenario = yaml.safe_load("\n".join(lines(trace)))
    plan = scenario["plans"][0]
    assert (plan["ep"], plan["expert_dispatch"]) == (64, "experts") and ("expert_overlap" in plan) == beside
    assert lay(trace, look_up(tspsim.load(scenario))).matched_share > 0.95


def test_layers_are_those_of_a_pass_where_passes_overlap(tmp_path: Path) -> None:
    """A backward pass looks tokens up too, between a forward pass and its head."""
    run = Recorder(launch_us=1.0)
    layer = (
        "nvjet_qkv",
        "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>",
        "nvjet_o",
        "nvjet_up",
        "nvjet_down",
    )
    with run.note("ProfilerStep#1"):
        for _ in range(3):
            with run.note("EMBED(F)"):
                run.launch("indexSelectLargeIndex<bf16>", 5.0, op="aten::embedding")
            with run.note("LAYERS(F)"):
                for name in layer * 12:
                    run.launch(name, 9.0)
            with run.note("EMBED(B)"):
                run.launch("embedding_backward_feature_kernel", 5.0)
            with run.note("HEAD(F)"):
                run.launch("nvjet_head", 90.0)
            with run.note("LAYERS(B)"):
                for name in layer * 12:
                    run.launch(name.replace("fwd", "bwd"), 18.0)
    run.wait()
    path = tmp_path / "t.json"
    path.write_text(json.dumps(run.kineto()))
    assert guess(traces.read([path])).layers == 12
