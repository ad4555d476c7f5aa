"""What ``tspsim plan --emit`` prints is what the engines' commands take: every flag and value against their own lists
(``workloads/launch``, made by ``benchmarks/engine_options.py``), and every key of a plan is said or told not to be."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import shlex
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import yaml

from tspsim.base import catalog
from tspsim.base.errors import InputError
from tspsim.parallel.balance import BALANCES
from tspsim.parallel.dispatch import DISPATCHES, OVERLAPS
from tspsim.parallel.draft import DRAFTS
from tspsim.scenario import load
from tspsim.serving import POLICIES
from tspsim.serving.answer import deployment_of
from tspsim.serving.routers import ROUTERS
from tspsim.step.question import look_up
from tspsim.studies.launch import LAUNCHERS, launch
from tspsim.studies.launch.server import servers_of

ENGINES = ("vllm", "sglang", "trtllm")
#: Options of each of which none has its default.
OPTIONS: dict[str, dict[str, Any]] = {
    "vllm": {
        "max_num_batched_tokens": 2048, "max_num_seqs": 128, "enable_chunked_prefill": False, "async_scheduling": False,
        "long_prefill_token_threshold": 512, "long_prefill_token_threshold_adaptive": True, "block_size": 32,
        "scheduler_reserve_full_isl": False, "enable_prefix_caching": False, "gpu_memory_utilization": 0.8,
        "num_gpu_blocks": 4096,
    },
    "sglang": {
        "chunked_prefill_size": 4096, "max_prefill_tokens": 8192, "max_running_requests": 128, "page_size": 64,
        "attention_backend": "flashmla",
        "disable_radix_cache": True, "schedule_policy": "lpm", "schedule_conservativeness": 0.5,
        "scheduler_recv_interval": 4, "enable_mixed_chunk": True, "disable_overlap_schedule": True,
        "load_balance_method": "total_requests", "mem_fraction_static": 0.8, "kv_tokens": 65536,
    },
    "trtllm": {
        "max_batch_size": 64, "max_num_tokens": 4096, "enable_chunked_prefill": True, "tokens_per_block": 64,
        "capacity_scheduler_policy": "MAX_UTILIZATION", "enable_block_reuse": False, "disable_overlap_scheduler": True,
        "attention_dp_config": {"enable_balance": True, "timeout_iters": 9, "batching_wait_iters": 3},
        "batch_wait_timeout_iters": 5, "batch_wait_max_tokens_ratio": 0.5, "free_gpu_memory_fraction": 0.8,
        "kv_tokens": 65536,
    },
}  # fmt: skip
MINE = {"tp": 1, "dp": 8, "ep": 8}
POOLS = {part: {"replicas": 1, "tp": 1, "dp": 8, "ep": 8} for part in ("prefill", "decode")}


@cache
def listed(engine: str) -> dict[str, Any]:
    folder = catalog.locate("stacks", "vllm").parent.parent / "launch"
    found: dict[str, Any] = json.loads((folder / f"{engine}.json").read_text(encoding="utf-8"))
    return found


def question_of(plan: dict[str, Any], engine: str, device: str = "h200", nodes: int = 1, **more: Any) -> Any:
    asked = {
        "name": "one",
        "cluster": {"device": device, "nodes": nodes, **({"fabric": "rails-400g"} if nodes > 1 else {})},
        "workload": {"model": "deepseek-v3", "stack": engine, **more},
        "traffic": {"arrivals": {"kind": "closed", "concurrency": 16}, "prompt": 1024, "output": 128},
        "plans": [{"name": "best", **plan}],
    }
    return look_up(load(asked))


def text(plan: dict[str, Any], engine: str, **more: Any) -> str:
    question = question_of(plan, engine, **more)
    return launch(engine, question.scenario, deployment_of(question, question.plans[0]))


def wrong(flag: str, value: str | None, options: dict[str, Any]) -> str | None:
    """What a command would say to a flag; None: it takes it."""
    known = options.get(flag) or {**options.get(f"--{flag.removeprefix('--no-')}", {"kind": ""})}
    kind = known["kind"]
    if flag not in options and kind != "negatable":
        return f"{flag} is not one"
    if known.get("deprecated"):
        return f"{flag} is deprecated"
    if kind in ("switch", "negatable"):
        return None if value is None else f"{flag} takes no value"
    if value is None:
        return f"{flag} needs a value"
    among = known.get("choices") or known.get("known")
    if among and value not in map(str, among):
        return f"{flag} does not take {value}"
    if kind in ("whole", "number") and not re.fullmatch(r"-?\d+" if kind == "whole" else r"-?\d+(\.\d+)?", value):
        return f"{flag} {value} is no {kind} number"
    for key, each in json.loads(value).items() if kind == "json" else ():
        among = known["fields"].get(key, ())
        if among is not None and each not in among:
            return f"{flag} does not take {key}: {each}"
    return None


def held(printed: str, engine: str) -> int:
    """Flags and keys that a launch has, all of them known."""
    about, count = listed(engine), 0
    for command in re.findall(r"^(?:vllm serve|python -m sglang\.launch_server|trtllm-serve (?!disagg))(?:.*\\\n)*.*",
                              printed, re.MULTILINE):  # fmt: skip
        words = shlex.split(command.replace("\\\n", " "))
        for word, after in itertools.pairwise([*words, "--"]):
            if word.startswith("--"):
                value = None if after.startswith("--") else after
                assert (problem := wrong(word, value, about["options"])) is None, problem
                count += 1
    for file, keys in re.findall(r"cat > (\S+) <<'EOF'\n(.*?)\nEOF", printed, re.DOTALL):
        if file == "disaggregated.yaml":
            continue
        for key, value in yaml.safe_load(keys).items():
            assert key in about["keys"], key
            for inner, each in value.items() if isinstance(value, dict) else ():
                among = about["keys"][key][inner]
                assert among is None or each in among, (key, inner, each)
                count += 1
    return count


def test_lists_of_options_say_their_package_version_and_where_each_is():
    for engine in ENGINES:
        about = listed(engine)
        assert about["version"] and all(each["at"] and each["kind"] for each in about["options"].values())
    for engine in ("vllm", "sglang"):
        assert all(re.search(r"\.py:\d+$", each["at"]) for each in listed(engine)["options"].values())
        assert len(listed(engine)["options"]) > 200


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("device", ["h200", "mi355x"])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_flag_and_value_is_one_of_the_command_s_own(engine: str, device: str):
    if device == "mi355x" and engine == "trtllm":
        pytest.skip("TensorRT-LLM does not run there")
    stack = {"device": device, "precision": {"kv": "fp8"}}
    plans: list[dict[str, Any]] = [{"tp": 8}, {"tp": 4, "pp": 2}, {**MINE, "engine": OPTIONS[engine]}]
    plans += [{**MINE, "expert_dispatch": name} for name in DISPATCHES.names() if DISPATCHES.get(name).launched]
    plans += [{**MINE, "expert_overlap": "shared_experts"}]
    plans += [{**MINE, "expert_balance": {"policy": "eplb"}}, {"tp": 4, "ep": 4, "router": "prefix_aware"}]
    drafts = {"tokens": 2, "positions": [0.5, 0.5]}
    # A draft model has the tokens of what it drafts for, and no experts: a smaller one of the same family.
    plans += [{**MINE, "speculation": {**drafts, "draft": each}} for each in DRAFTS.names() if each != "model"]
    found = sum(held(text(plan, engine, **stack), engine) for plan in plans)
    pools = {part: {**POOLS[part], "expert_dispatch": "low_latency"} for part in POOLS}
    found += held(text({"pools": pools}, engine, nodes=2, **stack), engine)
    dense = {"tp": 8, "speculation": {**drafts, "draft": "model", "model": "llama-3.1-8b"}}
    assert found > 60 and held(text(dense, engine, **stack, model="llama-3.1-70b"), engine) > 0


def test_a_word_that_no_command_knows_is_found():
    options = listed("sglang")["options"] | listed("vllm")["options"]
    assert wrong("--dp-sizes", "8", options) == "--dp-sizes is not one"
    assert wrong("--enable-dp-attention", None, options) == "--enable-dp-attention is deprecated"
    assert wrong("--all2all-backend", "mori", options) == "--all2all-backend does not take mori"
    assert wrong("--deepep-mode", "fast", options) == "--deepep-mode does not take fast"
    assert wrong("--max-num-seqs", "1e3", options) == "--max-num-seqs 1e3 is no whole number"
    assert wrong("--speculative-config", '{"methods": "mtp"}', options) is not None


#: Keys of a plan that serves, with values that no plan has by itself.
KEYS: dict[str, Any] = {
    "router": "prefix_aware",
    "tiers": {"host": {"size": "64 GiB"}},
    "expert_dispatch": "low_latency",
    "expert_overlap": "shared_experts",
    "expert_balance": {"policy": "eplb"},
    "expert_pieces": 2,
    "speculation": {"tokens": 1, "draft": "mtp"},
    "offload_weights": 4,
    "algorithms": {"all_reduce": "ring"},
}


#: What a plan has that states nothing.
USUAL = ("busiest", "round_robin")


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_key_of_a_plan_is_said_or_told_that_it_cannot_be(engine: str, key: str):
    plain = {"tp": 4, "ep": 4} if key == "router" else {"tp": 8} if key == "offload_weights" else MINE
    said, with_it = (text({**plain, **more}, engine) for more in ({}, {key: KEYS[key]}))
    new = set(with_it.splitlines()) - set(said.splitlines())
    assert new, f"{key} is lost"


def test_every_registered_way_of_a_plan_is_said_or_told():
    ways = [("router", name) for name in ROUTERS.names()]
    ways += [("expert_balance", each.name) for each in BALANCES.values() if each.serves]
    for engine, (key, name) in itertools.product(ENGINES, ways):
        plan = {"tp": 4, "ep": 4} if key == "router" else MINE
        printed = text({**plan, key: {"policy": name} if key == "expert_balance" else name}, engine)
        assert printed != text(plan, engine) or name in USUAL, f"{engine}: {key} {name} is lost"


def test_halves_that_take_turns_are_a_flag_of_two_engines():
    question = question_of(MINE, "vllm")
    (server,) = servers_of(question.scenario, deployment_of(question, question.plans[0]))
    halves = replace(server, overlap=next(each for each in OVERLAPS.values() if each.halves))
    said = {engine: LAUNCHERS.get(engine).command(halves) for engine in ENGINES}
    assert "--enable-dbo" in said["vllm"].words and "--enable-two-batch-overlap" in said["sglang"].words
    assert any("expert_overlap" in each for each in said["trtllm"].cannot)
    assert all("--" + word in listed(engine)["options"] for engine, word in
               (("vllm", "enable-dbo"), ("sglang", "enable-two-batch-overlap")))  # fmt: skip


def test_a_server_that_reads_and_writes_sends_prompts_by_normal_messages():
    """--deepep-mode auto: low-latency messages for decoding, normal ones for prompts."""
    plan = {**MINE, "expert_dispatch": "low_latency"}
    both = text(plan, "sglang")
    assert "--deepep-mode auto" in both and "cannot be said here: prompts by low-latency messages" in both
    pools = {part: {**POOLS[part], "expert_dispatch": "low_latency"} for part in POOLS}
    apart = text({"pools": pools}, "sglang", nodes=2)
    assert "--deepep-mode normal" in apart.split("# decode")[0] and "--deepep-mode low_latency" in apart
    assert "--all2all-backend mori_low_latency" in text(plan, "vllm", device="mi355x")


def test_sglang_s_chunk_is_printed_as_it_is_read():
    """The server divides what it is told by its attention replicas, and so does the simulated one."""
    question = question_of({**MINE, "engine": {"chunked_prefill_size": 4096, "max_running_requests": 64}}, "sglang")
    deployment = deployment_of(question, question.plans[0])
    (server,) = servers_of(question.scenario, deployment)
    own = POLICIES.get("sglang").settings_of(deployment.engine, deployment.dp_size).options
    assert server.stated == (4096, 64)
    assert (server.tokens, server.sequences) == (own.chunked_prefill_size, own.max_running_requests) == (512, 8)


def test_limits_of_another_engine_are_those_of_a_replica():
    """Found for one engine and launched by the other: eight replicas of 512 tokens are 4,096 to SGLang, 512 to vLLM."""
    options = {"max_num_batched_tokens": 512, "max_num_seqs": 8}
    question = question_of({**MINE, "engine": options}, "vllm")
    deployment = deployment_of(question, question.plans[0])
    printed = launch("sglang", question.scenario, deployment)
    assert "--chunked-prefill-size 4096" in printed and "--max-running-requests 64" in printed
    question = question_of({**MINE, "engine": {"chunked_prefill_size": 4096, "max_running_requests": 64}}, "sglang")
    printed = launch("vllm", question.scenario, deployment_of(question, question.plans[0]))
    assert "--max-num-batched-tokens 512" in printed and "--max-num-seqs 8" in printed


def test_vllm_starts_with_few_tokens_a_pass_where_messages_are_small():
    """SchedulerConfig.DEFAULT_MAX_NUM_BATCHED_TOKENS_FOR_BATCHED_DP: 256, unless somebody states more."""
    small = {**MINE, "expert_dispatch": "low_latency"}
    few = text(small, "vllm")
    assert "--max-num-batched-tokens 256" in few and "--max-num-seqs 256" in few  # was 1024, which vLLM refuses
    assert "--max-num-batched-tokens 8192" in text(MINE, "vllm")
    stated = text({**small, "engine": {"max_num_batched_tokens": 4096}}, "vllm")
    assert "--max-num-batched-tokens 4096" in stated and "far more memory than the 256" in stated


@pytest.mark.parametrize("engine", [{}, {"chunked_prefill_size": 2048}, {"max_running_requests": 65536}])
def test_vllm_is_given_no_more_sequences_than_tokens(engine: dict[str, int]) -> None:
    """SchedulerConfig.verify_max_model_len raises; where nobody states them EngineArgs takes the smaller of both."""
    for stack, options in (("sglang", engine), ("vllm", {}), ("vllm", {"max_num_batched_tokens": 64})):
        question = question_of({**MINE, "engine": options}, stack)
        words = launch("vllm", question.scenario, deployment_of(question, question.plans[0])).split()
        stated = {name: int(value) for name, value in itertools.pairwise(words) if name.startswith("--max-num-")}
        assert stated.get("--max-num-seqs", 0) <= stated["--max-num-batched-tokens"]
    question = question_of({**MINE, "engine": {"max_num_batched_tokens": 64, "max_num_seqs": 65}}, "vllm")
    with pytest.raises(InputError, match="65 is more than the 64 tokens of a step"):
        launch("vllm", question.scenario, deployment_of(question, question.plans[0]))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed")
def test_vllm_s_own_parser_takes_what_is_printed():
    from vllm.engine.arg_utils import EngineArgs  # type: ignore[import-not-found]
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    for name in ("ranks", "low_latency", "gather"):
        words = shlex.split(text({**MINE, "expert_dispatch": name}, "vllm").split("\n\n")[1].replace("\\\n", " "))
        parser.parse_args(words[3:])
