"""Tensor-parallel products that multiply what has arrived while the rest travels, as PyTorch's symmetric memory has
them: pieces of products, copies from peers without a group, and signals. Written after torchtitan's FSDP2 with async
tensor parallelism, Llama 3.2 1B on eight GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from helpers.strangers import Recorder, moved_us, product_us, ring_us

import tspsim
from tspsim import traces
from tspsim.step.question import look_up
from tspsim.traces.kinds import HEAVY
from tspsim.traces.lay import lay
from tspsim.traces.scenario_text import lines

LAYERS, WIDTH, HEADS, HEAD, GROUPS, MLP, WORDS = 16, 2048, 32, 64, 8, 8192, 128256
TP, DP, TOKENS = 4, 2, 4096
PART, KV = TOKENS // TP, GROUPS * HEAD // TP
SHARDS = {1: ("mesh_fsdp", DP), 2: ("mesh_tp", TP)}
BACK = "autograd::engine::evaluate_function: CompiledFunctionBackward"
SIGNAL = "void c10d::symmetric_memory::(anonymous namespace)::barrier_kernel(unsigned int**, unsigned long, int)"
FUSED = "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0"


class Step:
    """A process of torchtitan."""

    def __init__(self) -> None:
        self.run, self.tid = Recorder(), 1
        for number in range(2):
            with self.run.note(f"ProfilerStep#{number + 11}"):
                self.step()
            self.run.wait()

    def small(self, name: str, megabytes: float, op: str = "") -> None:
        self.run.launch(name, moved_us(megabytes), tid=self.tid, op=op)

    def mm(self, m: int, n: int, k: int) -> None:
        self.run.launch("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_TNT", product_us(m, n, k), op="aten::mm",
                        dims=[[m, k], [k, n]], tid=self.tid)  # fmt: skip

    def exchange(self, kind: str, megabytes: float, group: int, dtype: str = "BFloat16") -> None:
        name, ranks = SHARDS[group]
        word, recorded = (
            ("AllGather", "_allgather") if kind == "gather" else ("ReduceScatter_Sum_f32", "_reduce_scatter")
        )
        end = self.run.launch(
            f"ncclDevKernel_{word}_RING_LL(ncclDevKernelArgsStorage<4096ul>)", ring_us(megabytes, ranks),
            stream=20 + group, tid=self.tid, after=self.run.ends.get(7, 0.0), op="record_param_comms",
            **{"Collective name": f"{recorded}_base", "In msg nelems": int(5e5 * megabytes), "dtype": dtype,
               "Group size": ranks, "Process Group Name": str(group), "Process Group Description": name},
        )  # fmt: skip
        if group == 2:
            self.run.ends[7] = max(self.run.ends[7], end)

    def copy(self, width: int, piece: int) -> None:
        self.run.launch("Memcpy PtoP (Device -> Device)", 2 * PART * width / 0.35e6, stream=60 + piece % 2,
                        tid=self.tid, after=self.run.ends[7], op=self.of, category="gpu_memcpy")  # fmt: skip

    def gathered(self, inner: int, *columns: int) -> None:
        self.of = "symm_mem::fused_all_gather_matmul"
        self.run.launch(SIGNAL, 5.0, op=self.of, tid=self.tid)
        for piece in range(TP):
            if piece:
                self.copy(inner, piece)
            for width in columns:
                self.mm(PART, width, inner)

    def scattered(self, columns: int, inner: int) -> None:
        self.of = "symm_mem::fused_matmul_reduce_scatter"
        for piece in range(TP):
            self.mm(PART, columns, inner)
            if piece < TP - 1:
                self.copy(columns, piece)
        self.run.launch(SIGNAL, 5.0, op=self.of, tid=self.tid)
        self.small("void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16>>", 10.0, "aten::sum")

    def forward(self) -> None:
        self.small(FUSED, 8.0)
        self.gathered(WIDTH, WIDTH // TP, KV, KV)
        self.small("triton_poi_fused__to_copy_cat_mul_view_as_complex_view_as_real_1", 9.0)
        self.run.launch("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128>>(Flash_fwd_params)",
                        90.0, op="aten::_scaled_dot_product_flash_attention", dims=[[1, HEADS // TP, TOKENS, HEAD]] * 3,
                        tid=self.tid)  # fmt: skip
        self.scattered(WIDTH, WIDTH // TP)
        self.small(FUSED, 12.0)
        self.gathered(WIDTH, MLP // TP, MLP // TP)
        self.small("triton_poi_fused_mul_silu_3", 40.0)
        self.scattered(WIDTH, MLP // TP)

    def backward(self) -> None:
        self.gathered(WIDTH, MLP // TP)
        self.mm(WIDTH, MLP // TP, TOKENS)
        self.small("triton_poi_fused_mul_silu_silu_backward_4", 60.0)
        self.mm(MLP // TP, WIDTH, TOKENS), self.mm(MLP // TP, WIDTH, TOKENS)
        self.mm(TOKENS, WIDTH, MLP // TP), self.scattered(WIDTH, MLP // TP)
        self.small("triton_red_fused__to_copy_add_div_mul_pow_sum_5", 20.0)
        self.gathered(WIDTH, WIDTH // TP)
        self.mm(WIDTH, WIDTH // TP, TOKENS)
        self.run.launch("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64>>",
                        250.0, op="aten::_scaled_dot_product_flash_attention_backward", tid=self.tid)  # fmt: skip
        self.small("triton_poi_fused__to_copy_cat_mul_view_as_complex_6", 9.0)
        for width in (WIDTH // TP, KV, KV):
            self.mm(width, WIDTH, TOKENS)
        self.mm(TOKENS, WIDTH, KV), self.mm(TOKENS, WIDTH, KV), self.scattered(WIDTH, WIDTH // TP)
        self.small("triton_red_fused__to_copy_add_div_mul_pow_sum_7", 20.0)

    def step(self) -> None:
        block = 2 * (2 * WIDTH * WIDTH + 2 * WIDTH * GROUPS * HEAD + 3 * WIDTH * MLP) / TP / 1e6
        rows = 2 * TOKENS * WIDTH / 1e6
        self.tid = 1
        self.small("triton_poi_fused_embedding_0", rows, "aten::embedding")
        self.exchange("scatter", rows, 2)
        for _ in range(LAYERS):
            self.exchange("gather", block, 1), self.forward()
        self.small(FUSED, 8.0), self.exchange("gather", rows, 2)
        self.mm(TOKENS, WORDS // TP, WIDTH)
        self.small("triton_red_fused__log_softmax__to_copy_9", 300.0)
        self.tid = 2
        with self.run.note(BACK, "cpu_op", tid=2):
            self.small("triton_red_fused__log_softmax_backward_data_nll_loss_backward_11", 500.0)
            self.mm(WORDS // TP, WIDTH, TOKENS), self.mm(TOKENS, WIDTH, WORDS // TP), self.exchange("scatter", rows, 2)
        for _ in range(LAYERS):
            with self.run.note(BACK, "cpu_op", tid=2):
                self.exchange("gather", block, 1), self.backward(), self.exchange("scatter", 2 * block, 1, "Float")
        self.tid = 1
        with self.run.note("Optimizer.step#AdamW.step"):
            self.small("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>",
                       900.0, "aten::_fused_adamw_")  # fmt: skip


def test_pieces_are_laid_over_whole_products(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    groups = [{"pg_name": str(number), "pg_desc": name, "pg_size": size, "ranks": list(range(size))}
              for number, (name, size) in SHARDS.items()]  # fmt: skip
    path.write_text(json.dumps(Step().run.kineto(world=TP * DP, groups=groups)))
    trace = traces.read([path])
    scenario = yaml.safe_load("\n".join(lines(trace)))
    plan = scenario["plans"][0]
    assert (scenario["workload"]["model"], plan["tp"], plan["zero"]) == ("llama-3.2-1b", TP, 3)
    assert plan["sequence_regions"] is True
    laid = lay(trace, look_up(tspsim.load(scenario)))
    assert laid.matched_share > 0.95, laid.left_over[:5]
    assert not [row for row in laid.left_over if row.kind in HEAVY and row.kind == "gemm"]
    gathers = [row for row in laid.operators if row.name in ("gather for QKV", "gather for MLP")]
    assert len(gathers) == 2
    for row in gathers:  # three copies each, on two streams
        assert row.measured_s / row.count == pytest.approx(3 * 2 * PART * WIDTH / 0.35e12, rel=0.5)


def test_tokens_from_what_tensor_parallel_ranks_exchange(tmp_path: Path) -> None:
    """Transformer Engine's products have no shapes, and its norms a fixed number of blocks."""
    run = Recorder()
    for _ in range(12):
        for name in ("void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<Kernel_traits<bf16, 4096u>>",
                     "nvjet_a", "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "nvjet_b"):  # fmt: skip
            run.launch(name, 30.0)
        run.launch("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 50.0, stream=9,
                   op="record_param_comms",
                   **{"Collective name": "_reduce_scatter_base", "dtype": "BFloat16", "In msg nelems": 4096 * 6144,
                      "Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP"})  # fmt: skip
        run.launch("nvjet_c", 30.0)
    run.wait()
    path = tmp_path / "t.json"
    path.write_text(json.dumps(run.kineto(world=4)))
    from tspsim.traces.scenario import guess

    assert guess(traces.read([path])).tokens == 6144
