"""Faults that a reader found who laid every public trace as a user does, and steps of his own making."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.profiles import Kernel, kineto, written
from helpers.strangers import SMALL_LATENT, Recorder

import tspsim
from tspsim import traces
from tspsim.cli import main
from tspsim.step.question import look_up
from tspsim.traces.lay import lay
from tspsim.traces.machines import device_of
from tspsim.traces.named_facts import precision, product_widths
from tspsim.traces.names import kind_of, narrow, waits
from tspsim.traces.scenario import guess
from tspsim.traces.scenario_text import lines
from tspsim.traces.table import TracedDevice

LAYERS = 8
GEMM = "void deep_gemm::fp8_gemm_kernel<{}u, {}u, 128u, 128u, 128u, 1u, 6u, 128u, 1u, (deep_gemm::GemmType){}>"
FLASH = "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2>>>>"
CAST = "void per_token_group_quant_8bit_kernel<__nv_bfloat16, __nv_fp8_e4m3, true, false, float>"
EXCHANGE = "void deep_ep::intranode::{}<8, 768, 8192>(int4*, float*, int*)"


def prompts(layers: int, *, apart: bool) -> Recorder:
    """Layers of prompts as SGLang's two batches run them, with shared experts behind the routed ones; ``apart``: a half
    ends its layer before the other begins the next."""
    run = Recorder(launch_us=1.0)

    def of(*names: str, us: float = 20.0) -> None:
        for name in names:
            run.launch(name, us)

    def exchange(name: str) -> None:
        run.launch(EXCHANGE.format(name), 90.0, stream=27, after=run.ends[7])

    def attend() -> None:
        of("void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>", CAST, GEMM.format(3648, 2048, 0),
           "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>", CAST, GEMM.format(4096, 512, 0),
           "void rotary_embedding_kernel<__nv_bfloat16, false>", FLASH, CAST, GEMM.format(2048, 2048, 0),
           "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>", "nvjet_tst_router_TNT",
           "void moe_fused_gate_kernel<>")  # fmt: skip
        exchange("dispatch")

    def experts() -> None:
        run.ends[7] = max(run.ends[7], run.ends[27])
        of("_fwd_kernel_ep_scatter_2", GEMM.format(2816, 2048, 1), "act_and_mul_kernel", CAST,
           GEMM.format(2048, 1408, 1), "_fwd_kernel_ep_gather", us=50.0)  # fmt: skip
        exchange("combine")

    def shared() -> None:
        of(CAST, GEMM.format(5632, 2048, 0), "act_and_mul_kernel", CAST, GEMM.format(2048, 2816, 0))

    turns = [(attend,), (experts,), (shared,)] if apart else [(experts,), (shared, attend)]
    halves: tuple[int, ...] = (0, 1)
    if not apart:
        for _ in halves:
            attend()
    for layer in range(layers):
        for turn in turns:
            for _ in halves:
                for part in turn:
                    if apart or part is not attend or layer + 1 < layers:
                        part()
    run.wait()
    return run


def question(tmp_path: Path, **work: object) -> tspsim.step.question.Question:  # type: ignore[name-defined]
    (tmp_path / "small.yaml").write_text(SMALL_LATENT.format(layers=LAYERS))
    own = {"model": str(tmp_path / "small.yaml"), "pass": "prefill", "batch": 2, "context": 4096,
           "precision": {"weights": "fp8_block"}, **work}  # fmt: skip
    plan = {"name": "P", "dp": 8, "ep": 8, "expert_overlap": "two_batches"}
    return look_up(tspsim.load({"name": "t", "cluster": "hgx-h800-8", "workload": own, "plans": [plan]}))


@pytest.mark.parametrize("apart", [True, False])
def test_layers_alone_are_laid_over_as_many(tmp_path: Path, apart: bool) -> None:
    """A profile of some layers, with no begin or end of a step: every operator finds its own kernels, those of two
    halves whose shared experts run last too."""
    path = tmp_path / "t.json"
    path.write_text(json.dumps(prompts(3, apart=apart).kineto("h800", world=8)))
    laid = lay(traces.read([path]), question(tmp_path))
    assert laid.matched_share > 0.99
    assert any("shows 3 layers and no begin or end" in note for note in laid.notes)
    taken = [laid.operation.tolist().count(index) for index in range(len(laid.lane.operations))]
    counts = {(item.name, count) for item, count in zip(laid.lane.operations, taken, strict=True) if item.of_dense_mlp}
    # A product and its cast, or, where the simulation has the cast apart, the product alone.
    assert counts == {("gate and up", 2), ("down projection", 1)}, counts
    experts = [n for item, n in zip(laid.lane.operations, taken, strict=True) if item.kind == "grouped_gemm"]
    assert len(experts) == 6 and min(experts) >= 5, experts
    # What lies around routed products is priced with them, and is on one side of the table only where they are.
    kinds = {row.kind: row for row in laid.kinds}
    assert kinds["grouped_gemm"].measured_s == pytest.approx(6 * 6 * 50e-6, rel=0.15)
    assert "permute" not in kinds and kinds["activation"].measured_s == pytest.approx(6 * 20e-6, rel=0.05)
    run = guess(traces.read([path]))
    assert run.halves and run.hidden == 2048


def test_a_whole_step_of_fewer_layers_is_another_model(tmp_path: Path) -> None:
    run = prompts(3, apart=True)
    run.launch("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>", 9.0)
    path = tmp_path / "t.json"
    path.write_text(json.dumps(run.kineto("h800", world=8)))
    with pytest.raises(tspsim.errors.InputError, match="expected attention of 16 layers, found 6"):
        lay(traces.read([path]), question(tmp_path))


def test_what_ran_fits(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(prompts(3, apart=True).kineto("h800", world=8)))
    laid = lay(traces.read([path]), question(tmp_path, batch=64, context=131072))
    assert any("GiB" in note and "since it ran" in note for note in laid.notes)


def test_gate_is_activated_before_up_is_multiplied(tmp_path: Path) -> None:
    """Hugging Face's order: what runs between two products of one operator is of the small operator behind it, and an
    operator without kernels is told."""

    def mm(n: int, k: int = 4096) -> Kernel:
        return Kernel("nvjet_tst_128x256_64x4_2x1_v_bz_TNT", 9.0, "aten::mm", [[512, k], [k, n]])

    layer = [Kernel("rms_norm_kernel", 2.0), mm(4096), mm(1024), mm(1024), Kernel("rotary_embedding_kernel", 2.0),
             Kernel("flash_fwd_kernel", 9.0), mm(4096), Kernel("rms_norm_kernel", 2.0), mm(14336),
             Kernel("silu_kernel_cuda", 3.0), mm(14336),
             Kernel("vectorized_elementwise_kernel<4, BinaryFunctor<MulFunctor>>", 4.0), mm(4096, 14336)]  # fmt: skip
    kernels = [Kernel("indexSelectLargeIndex", 2.0), *layer * 32, Kernel("rms_norm_kernel", 2.0)]
    path = written(tmp_path / "a.json", kineto([("step 1", kernels)], device="h100"))
    work = {"model": "llama-3.1-8b", "pass": "forward", "sequence": 512, "sequences_per_replica": 1}
    plan = {"name": "P", "tp": 1}
    cluster = {"device": "h100", "gpus_per_node": 1}
    laid = lay(
        traces.read([path]),
        look_up(tspsim.load({"name": "t", "cluster": cluster, "workload": work, "plans": [plan]})),
    )
    rows = {row.name: row for row in laid.operators}
    assert rows["gate and up"].measured_s == pytest.approx(32 * 18e-6, rel=0.05)
    assert rows["activation"].measured_s == pytest.approx(32 * 7e-6, rel=0.05)
    assert any(note.startswith("no kernel computes language-model head") for note in laid.notes)


def test_training_without_annotations(tmp_path: Path) -> None:
    """Products repeat twice in a layer; names alone say that a pass goes back."""
    forward = [*[Kernel("Cijk_a", 5.0), Kernel("Cijk_b", 5.0)] * 2, Kernel("attn_fwd", 9.0), Kernel("Cijk_c", 5.0)]
    backward = [*[Kernel("Cijk_d", 5.0), Kernel("Cijk_e", 5.0)] * 4, Kernel("bwd_kernel_fuse", 9.0)]
    step = [Kernel("Cijk_in", 3.0), *forward * 6, Kernel("Cijk_head", 7.0), *backward * 6, Kernel("Cijk_last", 2.0)]
    path = written(tmp_path / "a.json", kineto([("work", step * 3)], device="mi300x"))
    trace = traces.read([path])
    assert int(trace.columns["layer"].max()) + 1 == 6
    assert guess(trace).trains


def test_a_scenario_is_of_a_model_that_can_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A stage of a pipeline has the rest of the model in other stages; a node that cannot be divided is whole; experts
    need a model with experts."""
    names = ("void layer_norm::ln_fwd_kernel<layer_norm::Kernel_traits<bf16, float, unsigned int, 7168u, 1u>>",
             "void cutlass::device_kernel<dpsk::fp8_ptp128c::GemmKernel>", "mla_flash_fwd_kernel",
             "void dpsk::ep::internode::dispatch<false, 8, true, 8>",
             "void cutlass::device_kernel<dpsk::grouped_gemm::m_grouped_fp8_ptp128c::GemmKernel>",
             "void dpsk::ep::internode::combine<false, 8>", "mla_flash_bwd_kernel")  # fmt: skip
    layer = [Kernel(name, 9.0) for name in names]
    path = written(tmp_path / "a.json", kineto([("step 1", layer * 4)], device="h800", world_size=64))
    text = "\n".join(lines(traces.read([path])))
    assert "nodes: 128" in text and "ep: 64, pp: 16" in text and "precision: fp8_block" in text
    assert "4 of 61 layers are in the trace" in text
    path = written(tmp_path / "v.json", kineto([("step 1", [Kernel("volta_sgemm_128x64_nn", 9.0)] * 9)], device="v100"))
    assert main(["trace", "scenario", str(path), "--out", str(tmp_path / "v.yaml")]) == 0
    assert "gpus_per_node" not in (tmp_path / "v.yaml").read_text()
    tspsim.load(tmp_path / "v.yaml")


def test_what_names_state() -> None:
    assert product_widths(GEMM.format(24576, 1536, 0)) == (24576, 1536)
    assert narrow("Cijk_Alik_Bljk_F8B8BS_BH_Bias_HA_S_SAB") and not narrow("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV")
    assert waits("void tensorrt_llm::kernels::moe_alltoall::moeA2APrepareDispatchKernel")
    assert kind_of("void tensorrt_llm::kernels::moe_alltoall::moeA2ASanitizeExpertIdsKernel") == "dispatch"
    assert not waits("void tensorrt_llm::kernels::moe_alltoall::moeA2ADispatchKernel")
    assert device_of(TracedDevice("NVIDIA H100 PCIe", 114, 85_000_000_000)) == "h100-pcie"
    assert device_of(TracedDevice("AMD Radeon Graphics", 304, 206_141_652_992)) == "mi300x"
    assert not device_of(TracedDevice("NVIDIA L40S", 142, 47_800_000_000))


def test_precision_of_most_products(tmp_path: Path) -> None:
    for name, kind in (("Cijk_Alik_Bljk_F8BS_BH", "fp8"), (GEMM.format(512, 512, 0), "fp8_block"), ("nvjet_tst", "")):
        kernels = [Kernel(name, 20.0), Kernel("nvjet_head", 9.0)]
        path = written(tmp_path / "p.json", kineto([("step 1", kernels * 3)], device="h100"))
        assert precision(traces.read([path])) == kind


def test_steps_that_verify_drafts_give_several_tokens(tmp_path: Path) -> None:
    """SGLang's and vLLM's rates count every accepted token: a step of 32 sequences at 3,000 tokens/s takes 2.5 times as
    long with 2.5 tokens each."""
    sglang = (
        "[2026-11-20 12:00:01 DP3 TP3 EP3] Decode batch, #running-req: 32, #full token: 32768, accept len: 2.50, "
        "accept rate: 0.75, cuda graph: True, gen throughput (token/s): 3200.00, #queue-req: 0\n"
    )
    vllm = (
        "INFO 11-20 12:00:01 [loggers.py:257] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation "
        "throughput: 3200.0 tokens/s, Running: 32 reqs, Waiting: 0 reqs, GPU KV cache usage: 10.0%\n"
        "INFO 11-20 12:00:01 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 2.50, Accepted "
        "throughput: 1920.00 tokens/s, Drafted throughput: 3840.00 tokens/s\n"
    )
    for text in (sglang, vllm):
        (tmp_path / "a.log").write_text(text * 3)
        trace = traces.read([tmp_path / "a.log"])
        assert trace.columns["duration_s"].tolist() == pytest.approx([0.025] * 3)
        assert trace.columns["start_s"].tolist() == pytest.approx([0.0, 0.025, 0.05])


def test_the_step_of_the_scenario_s_batch_is_taken(tmp_path: Path) -> None:
    """A server's profile has steps of several batches; without a step's number one of the scenario's batch is laid."""
    layer = [Kernel("rms_norm_kernel", 2.0), Kernel("nvjet_qkv", 9.0), Kernel("rotary_embedding_kernel", 2.0),
             Kernel("reshape_and_cache_flash_kernel", 2.0), Kernel("flash_fwd_splitkv_kernel", 9.0),
             Kernel("nvjet_o", 9.0), Kernel("rms_norm_kernel", 2.0), Kernel("nvjet_up", 9.0),
             Kernel("act_and_mul_kernel", 3.0), Kernel("nvjet_down", 9.0)]  # fmt: skip
    step = [
        Kernel("vectorized_gather_kernel", 2.0),
        *layer * 32,
        Kernel("rms_norm_kernel", 2.0),
        Kernel("nvjet_head", 9.0),
    ]
    names = [f"execute_context_0(0)_generation_{rows}({rows})" for rows in (16, 16, 32, 16, 16)]
    path = written(tmp_path / "a.json", kineto([(name, step) for name in names], device="h100"))
    work = {"model": "llama-3.1-8b", "pass": "decode", "batch": 32, "context": 512}
    plan = {"name": "P", "tp": 1}
    scenario = {"name": "t", "cluster": {"device": "h100", "gpus_per_node": 1}, "workload": work, "plans": [plan]}
    laid = lay(traces.read([path]), look_up(tspsim.load(scenario)))
    assert laid.step == 2
    with pytest.raises(tspsim.errors.InputError, match="16 sequences decode"):
        lay(traces.read([path]), look_up(tspsim.load(scenario)), step=1)
