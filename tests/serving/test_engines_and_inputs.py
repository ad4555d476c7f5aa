"""Options by their real names, engines of stacks, schedulers of other people, and input that is refused."""

from __future__ import annotations

import functools
import itertools
import pickle
import re

import pandas as pd
import pytest
from helpers.serving_newcomers import SHORTEST

import tspsim
from tspsim.base.errors import InputError
from tspsim.model import load_model
from tspsim.parallel import load_stack
from tspsim.serving import POLICIES, AffineCost, Engine, replay

GB = 1e9


def requests(arrival_s=(0.0,), prompt_tokens=(10,), output_tokens=(2,)):
    return pd.DataFrame({"arrival_s": arrival_s, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens})


def test_the_call_of_the_manual():
    engine = tspsim.serving.Engine(
        "vllm", max_num_batched_tokens=8192, max_num_seqs=256, kv_tokens=None, async_scheduling=False
    )
    assert engine == Engine("vllm")
    answer = tspsim.serving.replay(requests(), lambda batch: 0.5, engine, every_step=False)
    assert list(answer.columns) == ["arrival_s", "first_token_s", "end_s", "preemptions"]
    assert answer.iloc[0].tolist() == [0.0, 0.5, 1.0, 0]


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(InputError, match=r"unknown option of vllm 'max_num_seq' .did you mean 'max_num_seqs'"):
        Engine("vllm", max_num_seq=3)
    with pytest.raises(InputError, match=r"unknown scheduler 'vlm' .did you mean 'vllm'"):
        Engine("vlm")
    with pytest.raises(InputError, match="unknown option of sglang 'max_num_seqs'"):
        Engine("sglang", max_num_seqs=3)


@pytest.mark.parametrize("options", [{"max_num_seqs": 0}, {"block_size": -1}, {"async_scheduling": 3}])
def test_an_option_out_of_range_says_which(options):
    with pytest.raises(InputError, match=next(iter(options))):
        Engine("vllm", **options)


@pytest.mark.parametrize("tokens", [0, -5, float("nan"), "many", True])
def test_a_cache_is_a_number_of_tokens(tokens):
    with pytest.raises(InputError, match="kv_tokens"):
        Engine("vllm", kv_tokens=tokens)


def test_engines_are_values():
    engine = Engine("sglang", kv_tokens=1000, chunked_prefill_size=512)
    assert pickle.loads(pickle.dumps(engine)) == engine
    assert hash(engine) == hash(Engine("sglang", kv_tokens=1000, chunked_prefill_size=512))
    assert engine != Engine("sglang", kv_tokens=1001, chunked_prefill_size=512)
    assert Engine("trtllm", block_tokens=64).block_tokens == 64


def test_stacks_give_their_schedulers_what_depends_on_a_gpu_s_memory():
    def of(name, memory, **options):
        return Engine.of_stack(load_stack(name).stack().engine, memory, **options)

    large = of("vllm", 192 * GB)
    assert large.options.async_scheduling
    assert (of("trtllm", 80 * GB).block_tokens, of("atom", 288 * GB).scheduler) == (32, "atom")
    assert of("atom", 288 * GB, scheduler="vllm").scheduler == "vllm"
    stated = of("vllm", 192 * GB, kv_tokens=5000, max_num_seqs=7, async_scheduling=False)
    assert (stated.kv_tokens, stated.options.max_num_seqs, stated.options.async_scheduling) == (5000, 7, False)


GIB = 2.0**30


@pytest.mark.parametrize(
    ("stack", "device", "memory", "expected"),
    [
        # vllm 0.33.0, EngineArgs.get_batch_defaults of an API server, and 0.19.0
        ("vllm", "l40s", 44.5, (2048, 256)),
        ("vllm", "a100-80gb", 79.2, (2048, 256)),
        ("vllm", "NVIDIA A100-SXM4-80GB", 79.2, (2048, 256)),
        ("vllm", "h100", 79.2, (8192, 1024)),
        ("vllm", "h200", 139.8, (8192, 1024)),
        ("vllm", "b200", 178.4, (16384, 1024)),
        ("vllm", "mi300x", 191.7, (16384, 1024)),
        ("vllm@0.19", "b200", 178.4, (8192, 1024)),
        ("vllm@0.17", "a100-80gb", 79.2, (2048, 256)),
        # sglang 0.5.23, handle_gpu_memory_settings, and 0.5.6; sequences are found by the engine
        ("sglang", "t4", 15.0, (2048, None)),
        ("sglang", "rtx-4090", 23.5, (4096, None)),
        ("sglang", "a100-40gb", 39.4, (4096, None)),
        ("sglang", "l40s", 44.5, (4096, None)),
        ("sglang", "a100-80gb", 79.2, (8192, None)),
        ("sglang", "h200", 139.8, (8192, None)),
        ("sglang", "b200", 178.4, (16384, None)),
        ("sglang@0.5.6", "rtx-4090", 23.5, (2048, None)),
        ("sglang@0.5.6", "l40s", 44.5, (4096, None)),
        ("sglang@0.5.6", "b200", 178.4, (16384, None)),
        ("trtllm", "b200", 178.4, (8192, 2048)),
        ("atom", "mi355x", 268.0, (16384, 512)),
    ],
)
def test_defaults_follow_memory_and_the_name_of_the_gpu(stack, device, memory, expected):
    engine = Engine.of_stack(load_stack(stack).stack().on(device).engine, memory * GIB)
    policy = engine.policy
    assert tuple(getattr(engine.options, name) for name in (policy.token_option, policy.sequence_option)) == expected


@pytest.mark.parametrize(
    ("stack", "device", "model", "block"),
    [
        ("sglang", "h200", "deepseek-v3", 1),
        ("sglang", "b200", "deepseek-v3", 64),
        ("sglang", "gb300", "kimi-k2", 64),
        ("sglang", "h200", "deepseek-v3.2", 64),
        ("sglang", "mi355x", "glm-5", 64),
        ("sglang", "b200", "deepseek-v4-pro", 256),
        ("sglang", "h100", "llama-3.1-8b", 1),
        ("sglang", "b200", "llama-3.1-8b", 64),
        ("sglang@0.5.6", "b200", "llama-3.1-8b", 1),
        ("sglang@0.5.6", "b200", "deepseek-v3", 64),
        ("vllm", "h200", "deepseek-v3", 16),
        ("vllm", "b200", "deepseek-v3", 32),
        ("vllm@0.19", "h200", "deepseek-v3.2", 64),
        ("vllm", "mi355x", "deepseek-v4-pro", 256),
        ("vllm", "b200", "llama-3.1-8b", 16),
    ],
)
def test_blocks_are_the_pages_of_the_attention_backend(stack, device, model, block):
    kind = load_model(model).attention_kind.name
    assert load_stack(stack).stack().on(device, kind).engine.block_tokens == block


def test_a_stated_backend_or_page_goes_before_the_stack_s():
    engine = load_stack("sglang").stack().on("b200", "mla").engine
    of = functools.partial(Engine.of_stack, engine, 178 * GIB)
    assert of().block_tokens == 64
    assert of(attention_backend="fa4").block_tokens == 128
    assert of(attention_backend="flashinfer").block_tokens == 1
    assert of(attention_backend="fa4", page_size=32).block_tokens == 32


def test_every_default_says_the_version_and_the_line_that_it_is_from():
    for name in ("vllm", "vllm@0.17", "vllm@0.19", "sglang", "sglang@0.5.6"):
        rows = load_stack(name).engine.limits.value
        assert all(re.search(r"\d+\.\d+\.\d+, [\w/]+\.py:\d+", row.source) for row in rows), name
        assert all(row.tokens <= more.tokens for row, more in itertools.pairwise(rows)), name


def test_stacks_and_their_schedulers_agree_on_what_attention_replicas_share():
    for name in ("vllm", "sglang", "trtllm", "atom"):
        scheduler = load_stack(name).stack().engine.scheduler
        assert scheduler.shares_tokens == POLICIES.get(scheduler.name).shares_tokens


@pytest.mark.parametrize("name", POLICIES.names())
def test_every_scheduler_names_its_options_and_serves(name):
    policy = POLICIES.get(name)
    fields = policy.options.model_fields
    named = (policy.block_option, policy.token_option, policy.sequence_option)
    assert {option for option in named if option} <= set(fields)
    sections = ("attention_dp_config", "mamba_state_config")
    assert all(each.description for option, each in fields.items() if option not in sections)
    answer = replay(requests((0.0, 0.5), (10, 20), (3, 1)), AffineCost(1.0), Engine(name, kv_tokens=640))
    assert (answer.end_s >= answer.first_token_s).all()


def test_a_scheduler_of_other_people_runs():
    POLICIES.register(SHORTEST)
    try:
        rows = requests((0.0, 0.0, 0.0), (30, 10, 20), (3, 3, 3))
        engine = Engine(SHORTEST.name, kv_tokens=64)
        folded, stepped = (replay(rows, AffineCost(1.0), engine, every_step=every) for every in (False, True))
        assert folded.end_s.tolist() == stepped.end_s.tolist() == [9.0, 3.0, 6.0]
    finally:
        POLICIES.remove(SHORTEST.name)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"prompt_tokens": (-3,)}, "requests.prompt_tokens: -3 in row 0 is not a whole number of tokens, at least 1"),
        ({"output_tokens": (0,)}, "requests.output_tokens: 0 in row 0"),
        ({"output_tokens": (1.5,)}, "requests.output_tokens: 1.5 in row 0"),
        ({"arrival_s": (float("nan"),)}, "requests.arrival_s: nan in row 0 is not a time"),
        ({"arrival_s": (float("inf"),)}, "requests.arrival_s: inf in row 0"),
        ({"prompt_tokens": (float("nan"),)}, "requests.prompt_tokens: nan in row 0"),
        ({"prompt_tokens": ("ten",)}, "requests.prompt_tokens: holds something that is not a number"),
    ],
)
def test_wrong_requests_are_refused_in_one_line(rows, message):
    with pytest.raises(InputError, match=message) as caught:
        replay(requests(**rows), AffineCost(1.0))
    assert "\n" not in str(caught.value)


def test_a_missing_column_is_named():
    with pytest.raises(InputError, match="has no column output_tokens"):
        replay(requests().drop(columns="output_tokens"), AffineCost(1.0))


def test_requests_that_can_never_fit_are_refused_and_the_row_is_named():
    rows = requests((0.0, 1.0), (10, 900), (2, 200))
    with pytest.raises(InputError, match=r"requests, row 1: a prompt of 900 tokens and 200 outputs take 1099 tokens"):
        replay(rows, AffineCost(1.0), Engine("vllm", kv_tokens=1024))
    with pytest.raises(InputError, match="enable_chunked_prefill is off"):
        replay(rows, AffineCost(1.0), Engine("vllm", enable_chunked_prefill=False, max_num_batched_tokens=512))
    with pytest.raises(InputError, match="enable_chunked_prefill is off"):
        replay(rows, AffineCost(1.0), Engine("trtllm", max_num_tokens=512))
    with pytest.raises(InputError, match="never fit"):
        replay(requests((0.0,), (63,), (2,)), AffineCost(1.0), Engine("trtllm", kv_tokens=64))
    with pytest.raises(InputError, match="never admitted"):
        replay(requests((0.0,), (60,), (4,)), AffineCost(1.0), Engine("sglang", kv_tokens=64))


def test_arrivals_may_be_in_any_order_and_the_index_is_kept():
    rows = requests((3.0, 0.0, 1.0), (10, 20, 30), (2, 2, 2))
    rows.index = ["c", "a", "b"]
    answer = replay(rows, AffineCost(0.25))
    ordered = replay(rows.sort_values("arrival_s"), AffineCost(0.25))
    pd.testing.assert_frame_equal(answer.sort_index(), ordered.sort_index())


def test_times_before_zero_and_late_beginnings_are_times():
    shifted = [replay(requests((at, at + 1), (10, 20), (3, 2)), AffineCost(0.25)) - at for at in (0.0, -50.0, 1000.0)]
    for each in shifted[1:]:
        assert each.end_s.tolist() == shifted[0].end_s.tolist()


def test_no_requests_are_no_answers():
    assert len(replay(requests((), (), ()), AffineCost(1.0))) == 0
