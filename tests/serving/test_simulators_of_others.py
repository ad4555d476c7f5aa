"""The oracle in the words of Dynamo, SGLang's simulator, TensorRT-LLM's simulation mode and vLLM's scheduler."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from types import SimpleNamespace as Thing
from typing import Any

import numpy as np
import pytest

import tspsim
from tspsim.base.errors import InputError
from tspsim.serving.adapters import dynamo, sglang, tensorrt_llm, vllm
from tspsim.serving.oracle import Oracle

WORK = {"model": "qwen3-8b", "pass": "decode", "stack": "sglang", "batch": 1, "context": 1}
SCENARIO = {"name": "a", "cluster": "mi300x-8", "workload": WORK, "plans": [{"name": "TP1", "tp": 1}]}
BATCHES = {
    "decode": [(1, 900)] * 3 + [(1, 1100)],
    "prompts": [(700, 0), (700, 512)],
    "mixed": [(256, 128), (1, 64), (1, 64)],
}


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return tspsim.predict(SCENARIO)


def rows(requests: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    return [(*each, requests.count(each)) for each in sorted(set(requests))]


@pytest.mark.parametrize("name", BATCHES)
def test_one_batch_takes_as_long_in_every_engine_s_words(oracle: Oracle, name: str) -> None:
    requests = BATCHES[name]
    seconds = float(oracle(rows(requests)))
    in_sglang = Thing(reqs=[Thing(extend_length=e, past_kv_length=p) for e, p in requests])
    assert sglang.TimePredictor(oracle).predict_infer_time(in_sglang) == seconds
    in_trt = Thing(requests=[Thing(input_length=e, past_kv_length=p) for e, p in requests])
    assert tensorrt_llm.TimePredictor(oracle).predict(in_trt) == seconds
    new = [Thing(req_id="0", num_computed_tokens=requests[0][1])]
    old = Thing(req_ids=[str(n) for n in range(1, len(requests))], num_computed_tokens=[p for _, p in requests[1:]])
    tokens = {str(n): e for n, (e, _) in enumerate(requests)}
    scheduled = Thing(num_scheduled_tokens=tokens, scheduled_new_reqs=new, scheduled_cached_reqs=old)
    assert vllm.step_s(oracle, scheduled) == seconds


EMPTY = Thing(num_context_requests=0, num_generation_requests=0, requests=[])


def test_nothing_takes_no_time(oracle: Oracle) -> None:
    assert sglang.TimePredictor(oracle).predict_infer_time(Thing(reqs=[])) == 0.0
    assert tensorrt_llm.TimePredictor(oracle).predict(EMPTY) == 0.0


def features(requests: list[tuple[int, int]]) -> list[float]:
    """As the simulator's ``ml`` predictor computes them."""
    e, p = [each for each, _ in requests], [each for _, each in requests]
    attended = sum(a * (b + a / 2) for a, b in requests)
    return [
        len(e), sum(e), max(e), min(e), sum(p), max(p), min(p), sum(a * b for a, b in requests), sum(a * a for a in e),
        sum(b * b for b in p), attended, sum(e) * max(p), math.log1p(sum(p)), math.log1p(attended), len(e) * sum(e),
        max(p) - min(p), int(all(a == 1 for a in e)), int(any(a > 1 for a in e)),
    ]  # fmt: skip


def test_the_file_that_sglang_s_simulator_loads(oracle: Oracle, tmp_path: Path) -> None:
    sglang.write(SCENARIO, tmp_path / "m.pkl")
    bundle: dict[str, Any] = pickle.loads((tmp_path / "m.pkl").read_bytes())
    assert set(bundle) == {"model", "features"} and len(bundle["features"]) == 18
    uneven = [(1, 300), (1, 2700)]
    for requests in (*BATCHES.values(), uneven):
        (seconds,) = bundle["model"].predict([features(requests)])
        # A batch's features do not say every request; sums decide.
        assert seconds == pytest.approx(float(oracle(rows(requests))), rel=0.05)
    with pytest.raises(InputError, match="serve"):
        sglang.write(
            {**SCENARIO, "workload": {"model": "qwen3-8b", "pass": "training", "sequence": 4096}}, tmp_path / "no.pkl"
        )
    assert not (tmp_path / "no.pkl").exists()


def test_the_arrays_that_dynamo_s_mocker_loads(oracle: Oracle, tmp_path: Path) -> None:
    dynamo.write(oracle, tmp_path / "perf_data.npz", context=4096, sequences=32, tokens=8192, points=6)
    with np.load(tmp_path / "perf_data.npz") as found:
        prompts, held, contexts = (
            found[name] for name in ("prefill_isl", "decode_active_kv_tokens", "decode_context_length")
        )
        assert all(found[name].dtype == np.float64 for name in found.files)
        assert found["prefill_ttft_ms"].shape == prompts.shape and found["decode_itl"].shape == (
            len(held),
            len(contexts),
        )
        assert all((np.diff(axis) > 0).all() for axis in (prompts, held, contexts))
        assert found["prefill_ttft_ms"][-1] == pytest.approx(1e3 * float(oracle([(8192, 0, 1)])))
        # All 32 sequences at their longest; of one mean length more tokens are more sequences, and never faster.
        assert found["decode_itl"][-1, -1] == pytest.approx(1e3 * float(oracle([(1, 4096, 32)])))
        assert (np.diff(found["decode_itl"], axis=0) > -1e-9).all()
    with pytest.raises(InputError, match="from 2 on"):
        dynamo.write(oracle, tmp_path / "no.npz", context=1, sequences=32, tokens=8192)
    assert not (tmp_path / "no.npz").exists()


def test_what_dynamo_asks_of_aiconfigurator_is_answered(oracle: Oracle) -> None:
    asked = dynamo.Callback(oracle)
    assert asked.predict_prefill(2, 512, 64) == pytest.approx(1e3 * float(oracle([(512, 64, 2)])))
    assert asked.predict_decode(8, 1000, 2) == pytest.approx(1e3 * float(oracle([(1, 1001, 8)])))
