"""Tables, databases, reports and logs of programs that no trace at hand is from: forms read in public repositories and
issues (the index's number of a file stands beside each), with numbers of our own.

At first sight 6 of 41 such files were read and 35 refused; 32 are read now and 8 say in a line what they are.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tspsim import traces
from tspsim.base.errors import InputError

ROCPROF = (
    '"Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","LDS_Block_Size","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
)
NSYS = (
    "CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),Device,Ctx,GreenCtx,Strm,Name\n"
)
TITLE = "Time (%),Total Time (ns),Instances,Avg (ns),Name\n"

#: Form → (name of the file, text, reader, seconds of its rows).
TABLES: dict[str, tuple[str, str, str, list[float]]] = {
    # 61939658022 and rocm.docs.amd.com
    "rocprofv3": (
        "1_kernel_trace.csv",
        f'"Kind",{ROCPROF}"KERNEL_DISPATCH","Agent 2",1,3,70,2,33,"_fwd_kernel.kd",9,5000,9000,0,256,1,1\n'
        '"KERNEL_DISPATCH","Agent 2",1,3,70,1,33,"Cijk_Alik_Bljk_BBS",8,1000,3000,0,256,2,1\n',
        "rocprofv3-csv", [2e-6, 4e-6],
    ),
    # 33212051639: agents were numbers, and there were no streams
    "rocprofv3, 2024": (
        "a.csv",
        '"Kind","Agent_Id","Queue_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
        '"KERNEL_DISPATCH",1,139690710949888,15,"transpose(float*, float*, int)",0,100,350\n',
        "rocprofv3-csv", [2.5e-7],
    ),
    # 15997369313
    "rocpd2csv": (
        "b.csv", f'"Guid","Kind",{ROCPROF}"00-1","KERNEL_DISPATCH","Agent 4",1,0,7,1,3,"gemm",1,10,30,8,2,1,1\n',
        "rocprofv3-csv", [2e-8],
    ),
    "rocprof": (
        "c.csv", 'Index,KernelName,gpu-id,queue-id,pid,DispatchNs,BeginNs,EndNs\n0,"gemm.kd",2,0,7,1,10,40\n',
        "rocprof-csv", [3e-8],
    ),
    # 58848429463, 71490330757: a program's words before the table
    "nsys": (
        "d_cuda_gpu_trace.csv",
        f"\nNOTICE: Existing SQLite export found\n\nProcessing [x.sqlite] with [cuda_gpu_trace.py]...\n"
        f"Start (ns),Duration (ns),{NSYS}100,30,11,2,1,1,64,1,1,24,0,0,,NVIDIA A100-SXM4-80GB (0),1,,7,nvjet_tst_a\n"
        "170,5,13,,,,,,,,,,2.5,NVIDIA A100-SXM4-80GB (0),1,,7,[CUDA memcpy HtoD]\n",
        "nsight-csv", [3e-8, 5e-9],
    ),
    # 53537912937, in another unit and out of order
    "nsys, microseconds": (
        "e.csv", f"Start (us),Duration (us),{NSYS}9.5,2.5,67,1,1,2,128,1,1,9,0,0,,GPU,1,,7,b\n"
        "1.5,0.5,65,1,1,2,128,1,1,9,0,0,,GPU,1,,7,a\n",
        "nsight-csv", [5e-7, 2.5e-6],
    ),
}  # fmt: skip

#: Form → (text, step numbers, seconds).
LOGS: dict[str, tuple[str, list[int], list[float]]] = {
    # 5870363580
    "nanotron": (
        "08/31/2024 14:37:31 [INFO|DP=0|PP=0|TP=0]: iteration: 7 / 15 | consumed_tokens: 1.02K | "
        "elapsed_time_per_iteration_ms: 4.71K | tokens_per_sec: 109 | global_batch_size: 2 | lm_loss: 5.32\n",
        [7], [4.71],
    ),
    # 30099180692
    "nanochat": (
        "step 00010/21400 (0.05%) | loss: 6.1 | lrm: 1.00 | dt: 512.5ms | tok/sec: 1,023 | total time: 0.09m\n",
        [10], [0.5125],
    ),
    "nanoGPT": ("iter 100: loss 2.3456, time 250.5ms, mfu 35.12%\n", [100], [0.2505]),
    "llm.c": ("step   10/18865 | loss 7.12 (+0.1z)| lr 7.0e-06 | 3128.5 ms | 42% MFU | 1677 tok/s\n", [10], [3.1285]),
    "LitGPT": ("Epoch 1 | iter 12 step 3 | loss train: 1.2, val: n/a | iter time: 250.12 ms (step)\n", [12], [0.25012]),
    # NVIDIA-NeMo/Megatron-Bridge#388
    "Megatron-Bridge": ("Step Time : 12.5s GPU utilization: 528.1 TFLOP/s/GPU\n", [0], [12.5]),
    # 26109060526
    "MLPerf, NeMo": ("0: Step 19 train_step_timing 1.9324 timestamp: 1713522620986.0247\n", [19], [1.9324]),
    # 14241420188
    "MLPerf": (
        '0: :::MLLOG {"namespace": "", "time_ms": 1, "key": "global_batch_size", "value": 8, "metadata": {}}\n'
        '0: :::MLLOG {"namespace": "", "time_ms": 2, "key": "tracked_stats", "value": {"throughput": 2.0}, '
        '"metadata": {"file": "a.py", "step": 3072}}\n',
        [3072], [4.0],
    ),
    # 31839496328
    "Picotron": (
        "[rank 0] Step: 10    | Loss: 5.1 | Global batch size:   1.00M | Tokens/s:  8.00K | Tokens/s/GPU:  1.00K\n",
        [10], [125.0],
    ),
    # 61983064895
    "Composer": (
        "[batch=8/40]:\n\t Train metrics/train/Perplexity: 33397.8\n\t Train throughput/batches_per_sec: 0.125\n"
        "\t Train throughput/device/batches_per_sec: 0.0625\n\t Train time/train: 0.0536\n",
        [8], [8.0],
    ),
    "LLaMA-Factory": (
        "".join(
            f'{{"current_steps": {step}, "total_steps": 1000, "loss": 1.2, "elapsed_time": "{clock}"}}\n'
            for step, clock in ((10, "0:59:50"), (20, "1:00:20"))
        ),
        [20], [3.0],
    ),
}  # fmt: skip


def statistics(value: float) -> dict[str, Any]:
    return {"successful": {"mean": value, "percentiles": {"p50": value, "p99": 2 * value}}}


#: Form → (document, reader, some measures with their value and seconds).
RESULTS: dict[str, tuple[dict[str, Any], str, dict[str, tuple[float, float]]]] = {
    # 69601220381, 52647955718
    "GuideLLM": (
        {"benchmarks": [{"config": {"strategy": {"type_": "concurrent", "streams": 8}}, "metrics": {
            "request_totals": {"successful": 20, "total": 20}, "requests_per_second": statistics(12.5),
            "time_to_first_token_ms": statistics(45.0), "request_latency": statistics(0.5)}}]},
        "guidellm",
        {"time_to_first_token_ms.mean": (45.0, 0.045), "request_latency.p99": (1.0, 1.0), "request_totals": (20, 0)},
    ),
    # 11796059514
    "inference-perf": (
        {"load_summary": {"count": 9}, "successes": {"count": 9, "latency": {
            "time_per_output_token": {"mean": 0.015}}, "throughput": {"output_tokens_per_sec": 70.5}}},
        "inference-perf",
        {"latency.time_per_output_token.mean": (0.015, 0.015), "throughput.output_tokens_per_sec": (70.5, 0.0)},
    ),
    # 69003675560
    "LLMPerf": (
        {"version": "2023-08-31", "mean_input_tokens": 256, "results_ttft_s_mean": 0.25,
         "results_inter_token_latency_s_quantiles_p50": 0.0125, "results_mean_output_throughput_token_per_s": 335.5},
        "llmperf",
        {"results_ttft_s_mean": (0.25, 0.25), "results_inter_token_latency_s_quantiles_p50": (0.0125, 0.0125),
         "results_mean_output_throughput_token_per_s": (335.5, 0.0)},
    ),
    # 66494259369
    "sglang.bench_one_batch": (
        {"run_name": "test", "batch_size": 4, "input_len": 256, "output_len": 32, "prefill_latency": 0.125,
         "prefill_throughput": 2080.5, "median_decode_latency": 0.0045},
        "engine-bench", {"median_decode_latency": (0.0045, 0.0045), "prefill_throughput": (2080.5, 0.0)},
    ),
    "vllm bench latency": (
        {"avg_latency": 1.25, "latencies": [1.2, 1.3], "percentiles": {"50": 1.23}}, "engine-bench",
        {"avg_latency": (1.25, 1.25)},
    ),
    "vllm bench throughput": (
        {"elapsed_time": 12.5, "num_requests": 100, "requests_per_second": 8.0, "tokens_per_second": 4162.5},
        "engine-bench", {"elapsed_time": (12.5, 12.5), "tokens_per_second": (4162.5, 0.0)},
    ),
}  # fmt: skip

#: What holds no single kernels, or is exported first → (name of the file, its beginning, a word of the line).
SUMMARIES: dict[str, tuple[str, bytes, str]] = {
    "rocprofv3 --stats": ("kernel_stats.csv", b'"Name","Calls","TotalDurationNs"\n"a",1,2\n', "kernel_trace"),
    "nsys sums": ("kern_sum.csv", f"{TITLE}60.3,81,131,6,gemm\n".encode(), "cuda_gpu_trace"),
    "nsys sums, text": ("a.txt", b" Time (%)  Total Time (ns)  Instances\n  60.0   81   131\n", "cuda_gpu_trace"),
    "nsys report": ("a.nsys-rep", b"QDSTRM\x01\x02" + bytes(64), "nsys export"),
    "ncu": ("ncu.csv", b'"ID","Process ID","Kernel Name","gpu__time.sum"\n"0","1","a","9"\n', "Nsight Compute"),
    "key_averages": ("a.log", b"  Name    Self CPU %      Self CPU   Self CUDA\n", "key_averages"),
    "perfetto": ("a.pftrace", b"\x0a\x1f\x50\x01" + bytes(range(64)), "Perfetto"),
    "xplane": ("host.xplane.pb", b"\x0a\x90\x01\x12\x0d/device:GPU:0" + bytes(64), "trace.json.gz"),
}  # fmt: skip


@pytest.mark.parametrize("form", TABLES)
def test_tables_of_kernels(form: str, tmp_path: Path) -> None:
    name, text, reader, seconds = TABLES[form]
    (tmp_path / name).write_text(text)
    trace = traces.read([tmp_path / name])
    assert trace.format == reader
    assert trace.columns["duration_s"].tolist() == pytest.approx(seconds)
    assert trace.columns["start_s"][0] == 0.0


def test_a_table_says_streams_devices_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TABLES["rocprofv3"][1])
    trace = traces.read([tmp_path / "a.csv"])
    assert trace.word("stream").tolist() == ["3", "3"]
    assert trace.word("grid").tolist() == ["256×2×1", "256×1×1"]
    assert trace.word("kind").tolist() == ["gemm", "attention"]
    # AMD's grids are in threads; with those of a block they are in blocks, as NVIDIA's.
    threads = TABLES["rocprofv3"][1].replace("LDS_Block_Size", "Workgroup_Size_X").replace("00,0,256,", "00,64,256,")
    (tmp_path / "c.csv").write_text(threads)
    assert traces.read([tmp_path / "c.csv"]).word("grid").tolist() == ["4×2×1", "4×1×1"]
    (tmp_path / "b.csv").write_text(TABLES["nsys"][1])
    trace = traces.read([tmp_path / "b.csv"])
    assert (trace.device, trace.columns["bytes"].tolist()) == ("a100-80gb", [0.0, 2.5e6])


def rocpd(path: Path, suffix: str = "_0000_5cb") -> Path:
    """A database as ROCm 7.1 writes it (``rocpd_tables.sql``): tables with the run's number, and views without."""
    with sqlite3.connect(path) as base:
        for table, columns in (
            ("rocpd_info_agent", "id INTEGER PRIMARY KEY, type TEXT, name TEXT, product_name TEXT, extdata TEXT"),
            ("rocpd_info_kernel_symbol", "id INTEGER PRIMARY KEY, kernel_name TEXT, display_name TEXT"),
            ("rocpd_string", "id INTEGER PRIMARY KEY, string TEXT"),
            ("rocpd_region", "id INTEGER PRIMARY KEY, tid INTEGER, start BIGINT, end BIGINT, name_id INTEGER"),
            ("rocpd_kernel_dispatch", "id INTEGER PRIMARY KEY, agent_id INTEGER, kernel_id INTEGER, stream_id INTEGER, "
             "start BIGINT, end BIGINT, workgroup_size_x INTEGER, workgroup_size_y INTEGER, "
             "workgroup_size_z INTEGER, grid_size_x INTEGER, grid_size_y INTEGER, grid_size_z INTEGER"),
        ):  # fmt: skip
            base.execute(f"CREATE TABLE `{table}{suffix}` ({columns})")
            if suffix:
                base.execute(f"CREATE VIEW `{table}` AS SELECT * FROM `{table}{suffix}`")
        own = f"`rocpd_kernel_dispatch{suffix}`"
        base.execute(
            f"INSERT INTO `rocpd_info_agent{suffix}` VALUES (4, 'GPU', 'gfx942', 'AMD Instinct MI300X', ?)",
            ('{"cu_count": 304}',),
        )
        base.execute(
            f"INSERT INTO `rocpd_info_kernel_symbol{suffix}` VALUES (3, 'x.kd', 'aiter::add_rmsnorm_quant_kernel')"
        )
        base.execute(f"INSERT INTO `rocpd_string{suffix}` VALUES (1, 'train_step_3'), (2, 'hipLaunchKernel')")
        base.execute(f"INSERT INTO `rocpd_region{suffix}` VALUES (1, 7, 900, 9000, 1), (2, 7, 950, 960, 2)")
        base.execute(
            f"INSERT INTO {own} VALUES (1, 4, 3, 2, 1000, 3000, 256, 1, 1, 8192, 1, 1), "
            "(2, 4, 3, 2, 4000, 3999, 64, 1, 1, 64, 1, 1)"
        )
    base.close()
    return path


@pytest.mark.parametrize("suffix", ["_0000_5cb", ""])
def test_databases_of_rocprofv3(suffix: str, tmp_path: Path) -> None:
    trace = traces.read([rocpd(tmp_path / "a.db", suffix)])
    assert (trace.format, trace.device, len(trace)) == ("rocpd", "mi300x", 1)
    assert trace.columns["duration_s"].tolist() == pytest.approx([2e-6])
    assert trace.word("kind").tolist() == ["norm"] and trace.word("grid").tolist() == ["32×1×1"]
    assert [mark.name for mark in trace.marks] == ["train_step_3"]
    assert any("1 dispatches without times" in text for text in trace.missing)


def test_traces_of_xla(tmp_path: Path) -> None:
    """Names of threads may come behind what ran on them; lines that repeat a time by module are no kernels."""
    events: list[dict[str, Any]] = []
    for device in (0, 1):
        for step in range(3):
            at = {"ph": "X", "pid": device + 1, "ts": 1e6 + 2000.0 * step}
            events += [
                {**at, "tid": 2, "name": "jit_train_step(12)", "dur": 1900.0},
                {
                    **at,
                    "tid": 14,
                    "name": "gemm_fusion_dot_265",
                    "dur": 900.0,
                    "args": {"hlo_op": "gemm_fusion_dot.265"},
                },
                {
                    **at,
                    "tid": 15,
                    "ts": 1e6 + 2000.0 * step + 950,
                    "name": "ncclDevKernel_AllGather_RING_LL",
                    "dur": 300.0,
                },
                {**at, "pid": 701, "tid": 5, "name": "PjitFunction(step)", "dur": 100.0},
            ]
        for number, name in ((2, "XLA Modules"), (14, "Stream #14(Compute)"), (15, "Stream #15(AllGather)")):
            events.append({"ph": "M", "pid": device + 1, "tid": number, "name": "thread_name", "args": {"name": name}})
        events.append(
            {
                "ph": "M",
                "pid": device + 1,
                "name": "process_name",
                "args": {"name": f"/device:GPU:{device} NVIDIA H100"},
            }
        )
    document = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": events}
    (tmp_path / "a.trace.json").write_text(json.dumps(document))
    trace = traces.read([tmp_path / "a.trace.json"])
    assert (trace.format, trace.device, trace.ranks, len(trace)) == ("xla", "h100", (0, 1), 12)
    assert sorted(set(trace.word("kind").tolist())) == ["all_gather", "gemm"]
    assert sorted(set(trace.columns["step"].tolist())) == [0, 1, 2]


@pytest.mark.parametrize("form", LOGS)
def test_lines_of_steps(form: str, tmp_path: Path) -> None:
    text, numbers, seconds = LOGS[form]
    suffix = "jsonl" if text.startswith("{") else "log"
    (tmp_path / f"a.{suffix}").write_text(f"Loading 12 files, time 3 s\n{text}" if suffix == "log" else text)
    trace = traces.read([tmp_path / f"a.{suffix}"])
    assert trace.columns["step"].tolist() == numbers
    assert trace.columns["duration_s"].tolist() == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "step 100: eval time 31.2 s, loss 2.1",
        "step 100 | forward time: 31.2 ms",
        "Loaded checkpoint of step 100, load time 31.2 s",
        "step 100 of 200 took very long, total time: 31.2 s",
        "iteration 7: time 31",
    ],
)
def test_other_times_are_no_steps(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(text + "\n")
    with pytest.raises(InputError, match="no step line"):
        traces.read([tmp_path / "a.log"])


@pytest.mark.parametrize("form", RESULTS)
def test_results_of_load_generators_and_engines(form: str, tmp_path: Path) -> None:
    document, reader, measures = RESULTS[form]
    (tmp_path / "a.json").write_text(json.dumps(document))
    trace = traces.read([tmp_path / "a.json"])
    assert trace.format == reader
    rows = dict(
        zip(
            trace.word("name").tolist(),
            zip(trace.columns["value"], trace.columns["duration_s"], strict=True),
            strict=True,
        )
    )
    assert {name: rows[name] for name in measures} == measures


def test_every_batch_of_one_batch_is_said(tmp_path: Path) -> None:
    document = RESULTS["sglang.bench_one_batch"][0]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(document | {"batch_size": size}) + "\n" for size in (1, 8)))
    trace = traces.read([tmp_path / "a.jsonl"])
    assert set(trace.word("shapes").tolist()) == {f"{size} sequences, 256 tokens in, 32 tokens out" for size in (1, 8)}


@pytest.mark.parametrize("form", SUMMARIES)
def test_summaries_and_reports_say_what_they_are(form: str, tmp_path: Path) -> None:
    name, text, word = SUMMARIES[form]
    (tmp_path / name).write_bytes(text)
    with pytest.raises(InputError, match=word) as caught:
        traces.read([tmp_path / name])
    assert "no format that is known" not in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("Start_Timestamp", "Begin"),
        lambda text: text.replace("1000,3000", "nan,inf"),
        lambda text: text + '"KERNEL_DISPATCH"\n"a\x00b",,,\n',
    ],
)
def test_damaged_tables_are_one_line_or_whole_rows(damage: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "kernel_trace.csv").write_text(damage(TABLES["rocprofv3"][1]))
    try:
        trace = traces.read([tmp_path / "kernel_trace.csv"])
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert (trace.columns["duration_s"] >= 0).all() and len(trace)
