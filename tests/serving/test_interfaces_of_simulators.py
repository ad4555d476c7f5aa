"""Adapters called with the simulators' own classes: their fields, names and defaults, as read at the versions cited."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tspsim
from tspsim.serving.adapters import dynamo, sglang, tensorrt_llm, vllm
from tspsim.serving.oracle import Oracle

#: (Query tokens, tokens in the cache): a chunk behind a cache, a whole prompt, and sequences that decode.
REQUESTS = [(300, 700), (512, 0), (1, 900), (1, 1100), (1, 900)]
ROWS = [(1, 900, 2), (1, 1100, 1), (300, 700, 1), (512, 0, 1)]


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    work = {"model": "qwen3-8b", "pass": "decode", "stack": "vllm", "batch": 1, "context": 1}
    return tspsim.predict({"name": "a", "cluster": "mi300x-8", "workload": work, "plans": [{"name": "TP1", "tp": 1}]})


# --- sgl-project/sglang@2f070b1b, tools/sglang-simulator/src/sglang_simulator/time_predictor/base.py ---------------


@dataclass
class ScheduleRequest:
    extend_length: int = 0
    past_kv_length: int = 0


@dataclass
class ScheduleBatch:
    reqs: list[ScheduleRequest] = field(default_factory=list)
    forward_mode: str | None = None


def test_sglang(oracle: Oracle) -> None:
    predictor = sglang.TimePredictor(oracle)
    batch = ScheduleBatch([ScheduleRequest(*request) for request in REQUESTS], "MIXED")
    assert predictor.predict_infer_time(batch) == pytest.approx(float(oracle(ROWS)), rel=1e-12)
    assert predictor.predict_infer_time(ScheduleBatch()) == 0.0
    predictor.reset_metrics()
    assert predictor.get_metrics() == {}


# --- NVIDIA/TensorRT-LLM@2216e3d5, tensorrt_llm/_torch/pyexecutor/sim_predictor.py ----------------------------------


@dataclass
class SimBatchRequest:
    input_length: int
    past_kv_length: int


@dataclass
class SimBatch:
    num_context_requests: int
    num_context_tokens: int
    num_generation_requests: int
    num_generation_tokens: int
    requests: list[SimBatchRequest] = field(default_factory=list)


def test_tensorrt_llm(oracle: Oracle) -> None:
    predictor = tensorrt_llm.TimePredictor(oracle)
    batch = SimBatch(2, 812, 3, 3, [SimBatchRequest(*request) for request in REQUESTS])
    assert predictor.predict(batch) == pytest.approx(float(oracle(ROWS)), rel=1e-12)
    assert predictor.predict(SimBatch(0, 0, 0, 0)) == 0.0


def test_tensorrt_llm_s_counts_without_requests_are_no_step_of_zero_seconds(oracle: Oracle) -> None:
    with pytest.raises(tspsim.errors.InputError, match=r"batch\.requests: lists none of its 5 requests"):
        tensorrt_llm.TimePredictor(oracle).predict(SimBatch(2, 812, 3, 3))


# --- vllm-project/vllm@00e8f1fd, vllm/v1/core/sched/output.py -------------------------------------------------------


@dataclass
class NewRequestData:
    req_id: str
    prompt_token_ids: list[int] | None
    block_ids: tuple[list[int], ...]
    num_computed_tokens: int


@dataclass
class CachedRequestData:
    req_ids: list[str]
    resumed_req_ids: set[str]
    new_token_ids: list[list[int]]
    all_token_ids: dict[str, list[int]]
    new_block_ids: list[Any]
    num_computed_tokens: list[int]
    num_output_tokens: list[int]


@dataclass
class SchedulerOutput:
    scheduled_new_reqs: list[NewRequestData]
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)
    finished_req_ids: set[str] = field(default_factory=set)


def test_vllm(oracle: Oracle) -> None:
    new = [NewRequestData(f"r{n}", None, (), REQUESTS[n][1]) for n in (0, 1)]
    names = [f"r{n}" for n in (2, 3, 4)]
    cached = CachedRequestData(names, set(), [], {}, [], [REQUESTS[n][1] for n in (2, 3, 4)], [1, 1, 1])
    tokens = {f"r{n}": query for n, (query, _) in enumerate(REQUESTS)}
    output = SchedulerOutput(new, cached, tokens, sum(tokens.values()))
    assert vllm.step_s(oracle, output) == pytest.approx(float(oracle(ROWS)), rel=1e-12)
    none = SchedulerOutput([], CachedRequestData([], set(), [], {}, [], [], []), {}, 0)
    assert vllm.step_s(oracle, none) == 0.0


# --- ai-dynamo/dynamo@0894f5c6, lib/mocker/src/common/perf_model.rs -------------------------------------------------


def predict_prefill_time(callback: dynamo.Callback, batch_size: int, isl: int, prefix: int) -> float:
    """As ``PerfModel::predict_prefill_time`` calls it."""
    return callback.predict_prefill(batch_size, isl - prefix, prefix)


def predict_decode_time(callback: dynamo.Callback, batch_size: int, context_length: int) -> float:
    """As ``PerfModel::predict_decode_time`` calls it."""
    return max(1.0, callback.predict_decode(batch_size, context_length, 2))


def test_dynamo_s_callback(oracle: Oracle) -> None:
    callback = dynamo.Callback(oracle)
    assert predict_prefill_time(callback, 2, 576, 64) == pytest.approx(1e3 * float(oracle([(512, 64, 2)])))
    assert predict_decode_time(callback, 8, 1000) == pytest.approx(1e3 * float(oracle([(1, 1001, 8)])))


def test_dynamo_s_callback_adds_up_a_trajectory(oracle: Oracle) -> None:
    """``RustAisCallback::predict_decode`` @39accd75: a step at every context from isl + 1 to isl + osl − 1."""
    steps = [1e3 * float(oracle([(1, 1000 + step, 8)])) for step in range(1, 33)]
    assert dynamo.Callback(oracle).predict_decode(8, 1000, 33) == pytest.approx(sum(steps), rel=1e-3)


# --- ai-dynamo/dynamo@083c4932, planner/core/perf_model/engine_query.py and common/forward_pass_metrics.py -----------


def scheduled(**sums: float) -> dict[str, Any]:
    """``ScheduledRequestMetrics`` as a mapping."""
    return {
        "num_prefill_requests": 0, "sum_prefill_tokens": 0, "var_prefill_length": 0.0, "sum_prefill_kv_tokens": 0,
        "num_decode_requests": 0, "sum_decode_kv_tokens": 0, "var_decode_kv_tokens": 0.0, **sums,
    }  # fmt: skip


def fpm(rank: int, **sums: float) -> dict[str, Any]:
    """``ForwardPassMetrics`` as ``_fpm_to_aic_dict`` gives it on."""
    return {
        "version": 1, "worker_id": "", "dp_rank": rank, "counter_id": 0, "wall_time": 0.0,
        "scheduled_requests": scheduled(**sums), "queued_requests": {},
    }  # fmt: skip


def estimate_forward_pass_seconds(model: dynamo.ForwardPass, metrics: list[dict[str, Any]]) -> float:
    """As ``AicCoreEnginePerfModel._estimate_forward_pass_seconds`` reads it."""
    return max(0.0, model.estimate_forward_pass_time_ms(metrics)) / 1000.0


def test_dynamo_s_planner(oracle: Oracle) -> None:
    model = dynamo.ForwardPass(oracle)
    assert model.diagnostics()["readiness"] == "ready"
    model.tune_with_fpms([[fpm(0, num_decode_requests=1, sum_decode_kv_tokens=9)]])
    mixed = fpm(
        0, num_prefill_requests=1, sum_prefill_tokens=512, num_decode_requests=32, sum_decode_kv_tokens=32 * 900
    )
    answer = float(oracle([(512, 0, 1), (1, 900, 32)]))
    assert estimate_forward_pass_seconds(model, [mixed]) == pytest.approx(answer)
    prefix = fpm(0, num_prefill_requests=2, sum_prefill_tokens=1024, sum_prefill_kv_tokens=256)
    assert estimate_forward_pass_seconds(model, [prefix]) == pytest.approx(float(oracle([(512, 128, 2)])))
    # Ranks wait for the slowest, an idle one is none.
    assert estimate_forward_pass_seconds(model, [fpm(0), mixed, prefix]) == pytest.approx(max(
        estimate_forward_pass_seconds(model, [each]) for each in (mixed, prefix)
    ))  # fmt: skip
    assert estimate_forward_pass_seconds(model, [fpm(0)]) == 0.0
    # A chunk of no request of its own, as its queue estimate states the last one.
    assert estimate_forward_pass_seconds(model, [fpm(0, sum_prefill_tokens=3)]) == float(oracle([(3, 0, 1)])) > 0.0


def test_contexts_are_as_far_apart_as_dynamo_s_variance_says(oracle: Oracle) -> None:
    contexts = [100] * 16 + [3900] * 16
    far = fpm(0, num_decode_requests=32, sum_decode_kv_tokens=sum(contexts), var_decode_kv_tokens=1900.0**2)
    assert estimate_forward_pass_seconds(dynamo.ForwardPass(oracle), [far]) == pytest.approx(
        float(oracle([(1, 100, 16), (1, 3900, 16)]))
    )


def test_dynamo_s_arrays_pass_what_its_loader_checks(oracle: Oracle, tmp_path: Path) -> None:
    dynamo.write(oracle, tmp_path / "perf_data.npz", context=2048, sequences=16, tokens=4096, points=5)
    with np.load(tmp_path / "perf_data.npz") as npz:
        isl, ttft = npz["prefill_isl"], npz["prefill_ttft_ms"]
        held, context, itl = npz["decode_active_kv_tokens"], npz["decode_context_length"], npz["decode_itl"]
    assert len(isl) == len(ttft) and itl.shape == (len(held), len(context))
    for axis in (isl, held, context):
        assert axis.dtype == np.float64 and len(axis) >= 2 and (np.diff(axis) > 0).all()
    # Its bilinear interpolation at a corner is what the oracle says of that batch.
    assert itl[-1, -1] == pytest.approx(1e3 * float(oracle([(1, 2048, 16)])))


def test_dynamo_interpolates_to_what_the_oracle_says(oracle: Oracle, tmp_path: Path) -> None:
    """Its ``Bilinear`` between the points of a file; what the cache cannot hold is not asked."""
    dynamo.write(oracle, tmp_path / "perf_data.npz", context=8192, sequences=256, tokens=16384)
    with np.load(tmp_path / "perf_data.npz") as npz:
        held, context, itl = npz["decode_active_kv_tokens"], npz["decode_context_length"], npz["decode_itl"]
        isl, ttft = npz["prefill_isl"], npz["prefill_ttft_ms"]
    assert held[-1] <= oracle.most_tokens < 8192 * 256
    off = []
    for count, mean in ((1, 100), (7, 3000), (32, 900), (60, 6000), (100, 513), (200, 1500)):
        row, column = np.searchsorted(held, count * mean) - 1, np.searchsorted(context, mean) - 1
        over = (count * mean - held[row]) / (held[row + 1] - held[row])
        beside = (mean - context[column]) / (context[column + 1] - context[column])
        near = itl[row : row + 2, column : column + 2]
        told = np.array([1 - over, over]) @ near @ np.array([1 - beside, beside])
        off.append(abs(told / (1e3 * float(oracle([(1, mean, count)]))) - 1.0))
    assert max(off) < 0.03
    assert np.interp(3000, isl, ttft) == pytest.approx(1e3 * float(oracle([(3000, 0, 1)])), rel=0.03)
