"""How many sessions a replica's caches hold: closed forms to the byte, engines' rules, what vLLM's logs say."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tspsim
from tspsim.base.units import GIB
from tspsim.model import load_model
from tspsim.parallel import ServingEngine, load_stack
from tspsim.parallel.decode import ContextShare
from tspsim.parallel.engine_memory import Budget, MemoryRule
from tspsim.parallel.serving_engine import NONE
from tspsim.parallel.state.capacity import Capacity, StageRoom, activation_bytes, cache_budget, capacity_of
from tspsim.step.question import look_up

KIMI = load_model("kimi-k2.6")
GB = 1e9


def holding(
    size_bytes: float, cache: str = "fp8", *, tensor: int = 1, token_shards: int = 1, block: int = 1
) -> Capacity:
    """Kimi-K2.6's caches in so many bytes a GPU."""
    stage = StageRoom(Budget(size_bytes, size_bytes, size_bytes), Counter(KIMI.cache_uses(cache)))
    share = ContextShare(ranks=token_shards, projected=tensor, attended=tensor, own=tensor)
    return Capacity((stage,), share, block)


def room(visible_bytes: float, share: float, cache: str = "fp8", **shards: int) -> float:
    """Sessions of 256 Ki tokens on eight GPUs that share 610 GB of weights, under a utilisation of all memory."""
    engine = ServingEngine(memory=MemoryRule("a test", share, after=("weights",)))
    budget = cache_budget(engine, visible_bytes, 610 * GB / 8)
    return holding(budget.size_bytes, cache, **shards).sessions(262_144)


@pytest.mark.parametrize(
    ("visible_gb", "shards", "sessions"),
    [
        (288.0, {"token_shards": 8}, 183.9),
        (192.0, {"token_shards": 8}, 100.5),
        (180.0, {"token_shards": 8}, 90.1),
        (288.0, {"tensor": 8}, 23.0),
        (180.0, {"tensor": 8}, 11.3),
    ],
)
def test_kimi_sessions_of_256k_tokens_are_those_of_the_closed_form(
    visible_gb: float, shards: dict[str, int], sessions: float
) -> None:
    assert round(room(visible_gb * GB, 1.0, **shards), 1) == sessions


@pytest.mark.parametrize(
    ("share", "cache", "mi355x", "b200"),
    [
        (1.0, "fp8", 202.3, 99.8),
        (0.95, "fp8", 188.9, 91.5),
        (0.90, "fp8", 175.5, 83.2),
        (0.95, "fp8_ds_mla", 165.9, 80.3),
    ],
)
def test_the_same_with_what_drivers_show_and_an_engines_utilisation(
    share: float, cache: str, mi355x: float, b200: float
) -> None:
    for visible_gib, sessions in ((287.98, mi355x), (178.0, b200)):
        assert room(visible_gib * GIB, share, cache, token_shards=8) == pytest.approx(sessions, abs=0.06)


def asked(stack: str, model: str, precision: Any = None, *, cluster: Any = None, **plan: Any) -> Capacity:
    workload = {"model": model, "pass": "decode", "batch": 1, "context": 64, "stack": stack}
    question = look_up(tspsim.load({
        "name": "room",
        "cluster": cluster or {"device": "h100", "nodes": 1},
        "workload": workload | ({"precision": precision} if precision else {}),
        "plans": [{"name": "P", "tp": 1, **plan}],
    }))  # fmt: skip
    return capacity_of(question.job(question.plans[0]), question.device.visible_memory_bytes)


@pytest.mark.parametrize(
    ("model", "precision", "tp", "logged_gib"),
    [
        ("llama-3.1-8b", "bf16", 1, 51.38),
        ("llama-3.3-70b", "fp8", 2, 32.0),
        ("gpt-oss-20b", "mxfp4", 1, 50.28),
        ("gpt-oss-120b", "mxfp4", 1, 3.33),
        ("qwen3-32b", "bf16", 1, 4.45),
    ],
)
def test_vllms_rule_gives_the_memory_for_caches_that_its_logs_say(
    model: str, precision: str, tp: int, logged_gib: float
) -> None:
    """H100, gpu_memory_utilization 0.9 (llm-d/llm-d-benchmark 2593348, config_explorer): within 0.7 GiB of 79."""
    found = asked("vllm@0.16", model, precision, tp=tp).budget
    assert found.size_bytes / GIB == pytest.approx(logged_gib, abs=0.7)
    assert found.low - 0.1 * GIB <= logged_gib * GIB <= found.high + 0.4 * GIB


def test_a_sampler_that_does_not_sort_leaves_vllm_0_11_the_room_that_a_run_had() -> None:
    """Qwen3-32B on one H100 under 0.11.0: 8 prompts of 4,010 tokens run at once and 9 do not, 16 of 2,010 and 17 do not
    (peak tokens/s times the time between tokens: gpustack/gpustack@10e9444a, docs/performance-lab)."""
    old, later = (asked(f"vllm@{version}", "qwen3-32b", "bf16") for version in ("0.11", "0.16"))
    assert (int(old.sessions(4010)), int(old.sessions(2010))) == (8, 16)
    assert int(later.sessions(4010)) == 4


def test_a_logit_takes_what_each_versions_sampler_keeps() -> None:
    """PyTorch's sort to 0.16.0, Triton's masks from 0.17.0, FlashInfer from 0.21.0 (vllm-project/vllm pull
    requests 33538 and 40376). Of 32558: 384.33 MB and 1.25 GB for 256 rows of 131,072 logits, masked, sorted."""
    sort, masks, newest = (load_stack(name).stack().engine.logit_bytes for name in ("vllm@0.16", "vllm@0.17", "vllm"))
    measured = (1.25 * 2**30 - 384.33 * 2**20) / (256 * 131072)
    floor = 2 + 4 + 4 + 4  # logits in bf16 and fp32; softmax and noise, or masked logits and softmax
    assert masks.value == load_stack("vllm@0.19").stack().engine.logit_bytes.value
    assert sort.value - measured < floor <= masks.value <= floor + 1  # masking takes less than what follows it
    assert floor + 4 <= newest.value <= floor + 4.2 and newest.low <= floor <= newest.high
    rooms = [asked(name, "qwen3-32b", "bf16").budget.size_bytes for name in ("vllm@0.16", "vllm@0.17")]
    assert rooms[1] - rooms[0] == pytest.approx((sort.value - masks.value) * 151936 * 1024, rel=1e-3)


def test_sglang_keeps_the_reserve_that_its_scripts_compute() -> None:
    """1 − reserve / memory of an eight-GPU B200 replica: (512 + 16384·1.5 + 512·2 + 8·128) MiB."""
    engine = load_stack("sglang").stack().engine
    reserve = (512 + 16384 * 1.5 + 512 * 2 + 8 * 128) * 2**20
    found = cache_budget(engine, 178 * GIB, 70 * GIB, ranks=8)
    context = 1.5 * GIB
    assert found.size_bytes == pytest.approx(178 * GIB - context - 70 * GIB - reserve, rel=1e-12)
    small = cache_budget(engine, 64 * GIB, 20 * GIB)
    assert small.size_bytes == pytest.approx((64 - 1.5 - 20) * GIB - 14.0 * GIB + 0.375 * GIB, rel=1e-12)


def test_trtllm_takes_its_share_of_what_is_free() -> None:
    engine = load_stack("trtllm").stack().engine
    found = cache_budget(engine, 178 * GIB, 70 * GIB, 4 * GIB)
    assert found.size_bytes == pytest.approx(0.9 * (178 - 70 - 4 - 2) * GIB, rel=1e-12)
    assert found.low < found.size_bytes < found.high


def test_no_rule_gives_more_than_there_is() -> None:
    greedy = ServingEngine(memory=MemoryRule("a test"))
    assert cache_budget(greedy, 80 * GIB, 70 * GIB, 5 * GIB, reserve_bytes=2 * GIB).size_bytes == 3 * GIB
    assert cache_budget(greedy, 80 * GIB, 90 * GIB).size_bytes == 0.0


ENGINES = st.sampled_from(["ideal", "vllm", "vllm@0.19", "sglang", "trtllm", "atom"])
SHIPPED = {name: load_stack(name).stack().engine for name in ("ideal", "vllm", "vllm@0.19", "sglang", "trtllm", "atom")}


@example(name="sglang", visible=145.0, more=15.0, weights=0.0, activations=0.0, context=1)
@given(
    name=ENGINES, visible=st.floats(10.0, 400.0), more=st.floats(0.0, 400.0),
    weights=st.floats(0.0, 300.0), activations=st.floats(0.0, 20.0), context=st.integers(1, 1_000_000),
)  # fmt: skip
def test_more_memory_never_holds_fewer_tokens_but_where_an_engine_admits_larger_passes(
    name: str, visible: float, more: float, weights: float, activations: float, context: int
) -> None:
    engine = SHIPPED[name]
    engine = replace(engine, limits=tuple(replace(limits, memory_bytes=0.0) for limits in engine.limits[-1:]))
    small, large = (
        cache_budget(engine, size * GIB, weights * GIB, activations * GIB) for size in (visible, visible + more)
    )
    assert small.low <= small.size_bytes <= small.high
    held = [holding(budget.size_bytes, block=16) for budget in (small, large)]
    assert held[0].sessions(context) <= held[1].sessions(context)
    assert held[0].longest_context() <= held[1].longest_context()


@given(st.floats(0.0, 1e12), st.integers(1, 64), st.sampled_from([1, 2, 8]), st.sampled_from([1, 16, 64]))
def test_the_longest_context_fits_and_one_token_more_does_not(
    size_bytes: float, sequences: int, shards: int, block: int
) -> None:
    held = holding(size_bytes, token_shards=shards, block=block)
    longest = held.longest_context(sequences)
    if longest:
        assert held.holds([(longest, sequences)]) and not held.holds([(longest + 1, sequences)])
    else:
        assert not held.holds([(1, sequences)])


def test_whole_sequences_are_dealt_to_ranks() -> None:
    """Eight ranks with room for 2.5 sequences each hold 16 of them, and none that is longer than one rank's room."""
    size = 2.5 * 1000 * 35_136
    stage = StageRoom(Budget(size, size, size), Counter(KIMI.cache_uses("fp8")))
    dealt = Capacity((stage,), ContextShare(sequences=8))
    assert dealt.sessions(1000) == pytest.approx(20.0) and dealt.whole_sessions(1000) == 16
    assert dealt.tokens(1000) == 16_000 and dealt.longest_context() == 2500
    assert dealt.holds([(1000, 16)]) and not dealt.holds([(1000, 17)])


def test_a_sequence_takes_whole_blocks_on_every_token_shard() -> None:
    token = 35_136
    assert holding(1.0, block=16).sequence_bytes(17) == (32 * token,)
    assert holding(1.0, block=16, token_shards=8).sequence_bytes(129) == (32 * token,)
    assert holding(1.0, tensor=8).sequence_bytes(100) == (100 * token,)


def test_heads_divide_a_cache_up_to_their_number_and_stages_its_layers() -> None:
    cluster = {"device": "h200", "nodes": 2, "fabric": "rails-400g"}
    eight, sixteen, stages = (
        asked("ideal", "llama-3.3-70b", "fp8", cluster=cluster, **plan).sequence_bytes(1000)
        for plan in ({"tp": 8}, {"tp": 16}, {"tp": 8, "pp": 2})
    )
    assert eight == sixteen == (80 * 2 * 128 * 1000 * 2.0,)
    assert stages == (40 * 2 * 128 * 1000 * 2.0,) * 2


def test_states_and_windows_do_not_grow_with_the_context() -> None:
    hybrid = asked("ideal", "qwen3.5-397b-a17b", "fp8", cluster="hgx-b200-8", tp=8)
    short, long = (hybrid.sequence_bytes(context)[0] for context in (1, 1_000_000))
    state = short - (long - short) / 999_999
    # 45 layers of 64 states of 128 × 128 and a convolution's last inputs, in eight shares.
    assert state > 45 * 64 * 128 * 128 * 2 / 8
    assert hybrid.sessions(1) < 1.01 * hybrid.budget.size_bytes / state


def test_a_batch_without_room_is_refused_with_what_would_fit() -> None:
    asked_for = {
        "name": "full",
        "cluster": "hgx-h100-8",
        "workload": {"model": "llama-3.3-70b", "pass": "decode", "batch": 2000, "context": 8192, "precision": "fp8",
                     "stack": "vllm"},
        "plans": [{"name": "P", "tp": 8}],
    }  # fmt: skip
    refused = tspsim.simulate(asked_for).plan("P")
    assert not refused.ran and refused.error is not None
    assert refused.error.startswith("caches of 2000 sequences need ") and "what fits: " in refused.error
    fitting = int(refused.error.split("what fits: ")[1].split(" ")[0])
    asked_for["workload"]["batch"] = fitting
    told = tspsim.simulate(asked_for).plan("P")
    assert told.ran and told.inference["capacity"]["sessions"] >= fitting
    asked_for["workload"]["batch"] = fitting + 1
    assert not tspsim.simulate(asked_for).plan("P").ran


def test_a_plan_whose_weights_leave_no_room_is_refused() -> None:
    refused = tspsim.simulate({
        "name": "none", "cluster": "hgx-h100-8", "plans": [{"name": "P", "tp": 8}],
        "workload": {"model": "kimi-k2.6", "pass": "decode", "batch": 1, "context": 64, "stack": "vllm"},
    }).plan("P")  # fmt: skip
    assert refused.error is not None and "no sequence at all" in refused.error


def test_an_answer_says_what_its_caches_hold_with_a_range() -> None:
    told = tspsim.simulate({
        "name": "room", "cluster": "hgx-b200-8", "plans": [{"name": "P", "tp": 8}],
        "workload": {"model": "llama-3.3-70b", "pass": "decode", "batch": 8, "context": 8192, "precision": "fp8",
                     "stack": "trtllm"},
    }).plan("P")  # fmt: skip
    capacity = told.inference["capacity"]
    low, high = capacity["sessions_range"]
    assert low < capacity["sessions"] < high and capacity["context"] == 8193
    assert capacity["tokens"] == int(capacity["sessions"]) * 8193 <= capacity["longest_context"] + 8193


@pytest.mark.parametrize(
    ("stack", "plan", "tokens", "heads"),
    [
        ("ideal", {"tp": 8}, 131_072, 8),
        ("vllm", {"tp": 8}, 65_536, 8),
        ("sglang", {"dp": 8, "ep": 8}, 131_072, 64),
        ("trtllm", {"tp": 8, "dcp": 8}, 32_768, 8),
    ],
)
def test_keys_and_values_made_of_cached_latents_are_in_the_ledger(
    stack: str, plan: dict[str, int], tokens: int, heads: int
) -> None:
    """128 + 64 and 128 elements a head in bf16, of as many tokens as the engine unpacks at once; of nothing cached, and
    in steps that decode, nothing."""
    work = {"model": "kimi-k2.6", "pass": "prefill", "sequence": 8192, "cached": 131_072, "stack": stack}
    asked: dict[str, Any] = {
        "name": "behind", "cluster": {"device": "b300", "nodes": 1}, "workload": work,
        "plans": [{"name": "P", **plan}],
    }  # fmt: skip
    found = tspsim.simulate(asked).plan("P").memory.parts
    assert found["unpacked_context"] == tokens * heads * (192 + 128) * 2
    for other in ({**work, "cached": 0}, {**work, "pass": "decode", "batch": 1, "context": 4096}):
        if other["pass"] == "decode":
            other = {key: value for key, value in other.items() if key not in ("sequence", "cached")}
        assert "unpacked_context" not in tspsim.simulate({**asked, "workload": other}).plan("P").memory.parts


def test_an_engine_s_largest_pass_has_what_it_unpacks_at_once() -> None:
    """Latents alone: of chosen tokens, and of grouped heads, nothing is unpacked."""
    for model, more in (("kimi-k2.6", 32_768 * 8 * 320 * 2), ("glm-5.2", 0.0), ("llama-3.3-70b", 0.0)):
        work = {"model": model, "pass": "decode", "batch": 1, "context": 4096, "stack": "trtllm"}
        cluster, plans = {"device": "b300", "nodes": 1}, [{"name": "TP8", "tp": 8}]
        asked = look_up(tspsim.load({"name": "x", "cluster": cluster, "workload": work, "plans": plans}))
        job = asked.job(asked.plans[0])
        whole = replace(job.work.stack, engine=replace(job.work.stack.engine, context_workspace=0, logit_bytes=NONE))
        own = replace(job.work.stack, engine=replace(job.work.stack.engine, logit_bytes=NONE))
        jobs = [replace(job, work=replace(job.work, stack=each)) for each in (own, whole)]
        unpacks, without = (activation_bytes(each, 288e9, job.chunks(0)) for each in jobs)
        assert unpacks - without == pytest.approx(more)


def test_what_does_not_fit_is_told_which_keys_make_room() -> None:
    """Kimi K2.6 on eight MI355X: 75 GiB of weights a GPU with experts spread over the ranks of `tsp`, 544 without."""
    asked = {
        "name": "advice",
        "cluster": "mi355x-8",
        "workload": {"model": "kimi-k2.6", "pass": "prefill", "sequence": "128Ki", "precision": {"kv": "fp8"}},
        "plans": [{"name": "TSP8", "tsp": 8}, {"name": "TSP8-EP8", "tsp": 8, "ep": 8}],
    }
    alone, spread = tspsim.simulate(asked).plans
    assert spread.ran and alone.error is not None and "state ep: 8, or take more GPUs" in alone.error
    served = {key: value for key, value in asked["workload"].items() if key in ("model", "precision")}  # type: ignore[attr-defined]
    traffic = {"arrivals": {"kind": "closed", "concurrency": 1}, "prompt": "1Ki", "output": 8, "requests": 1}
    (refused,) = tspsim.simulate(asked | {"workload": served, "traffic": traffic, "plans": asked["plans"][:1]}).plans
    assert refused.error is not None and refused.error.endswith("it fits with ep: 8")


@pytest.mark.parametrize(
    ("plan", "advised", "said"),
    [
        ({"sp": 8}, {"sp": 8, "ep": 8}, "state ep: 8, or take more GPUs"),
        ({"dp": 8}, {"tp": 8, "dcp": 8}, "state tp: 8 and dcp: 8 instead of dp: 8, or take more GPUs"),
        (
            {"tp": 4, "dp": 2},
            {"tp": 4, "dp": 2, "ep": 8, "dcp": 4},
            "what fits: 8 of 1655, or all with ep: 8 and dcp: 4",
        ),
        ({"tp": 8}, {"tp": 8, "dcp": 8}, "7 sequences of 131073 tokens, or 8 of 117684, or all with dcp: 8"),
    ],
    ids=str,
)
def test_what_is_advised_fits_on_the_same_gpus(plan: dict[str, int], advised: dict[str, int], said: str) -> None:
    """GLM-5.1 in fp8 on eight B200, eight sequences of 128Ki: it was "take more GPUs" where no further key helps, and
    nothing where some of the sequences fit."""
    work = {"model": "glm-5.1", "pass": "decode", "batch": 8, "context": "128Ki", "precision": "fp8"}
    plans = [{"name": "stated", **plan}, {"name": "advised", **advised}]
    refused, ran = tspsim.simulate({"name": "a", "cluster": "hgx-b200-8", "workload": work, "plans": plans}).plans
    assert ran.ran and refused.error is not None and refused.error.endswith(said)
