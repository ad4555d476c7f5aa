"""Micro-batches of unequal sequences put together, held against whole runs and against published scales."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.engine import architecture, model_file

import tspsim
from tspsim.step import apart
from tspsim.step.result import PlanResult

LONG_TAIL = [16384, 200, 7000, 100, 3000, 900, 1500, 50, 400, 1100, 256, 4000, 128, 600, 700, 90, 2000, 12000, 5000]


def asked(folder: Path, plan: dict[str, Any], pass_: str) -> dict[str, Any]:
    path = folder / "lengths.csv"
    rows = [f"{index},{tokens},1" for index, tokens in enumerate(LONG_TAIL)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n")
    model = architecture(2048, layers=6, heads=16, kv_heads=8, vocab=8192)
    return {
        "name": "apart",
        "cluster": {"device": "h100", "nodes": 2, "fabric": "rails-400g"},
        "workload": {
            "model": model_file(folder, model), "pass": pass_, "sequence": max(LONG_TAIL),
            "global_batch": len(LONG_TAIL), "lengths": {"kind": "file", "file": str(path)},
        },
        "plans": [{"name": "P", **plan}],
    }  # fmt: skip


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(
    ("plan", "pass_"),
    [
        ({"sp": "auto", "rank_tokens": 1024, "exchange": "ring", "zero": 1}, "training"),
        ({"sp": "auto", "rank_tokens": 1024, "exchange": "all_gather"}, "forward"),
        pytest.param(
            {"sp": 8, "rank_tokens": 2048, "exchange": "ring", "recomputation": "full"},
            "training",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"sp": "auto", "tp": 2, "rank_tokens": 2048, "zero": 1, "offload_layers": 2},
            "training",
            marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)
def test_put_together_is_the_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: dict[str, Any], pass_: str
) -> None:
    answers: list[PlanResult] = []
    for most in (1e12, 0):
        monkeypatch.setattr(apart, "MOST_INSTRUCTIONS", most)
        answers += tspsim.simulate(asked(tmp_path, plan, pass_)).plans
    whole, joined = answers
    assert joined.step_time_s == pytest.approx(whole.step_time_s, rel=0.03)
    assert joined.block_forward_tokens_per_s == pytest.approx(whole.block_forward_tokens_per_s, rel=0.03)
    for which in ("communication_bytes_per_step", "communication_bytes_per_layer"):
        assert getattr(joined, which) == pytest.approx(getattr(whole, which), rel=1e-9)
    carried = [{link.kind: link.carried_bytes for link in each.links} for each in answers]
    assert carried[1] == pytest.approx(carried[0], rel=1e-6)
    parts = joined.breakdown_s
    told = parts["compute"] + sum(parts["exposed_communication"].values()) + parts["idle"]
    assert told == pytest.approx(joined.step_time_s, rel=1e-9)
    assert parts["compute"] == pytest.approx(whole.breakdown_s["compute"], rel=0.1)
    assert joined.memory == whole.memory and apart.NOTE in joined.notes and apart.NOTE not in whole.notes


def test_what_follows_the_last_layer_runs_apart_in_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree that sums the norm of gradients has a place of its own for each of 32 ranks; layers before it do not."""
    question = asked(tmp_path, {"sp": 32, "exchange": "ring", "zero": 1}, "training")
    question["cluster"]["nodes"], question["workload"]["global_batch"] = 4, 2
    monkeypatch.setattr(apart, "MOST_INSTRUCTIONS", 0)
    monkeypatch.setattr(apart, "LAYERS", (1, 2))
    ran: list[list[int]] = []
    execute = apart.execute

    def counted(*given: Any, **named: Any) -> Any:
        submission = execute(*given, **named)
        ran[-1].append(len(submission.ranks))
        return submission

    monkeypatch.setattr(apart, "execute", counted)
    answers = []
    for divide in (apart.split_after_layers, lambda program: (program, None)):
        ran.append([])
        monkeypatch.setattr(apart, "split_after_layers", divide)
        answers += tspsim.simulate(question).plans
    divided, whole = answers
    assert divided.step_time_s == pytest.approx(whole.step_time_s, rel=1e-12)
    assert divided.breakdown_s["compute"] == pytest.approx(whole.breakdown_s["compute"], rel=1e-12)
    assert max(ran[0]) == 8 and max(ran[1]) == 32


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "sequences", "sp"), [(32, 256, "auto"), (32, 256, 256), (128, 1024, "auto"), (128, 1024, 256)]
)
def test_two_million_tokens_on_hundreds_of_gpus_take_seconds(nodes: int, sequences: int, sp: object) -> None:
    """ByteScale's scale: it was 210 s to a MemoryError at 12 GB. A third of a minute of a processor, below 1 GB."""
    began_s = time.process_time()
    (plan,) = tspsim.simulate(
        {
            "name": "bytescale",
            "cluster": {"device": "h100", "nodes": nodes, "fabric": "rails-400g"},
            "workload": {
                "model": "llama-3.1-8b", "pass": "training", "sequence": "2Mi", "global_batch": sequences,
                "lengths": {"kind": "lognormal", "median": 578, "sigma": 2.326, "floor": 128},
            },
            "plans": [
                {"name": "P", "sp": sp, "rank_tokens": "8Ki", "zero": 1, "recomputation": "full", "exchange": "ring"}
            ],
        }
    ).plans  # fmt: skip
    assert plan.error is None and 0.0 < plan.mfu < 1.0
    assert time.process_time() - began_s < 20.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1024**2
