"""Several streams that decode for one user, and weights of few bits, against what bytes alone say."""

from __future__ import annotations

from typing import Any

import pytest

from tspsim.base.errors import InputError
from tspsim.operators import Gemm
from tspsim.scenario import load
from tspsim.step.simulation import simulate
from tspsim.steps import Streams
from tspsim.studies.query import Library

WORK = {"model": "llama-3.1-8b", "pass": "decode", "batch": 4, "context": "4Ki"}
#: Bytes of weights and of K and V of a sequence, by hand: 8.03 B parameters less the embedding, which is not read, and
#: 32 layers of 2 · 8 heads · 128, 4,096 tokens, two bytes.
WEIGHTS, CACHE = 2.0 * (8.03e9 - 128256 * 4096), 32 * 2 * 1024 * 4096 * 2.0
LIBRARY = Library()


def decoded(gpus: int = 1, device: str = "mi300x", plan: Any = None, **work: Any) -> Any:
    cluster = {"device": device, "nodes": 1, "gpus_per_node": gpus}
    plans = [{"name": "P", "tp": gpus} if plan is None else {"name": "P", **plan}]
    asked = {"name": "asked", "cluster": cluster, "workload": {**WORK, **work}, "plans": plans}
    (found,) = simulate(load(asked)).plans
    return found


@pytest.mark.parametrize("shared", [False, True])
def test_one_stream_is_a_decode_step(shared: bool) -> None:
    one, plain = decoded(streams={"count": 1, "shared_cache": shared}), decoded()
    assert (one.step_time_s, one.inference, one.memory) == (plain.step_time_s, plain.inference, plain.memory)


@pytest.mark.parametrize("count", [2, 8])
def test_streams_with_caches_of_their_own_keep_as_many_and_put_out_one_token(count: int) -> None:
    """ParScale: P caches, one token, and at most (W + P·K)/(W + K) of the time while bytes decide."""
    one, many = decoded(), decoded(streams={"count": count})
    assert many.memory.parts["kv_cache"] == decoded(batch=4 * count).memory.parts["kv_cache"]
    assert many.tokens_per_s == pytest.approx(4 / many.step_time_s)
    sessions = [found.inference["capacity"]["sessions"] for found in (one, many)]
    assert sessions[1] == pytest.approx(sessions[0] / count, rel=1e-3)
    ratio = many.step_time_s / one.step_time_s
    assert 1.0 < ratio < 1.02 * (WEIGHTS + 4 * count * CACHE) / (WEIGHTS + 4 * CACHE)
    # The head sees what the streams have been joined to.
    assert many.step_time_s < decoded(batch=4 * count).step_time_s


@pytest.mark.parametrize("count", [2, 8])
def test_streams_that_share_a_cache_each_put_out_a_token(count: int) -> None:
    """Hogwild: one cache, P queries over it, P tokens."""
    one, many = decoded(), decoded(streams={"count": count, "shared_cache": True})
    assert many.inference["output_tokens_per_s"] == pytest.approx(4 * count / many.step_time_s)
    assert many.inference["time_per_output_token_s"] == pytest.approx(many.step_time_s / count)
    assert many.memory.parts["kv_cache"] == pytest.approx(one.memory.parts["kv_cache"], rel=0.01)
    assert one.step_time_s <= many.step_time_s < 1.05 * one.step_time_s


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("plan", [{"tp": 4, "pp": 2}, {"tsp": 8}, {"dp": 2, "tp": 4}])
def test_every_plan_takes_streams(plan: dict[str, Any]) -> None:
    for shared in (False, True):
        many = decoded(8, plan=plan, streams={"count": 3, "shared_cache": shared})
        assert many.ran, many.error
        assert many.step_time_s >= decoded(8, plan=plan).step_time_s


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("device", ["mi300x", "mi355x", "h100", "b200"])
def test_fewer_bits_a_weight_are_never_slower_and_no_faster_than_their_bytes(device: str) -> None:
    """A weight-only product reads w/8 bytes a weight: linears that bytes decide take that share of bf16's time."""
    times = {bits: decoded(device=device, precision={"weights": f"int{bits}"}) for bits in (2, 3, 4, 5, 6, 7)}
    seconds = [times[bits].compute_by_kind_s["gemm"] for bits in sorted(times)]
    assert seconds == sorted(seconds)
    wide = decoded(device=device, precision={"weights": "bf16"})
    for bits, found in times.items():
        share = found.compute_by_kind_s["gemm"] / wide.compute_by_kind_s["gemm"]
        assert bits / 16 <= share <= 1.0
        assert found.range.high / found.range.low > wide.range.high / wide.range.low
    asked = load({"name": "x", "cluster": {"device": device, "nodes": 1}, "workload": WORK, "plans": [{"name": "P"}]})
    chip = LIBRARY.look_up(asked).device
    for m in (1, 64, 8192):
        full, narrow = (chip.time(Gemm(m, 8192, 8192, weight_dtype=kept)) for kept in (None, "int4"))
        assert narrow.seconds <= full.seconds
    # A prompt of many tokens is arithmetic, which weights of few bits do not lessen.
    assert narrow.seconds > 0.9 * full.seconds


# --- branches behind a shared context -------------------------------------------------------------------------------

#: Streams, and tokens of each's own; twenty are more than a decode kernel takes at once.
BRANCHES = [(2, 512), (8, 512), (8, 64), (20, 256)]


@pytest.mark.parametrize(("count", "branch"), BRANCHES)
def test_branches_keep_the_context_before_them_once_and_each_puts_out_a_token(count: int, branch: int) -> None:
    """ParaThinker: C − b + P·b tokens of cache a sequence, P tokens a step."""
    many = decoded(streams={"count": count, "branch": branch})
    token = CACHE / 4096
    # A step's end has one token more of every stream: it is its branch's, whose length is stated.
    assert many.memory.parts["kv_cache"] == pytest.approx(4 * token * (4096 - branch + count * branch), rel=2e-3)
    assert many.tokens_per_s == pytest.approx(4 * count / many.step_time_s)
    assert many.inference["time_per_output_token_s"] == pytest.approx(many.step_time_s / count)
    sessions = decoded().inference["capacity"]["sessions"]
    shorter = 4096 / (4096 - branch + count * branch)
    assert many.inference["capacity"]["sessions"] == pytest.approx(sessions * shorter, rel=0.02)


@pytest.mark.parametrize(("count", "branch"), BRANCHES)
def test_branches_take_longer_than_their_bytes_by_a_kernel_and_a_merge_a_layer(count: int, branch: int) -> None:
    """(W + k·(C − b + P·b)) / (W + k·C) while bytes decide; what is more is a kernel and a merge a layer, and P rows in
    every product."""
    one, many = decoded(batch=1), decoded(batch=1, streams={"count": count, "branch": branch})
    token = CACHE / 4096
    bytes_say = (WEIGHTS + token * Streams(count, branch=branch).read(4096)) / (WEIGHTS + token * 4096)
    ratio = many.step_time_s / one.step_time_s
    beyond_s = many.step_time_s - one.step_time_s * bytes_say
    assert ratio > 1.0
    assert beyond_s < 32 * 35e-6


def test_the_longer_what_branches_share_the_more_it_is_worth_to_read_it_once() -> None:
    """Llama-2-7B has four times the cache: eight paths of 512 tokens behind 3,584 take 1.2 of one's time, with caches
    of their own 1.7."""
    work = {"model": "llama-2-7b", "batch": 1}
    one = decoded(**work).step_time_s
    apart = decoded(**work, streams={"count": 8}).step_time_s / one
    behind = [decoded(**work, streams={"count": 8, "branch": each}).step_time_s / one for each in (64, 512, 2048)]
    assert behind == sorted(behind)
    assert behind[-1] < apart
    assert behind[1] == pytest.approx(1.18, abs=0.05) and apart == pytest.approx(1.66, abs=0.05)


def test_one_branch_is_a_decode_step_and_two_forms_are_one_too_many() -> None:
    one, plain = decoded(streams={"count": 1, "branch": 512}), decoded()
    assert (one.step_time_s, one.memory) == (plain.step_time_s, plain.memory)
    for streams, told in (
        ({"count": 2, "branch": 512, "shared_cache": True}, "two forms of streams"),
        ({"count": 2, "branch": 4096}, "leave none to share"),
    ):
        with pytest.raises(InputError, match=told):
            decoded(streams=streams)
    for plan in ({"tp": 8, "dcp": 2}, {"tsp": 8}):
        with pytest.raises(InputError, match="not divided by their tokens"):
            decoded(8, plan=plan, streams={"count": 2, "branch": 512})
    assert decoded(8, plan={"tp": 4, "pp": 2}, streams={"count": 3, "branch": 512}).ran
    with pytest.raises(InputError, match="not built"):
        decoded(8, model="glm-5", plan={"tp": 8}, streams={"count": 2, "branch": 512})
