"""Serving steps with experts over all ranks, as two halves of a batch in turn, with kernels named as DeepEP, DeepGEMM
and FlashMLA name theirs: in the orders of DeepSeek's inference system (as SGLang has them) and in others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.strangers import SMALL_LATENT, Recorder

import tspsim
from tspsim import traces
from tspsim.base.errors import InputError
from tspsim.cli import main
from tspsim.step.question import Question, look_up
from tspsim.traces import match
from tspsim.traces.halves import orders_in_turn
from tspsim.traces.kinds import HEAVY
from tspsim.traces.lay import lay
from tspsim.traces.scenario import guess
from tspsim.traces.scenario_text import lines

LAYERS, DENSE = 8, 1
GEMM = "void deep_gemm::fp8_gemm_kernel<{}u, 2048u, 128u, 128u, 128u, 1u, 6u, 128u, 1u, (deep_gemm::GemmType){}>"
MLA = "void flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576, 64, 64, 8, cutlass::bfloat16_t, 512>, true>"
LOW = "void deep_ep::internode_ll::{}<3, 10, 2048>(void*, float*, int*, long*, int*)"

#: What a half does in a turn, and how many turns the second half is behind.
ORDERS: dict[str, tuple[list[str], int]] = {
    "deepseek-decode": (["before", "attend route", "send shared", "receive experts return", "gather"], 2),
    "four-turns": (["before attend", "route send shared", "receive experts return", "gather"], 2),
    "deepseek-prefill": (["before attend route send", "receive experts return", "shared gather"], 0),
    "dual-batch": (["before attend route send", "receive shared experts return", "gather"], 0),
}


def step(order: str, low_latency: bool = True, whole: bool = True) -> Recorder:
    """A step with one order of turns, or some layers of it without begin and end."""
    run = Recorder(launch_us=1.0)

    def of(*names: str) -> None:
        for name in names:
            run.launch(name, 4.0)

    def exchange(name: str, again: str) -> None:
        if low_latency:
            run.launch(LOW.format(name), 20.0)
        elif again:
            end = run.launch(f"void deep_ep::intranode::{name}<8, 768, 8192>(int4*, float*, int*)", 90.0, stream=27,
                             after=run.ends[7])  # fmt: skip
            run.ends[7] = max(run.ends[7], end)

    def before() -> None:
        of("void layer_norm::ln_fwd_kernel<2048u>", "void cuda::per_token_cast_to_fp8<__nv_bfloat16, 128>",
           GEMM.format(3648, 0), "void layer_norm::ln_fwd_kernel<512u>", "rotary_kernel", "rotary_kernel",
           "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x128x64")  # fmt: skip

    def attend() -> None:
        run.launch(MLA, 60.0)
        of("void flash_fwd_splitkv_mla_combine_kernel<cutlass::bfloat16_t, float, int, 512, 32>",
           "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x128x64",
           "void cuda::per_token_cast_to_fp8<__nv_bfloat16, 128>", GEMM.format(2048, 0))  # fmt: skip

    def route() -> None:
        of("void layer_norm::ln_fwd_kernel<2048u>", "sm90_xmma_gemm_bf16f32_bf16f32_f32_tn_n_tilesize64x64x64",
           "void at::native::vectorized_elementwise_kernel<4, sigmoid_kernel_cuda>",
           )  # fmt: skip
        run.launch("void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>", 4.0, grid=[32, 1, 1])

    def shared() -> None:
        of("void cuda::per_token_cast_to_fp8<__nv_bfloat16, 128>", GEMM.format(5632, 0),
           "void cuda::swiglu_forward<__nv_bfloat16>", GEMM.format(2048, 0))  # fmt: skip

    def experts() -> None:
        of(GEMM.format(2816, 2), "void cuda::swiglu_and_per_token_cast_to_fp8_masked<__nv_bfloat16>",
           GEMM.format(2048, 2))  # fmt: skip

    parts: dict[str, Any] = {
        "before": before, "attend": attend, "route": route, "shared": shared, "experts": experts,
        "send": lambda: exchange("dispatch", "all"), "receive": lambda: exchange("dispatch", ""),
        "return": lambda: exchange("combine", "all"), "gather": lambda: exchange("combine", ""),
    }  # fmt: skip
    turns, lag = ORDERS[order]
    with run.note("ProfilerStep#1"):
        for _ in range(DENSE if whole else 0):
            for part in (before, attend, shared):
                part()
        whole = " | ".join(" | ".join(turns) for _ in range(LAYERS - DENSE))
        # Without a lag the last turn of a layer goes on into the next layer.
        own = (whole if lag else whole.replace("gather | before", "gather before")).split(" | ")
        for place in range(len(own) + lag):
            for half in ([own[place]] if place < len(own) else []) + ([own[place - lag]] if place >= lag else []):
                for part in half.split():
                    parts[part]()
        if whole:
            of("void layer_norm::ln_fwd_kernel<2048u>", "nvjet_tst_128x64_64x8_2x1_v_bz_TNT")
    run.wait()
    return run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.yaml"
    path.write_text(SMALL_LATENT.format(layers=LAYERS))
    return path


def halves(model: Path, **plan: Any) -> Question:
    work = {"model": str(model), "pass": "decode", "batch": 64, "context": 4096, "precision": {"weights": "fp8_block"}}
    chosen = {"name": "P", "dp": 8, "ep": 8, "expert_dispatch": "low_latency", "expert_overlap": "two_batches", **plan}
    return look_up(tspsim.load({"name": "t", "cluster": "hgx-h800-8", "workload": work, "plans": [chosen]}))


def written(run: Recorder, path: Path) -> Path:
    path.write_text(json.dumps(run.kineto("h100", world=8)))
    return path


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_halves_take_turns_where_the_engine_does(order: str, model: Path, tmp_path: Path) -> None:
    trace = traces.read([written(step(order), tmp_path / "t.json")])
    laid = lay(trace, halves(model))
    assert laid.matched_share > 0.97, laid.left_over[:4]
    assert not [row for row in laid.left_over if row.kind in HEAVY and row.count > 1], laid.left_over[:4]
    # A dispatch that sends and receives is one, of both its kernels.
    rows = {row.kind: row for row in laid.operators}
    assert rows["dispatch"].count == rows["combine"].count == 2 * (LAYERS - DENSE)
    assert rows["dispatch"].measured_s == pytest.approx(4 * (LAYERS - DENSE) * 20e-6, rel=0.2)


def test_exchanges_on_a_stream_of_their_own(model: Path, tmp_path: Path) -> None:
    trace = traces.read([written(step("deepseek-prefill", low_latency=False), tmp_path / "t.json")])
    laid = lay(trace, halves(model, expert_dispatch="ranks"))
    assert laid.matched_share > 0.97
    assert not [row for row in laid.left_over if row.kind in HEAVY]
    with pytest.raises(InputError, match="expected attention of 8 layers, found 15"):
        lay(trace, halves(model, expert_overlap="none"))


def test_other_steps_have_no_further_orders(model: Path) -> None:
    from tspsim.traces.simulated import Simulated

    question = halves(model, expert_overlap="none")
    lane = Simulated(question, question.plans[0]).lane(0)
    assert orders_in_turn(lane.operations, ["gemm"]) == []


def test_a_scenario_from_a_serving_step_with_exchanges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(step("deepseek-decode"), tmp_path / "t.json")
    run = guess(traces.read([path]))
    assert (run.degrees, run.few_tokens, run.decodes, run.stack) == ({"ep": 8}, True, True, "")
    assert main(["trace", "scenario", str(path)]) == 0
    said = capsys.readouterr().out
    assert "stack: sglang" in said  # its experts' products are DeepGEMM's
    assert "pass: decode" in said and "dp: 8, ep: 8, expert_dispatch: low_latency" in said


@pytest.mark.parametrize("order", sorted(ORDERS))
@pytest.mark.parametrize("low_latency", (True, False))
def test_some_layers_show_that_halves_take_turns(order: str, low_latency: bool, tmp_path: Path) -> None:
    """No model's number of layers tells; without halves the same kernels show none."""
    if not low_latency and ORDERS[order][1]:
        pytest.skip("with this lag one half waits for its exchange before the other computes")
    trace = traces.read([written(step(order, low_latency, whole=False), tmp_path / "t.json")])
    assert guess(trace).halves and guess(trace).tokens == 32
    one = Recorder(launch_us=1.0)
    with one.note("ProfilerStep#1"):
        for _ in range(LAYERS):
            for name in (GEMM.format(3648, 0), MLA, GEMM.format(2048, 0), LOW.format("dispatch"), GEMM.format(5632, 0),
                         LOW.format("dispatch"), GEMM.format(2816, 2), GEMM.format(2048, 2), LOW.format("combine"),
                         GEMM.format(2048, 0), LOW.format("combine")):  # fmt: skip
                one.launch(name, 10.0)
    one.wait()
    assert not guess(traces.read([written(one, tmp_path / "one.json")])).halves


def test_a_trainer_s_kernels_in_a_step_that_serves(tmp_path: Path) -> None:
    """DeepSeek's profile of prompts has the kernels of its training, and no backward pass."""
    text = json.dumps(step("deepseek-prefill", low_latency=False).kineto("h800", world=8))
    path = tmp_path / "prompts.json"
    path.write_text(text.replace("deep_ep::intranode", "dpsk::ep::intranode"))
    run = guess(traces.read([path]))
    assert run.exchanges and run.halves and not run.trains and not run.stack


def test_all_tokens_to_all_ranks_are_an_exchange_too(tmp_path: Path) -> None:
    """vLLM's default between replicas: a gather before the experts and a scatter of sums behind them."""
    run = Recorder(launch_us=1.0)
    nccl = "ncclDevKernel_{}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    layer = ("nvjet_qkv", "flash::FlashAttnFwdSm90<Mainloop>", "nvjet_o", "nvjet_router", nccl.format("AllGather"),
             "void vllm::moe::topkGatingSoftmax<4, 128>", "fused_moe_kernel", "void vllm::act_and_mul_kernel<silu>",
             "fused_moe_kernel", "void vllm::moe::moe_sum_kernel<8>", nccl.format("ReduceScatter_Sum"))  # fmt: skip
    for _ in range(3):
        with run.note("execute_context_0(0)_generation_32(32)"):
            with run.replay():
                for name in layer * 48:
                    run.launch(name, 12.0)
            run.launch("nvjet_head", 90.0, op="aten::mm", dims=[[32, 2048], [2048, 151936]])
        run.wait()
    trace = traces.read([written(run, tmp_path / "t.json")])
    text = "\n".join(lines(trace))
    assert "dp: 8, ep: 8, expert_dispatch: gather}" in text and "model: qwen3-30b-a3b" in text
    laid = lay(trace, look_up(tspsim.load(yaml.safe_load(text))))
    assert laid.matched_share > 0.97
    assert not [row for row in laid.left_over if row.kind in HEAVY]


def test_ranks_from_the_experts_of_one(tmp_path: Path) -> None:
    """A profile that states no ranks has the experts of one in the template of their product."""
    run = Recorder(launch_us=1.0)
    low, product = (
        "void deep_ep::internode_ll::{}<true, false, 7168>(void*)",
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<{}>",
    )
    layer = (product.format("(Major)0, 0u, 2112u, 7168u, 1u, 64u, (GemmType)0"), MLA, "nvjet_o", "nvjet_router",
             low.format("dispatch"), product.format("(Major)0, 0u, 4096u, 7168u, 8u, 64u, (GemmType)2"),
             product.format("(Major)0, 0u, 7168u, 2048u, 8u, 64u, (GemmType)2"),
             low.format("combine"))  # fmt: skip
    with run.note("step[DECODE bs=64]"):
        for name in layer * 61:
            run.launch(name, 9.0)
    run.wait()
    path = tmp_path / "t.json"
    path.write_text(json.dumps(run.kineto("h800", world=0)))
    found = guess(traces.read([path]))
    assert (found.models[0], found.degrees, found.world_size) == ("deepseek-r1", {"ep": 32}, 32)


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_nearby_kernels_are_enough(order: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long steps are aligned by kernels near every operator, and all are looked at where one lacks its kernels."""
    trace, asked = traces.read([written(step(order), tmp_path / "t.json")]), halves(model)
    monkeypatch.setattr(match, "_FEW_PAIRS", 1e18)
    whole = lay(trace, asked).operation
    monkeypatch.setattr(match, "_FEW_PAIRS", 0.0)
    assert (lay(trace, asked).operation == whole).all()
