"""Rows of SGLang's cookbook and others become runs, from their columns or from their notes."""

from __future__ import annotations

import pandas as pd
import pytest

from tspsim.base.errors import InputError
from tspsim.validation.served.cookbook import cookbook_run, mend
from tspsim.validation.served.replayed import requests_of
from tspsim.validation.served.run import ServedRun

ROW = {
    "group": "SGLang cookbook b200", "source": "a page", "gpu": "B200", "model": "DeepSeek-R1", "engine": "sglang",
    "version": "0.5.6.post1", "input": "1000", "output": "8000", "concurrency": "16",
    "plan": '{"name": "p", "tp": 8}', "note": "DeepSeek-R1", "metric": "tpot_ms", "published": "17.56",
}  # fmt: skip
NOTED = dict.fromkeys(("model", "engine", "version", "input", "output", "concurrency", "plan"), "")


def test_columns_say_what_sglangs_client_asked() -> None:
    run = cookbook_run(ROW)
    plan = run.plan
    assert (plan.model, plan.device, plan.tp, plan.stack) == ("deepseek-r1", "b200", 8, "sglang@0.5.6-plain")
    assert (run.prompt, run.output, run.concurrency, run.requests) == (1000, 8000, 16, 80)


def test_lengths_are_the_clients_own_and_the_first_prompts_were_answered_before() -> None:
    asked = requests_of(cookbook_run(ROW), 80)
    counted = asked.counted
    # as the page prints it
    assert (asked.prompt_tokens[counted].sum(), asked.output_tokens[counted].sum()) == (39_668, 318_306)
    assert asked.warm_up == 10  # the page's run of one client
    for number in range(12):
        met = asked.shared.blocks(10 + number)
        assert len(met) == (int(asked.prompt_tokens[number]) // 16 if number < 10 else 0)
        assert met == (asked.shared.blocks(number) if number < 10 else ())


@pytest.mark.parametrize(
    ("page", "model", "expected"),
    [
        ("Llama4", "Llama-4-Scout", "llama-4-scout"), ("GLM-5.1", "GLM-5.1", "glm-5.1"), ("GLM-5", "GLM-5", "glm-5"),
        ("Qwen3-Coder-480B-A35B", "Qwen3-Coder", "qwen3-coder-480b-a35b"),
        ("Qwen3-Coder-Next", "Qwen3-Coder-Next", "qwen3-next-80b-a3b"), ("Kimi-K2.6", "Kimi-K2.6", "kimi-k2.6"),
    ],
)  # fmt: skip
def test_a_page_is_about_its_own_model(page: str, model: str, expected: str) -> None:
    plan = cookbook_run(ROW | {"source": f"a/{page}.md", "model": model, "concurrency": "1"}).plan
    assert plan.model == expected
    assert bool(plan.weights) == (page in ("GLM-5", "GLM-5.1", "Qwen3-Coder-480B-A35B"))  # launched in fp8


def test_attention_replicas_of_sglang_share_all_experts() -> None:
    """Kimi-K2 in fp8 ran on eight B200 with ``--tp 8 --dp 4``: no replica has experts of its own, which had no room."""
    row = ROW | {"source": "a/Kimi-K2.md", "model": "Kimi-K2", "concurrency": "100"}
    for stated in ('{"tp": 2, "dp": 4}', '{"tp": 2, "dp": 4, "ep": 4}'):
        run = cookbook_run(row | {"plan": stated})
        assert (run.plan.tp, run.plan.dp, run.plan.ep, run.plan.gpus) == (2, 4, 8, 8)
        assert run.client is not None and run.client.conversations and run.requests == 1000
    assert cookbook_run(row | {"plan": '{"tp": 8, "ep": 2}'}).plan.ep == 2


def test_pages_say_what_no_column_does() -> None:
    sparse = cookbook_run(ROW | {"source": "a/DeepSeek-V3_2.md", "model": "DeepSeek-V3_2", "concurrency": "1"})
    assert (sparse.plan.drafts, sparse.plan.accepted, dict(sparse.options)) == (3, 2.46, {"max_running_requests": 48})
    prompts, outputs = requests_of(sparse, 10).prompt_tokens, requests_of(sparse, 10).output_tokens
    assert abs(prompts[1:].sum() - 1972) < 10 and abs(outputs[1:].sum() - 2784) < 10  # not 1,000 and 8,000 each
    page = {"source": "a/Llama3.1.md", "model": "Llama3.1", "input": "", "output": "", "concurrency": "16"}
    runs = mend(pd.DataFrame([ROW | page, ROW | page | {"metric": "ttft_ms"}, ROW | page])).runs
    assert [run.prompt if isinstance(run, ServedRun) else run for run in runs] == [1000, 1000, 8000]


@pytest.mark.parametrize(
    ("group", "gpu", "note", "expected"),
    [
        (
            "ROCm vLLM 0.10 MI300X latency", "MI300X", "llama-3.1-70b fp8 TP8 batch 16 2048/2048",
            ("llama-3.1-70b", "mi300x", 8, 2048, 2048, 16, 16),
        ),
        (
            "ROCm vLLM 0.10 MI300X throughput", "MI300X", "llama-3.1-405b fp8 TP8 1500 x 128/4096",
            ("llama-3.1-405b", "mi300x", 8, 128, 4096, None, 1500),
        ),
        ("NIM TRT-LLM H100", "H100", "c1 5000/500", ("llama-3.3-70b", "h100", 2, 5000, 500, 1, 10)),
        ("Vultr vLLM B200", "B200", "glm-5 TP8 2048/512 c128", ("glm-5", "b200", 8, 2048, 512, 128, 640)),
        (
            "MLPerf v5.1 offline", "", "llama-3.1-405b h200 {'name': 'p', 'tp': 8} (lengths assumed)",
            ("llama-3.1-405b", "h200", 8, 9428, 684, None, 2000),
        ),
    ],
)  # fmt: skip
def test_notes_say_what_the_others_ran(group: str, gpu: str, note: str, expected: tuple[object, ...]) -> None:
    run = cookbook_run(ROW | NOTED | {"group": group, "gpu": gpu, "note": note})
    plan = run.plan
    assert expected == (plan.model, plan.device, plan.tp, run.prompt, run.output, run.concurrency, run.requests)


def test_a_note_that_states_the_accepted_length_alone_is_of_the_engines_own_chain() -> None:
    noted = ROW | NOTED | {"group": "gist SGLang 0.5.8 B200", "gpu": "B200"}
    run = cookbook_run(noted | {"note": "glm-5 TP8 acc 3.52"})
    assert (run.plan.drafts, run.plan.accepted, dict(run.options)["max_running_requests"]) == (3, 3.52, 48)
    assert cookbook_run(noted | {"note": "glm-5 TP8 acc None"}).plan.drafts == 0


def test_an_engine_of_a_row_is_of_its_version() -> None:
    run = cookbook_run(ROW | {"engine": "vllm", "version": "0.12.0"})
    assert (run.policy, run.plan.stack) == ("vllm", "vllm@0.16")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "Unknown-1T"}, "no model 'Unknown-1T'"),
        ({"engine": "somebody's"}, "engine 'somebody's' is not modelled"),
        ({"plan": "tp 8"}, "plan is not JSON"),
        ({"concurrency": ""}, "how many requests at once"),
        ({"gpu": "GB900"}, "no device 'GB900'"),
        (NOTED | {"group": "another", "note": "fast"}, "stands in no column"),
        (NOTED | {"group": "gist SGLang 0.5.8 B200", "note": "glm-5 TP8"}, "stands in no column"),
    ],
)
def test_rows_that_do_not_say_enough_have_a_reason(change: dict[str, str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        cookbook_run(ROW | change)
