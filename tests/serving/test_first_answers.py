"""First answers of an oracle: few programs are written for them, and they are those of a warm one."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

import tspsim
from tspsim.operators import FusedMoE, Gemm
from tspsim.program import Collective
from tspsim.serving.oracle import Oracle
from tspsim.serving.sized import SizedCells, sized

KINDS = {
    "dense": ("qwen3-8b", "mi300x-8", "sglang", {"tp": 1}),
    "experts": ("deepseek-v3", "hgx-h200-8", "sglang", {"tp": 8}),
    "exchanged": ("deepseek-v3", "hgx-h200-8", "sglang", {"dp": 8, "ep": 8}),
    "windows": ("gpt-oss-120b", "hgx-h100-8", "vllm", {"tp": 2}),
    "compressed": ("deepseek-v4-flash", "hgx-b200-8", "sglang", {"tp": 4}),
    "stages": ("llama-3.1-70b", "hgx-h100-8", "vllm", {"tp": 4, "pp": 2}),
}
Rows = list[tuple[int, int, int]]


def fresh(kind: str) -> Oracle:
    model, cluster, stack, degrees = KINDS[kind]
    work = {"model": model, "pass": "decode", "stack": stack, "batch": 32, "context": 1024}
    plans = [{"name": "P", **degrees}]
    return tspsim.predict({"name": "first", "cluster": cluster, "workload": work, "plans": plans})


oracle_of = cache(fresh)


def batches(count: int, seed: int = 4) -> list[Rows]:
    draw, every = random.Random(seed), list[Rows]()
    for number in range(count):
        chunks = [(draw.randint(17, 900), draw.choice((0, draw.randint(1, 5000))), 1) for _ in range(number % 3)]
        every.append([*chunks, *[(1, draw.randint(1, 5000), 1) for _ in range(draw.randint(1, 90))]])
    return [*every, [(2000, 0, 1)], [(30, 0, 1), (1, 60, 3)]]


@pytest.mark.parametrize("kind", ["dense", "experts", "exchanged", "compressed", "stages"])
def test_a_first_step_with_prompts_writes_no_program(kind: str) -> None:
    """They were written when names were resolved; 18 to 26 were, in the first call."""
    oracle, written = fresh(kind), []
    plain = oracle._costs._mixed.plain
    for rows in ([(512, 0, 1), (1, 1000, 32)], [(3000, 700, 1), (90, 0, 1), (1, 77, 130)], [(2000, 0, 1)]):
        before = plain.written
        assert float(oracle(rows)) > 0.0
        written.append(plain.written - before)
    assert written == [0, 0, 0]


@pytest.mark.parametrize("kind", ["dense", "experts", "exchanged", "compressed"])
def test_a_first_step_that_decodes_writes_two_programs_at_most(kind: str) -> None:
    """Those of the first and the last batch of its cell; contexts need none."""
    oracle = fresh(kind)
    before = oracle._costs.programs.written
    float(oracle([(1, 1000, 32)]))
    assert oracle._costs.programs.written - before <= 2


@pytest.mark.parametrize("kind", ["dense", "windows", "compressed"])
def test_an_answer_is_bit_for_bit_the_same_whatever_was_asked_before(kind: str) -> None:
    asked = batches(9)
    answers = []
    for order in (range(len(asked)), reversed(range(len(asked)))):
        oracle, found = fresh(kind), {}
        for number in (*order, 3, 0):
            seconds = float(oracle(asked[number]))
            assert found.setdefault(number, seconds) == seconds
        answers.append(found)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("kind", ["dense", "windows", "compressed", "stages"])
def test_a_single_step_is_the_first_of_a_run_bit_for_bit(kind: str) -> None:
    decodes = oracle_of(kind)._costs._decodes
    for rows in batches(9):
        work = oracle_of(kind).work([row for row in rows if row[0] == 1] or [(1, 7, 2)])
        assert decodes.step_s(work) == float(decodes.steps_s(work, 1)[0])


@pytest.mark.parametrize("kind", ["dense", "experts", "exchanged", "compressed"])
def test_what_depends_on_tokens_is_what_its_own_program_takes(kind: str) -> None:
    """Sizes between two written programs, products at the ends of tiles: few and many tokens, where experts are read
    one by one and where all are."""
    mixed = oracle_of(kind)._costs._mixed
    draw = random.Random(2)
    for facts, shape in mixed._shape_of.items():
        if shape is None or facts[3]:
            continue
        tables: SizedCells = shape._tokens_and_experts
        for most in (64, 300, 2000, 12_000):
            tokens = draw.randint(most // 2, most)
            own = tables._own(tokens)
            assert tables(tokens) == pytest.approx(own, rel=2e-3, abs=1e-3 * shape._least), (facts, tokens)


def test_sizes_lie_between_three_programs() -> None:
    numbers = 65, 160, 255

    def fused(touched: list[float]) -> Any:
        return tuple(
            FusedMoE(n, 64, 64, 256, 8, pairs=8.0 * n, touched=t) for n, t in zip(numbers, touched, strict=True)
        )

    # Distinct experts among random choices.
    drawn = [256.0 * (1.0 - (1.0 - 8.0 / 256.0) ** n) for n in (*numbers, 90)]
    between = sized(numbers, fused(drawn[:3]))
    assert between is not None and not between.even
    found = between.at(90)
    assert isinstance(found, FusedMoE) and (found.tokens, found.pairs) == (90, 720.0)
    assert found.touched == pytest.approx(drawn[3], rel=1e-9)
    rounded = sized(numbers, tuple(Collective("all_reduce", "tp", 3 * n // 2, "sum") for n in numbers))  # type: ignore[arg-type]
    assert rounded is not None and rounded.at(100).size_bytes in (149, 150, 151)  # type: ignore[union-attr]
    # Rows of a product that ranks divide grow in steps.
    assert sized(numbers, tuple(Gemm(-(-n // 8), 64, 64) for n in numbers)) is None  # type: ignore[arg-type]
    other = Gemm(255, 64, 64, "fp8")
    assert sized(numbers, (Gemm(65, 64, 64), Gemm(160, 64, 64), other)) is None
