"""Lines and results as other people's programs write them: forms from public issues, pull requests and documents, with
numbers of our own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tspsim import traces
from tspsim.cli import main

BAR = "█"
#: Form → (text, who wrote it, step numbers, seconds).
LOGS: dict[str, tuple[str, str, list[int], list[float]]] = {
    # epfLLM/Megatron-LLM#11
    "Megatron, 2021": (
        " iteration      122/  250000 | consumed samples:       124928 | elapsed time per iteration (ms): "
        "86545.2 | learning "
        "rate: 9.150E-06 | global batch size:  1024 | lm loss: 2.504220E+00 |\n",
        "Megatron", [122], [86.5452],
    ),
    # bigscience's logs of BLOOM
    "Megatron-DeepSpeed": (
        " iteration    90/ 100 | consumed samples:  184320 | consumed tokens: 377487360 | elapsed time per "
        "iteration (s): "
        "105.31 | learning rate: 6.0E-05 | global batch size:  2048 | lm loss: 1.9E+00 | samples per second: "
        "19.4 |\n",
        "Megatron", [90], [105.31],
    ),
    # deepspeedai/DeepSpeed#3742: GPT-NeoX
    "GPT-NeoX": (
        " samples/sec: 7.799 | iteration       34/   10000 | elapsed time per iteration (ms): 4103.1 | "
        "learning rate: "
        "2.111E-06 | approx flops per GPU: 112.9TFLOPS | lm_loss: 1.118665E+01 |\n",
        "Megatron", [34], [4.1031],
    ),
    # pytorch/torchtitan#2389 (every rank's line, one time stamp) and #3393 (ranks before the line)
    "torchtitan": (
        "".join(
            f"[rank{rank}]:[titan] 2026-02-24 19:46:{second},508 - root - INFO - step:  {step}  loss:  "
            f"7.62585  grad_norm: "
            "26.6250  memory: 66.91GiB(37.51%)  tps: 10,050  tflops: 314.71  mfu: 13.99%\n"
            for step, second in ((4, 17), (5, 19), (6, 21)) for rank in (0, 1)
        ),
        "torchtitan", [5, 6], [2.0, 2.0],
    ),
    # NVIDIA-BioNeMo/bionemo-recipes#740
    "NeMo 2": (
        "Training epoch 0, iteration 120/149 | lr: 3e-05 | consumed_samples: 121 | global_batch_size: 1 | "
        "global_step: 120 | "
        "reduced_train_loss: 1.233 | train_step_timing in s: 0.03146 | val_loss: 4.106\n",
        "NeMo", [120], [0.03146],
    ),
    # NVIDIA/NeMo-Framework-Launcher#55: a bar, written over with carriage returns
    "NeMo 1": (
        f"Epoch 0:   1%|{BAR}          | 795/77225 [9:07:58<878:01:48, 41.36s/it, loss=3.1, v_num=, "
        f"global_step=794.0]\r"
        f"Epoch 0:   1%|{BAR}          | 796/77225 [9:08:39<878:01:48, 41.30s/it, loss=3.1, v_num=, "
        f"global_step=795.0]\r",
        "Hugging Face's Trainer or Lightning", [795, 796], [41.36, 41.30],
    ),
    # Hugging Face's Trainer (Axolotl, LLaMA-Factory): dictionaries have no time, the bar beside them has
    "Trainer": (
        f"Loading checkpoint shards: 100%|{BAR * 9}| 4/4 [00:05<00:00,  1.30s/it]\n"
        f"Map: 100%|{BAR * 9}| 1000/1000 [00:00<00:00, 5021.12 examples/s]\n"
        f" 10%|{BAR}         | 10/100 [00:30<04:30,  3.00s/it]\n"
        "{'loss': 1.2345, 'grad_norm': 0.52, 'learning_rate': 2e-05, 'epoch': 0.1}\n"
        f"  0%|          | 0/8 [00:00<?, ?it/s]\r 50%|{BAR * 5}     | 4/8 [00:01<00:01,  2.50it/s]\n"
        f" 11%|{BAR}         | 11/100 [00:33<04:27,  3.01s/it]\n",
        "Hugging Face's Trainer or Lightning", [10, 11], [3.00, 3.01],
    ),
    "Trainer's summary": (
        "{'train_runtime': 400.0, 'train_samples_per_second': 8.0, 'train_steps_per_second': 0.25, "
        "'train_loss': 1.0, "
        "'epoch': 1.0}\n",
        "Hugging Face's Trainer or Lightning", [0], [4.0],
    ),
    # deepspeedai/DeepSpeed#2629 and #3742
    "DeepSpeed's rates": (
        "[2022-12-20 08:26:26,000] [INFO] [timer.py:197:stop] 0/17, RunningAvgSamplesPerSec=158.3, "
        "CurrSamplesPerSec=159.6, "
        "MemAllocated=1.75GB, MaxMemAllocated=2.6GB\n"
        "[2022-12-20 08:26:28,500] [INFO] [timer.py:215:stop] epoch=0/micro_step=18/global_step=18, "
        "RunningAvgSamplesPerSec=157.4, CurrSamplesPerSec=145.0, MemAllocated=1.75GB, MaxMemAllocated=2.6GB\n",
        "DeepSpeed", [18], [2.5],
    ),
    # deepspeed/runtime/pipe/engine.py
    "DeepSpeed's pipeline": (
        "steps: 10 loss: 5.2100 iter time (s): 0.550 samples/sec: 116.400\n", "DeepSpeed", [10], [0.55],
    ),
    # AI-Hypercomputer/maxtext, max_utils and metric_logger
    "MaxText": (
        "completed step: 5, seconds: 1.234, TFLOP/s/device: 187.3, Tokens/s/device: 3319.1, total_weights: "
        "65536, loss: 9.1\n",
        "MaxText", [5], [1.234],
    ),
    # verl's console tracker
    "verl": (
        "step:3 - global_seqlen/min:20000 - actor/pg_loss:0.01 - timing_s/gen:30.5 - timing_s/step:47.625 - "
        "perf/mfu:0.3\n",
        "verl", [3], [47.625],
    ),
    # vllm-project/vllm, vllm/v1/metrics/loggers.py
    "vLLM's rates": (
        "INFO 08-28 22:41:28 [loggers.py:122] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg "
        "generation throughput: "
        "400.0 tokens/s, Running: 8 reqs, Waiting: 0 reqs, GPU KV cache usage: 3.0%, Prefix cache hit rate: 0.0%\n"
        "INFO 08-28 22:41:38 [loggers.py:122] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg "
        "generation throughput: "
        "0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, Prefix cache hit rate: 0.0%\n",
        "vLLM", [0], [0.02],
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", LOGS)
def test_step_lines(form: str, tmp_path: Path) -> None:
    text, written_by, numbers, seconds = LOGS[form]
    (tmp_path / "run.log").write_text(text, encoding="utf-8")
    trace = traces.read([tmp_path / "run.log"])
    assert (trace.format, trace.facts["written_by"]) == ("log", written_by)
    assert trace.columns["step"].tolist() == numbers
    assert trace.columns["duration_s"].tolist() == pytest.approx(seconds)


VLLM_TEXT = """INFO 08-28 22:41:28 [__init__.py:241] Automatically detected platform cuda.
============ Serving Benchmark Result ============
Successful requests:                     772
Benchmark duration (s):                  329.83
Total input tokens:                      130743
Total generated tokens:                  174589
Request throughput (req/s):              2.34
Output token throughput (tok/s):         529.33
Total Token throughput (tok/s):          925.72
---------------Time to First Token----------------
Mean TTFT (ms):                          249.49
P99 TTFT (ms):                           953.35
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          108.19
==================================================
"""
TRTLLM_TEXT = """===========================================================
= PERFORMANCE OVERVIEW
===========================================================
Request Throughput (req/sec):                     7.3411
Total Output Throughput (tokens/sec):             7,517.2584
Average request latency (ms):                     138000.5
"""
AIPERF_CSV = """Metric,avg,min,max,sum,p1,p50,p99,std
Time to First Token (ms),18.26,11.07,106.32,1826.0,11.1,16.5,68.82,12.07
"Output Sequence Length (tokens)","1,024.00",1000,1030,102400,1001,1024,1029,2.0

Metric,Value
Benchmark Duration (sec),12.5
"""
REQUEST = {
    "metadata": {"session_num": 0},
    "metrics": {"time_to_first_token": {"value": 20.0, "unit": "ms"}},
    "error": None,
}
DETAILED = {
    "duration": 10.0, "completed": 2, "total_input_tokens": 20, "ttfts": [0.1] * 20000, "itls": [[0.01]] * 4,
    "mean_ttft_ms": 100.0,
}  # fmt: skip
REPORT = {
    "engine": {"model": "m"}, "request_info": {"num_requests": 8},
    "performance": {"total_latency_ms": 100.0, "request_throughput_req_s": 7.3},
    "streaming_metrics": {"avg_ttft_ms": 50.0, "ttft_percentiles": {"p50": 48.0}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "form", "values"),
    [
        ("vllm.txt", VLLM_TEXT, "bench-text",
         {"completed": (772.0, 0.0), "duration": (329.83, 329.83), "output_throughput": (529.33, 0.0),
          "mean_ttft_ms": (249.49, 0.24949), "mean_tpot_ms": (108.19, 0.10819)}),
        ("trt.log", TRTLLM_TEXT, "bench-text",
         {"request_throughput": (7.3411, 0.0), "total_output_throughput": (7517.2584, 0.0),
          "average_request_latency_ms": (138000.5, 138.0005)}),
        ("aiperf.csv", AIPERF_CSV, "aiperf-csv",
         {"Time to First Token (ms).avg": (18.26, 0.01826), "Time to First Token (ms).p99": (68.82, 0.06882),
          "Output Sequence Length (tokens).avg": (1024.0, 0.0), "Benchmark Duration (sec)": (12.5, 12.5)}),
        ("profile_export.jsonl", f"{json.dumps(REQUEST)}\n" * 3, "aiperf",
         {"time_to_first_token.avg": (20.0, 0.02), "time_to_first_token.p99": (20.0, 0.02)}),
        ("detailed.json", json.dumps(DETAILED), "bench", {"mean_ttft_ms": (100.0, 0.1), "duration": (10.0, 10.0)}),
        ("report.json", json.dumps(REPORT), "trtllm-bench",
         {"request_throughput_req_s": (7.3, 0.0), "avg_ttft_ms": (50.0, 0.05), "total_latency_ms": (100.0, 0.1)}),
    ],
)  # fmt: skip
def test_results_of_benchmarks(
    name: str, text: str, form: str, values: dict[str, tuple[float, float]], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    trace = traces.read([tmp_path / name])
    assert trace.format == form
    pairs = zip(trace.columns["value"].tolist(), trace.columns["duration_s"].tolist(), strict=True)
    rows = dict(zip(trace.word("name").tolist(), pairs, strict=True))
    for key, pair in values.items():
        assert rows[key] == pytest.approx(pair), key


def test_dictionaries_without_times_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.log").write_text("{'loss': 1.2, 'grad_norm': 0.5, 'learning_rate': 2e-05, 'epoch': 0.1}\n")
    assert main(["trace", "read", str(tmp_path / "t.log")]) == 2
    assert "holds no step line with a time" in capsys.readouterr().err
