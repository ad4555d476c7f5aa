"""The known tables: their paths in a measurements folder, their predicted columns, and their predictors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import (
    collectives,
    experts,
    fleets,
    kernels,
    latent_modules,
    layers,
    nanotron,
    plain_frameworks,
    published,
    served,
    sparse_modules,
    training,
    training_operators,
)
from .answers import Predictor, unpredicted
from .kernel_tables import times_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class MeasuredTable:
    """One table of a measurements folder."""

    #: Path in the folder.
    path: str
    #: Predicted column, and the measured column it is compared with.
    column: str
    #: Fills in the answers of a frame with ``counts`` and ``numbers`` as floats and ``texts`` as text.
    predict: Predictor
    #: Columns that the predictor needs: whole numbers from one on, numbers from zero on, and words. A row without
    #: one is skipped with that reason.
    counts: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    texts: tuple[str, ...] = ("gpu",)
    #: Columns that group errors, together and one by one.
    groups: tuple[tuple[str, ...], ...] = (("gpu",),)
    #: Predicted columns beside the main one.
    further: tuple[str, ...] = ()
    #: Positions of rows that are predicted together: all rows, or, for simulated rows, those that share a run.
    pieces: Callable[[pd.DataFrame], Iterable[Sequence[int]]] = lambda frame: [range(len(frame))]
    #: Repairs a source's errors before the rows are predicted: a frame with further columns, and sentences with the
    #: number of their rows.
    mend: Callable[[pd.DataFrame], tuple[pd.DataFrame, dict[str, int]]] | None = None


def row_by_row(frame: pd.DataFrame) -> Iterable[Sequence[int]]:
    """Every row alone."""
    return [(position,) for position in range(len(frame))]


_BY_LIBRARY = (("gpu",), ("gpu", "dtype"), ("gpu", "dtype", "library"))


def _kernel(
    path: str, counts: tuple[str, ...], texts: tuple[str, ...], groups: tuple[tuple[str, ...], ...], *numbers: str
) -> MeasuredTable:
    _, *further = times_of(path)
    return MeasuredTable(path, "time_us", kernels.predictor(path), counts, numbers, texts, groups, tuple(further))


_REFERENCE = unpredicted("reference table: nothing in it is predicted by itself")

TABLES: dict[str, MeasuredTable] = {
    table.path: table
    for table in (
        _kernel("kernels/gemm.csv", ("m", "n", "k"), ("gpu", "dtype"), _BY_LIBRARY),
        _kernel("kernels/gemm_h200_own.csv", ("m", "n", "k"), ("gpu", "dtype"), _BY_LIBRARY),
        _kernel(
            "kernels/grouped_gemm_mi300x.csv", ("groups", "m", "n", "k"), ("gpu", "dtype"),
            (*_BY_LIBRARY, ("gpu", "groups")),
        ),
        _kernel(
            "kernels/attention_prefill.csv", ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim"),
            ("gpu", "dtype", "direction"),
            (("gpu",), ("direction", "gpu", "dtype"), ("direction", "gpu", "dtype", "library")), "causal",
        ),
        _kernel(
            "kernels/attention_decode.csv", ("batch", "context", "heads", "kv_heads", "head_dim"),
            ("gpu", "kv_dtype"), (("gpu",), ("gpu", "kv_dtype", "library")),
        ),
        _kernel(
            "kernels/memory_bound_h200_own.csv", ("rows", "cols", "bytes"), ("gpu", "op"), (("gpu",), ("op",))
        ),
        _kernel(
            "kernels/fused_moe.csv", ("tokens", "hidden", "expert_ffn", "experts", "topk"),
            ("gpu", "dtype_a", "dtype_w", "quant"), (("gpu",), ("gpu", "dtype_a", "dtype_w", "quant")),
        ),
        *(
            MeasuredTable(
                f"kernels/mla_{phase}.csv", "time_us", latent_modules.predictor(f"kernels/mla_{phase}.csv"),
                counts=("batch", length, "heads", "kv_lora", "nope", "rope", "v"),
                texts=("gpu", "scope", "dtype", "kv_dtype"),
                groups=(("gpu",), ("scope",), ("gpu", "scope", "kv_dtype"), ("gpu", "scope", "gemm_dtype", "library")),
            )
            for phase, length in (("prefill", "q_len"), ("decode", "context"))
        ),
        _kernel(
            "kernels/mla_bmm.csv", ("tokens", "heads", "kv_lora", "nope_or_v"), ("gpu", "op", "dtype"), _BY_LIBRARY
        ),
        _kernel(
            "kernels/linear_attention.csv", ("batch", "seq_len", "k_heads", "k_dim", "v_heads", "v_dim"),
            ("gpu", "kind", "part", "op", "phase"),
            (("gpu",), ("kind", "part", "phase"), ("gpu", "kind", "part", "phase", "library")),
        ),
        MeasuredTable(
            "kernels/sparse_attention.csv", "time_us", sparse_modules.predict,
            counts=("batch", "q_len", "heads", "hidden"), numbers=("context",),
            texts=("gpu", "kind", "variant", "phase", "gemm_dtype", "kv_dtype", "launch", "library"),
            groups=(
                ("gpu",), ("kind", "phase", "launch"), ("gpu", "kind", "phase", "launch"),
                ("gpu", "kind", "phase", "gemm_dtype", "library"),
            ),
        ),
        _kernel(
            "kernels/fused_moe_nvidia.csv",
            ("tokens", "hidden", "expert_ffn", "experts", "topk", "moe_tp", "moe_ep"),
            ("gpu", "dtype", "library"), _BY_LIBRARY, "gated", "local_pairs", "local_experts",
        ),
        _kernel(
            "kernels/wideep_moe.csv",
            ("tokens", "rank0_tokens", "hidden", "expert_ffn", "experts", "slots", "topk", "moe_tp", "moe_ep"),
            ("gpu", "dtype", "library"), (*_BY_LIBRARY, ("gpu", "moe_ep")),
        ),
        *(
            MeasuredTable(f"kernels/{name}.csv", "time_us", unpredicted(f"{kernel}: it has no model here"), groups=())
            for name, kernel in (
                ("wideep_alltoall", "the exchange of TensorRT-LLM over NVLink"),
                ("wideep_megamoe", "DeepGEMM's one kernel of dispatch, experts and combine"),
            )
        ),
        MeasuredTable(
            "kernels/training_op_efficiency_b200_a100.csv", "efficiency", training_operators.predict,
            counts=("peak_tflops",), texts=("system", "op", "shape"), groups=(("system",), ("system", "op")),
        ),
        MeasuredTable(
            "collectives/all.csv", "time_us", collectives.predict,
            counts=("gpus", "bytes"), numbers=("nodes",), texts=("gpu", "op"),
            groups=(
                ("gpu",), ("nodes",), ("gpu", "nodes", "gpus", "op"), ("gpu", "nodes", "gpus", "op", "library")
            ),
        ),
        MeasuredTable(
            "collectives/custom_all_reduce.csv", "time_us", collectives.predict_custom,
            counts=("gpus", "bytes"), texts=("gpu", "library"), groups=(("gpu",), ("gpu", "gpus", "library")),
        ),
        MeasuredTable(
            "collectives/moe_dispatch_combine_amd.csv", "latency_us", experts.predict_mori,
            counts=("ep", "num_tokens", "hidden_dim"), texts=("gpu", "kernel", "phase", "dtype"),
            groups=(("gpu",), ("kernel", "phase"), ("gpu", "kernel", "ep", "phase")),
        ),
        MeasuredTable(
            "collectives/moe_dispatch_combine_deepep.csv", "dispatch_avg_t_us", experts.predict_deepep,
            counts=("node_num", "hidden_size", "num_token", "num_topk", "num_experts"), texts=("system", "mode"),
            groups=(("system",), ("system", "mode", "node_num")),
            further=("combine_avg_t_us", "dispatch_transmit_us", "combine_transmit_us"),
        ),
        MeasuredTable(
            "end_to_end/layer_h200_own.csv", "us", layers.predict_layers,
            counts=("h", "heads", "kv", "ffn", "tp", "b", "s"), numbers=("compiled",), texts=("model", "pass"),
            groups=(("pass",), ("tp", "pass")),
        ),
        MeasuredTable(
            "end_to_end/model_h200_own.csv", "us", layers.predict_models,
            counts=("layers", "h", "heads", "kv", "ffn", "vocab", "b", "s", "ctx"), texts=("model", "phase"),
            groups=(("phase",),), further=("peak_gb",),
        ),
        MeasuredTable(
            "end_to_end/overlap_h200_own.csv", "both_us", layers.predict_overlap, counts=("m", "n", "k", "copy_mb"),
            texts=(), groups=(), further=("gemm_alone_us", "copy_alone_us"),
        ),
        MeasuredTable(
            "published/training.csv", "value", published.predict_published,
            texts=("source_url", "model", "gpu", "precision", "metric"),
            groups=(("gpu",), ("metric",), ("gpu", "metric"), ("gpu", "model")), pieces=published.run_by_run,
        ),
        MeasuredTable(
            "published/training_frameworks.csv", "published", plain_frameworks.predict,
            counts=("gpus", "sequence", "sequences_per_replica"),
            texts=("group", "source", "gpu", "model", "precision", "unit"),
            groups=(("gpu",), ("group",), ("stack",)), further=("predicted_memory_gib",), pieces=row_by_row,
        ),
        MeasuredTable(
            "published/training_nanotron_h100.csv", "tokens_per_s_per_gpu", training.predict_nanotron,
            counts=("dp", "tp", "pp", "mbs", "gbs", "seq_len", "hidden_size", "num_layers", "num_heads", "vocab_size"),
            groups=(("gpu",), ("pp",), ("hidden_size",)), further=("mem_alloc_gb", "predicted_status"),
            pieces=row_by_row, mend=nanotron.mend,
        ),
        MeasuredTable(
            "published/training_vtrain_a100.csv", "iteration time (ms)", training.steps(training.vtrain_run, 1e3),
            counts=(
                "# GPUs", "global batch", "micro batch", "hidden size", "attention heads", "# layers",
                "sequence length", "tensor parallelism", "pipeline parallelism",
            ),
            texts=(), groups=(("Parameters (billion)",),), pieces=row_by_row,
        ),
        MeasuredTable(
            "published/training_megatron_a100.csv", "seconds", training.steps(training.megatron_run, 1.0),
            counts=("n_gpus", "tp", "pp", "micro_batch_size", "global_batch", "seq_len"), numbers=("sequence_regions",),
            texts=("model", "recompute"), groups=(("model",), ("recompute",)), pieces=row_by_row,
        ),
        MeasuredTable(
            "published/training_simumax_b200.csv", "real_ms",
            training.steps(training.simumax_run, 1e3, memory="real_alloc_gib"), counts=("layer_num", "mbc"),
            texts=("case", "model"), groups=(("model",),), further=("real_alloc_gib",), pieces=row_by_row,
        ),
        MeasuredTable(
            "published/inference.csv", "value", served.predict_published, texts=("gpu", "metric"),
            groups=(
                ("gpu",), ("metric",), ("group", "metric"), ("group", "metric", "fitted"), ("group", "model", "metric"),
            ),
            pieces=served.plan_by_plan, mend=served.mend_published,
        ),
        MeasuredTable(
            "published/serving_silicon.csv", "silicon_tpot_ms", served.predict_silicon,
            texts=("system", "mode", "backend", "model_path"),
            groups=(
                ("system",), ("backend",), ("group",), ("group", "fitted"), ("group", "system"),
                ("backend", "model_path", "system"),
            ),
            further=("silicon_ttft_ms",), pieces=served.plan_by_plan, mend=served.mend_silicon,
        ),
        MeasuredTable(
            "published/serving_cookbook.csv", "published", served.predict_cookbook,
            texts=("group", "metric", "note"),
            groups=(("gpu",), ("metric",), ("group", "metric"), ("group", "model", "metric")),
            pieces=served.plan_by_plan, mend=served.mend_cookbook,
        ),
        MeasuredTable(
            "published/fleets.csv", "published", fleets.predict, counts=("gpus",), numbers=("days",),
            texts=("group", "gpu", "metric"), groups=(("group",), ("metric",)), pieces=row_by_row,
        ),
        *(
            MeasuredTable(f"collectives/{name}.csv", "", _REFERENCE, texts=(), groups=())
            for name in (
                "multinode_efficiency_ratios_simai", "xgmi_mi300x_transferbench_a2a_matrix",
                "hbm_azure_babelstream", "rdma_1nic_sweep_mori_io", "nvls_gain_by_gpu_count",
            )
        ),
    )
}  # fmt: skip
