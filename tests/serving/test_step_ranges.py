"""Ranges of an oracle's steps, from tables: those of the engine's run of the step itself, and what they cost."""

from __future__ import annotations

import math
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import tspsim
from tspsim.base.errors import InputError
from tspsim.serving.oracle import Oracle
from tspsim.serving.programs import StepPrograms

KINDS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "dense": ("qwen3-8b", "mi300x-8", "sglang", {"tp": 1}),
    "stages": ("llama-3.1-70b", "hgx-h100-8", "vllm", {"tp": 4, "pp": 2}),
    "latents": ("deepseek-v3", "hgx-h200-8", "sglang", {"tp": 8}),
    "replicas": ("deepseek-v3", "hgx-h200-8", "sglang", {"dp": 8, "ep": 8}),
    "windows": ("gpt-oss-120b", "hgx-h100-8", "vllm", {"tp": 2}),
    "indexer": ("deepseek-v3.2", "hgx-h200-8", "vllm", {"tp": 8}),
    "compressed": ("deepseek-v4-flash", "hgx-b200-8", "sglang", {"tp": 4}),
    "delta": ("kimi-linear-48b", "hgx-h100-8", "vllm", {"tp": 4}),
    "drafts": ("llama-3.1-70b", "hgx-h100-8", "vllm", {"tp": 4}),
    "overlapped": ("deepseek-v3", "hgx-h200-8", "sglang", {"dp": 8, "ep": 8, "expert_overlap": "two_batches"}),
    "waiting": ("llama-3.2-1b", "hgx-h100-8", "sglang", {"tp": 1}),
}
#: Errors of both factors: at most, and of each kind in the mean. One kernel's error jumps at a size inside an octave.
MOST, MEAN = 0.02, 0.005
Rows = list[tuple[int, int, int]]


def fresh(kind: str, stack: str | None = None) -> Oracle:
    model, cluster, engine, degrees = KINDS[kind]
    work = {"model": model, "pass": "decode", "stack": stack or engine, "batch": 32, "context": 1024}
    plans = [{"name": "P", **degrees}]
    drafts = 2 if kind == "drafts" else None
    return tspsim.predict({"name": "r", "cluster": cluster, "workload": work, "plans": plans}, drafts=drafts)


oracle_of = cache(fresh)


def batches(oracle: Oracle, count: int, seed: int) -> list[Rows]:
    """Steps that decode, read prompts, or do both, whose contexts are alike or not."""
    draw, every = random.Random(seed), list[Rows]()
    own = oracle.query_len
    every += [[(1, 0, 1)], [(own, 1, 1)], [(3, 0, 1), (own, 9, 1)], [(17, 0, 1)]]
    while len(every) < count:
        chunks = draw.choice((0, 0, 1, 1, 3, 16))
        rows = [(draw.randint(17, 1024), draw.choice((0, draw.randint(1, 6000))), 1) for _ in range(chunks)]
        mean = 2.0 ** draw.uniform(2.0, 14.0)
        sequences = draw.choice((1, draw.randint(1, 30), draw.randint(1, 200))) if not chunks else draw.randint(0, 99)
        rows += [(own, max(1, int(mean * draw.uniform(0.2, 1.8))), 1) for _ in range(sequences)]
        try:
            oracle(rows)
        except InputError:
            continue
        every.append(rows)
    return every


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "overlapped"])
def test_ranges_are_those_of_the_step_s_own_run(kind: str) -> None:
    oracle = oracle_of(kind)
    programs, errors = oracle._costs.programs, []
    for rows in batches(oracle, 13, 3):
        step = oracle(rows)
        low, high = programs.range_of(programs.of(oracle.work(rows))[-1])
        assert 0.0 < step.low < step < step.high < 10.0 * step
        errors.append((abs(step.low / step - low), abs(step.high / step - high)))
    for ends in zip(*errors, strict=True):
        assert max(ends) <= MOST and sum(ends) / len(ends) <= MEAN


@pytest.mark.slow
def test_ranges_of_overlapped_streams_are_those_of_a_step_nearby() -> None:
    oracle = oracle_of("overlapped")
    programs = oracle._costs.programs
    for rows in batches(oracle, 8, 4):
        step = oracle(rows)
        low, high = programs.range_of(programs.of(oracle.work(rows))[-1])
        assert (step.low / step, step.high / step) == pytest.approx((low, high), abs=2.0 * MOST)


@pytest.mark.parametrize("kind", ["dense", "stages", "latents"])
def test_a_range_depends_on_its_step_alone(kind: str) -> None:
    """Whatever was asked before, in any order."""
    one, other = oracle_of(kind), fresh(kind)
    every = batches(one, 12, 5)
    ends = [(step.low, step.high) for step in map(one, every)]
    # Ranges of the other are of a cluster of its own, with tables of its own.
    assert other._costs is not one._costs
    assert [(step.high, step.low) for step in map(other, every[::-1])] == [(high, low) for low, high in ends[::-1]]


def test_a_warm_range_writes_no_program_and_runs_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wrote its step's program, and ran it: 5 to 17 ms."""
    oracle = fresh("latents")
    for context in (3000, 1200):
        for rows in ([(1, context, 40)], [(600, 0, 1), (1, context, 40)]):
            _ = oracle(rows).low
    programs = oracle._costs.programs, oracle._costs._mixed.plain
    written = sum(part.written for part in programs)

    def run(*_: object, **__: object) -> None:
        raise AssertionError("the engine ran")

    monkeypatch.setattr("tspsim.serving.programs.run", run)
    for own in range(8):
        for rows in ([(1, 2500 + own, 40)], [(601 + own, 0, 1), (1, 2500 + own, 40)]):
            step = oracle(rows)
            assert step.low < step < step.high
    assert sum(part.written for part in programs) == written


def test_both_ends_are_found_once_and_only_for_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = oracle_of("dense")
    calls, of = [], type(oracle._costs.ranges).of
    monkeypatch.setattr(type(oracle._costs.ranges), "of", lambda self, *step: (calls.append(step), of(self, *step))[1])
    step = oracle([(1, 777, 5)])
    assert not calls
    assert step.low < step.high and step.low < step and len(calls) == 1


def test_a_spread_of_whole_runs_leaves_the_host_beside_it(tmp_path: Path) -> None:
    stated: dict[str, Any] = {"spread": [0.9, 1.2], "spread_on": ["mi300x"]}
    facts = {key: {"value": value, "source": "the test"} for key, value in stated.items()}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"name": "mine", **facts}), encoding="utf-8")
    oracle = fresh("dense", str(file))
    engine = oracle._costs.question.work.stack.engine
    for rows in ([(1, 900, 20)], [(700, 0, 1), (1, 900, 19)]):
        step, host_s, (least_s, most_s) = oracle(rows), engine.host_s(20), engine.host_range_s(20)
        assert step.low == pytest.approx(step - math.hypot(0.1 * step, host_s - least_s))
        assert step.high == pytest.approx(step + math.hypot(0.2 * step, most_s - host_s))
        assert (step.low / step, step.high / step) == pytest.approx(exact(oracle, rows))


def exact(oracle: Oracle, rows: Rows) -> tuple[float, float]:
    programs: StepPrograms = oracle._costs.programs
    return programs.range_of(programs.of(oracle.work(rows))[-1])


@pytest.mark.parametrize("kind", ["windows", "delta"])
def test_captured_steps_of_prompts_alone_come_from_tables(kind: str) -> None:
    """Each was priced by a program of its own: some 1 ms."""
    oracle, draw = oracle_of(kind), random.Random(6)
    for count in (1, 1, 2, 3, 9, 28):
        rows = [(draw.randint(17, 512 // count), draw.choice((0, draw.randint(1, 4000))), 1) for _ in range(count)]
        work = oracle.work(rows)
        assert oracle._costs._mixed.seconds(work) is not None
        assert float(oracle(rows)) == pytest.approx(oracle._costs.exact(work).seconds, rel=3e-3)
