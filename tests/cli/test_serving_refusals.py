"""Bad input of serving steps at the command line: one line that says the key and what is allowed, and the exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tspsim.cli import main

PREFILL = {"pass": "prefill", "batch": None, "context": None, "sequence": 1000}
DRAFTS = {"pass": "verify", "speculation": {"tokens": 2, "draft": "eagle"}}

#: Keys of the workload, of the plan, exit code, and what is said.
WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], int, str]] = {
    "context beyond the model's": ({"context": 200000}, {}, 2, "workload.context: 200000 tokens are more than"),
    "one of several": ({"context": [1, 200000]}, {}, 2, "workload.context: 200000 tokens are more than the 131072"),
    "prompt behind a cache": (PREFILL | {"cached": 131000}, {}, 2, "workload.sequence: 132000 tokens are more than"),
    "more lengths than sequences": ({"context": [1] * 5}, {}, 2, "context: 5 lengths for a batch of 4"),
    "no room": ({"batch": 4000, "context": "128Ki"}, {}, 3, "what fits: 37 sequences of 131073 tokens, or 4000 of"),
    "no room at all": ({"model": "kimi-k2"}, {}, 3, "no sequence at all: take more GPUs or fewer bits a weight"),
    "empty batch": ({"batch": 0}, {}, 2, "workload.batch: '0' must be more than zero"),
    "negative batch": ({"batch": -3}, {}, 2, "workload.batch: '-3' must be more than zero"),
    "part of a sequence": ({"batch": 2.5}, {}, 2, "workload.batch: '2.5' is not a whole number"),
    "huge batch": ({"batch": 10**12}, {}, 3, "caches of 1000000000000 sequences need"),
    "no modules": (
        {"pass": "verify", "speculation": {"tokens": 2}}, {}, 2,
        "workload.speculation.draft: mtp drafts with modules for further tokens, and llama-3.1-8b has none; use eagle",
    ),
    "unknown drafter": (
        DRAFTS | {"speculation": {"tokens": 1, "draft": "medusa"}}, {}, 2, "use mtp, eagle, dflash, model or ngram"
    ),
    "more accepted than drafted": (
        DRAFTS | {"speculation": {"tokens": 2, "draft": "eagle", "accepted": 4}}, {}, 2,
        "accepted: 4 is more than the 2 drafts and one",
    ),
    "drafts of a decode step": (DRAFTS | {"pass": "decode"}, {}, 2, "workload.speculation: is of verify"),
    "type that is not multiplied": (
        {"precision": {"activations": "nvfp4"}}, {}, 2, "workload.precision: h100 has no nvfp4; it has bf16"
    ),
    "cache that the kind has not": (
        {"precision": {"kv": "fp8_ds_mla"}}, {}, 2, "workload.precision.kv: attention of kind 'gqa' keeps no cache in"
    ),
    "unknown class": ({"precision": {"weights": {"expert": "fp8"}}}, {}, 2, "workload.precision"),
    "chunk of a decode step": ({"chunk": 512}, {}, 2, "workload.chunk: is of prefill; a decode step takes batch"),
    "cache of a decode step": ({"cached": 512}, {}, 2, "workload.cached: is of mixed, prefill"),
    "mixed without a prompt": ({"pass": "mixed"}, {}, 2, "workload.sequence: is required"),
    "not causal": ({"causal": False}, {}, 2, "workload.causal: false is of whole sequences; a decode step is causal"),
    "replicas that do not divide": ({}, {"dp": 3}, 2, "plans.P.dp: 3 replicas of 8 GPUs are 24, but the cluster has 8"),
    "ranks that do not divide": ({}, {"tp": 3}, 2, "plans.P: tp 3 = 3 GPUs a replica do not divide the cluster's 8"),
    "experts of a dense model": ({}, {"ep": 2}, 2, "plans.P.ep: 2 spreads experts, but llama-3.1-8b has none"),
    "halves of a dense model": (
        {}, {"expert_overlap": "two_batches"}, 2,
        "plans.P.expert_overlap: two_batches hides exchanges with experts, but llama-3.1-8b has none",
    ),
    "contexts divided twice": ({}, {"dcp": 2, "kvp": 2}, 2, "plans.P.kvp: 2 and dcp 2 both divide contexts over tp"),
    "training's key": ({}, {"zero": 1}, 2, "plans.P.zero: 1 is of training; a decode step takes none of it"),
    "kind that cannot": (
        PREFILL | {"model": "kimi-linear-48b"}, {"tp": 1, "sp": 8, "exchange": "ring"}, 2,
        "plans.P.exchange: ring: a context is attended part by part, and kda hands a state on: use all_gather",
    ),
    "chunks that shards do not divide": (
        PREFILL | {"chunk": 300}, {"tp": 1, "sp": 8}, 2, "plans.P.sp: 8 shards in zigzag order need chunks that are"
    ),
}  # fmt: skip


def asked(folder: Path, work: dict[str, Any], plan: dict[str, Any]) -> str:
    base = {"model": "llama-3.1-8b", "pass": "decode", "batch": 4, "context": 1024, **work}
    scenario = {
        "name": "wrong",
        "cluster": {"device": "h100", "nodes": 1},
        "workload": {key: value for key, value in base.items() if value is not None},
        "plans": [{"name": "P", "tp": 8, **plan}],
    }
    path = folder / "wrong.yaml"
    path.write_text(yaml.safe_dump(scenario))
    return str(path)


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_one_line_with_its_key(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    work, plan, code, said = WRONG[what]
    assert main(["run", asked(tmp_path, work, plan), "--json", "out.json"]) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and said in lines[0]


@pytest.mark.parametrize(
    "work",
    [
        {}, {"context": [1, 4096]}, PREFILL, PREFILL | {"chunk": 2000}, {"sequence": 7, "pass": "mixed"}, DRAFTS,
        {"precision": {"weights": {"attention": "fp8"}, "kv": "fp8"}},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_right_is_answered(
    work: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", asked(tmp_path, work, {}), "--json", "out.json"]) == 0
    assert not capsys.readouterr().err


def test_no_limit_is_kept_by_a_step_that_has_no_such_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", asked(tmp_path, {}, {}), "--limit", "ttft<=5ms"]) == 2
    assert "--limit: a decode step has no ttft; use tpot, step, memory_free" in capsys.readouterr().err
