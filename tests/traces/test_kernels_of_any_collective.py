"""Kernels whose name says less than the profiler records: RCCL's one kernel for every collective, wrappers around every
kernel of a library, the part of a vocabulary that a rank has."""

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
from tspsim.traces.alignment import attention_rows
from tspsim.traces.lay import lay
from tspsim.traces.named_facts import exchanging
from tspsim.traces.names import kind_of, waits
from tspsim.traces.scenario import guess
from tspsim.traces.scenario_text import lines

GENERIC = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
FLASH = "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::{}<cute::tuple<cute::C<64>>>>>"


def read(run: Recorder, folder: Path, **kwargs: Any) -> traces.Trace:
    run.wait()
    path = folder / "t.json"
    path.write_text(json.dumps(run.kineto(**kwargs)))
    return traces.read([path])


@pytest.mark.parametrize(
    ("recorded", "kind"),
    [("_allgather_base", "all_gather"), ("_reduce_scatter_base", "reduce_scatter"), ("allreduce", "all_reduce"),
     ("alltoall_base", "all_to_all"), ("all_to_allv", "all_to_all"), ("send 0->1", "send_recv"),
     ("_broadcast_oop", "broadcast"), ("allreduce_coalesced", "all_reduce"), ("", "exchange")],
)  # fmt: skip
def test_a_collective_is_what_the_profiler_records(recorded: str, kind: str, tmp_path: Path) -> None:
    run = Recorder()
    said = {"Collective name": recorded, "dtype": "BFloat16", "In msg nelems": 64} if recorded else {}
    run.launch(GENERIC, 50.0, stream=9, op="record_param_comms", **said)
    run.launch("Cijk_Ailk_Bljk_BBS_BH", 9.0)
    assert set(read(run, tmp_path).time_by("kind")) == {kind, "gemm"}
    # An operator of torch.distributed says it where the kernel has no record.
    assert kind_of(GENERIC, "c10d::_reduce_scatter_base_") == "reduce_scatter"


def test_fsdp_of_rccl_shards_weights(tmp_path: Path) -> None:
    run = Recorder()
    layers = 16
    for step in range(2):
        with run.note(f"ProfilerStep#{step}"):
            for phase, count in (("forward", 1), ("backward", 2)):
                for _ in range(layers):
                    with run.note("aten::linear" if phase == "forward" else "autograd::engine::evaluate_function: Mm",
                                  "cpu_op", tid=count):  # fmt: skip
                        run.launch(GENERIC, 30.0, stream=9, tid=count, **{"Collective name": "_allgather_base"})
                        for _ in range(4 * count):
                            run.launch("Cijk_Ailk_Bljk_BBS_BH", 40.0, tid=count, op="aten::mm",
                                       dims=[[4096, 2048], [2048, 2048]])  # fmt: skip
                        attends = "13FmhaFwdKernel" if count == 1 else "18FmhaBwdDQDKDVKernel"
                        run.launch(f"_ZN7ck_tile6kentryILi2ENS_{attends}I", 80.0, tid=count)
                        if count == 2:
                            run.launch(GENERIC, 30.0, stream=9, tid=2, **{"Collective name": "_reduce_scatter_base"})
    # torchtitan's ranks that shard have context parallelism in their name, whether or not there is any.
    group = {"pg_name": "1", "pg_desc": "mesh_dp_shard_cp", "pg_size": 8, "ranks": list(range(8))}
    run_of = guess(read(run, tmp_path, world=8, groups=[group]))
    assert (run_of.zero, run_of.degrees) == (3, {})


def test_what_joins_the_parts_of_a_context_is_no_attention_of_its_own(tmp_path: Path) -> None:
    """FlashAttention-3's kernels share their first words."""
    run = Recorder()
    for _ in range(6):
        for name in ("nvjet_tst_a", FLASH.format("FlashAttnFwdSm90"), FLASH.format("FlashAttnFwdCombine"), "nvjet_b"):
            run.launch(name, 20.0 if "Sm90<" in name else 5.0)
    assert len(attention_rows(read(run, tmp_path))) == 6


def test_a_rank_s_part_of_the_vocabulary_tells_the_model(tmp_path: Path) -> None:
    """A graph's kernels have no shapes; the head runs outside it. Llama 2 and 3 have as many layers."""
    run = Recorder()
    for _ in range(3):
        with run.note("execute_context_0(0)_generation_64(64)"):
            with run.replay():
                for _ in range(80):
                    for name in ("nvjet_qkv", FLASH.format("FlashAttnFwdSm90"), "nvjet_o",
                                 "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>", "nvjet_up", "nvjet_down",
                                 "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>"):  # fmt: skip
                        run.launch(name, 9.0)
            run.launch("nvjet_head", 90.0, op="aten::mm", dims=[[64, 8192], [8192, 128256 // 4]])
        run.wait()
    run_of = guess(read(run, tmp_path, world=4))
    assert run_of.degrees == {"tp": 4} and set(run_of.models) == {"llama-3.1-70b", "llama-3.3-70b"}


def test_signals_of_symmetric_memory_wait() -> None:
    for name in ("void barrier_kernel(unsigned int**, unsigned long, int, int, unsigned long)",
                 "void c10d::symmetric_memory::(anonymous namespace)::put_signal_kernel(unsigned int**)",
                 "stream_write_value32_kernel(unsigned int*, unsigned int)"):  # fmt: skip
        assert kind_of(name) == "exchange" and waits(name)
    assert kind_of("void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>(aiter::RankData*)") == "all_reduce"


def test_a_compiled_activation_that_casts_is_an_activation() -> None:
    assert kind_of("triton_poi_fused__to_copy_clamp_mul_reciprocal_silu_slice_2") == "activation"
    assert kind_of("triton_poi_fused__to_copy_clamp_mul_reciprocal_1") == "quantize"


def eager_decode(steps: int = 3, layers: int = 32, batch: int = 8, context: int = 1024) -> Recorder:
    """Transformers' generation without a compiler: K and V are appended by copying, and repeated for grouped heads."""
    run = Recorder(launch_us=6.0)
    cat = "void at::native::(anonymous namespace)::CatArrayBatchedCopy{}<OpaqueType<2u>, unsigned int, 4, 64, 64>"

    def of(*operators: str) -> None:
        for operator in operators:
            run.launch("void at::native::elementwise_kernel_manual_unroll<128, 8, gpu_kernel_impl>", 3.0, op=operator)

    def mm(columns: int, inner: int) -> None:
        run.launch("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV", 20.0, op="aten::mm", dims=[[batch, inner], [inner, columns]])

    def norm() -> None:
        of("aten::to", "aten::pow")
        run.launch("void at::native::reduce_kernel<512, 1, at::native::MeanOps<float>>", 4.0, op="aten::mean")
        of("aten::add", "aten::rsqrt", "aten::mul", "aten::to", "aten::mul")

    for step in range(steps):
        with run.note(f"ProfilerStep#{step}"):
            run.launch("void at::native::(anonymous namespace)::indexSelectSmallIndex<bf16>", 4.0, op="aten::embedding")
            for _ in range(layers):
                norm(), mm(4096, 4096), mm(1024, 4096), mm(1024, 4096)
                for _ in range(2):
                    of("aten::mul", "aten::neg")
                    run.launch(cat.format(""), 4.0, op="aten::cat")
                    of("aten::mul", "aten::add")
                for _ in range(2):
                    run.launch(cat.format("_contig"), 14.0, op="aten::cat")
                of("aten::clone", "aten::clone")
                run.launch("attn_fwd.kd", 25.0, op="aten::_scaled_dot_product_flash_attention",
                           dims=[[batch, 32, 1, 128], *[[batch, 32, context, 128]] * 2])  # fmt: skip
                mm(4096, 4096), of("aten::add"), norm(), mm(14336, 4096), of("aten::silu"), mm(14336, 4096)
                of("aten::mul"), mm(4096, 14336), of("aten::add")
            norm(), mm(128256, 4096)
            run.launch("void at::native::reduce_kernel<512, 1, at::native::ArgMaxOps<float>>", 9.0, op="aten::argmax")
        run.wait()
    return run


def test_eager_decoding_gets_a_scenario_that_runs(tmp_path: Path) -> None:
    """PyTorch's own kernels are of a stack that only trains; K and V that are appended by copies are the cache's."""
    trace = read(eager_decode(), tmp_path, device="mi300x")
    scenario = yaml.safe_load("\n".join(lines(trace)))
    assert "stack" not in scenario["workload"] and scenario["workload"]["pass"] == "decode"
    laid = lay(trace, look_up(tspsim.load(scenario)))
    rows = {row.kind: row for row in laid.kinds}
    assert laid.matched_share > 0.99 and rows["cache"].measured_s > 32 * 2 * 10e-6 > rows["rope"].measured_s / 2


def test_ranks_in_the_template_of_an_exchange() -> None:
    assert exchanging(["void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)"]) == 8
    assert exchanging(["void deep_ep::intranode::combine<__nv_bfloat16, 4, 768, 4096>"]) == 4
    assert (
        exchanging(["void deep_ep::internode::dispatch<false, 4, false>", "intranode::combine<nv_bfloat16, 8>"]) == 32
    )


def test_an_engine_s_decoding_without_annotations(tmp_path: Path) -> None:
    """The ranks stand in the template of its own all-reduce, and a norm has a block for every sequence."""
    run = Recorder()
    for _ in range(4):
        for _ in range(80):
            for name, blocks in (("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi32E", 48), ("Cijk_qkv", 304),
                                 ("void rotary_embedding_kernel<c10::BFloat16, true>", 48),
                                 ("void (anonymous namespace)::store_kvcache<256l, 4, false, long>", 48),
                                 ("void paged_attention_ll4mi_QKV_mfma16_kernel<__hip_bfloat16>", 384),
                                 ("Cijk_o", 304), ("_ZN5aiter26cross_device_reduce_1stageIDF16bLi8EEEvPNS_8RankE", 80),
                                 ("Cijk_up", 304), ("Cijk_down", 304),
                                 ("_ZN5aiter26cross_device_reduce_1stageIDF16bLi8EEEvPNS_8RankE", 80)):  # fmt: skip
                run.launch(name, 9.0, grid=[blocks, 1, 1])
        run.launch("Cijk_head", 90.0), run.launch("ArgMaxOps", 9.0)
    text = "\n".join(lines(read(run, tmp_path, device="mi300x", world=0)))
    scenario = yaml.safe_load(text)
    assert scenario["plans"] == [{"name": "TP8", "tp": 8}] and "nodes: 1}" in text
    assert (scenario["workload"]["pass"], scenario["workload"]["batch"]) == ("decode", 48)


def test_sums_in_a_graph_that_nobody_records(tmp_path: Path) -> None:
    """A replayed kernel of RCCL has no record; two a layer are those of tensor-parallel ranks."""
    run = Recorder()
    for _ in range(3):
        with run.note("execute_context_0(0)_generation_64(64)"):
            with run.replay():
                for _ in range(80):
                    for name in ("Cijk_qkv", "void paged_attention_ll4mi_QKV_mfma16_kernel<bf16>", "Cijk_o", GENERIC,
                                 "Cijk_up", "Cijk_down", GENERIC):  # fmt: skip
                        run.launch(name, 9.0)
            run.launch("Cijk_head", 90.0, op="aten::mm", dims=[[64, 8192], [8192, 16032]])
        run.wait()
    trace = read(run, tmp_path, device="mi300x", world=8)
    scenario = yaml.safe_load("\n".join(lines(trace)))
    assert scenario["plans"] == [{"name": "TP8", "tp": 8}]
    assert lay(trace, look_up(tspsim.load(scenario))).matched_share > 0.99
