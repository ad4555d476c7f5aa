"""Steps that serve, held to what must be so whatever the kernels cost: over random keys, models and machines."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from helpers.draws import RUN, draws, in_turn, left_out
from helpers.gates import experts_drawn, places_of
from helpers.processes import said_in_any_process

import tspsim
from tspsim.base.errors import InputError, TspsimError
from tspsim.hardware import Device
from tspsim.model.parts import WeightClass
from tspsim.parallel.state.served import layer_weight_bytes, rank_bytes
from tspsim.scenario import load
from tspsim.step.bound import plan_bound
from tspsim.step.question import Question
from tspsim.step.result import PlanResult
from tspsim.step.simulation import run_plan, scheduled
from tspsim.studies.query import Library

#: One of every kind of attention, with experts and without.
MODELS = (
    "llama-3.1-8b", "gpt-oss-20b", "kimi-k2.6", "deepseek-v3.2", "glm-5.2", "qwen3-next-80b-a3b", "kimi-linear-48b",
    "deepseek-v4-flash", "qwen3.5-35b-a3b", "deepseek-v2-lite",
)  # fmt: skip
DEVICES = ("mi300x", "mi355x", "h100", "b200", "gb200")
LENGTHS = (1, 16, 17, 1000, 2049, 8192, 131072, 1048576)
LIBRARY = Library()
ALL = ("prefill", "decode", "mixed", "verify")
DECODING = ("decode", "mixed", "verify")
#: Sums of the same seconds in another order.
ROUNDING = 1e-9


def look_up(scenario: Mapping[str, Any]) -> Question:
    return LIBRARY.look_up(load(dict(scenario)))


def answer(scenario: Mapping[str, Any], **how: Any) -> PlanResult | None:
    """Its only plan's; None where it is refused, or has no room."""
    try:
        asked = look_up(scenario)
        found = run_plan(asked, asked.plans[0], **how)
    except TspsimError:
        return None
    return found if found.ran else None


def drawn(seed: int) -> dict[str, Any]:
    """A scenario of random keys; many are refused."""
    choose = random.Random(seed)
    device, gpus = choose.choice(DEVICES), choose.choice((1, 2, 3, 4, 6, 7, 8, 8, 8, 8))
    cluster: dict[str, Any] = {"device": device, "gpus_per_node": gpus}
    if device != "gb200" and choose.random() < 0.2:
        nodes = choose.choice((2, 3, 128))
        cluster |= {"nodes": nodes, "fabric": "rails-400g"}
        gpus *= nodes
    work: dict[str, Any] = {"model": choose.choice(MODELS), "pass": choose.choice(ALL)}
    if work["pass"] in ("prefill", "mixed"):
        work["sequence"] = choose.choice((1, 17, 64, 1024, 8192))
        work["sequences_per_replica"] = choose.choice((1, 1, 3))
        work["cached"] = choose.choice((0, 0, *LENGTHS))
    if work["pass"] == "prefill" and choose.random() < 0.3:
        work["chunk"] = choose.choice((512, 4096))
    if work["pass"] != "prefill":
        work["batch"] = choose.choice((3, 8, 31, 64, 256, 257, 600))
        work["context"] = choose.choice(LENGTHS)
        if choose.random() < 0.4:
            work["context"] = [choose.choice(LENGTHS) for _ in range(3)]
    if work["pass"] == "decode" and choose.random() < 0.3:
        work["streams"] = {"count": choose.choice((1, 2, 7, 16)), "shared_cache": choose.random() < 0.5}
    if work["pass"] == "verify":
        draft = choose.choice(("mtp", "eagle", "ngram"))
        work["speculation"] = {"tokens": choose.choice((0, 1, 3, 15)), "draft": draft}
    if choose.random() < 0.5:
        work["stack"] = choose.choice(("vllm", "sglang", "trtllm", "atom"))
    weights = ("bf16", "fp8", "mxfp4", "int4", "int2", "int7")
    precision = {"weights": weights, "kv": ("bf16", "fp8", "fp8_ds_mla", "nvfp4")}
    work["precision"] = {key: choose.choice(types) for key, types in precision.items() if choose.random() < 0.4}
    if choose.random() < 0.15:
        work["routing"] = {"load": choose.choice(("zipf", "dirichlet")), "skew": 0.8}
    divisors = [each for each in range(1, min(gpus, 64) + 1) if gpus % each == 0]
    ranks = choose.choice(divisors)
    plan: dict[str, Any] = {"name": "P", choose.choice(("tp", "tp", "tp", "tsp", "sp")): ranks}
    rest = [each for each in divisors if (gpus // ranks) % each == 0 and each <= 8]
    plan["pp"] = choose.choice(rest) if choose.random() < 0.3 else 1
    if "tp" in plan and choose.random() < 0.4:
        plan[choose.choice(("dcp", "kvp"))] = choose.choice([each for each in divisors if ranks % each == 0])
    if "moe" in work["model"] or choose.random() < 0.5:
        plan["ep"] = choose.choice(divisors)
        plan["expert_dispatch"] = choose.choice(("gather", "low_latency", "ranks"))
        plan["expert_overlap"] = choose.choice(("none", "two_batches", "shared_experts"))
    return {"name": "drawn", "cluster": cluster, "workload": work, "plans": [plan]}


def tp8(device: str, work: Mapping[str, Any], **keys: Any) -> dict[str, Any]:
    """On one node; ``keys`` of the plan."""
    plan = {"name": "P", "tp": 8, **keys}
    return {"name": "tp8", "cluster": {"device": device, "nodes": 1}, "workload": dict(work), "plans": [plan]}


def other(scenario: Mapping[str, Any], **keys: Any) -> dict[str, Any]:
    """The same with other keys of the workload; None leaves one out."""
    work = {key: value for key, value in {**scenario["workload"], **keys}.items() if value is not None}
    return {**scenario, "workload": work}


def running(passes: tuple[str, ...], start: int, count: int) -> Iterator[tuple[dict[str, Any], PlanResult]]:
    """So many drawn scenarios of some passes that run, and their answers; in a run on several processors every other
    one, the others in the next."""
    seed, found = start - 1, 0
    while found < (count / 2 if RUN else count):
        seed += 1
        scenario = drawn(seed)
        if left_out(seed, 2) or scenario["workload"]["pass"] not in passes:
            continue
        result = answer(scenario)
        if result is not None:
            found += 1
            yield scenario, result


@draws(24, 60)
def test_no_step_passes_a_ceiling_and_its_parts_add_up(count: int) -> None:
    for scenario, found in running(ALL, 0, count):
        asked = look_up(scenario)
        bound = plan_bound(asked, scheduled(asked, asked.plans[0]))
        assert found.tokens_per_s <= bound.tokens_per_s * (1 + ROUNDING), scenario
        assert found.block_forward_tokens_per_s <= bound.block_tokens_per_s * (1 + ROUNDING), scenario
        assert 0.0 < found.mfu <= 1.0, scenario
        parts = found.breakdown_s
        whole = parts["compute"] + sum(parts["exposed_communication"].values()) + parts["bubble"] + parts["idle"]
        assert whole == pytest.approx(found.step_time_s, rel=ROUNDING), scenario
        assert sum(found.compute_by_kind_s.values()) == pytest.approx(parts["compute"], rel=ROUNDING), scenario
        assert min(parts["bubble"], parts["idle"]) >= -1e-12, scenario
        assert 0.0 < found.range.low <= found.tokens_per_s <= found.range.high, scenario
        room = found.inference["capacity"]
        assert room["cache_bytes_range"][0] <= room["cache_bytes"] <= room["cache_bytes_range"][1], scenario


@draws(10, 25)
def test_more_sequences_and_longer_contexts_never_take_less_time(count: int) -> None:
    for scenario, found in running(DECODING, 1000, count):
        batch, context = scenario["workload"]["batch"], scenario["workload"]["context"]
        longer = [2 * each for each in context] if isinstance(context, list) else context + 1
        changes: list[dict[str, Any]] = [{"batch": 2 * batch}, {"context": longer}, {"batch": batch + 1}]
        for more in (other(scenario, **keys) for keys in changes):
            further = answer(more)
            if further is not None:
                assert further.step_time_s >= found.step_time_s * (1 - ROUNDING), more


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("model", MODELS)
def test_one_short_sequence_more_beside_long_ones_never_takes_less_time(model: str) -> None:
    """It lowers the mean context of the batch."""
    for device in ("b300", "mi355x"):
        base = tp8(device, {"model": model, "pass": "decode", "stack": "vllm"})
        seconds = []
        for contexts in ([9000, 7000, 900, 90, 9], [9000, 7000, 900, 90, 9, 1]):
            found = answer(other(base, batch=len(contexts), context=contexts))
            assert found is not None
            seconds.append(found.step_time_s)
        assert seconds[1] >= seconds[0] * (1 - ROUNDING), device


@pytest.mark.parametrize("stack", ["ideal", "vllm"])
@pytest.mark.parametrize("model", in_turn(MODELS))
def test_a_short_prompt_behind_more_cached_tokens_never_takes_less_time(model: str, stack: str) -> None:
    """Decode kernels take them with and without a cache: two of the four lengths with each stack."""
    every = (("h100", 1), ("gb200", 7), ("mi300x", 16), ("h100", 17))
    for device, tokens in every[(MODELS.index(model) + (stack == "vllm")) % 2 :: 2]:
        base = tp8(device, {"model": model, "pass": "prefill", "sequence": tokens, "stack": stack})
        found = [answer(other(base, cached=cached)) for cached in (0, 1, 1000)]
        seconds = [each.step_time_s for each in found if each is not None]
        assert all(b >= a * (1 - ROUNDING) for a, b in pairwise(seconds)), (device, tokens)


@draws(10, 25)
def test_more_prompts_and_longer_ones_never_take_less_time(count: int) -> None:
    """Of more tokens than decode kernels take."""
    for scenario, found in running(("prefill", "mixed"), 2000, count):
        work = scenario["workload"]
        if work["sequence"] <= 16:
            continue
        for more in (
            other(scenario, sequence=2 * work["sequence"]),
            other(scenario, sequences_per_replica=2 * work["sequences_per_replica"]),
            other(scenario, cached=2 * work["cached"] + 64),
        ):
            further = answer(more)
            if further is not None:
                assert further.step_time_s >= found.step_time_s * (1 - ROUNDING), more


@draws(10, 25)
def test_contexts_in_a_list_are_those_of_a_number_in_any_order_and_between_the_extremes(count: int) -> None:
    for scenario, found in running(DECODING, 3000, count):
        context = scenario["workload"]["context"]
        if not isinstance(context, list):
            listed = answer(other(scenario, context=[context] * 3))
            assert listed is not None and listed.step_time_s == found.step_time_s, scenario
            continue
        turned = answer(other(scenario, context=context[::-1]))
        assert turned is not None and turned.step_time_s == found.step_time_s, scenario
        least, most = (answer(other(scenario, context=end)) for end in (min(context), max(context)))
        assert least is not None and least.step_time_s <= found.step_time_s * (1 + ROUNDING), scenario
        assert most is None or found.step_time_s <= most.step_time_s * (1 + ROUNDING), scenario


@draws(6, 15)
def test_verifying_nothing_is_decoding_and_more_drafts_never_take_less_time(count: int) -> None:
    for scenario, found in running(("verify",), 4000, count):
        drafts = scenario["workload"]["speculation"]
        none = answer(other(scenario, speculation={**drafts, "tokens": 0}))
        decoded = answer(other(scenario, speculation=None) | {"workload": _decode(scenario)})
        assert none is not None and decoded is not None
        assert none.step_time_s == decoded.step_time_s, scenario
        assert none.memory == decoded.memory and none.tokens_per_s == decoded.tokens_per_s, scenario
        assert found.step_time_s >= none.step_time_s, scenario


def _decode(scenario: Mapping[str, Any]) -> dict[str, Any]:
    work: dict[str, Any] = other(scenario, speculation=None)["workload"]
    return work | {"pass": "decode"}


def test_chunks_take_as_long_as_the_whole_prompt_where_no_stages_overlap_them() -> None:
    for scenario, found in running(("prefill",), 5000, 15):
        work, plan = scenario["workload"], scenario["plans"][0]
        if plan["pp"] > 1 or "chunk" not in work:
            continue
        whole, stated = answer(other(scenario, chunk=None)), answer(other(scenario, chunk=work["sequence"]))
        if whole is not None:
            assert found.step_time_s >= whole.step_time_s * (1 - ROUNDING), scenario
            assert stated is not None and stated.step_time_s == whole.step_time_s, scenario


def test_prompts_with_nothing_cached_are_prompts() -> None:
    for scenario, found in running(("prefill", "mixed"), 6000, 10):
        stated, silent = answer(other(scenario, cached=0)), answer(other(scenario, cached=None))
        assert stated is not None and silent is not None and stated.step_time_s == silent.step_time_s, scenario
        assert scenario["workload"]["cached"] or stated.step_time_s == found.step_time_s


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("fact", ["hbm_bandwidth", "peak"])
@draws(8, 15)
def test_a_faster_device_is_never_slower(fact: str, count: int) -> None:
    for scenario, found in running(ALL, 7000, count):
        asked = look_up(scenario)
        spec = asked.device.spec
        stated: Any = getattr(spec, fact)
        quick = (
            {key: each.model_copy(update={"value": 1.3 * each.value}) for key, each in stated.items()}
            if isinstance(stated, dict)
            else stated.model_copy(update={"value": 1.3 * stated.value})
        )
        changed, old = spec.model_copy(update={fact: quick}), asked.device
        device = Device(changed, old.relatives, old.clocks, old.engine)
        faster = run_plan(replace(asked, device=device), asked.plans[0])
        assert faster.step_time_s <= found.step_time_s * (1 + ROUNDING), scenario


@draws(12, 30)
def test_one_rank_of_a_kind_stands_for_all(count: int) -> None:
    for scenario, found in running(ALL, 8000, count):
        if look_up(scenario).cluster.gpus > 24:
            continue
        every = answer(scenario, every_rank=True)
        assert every is not None
        assert every.step_time_s == pytest.approx(found.step_time_s, rel=ROUNDING), scenario
        assert every.communication_bytes_per_layer == pytest.approx(found.communication_bytes_per_layer), scenario
        assert every.compute_by_kind_s == pytest.approx(found.compute_by_kind_s, rel=ROUNDING), scenario


def test_padding_never_lowers_the_time() -> None:
    """Of batches up to the next captured size, under one engine."""
    base = tp8("h100", {"model": "llama-3.1-8b", "pass": "decode", "context": 2000, "stack": "sglang"})
    found = {batch: answer(other(base, batch=batch)) for batch in (17, 23, 24)}
    padded, near, full = (each.step_time_s for each in found.values() if each is not None)
    assert padded <= near <= full


# --- drafts ---------------------------------------------------------------------------------------------------


def verify(model: str, **speculation: Any) -> dict[str, Any]:
    work = {"model": model, "pass": "verify", "batch": 16, "context": 4096, "speculation": speculation}
    return tp8("mi355x", work)


@pytest.mark.parametrize("model", ["deepseek-v3.2", "glm-5.2", "qwen3-next-80b-a3b"])
def test_a_models_own_drafter_is_one_layer_more_in_weights_and_caches(model: str) -> None:
    with_, without = (answer(verify(model, tokens=2, draft=draft)) for draft in ("mtp", "ngram"))
    asked = look_up(verify(model, tokens=2, draft="mtp"))
    job, further = asked.job(asked.plans[0]), asked.model.further_block
    assert with_ is not None and without is not None
    kept = asked.model.attention_of(further).cache(asked.model, further, job.work.formats.cache)
    cache = 16 * rank_bytes(job.scheme.context(job.plan), kept, 4096 + 3)
    more = {part: with_.memory.parts[part] - without.memory.parts[part] for part in ("kv_cache", "weights")}
    assert more["kv_cache"] == pytest.approx(cache, rel=1e-6)
    layer = layer_weight_bytes(job, 8, further)
    join = asked.model.join_parameters * job.work.formats.weight_bytes(WeightClass.ATTENTION)
    assert more["weights"] == pytest.approx(layer + join, rel=1e-6)
    assert with_.step_time_s > without.step_time_s


def test_an_eagle_head_is_dense_where_the_model_has_dense_layers() -> None:
    """Kimi K2.6 has 384 experts a layer, and a dense first one."""
    head, none = (answer(verify("kimi-k2.6", tokens=1, draft=draft)) for draft in ("eagle", "ngram"))
    assert head is not None and none is not None
    assert head.memory.parts["weights"] - none.memory.parts["weights"] < 1e9


def test_every_drafted_token_is_a_pass_of_the_drafter() -> None:
    """A head and a layer each, behind a projection of two vectors."""
    seconds = []
    for tokens in (1, 2, 3):
        asked = look_up(verify("llama-3.1-8b", tokens=tokens, draft="eagle"))
        found = run_plan(asked, asked.plans[0])
        labels = found.timeline.labelled(lambda label: label.name == "join with next token", bool)
        assert labels.sum() == tokens * len(found.classes)
        seconds.append(found.step_time_s)
    assert seconds == sorted(seconds)


def test_drafting_with_modules_that_a_model_lacks_is_refused() -> None:
    with pytest.raises(InputError, match=r"modules for further tokens, and kimi-k2\.6 has none; use eagle"):
        look_up(verify("kimi-k2.6", tokens=2))
    assert answer(verify("kimi-k2.6", tokens=0)) is not None


def test_the_part_of_a_pipeline_that_is_simulated_has_the_longest_contexts() -> None:
    work = {"model": "llama-3.1-8b", "pass": "decode", "batch": 4, "context": [100, 100000]}
    base = tp8("h100", work, tp=2, pp=4)
    found, longest = answer(base), answer(other(base, context=100000))
    assert found is not None and longest is not None and found.step_time_s == longest.step_time_s


@pytest.mark.parametrize("stack", ["vllm", "sglang", "trtllm", "atom"])
def test_the_rest_of_a_prompt_runs_in_no_graph_of_decodes(stack: str) -> None:
    """Seven tokens behind a cache are launched as seven without one are, kernel by kernel."""
    work = {"model": "llama-3.1-8b", "pass": "prefill", "sequence": 7, "stack": stack}
    base = tp8("mi300x" if stack == "atom" else "h100", work)
    alone, behind = answer(base), answer(other(base, cached=4096))
    assert alone is not None and behind is not None
    assert behind.step_time_s > 0.9 * alone.step_time_s


# --- closed forms ---------------------------------------------------------------------------------------------

DEEPSEEK = {"model": "deepseek-v3.2", "pass": "decode", "context": 1024, "precision": {"weights": "fp8"}}


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_a_decode_step_of_tensor_parallelism_sums_its_rows_twice_a_layer(batch: int) -> None:
    """Two all-reduces of B·h in bf16, 2·(n − 1)/n of it received each."""
    found = answer(tp8("h100", {"model": "llama-3.1-8b", "pass": "decode", "batch": batch, "context": 4096}))
    assert found is not None
    once = 2 * 7 / 8 * batch * 4096 * 2
    assert found.communication_bytes_per_layer == {"attention": once, "mlp": once, "total": 2 * once}


def test_a_decode_step_keeps_and_reads_its_weights_and_caches_once() -> None:
    """Llama-3.1-8B in bf16: all matrices but the input table and 2·32·1024 elements a token, each over eight ranks."""
    work = {"model": "llama-3.1-8b", "pass": "decode", "batch": 16, "context": 4095}
    scenario = tp8("h100", work)
    asked, found = look_up(scenario), answer(scenario)
    assert found is not None
    model, cache = asked.model, 16 * 4096 * 2 * 32 * 1024 * 2
    assert found.memory.parts["kv_cache"] == cache / 8
    matrices = 32 * (model.attention_matrix_parameters_per_layer + model.mlp_matrix_parameters_per_layer)
    read = 2 * (matrices + model.hidden * model.vocab) + cache
    bound = plan_bound(asked, scheduled(asked, asked.plans[0]))
    assert bound.model.hbm_s == pytest.approx(read / 8 / asked.device.hbm_bytes_per_s, rel=1e-12)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("dispatch", ["gather", "low_latency", "ranks"])
def test_experts_of_all_replicas_get_tokens_to_the_byte(dispatch: str) -> None:
    """DeepSeek-V3.2 over eight replicas of one rank, T tokens each: gathered and summed (n − 1)/n of n·T·h twice;
    or each token to the distinct ranks of its eight experts, and back: a rank has a group, and the published gate, over
    scores that are drawn here, keeps the four groups with the best experts."""
    tokens, hidden = 32, 7168
    work = DEEPSEEK | {"batch": tokens}
    found = answer(tp8("mi355x", work, tp=1, ep=8, expert_dispatch=dispatch))
    assert found is not None
    moved = found.communication_bytes_per_layer["mlp"] * 61 / 58  # three layers are dense
    if dispatch == "gather":
        assert moved == pytest.approx(2 * 7 * tokens * hidden * 2, rel=1e-12)
        return
    ranks = places_of(experts_drawn(20_000, seed=3), 8)
    assert 3.9 < ranks < 4.0
    there, back = (1.0 + 4 / 128 if dispatch == "low_latency" else 2.0), 2.0
    assert moved == pytest.approx(tokens * ranks * 7 / 8 * hidden * (there + back), rel=0.003)


def test_experts_that_are_read_are_those_that_any_token_chose() -> None:
    """E·(1 − (1 − 1/E)^(n·k)) of all ranks, from the bytes that the bound reads: 58 layers of 256, eight a token."""
    read = {}
    for batch in (4, 5):
        scenario = tp8("mi355x", DEEPSEEK | {"batch": batch}, ep=8)
        asked = look_up(scenario)
        bound = plan_bound(asked, scheduled(asked, asked.plans[0]))
        read[batch] = bound.model.hbm_s * asked.device.hbm_bytes_per_s
    touched = [256 * (1 - (1 - 1 / 256) ** (8 * batch)) for batch in (4, 5)]
    expert = 3 * 7168 * 2048
    assert read[5] - read[4] == pytest.approx(58 * (touched[1] - touched[0]) / 8 * expert, rel=1e-9)


def test_a_cache_of_latents_in_any_type_is_attended_by_shards_of_a_prompt() -> None:
    work = {"model": "deepseek-v2-lite", "pass": "prefill", "sequence": 1024}
    for kept in ("bf16", "fp8", "fp8_ds_mla", "nvfp4"):
        for plan in ({"tp": 1, "tsp": 8}, {"tp": 1, "sp": 8}):
            assert answer(tp8("b200", work | {"precision": {"kv": kept}}, **plan)) is not None


def test_a_steady_block_has_no_attention_that_stands_at_the_end_alone() -> None:
    """Kimi-Linear's last layer is a full one, whatever the pattern."""
    work = {"model": "kimi-linear-48b", "pass": "decode", "batch": 256, "context": 131072}
    scenario = tp8("mi355x", work, dcp=2)
    asked, found = look_up(scenario), answer(scenario)
    assert found is not None
    bound = plan_bound(asked, scheduled(asked, asked.plans[0]))
    assert found.block_forward_tokens_per_s <= bound.block_tokens_per_s


# --- the same answer everywhere -------------------------------------------------------------------------------


def test_answers_are_the_same_in_other_processes(tmp_path: Path) -> None:
    """Hash seeds and orders of questions are none of them."""
    scenarios = [scenario for scenario, _ in running(ALL, 9000, 4)]
    script = (
        "import json, sys, tspsim\n"
        "found = {i: tspsim.simulate(tspsim.load(each)).to_json() for i, each in json.load(open(sys.argv[1]))}\n"
        "print(json.dumps(found, sort_keys=True))"
    )
    path = tmp_path / "asked.json"
    path.write_text(json.dumps(list(enumerate(scenarios))[::-1]))
    said = json.loads(said_in_any_process(script, str(path)))
    in_order = {str(index): tspsim.simulate(load(each)).to_json() for index, each in enumerate(scenarios)}
    assert said == json.loads(json.dumps(in_order))
