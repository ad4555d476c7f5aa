"""Published serving runs are replayed: what is predicted, and that the first rounds of a run stand for all of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tspsim.validation.run import predict
from tspsim.validation.served import replayed
from tspsim.validation.served.replayed import kv_tokens, replay, simulated
from tspsim.validation.served.run import ServedPlan, ServedRun
from tspsim.validation.tables import TABLES

SILICON, PUBLISHED = (TABLES[f"published/{name}.csv"] for name in ("serving_silicon", "inference"))
PLAN = ServedPlan("llama-3.1-8b", "h100", 2, stack="vllm@0.19", weights=(("attention", "fp8"), ("dense", "fp8")))
RUN = ServedRun(
    PLAN, "vllm", 1024, 256, 8, 80, least=0.8, options=(("max_num_batched_tokens", 8192), ("max_num_seqs", 64))
)
ROWS = pd.DataFrame(
    {
        "id": ["a", "b", "c"],
        "silicon_data_source": ["silicon_concurrency=8"] * 3,
        "backend": ["vllm", "sglang", "trtllm"],
        "backend_version": ["0.18.0", "0.5.9", "1.2.0"],
        "model_path": ["meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", "openai/gpt-oss-120b"],
        "system": ["h100_sxm"] * 3,
        "precision": ["fp8", "fp8", "fp4"],
        "mode": ["agg"] * 3,
        "isl": ["1024"] * 3,
        "osl": ["256"] * 3,
        "gemm_quant_mode": ["fp8", "fp8", "nvfp4"],
        "moe_quant_mode": ["fp8", "fp8", "nvfp4"],
        "batch_size": ["8"] * 3,
        "tp_size": ["2", "2", "0"],
        "attention_dp_size": ["1"] * 3,
        "moe_tp_size": ["2"] * 3,
        "moe_ep_size": ["1"] * 3,
        "silicon_ttft_ms": ["60", "70", "80"],
        "silicon_tpot_ms": ["4", "5", "6"],
    }
)


def test_a_row_has_its_time_per_output_token_and_beside_it_the_time_to_the_first() -> None:
    outcome = predict(SILICON, ROWS.iloc[:2].reset_index(drop=True))
    answers = outcome.answers
    assert np.all((answers.low < answers.predicted) & (answers.predicted < answers.high))
    assert np.all((answers.predicted > 1.0) & (answers.predicted < 10.0))
    first = answers.further["silicon_ttft_ms"].astype(float)
    low, high = (answers.further[f"silicon_ttft_ms_{end}"].astype(float) for end in ("low", "high"))
    assert np.all((low < first) & (first < high) & (first > answers.predicted))
    summary = outcome.summary()
    assert summary["by"]["group"]["dense SGLang"]["predicted"] == 1
    assert summary["by"]["group"]["dense SGLang"]["further"]["silicon_ttft_ms"]["scored"] == 1
    assert summary["notes"]["agg measurements of their own"] == 2
    assert "predicted_silicon_ttft_ms" in outcome.csv().splitlines()[0].split(",")


def test_a_cold_engine_has_its_time_per_output_token_alone() -> None:
    cold = ROWS.iloc[1:2].assign(silicon_data_source="silicon_concurrency=8; measured=2025-11-10")
    answers = predict(SILICON, cold.reset_index(drop=True)).answers
    assert np.all(answers.predicted > 1.0) and "silicon_ttft_ms" not in answers.further


def test_metrics_of_one_published_run_are_read_off_one_replay() -> None:
    row = {
        "id": "x", "source_url": "", "date": "", "model": "Llama-3.3-70B-Instruct-MXFP4", "gpu": "MI355X",
        "n_gpus": "1", "tp": "1", "ep": "", "dp": "1", "pp": "1", "precision": "MXFP4 weights (Quark), FP8 KV",
        "engine": "ATOM (native)", "isl": "1024", "osl": "128", "concurrency": "4", "usable": "1",
        "notes": "lengths uniform in [0.8,1.0]x nominal",
    }  # fmt: skip
    names = ["TPOT mean ms", "TTFT mean ms", "output tok/s (total)", "output tok/s/gpu", "total tok/s (in+out)"]
    table = pd.DataFrame([row | {"metric": name, "value": "1"} for name in names])
    tpot, ttft, output, each, total = predict(PUBLISHED, table).answers.predicted
    assert output == pytest.approx(each)
    lengths = 0.9 * 128
    littles = 4 / (1e-3 * ttft + 1e-3 * tpot * (lengths - 1)) * lengths
    assert output == pytest.approx(littles, rel=0.15), "Little's law, but for ramp and drain"
    assert total / output == pytest.approx(1 + 1024 / 128, rel=0.1)


def test_first_rounds_stand_for_a_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    few = replay(replace(RUN, concurrency=64, requests=640))
    monkeypatch.setattr(replayed, "ROUNDS", 10)
    whole = replay(replace(RUN, concurrency=64, requests=640))
    assert few.tpot_s == pytest.approx(whole.tpot_s, rel=0.02)
    assert few.ttft_s == pytest.approx(whole.ttft_s, rel=0.1)
    assert few.output_tokens_per_s == pytest.approx(whole.output_tokens_per_s, rel=0.02)


def test_offline_runs_are_as_many_requests_as_fill_the_engine_twice() -> None:
    offline = replace(RUN, concurrency=None, requests=30000)
    assert simulated(offline, None) == 2 * 64 or simulated(offline, None) == replayed.FEWEST
    assert simulated(replace(offline, requests=100), None) == 100
    busy, idle = replay(replace(offline, requests=400)), replay(replace(RUN, concurrency=1, requests=20))
    assert busy.output_tokens_per_s > 4 * idle.output_tokens_per_s


def test_a_scripts_share_of_memory_is_the_caches_room() -> None:
    costs = replayed._costs(PLAN)
    less, more = (kv_tokens(replace(RUN, memory=share), costs) for share in (0.5, 0.9))
    assert less is not None and more is not None
    per_token = 32 * 2 * 4 * 128 * 2  # of a GPU: layers, K and V, its four heads, width, bytes
    visible = costs.question.device.visible_memory_bytes
    assert (more - less) * per_token == pytest.approx(0.4 * visible, rel=0.01)


def test_workers_of_their_own_take_prompts_off_the_decode_steps() -> None:
    shared = replay(replace(RUN, prompt=8192, output=64, concurrency=16, requests=64))
    apart = replay(replace(RUN, prompt=8192, output=64, concurrency=16, requests=64, prefill=(PLAN, 1)))
    assert apart.tpot_s < 0.8 * shared.tpot_s


def test_an_engine_takes_what_it_takes_on_gpus_of_that_memory() -> None:
    """MiniMax-M2.5 in fp8 is 54 GiB on each of four H100: with the passes of 160 GiB no cache was left."""
    plain = ServedPlan("minimax-m2.5", "h100", 4, stack="sglang@0.5.8-plain")
    run = ServedRun(plain, "sglang", 8192, 1024, 32, 160)
    costs = replayed._costs(plain)
    assert replayed.usual_options(costs.question, "sglang")["chunked_prefill_size"] == 8192
    tokens = kv_tokens(run, costs)
    assert tokens is not None and tokens > 100_000
    wide = replace(plain, model="llama-3.1-8b", device="b200", tp=1, stack="vllm@0.17")
    usual = replayed.usual_options(replayed._costs(wide).question, "vllm")
    assert (usual["max_num_batched_tokens"], usual["max_num_seqs"]) == (8192, 1024)
    assert replayed.usual_options(replayed._costs(wide).question, "sglang") == {}


@pytest.mark.parametrize(
    ("model", "device", "stack", "lengths", "clients", "measured_s"),
    [
        # GPUStack's laboratory (72aee9dd), Qwen3-32B in bf16 on one H100; as H100 SXM 26 ms.
        ("qwen3-32b", "h100-pcie", "vllm@0.10", (1000, 128), 1, 43.3e-3),
        # Qwen3Guard-8B on one MI300X: 6.8 ms with kernels as they are measured alone.
        ("qwen3-8b", "mi300x", "vllm", (1024, 1024), 32, 9.42e-3),
    ],
)
def test_times_that_laboratories_published_on_boards_without_rows_of_their_own(
    model: str, device: str, stack: str, lengths: tuple[int, int], clients: int, measured_s: float
) -> None:
    run = ServedRun(ServedPlan(model, device, 1, stack=stack), "vllm", *lengths, clients, 2 * clients)
    assert replay(run).tpot_s == pytest.approx(measured_s, rel=0.1)
