"""Steps with the short rest of a prompt, which decode kernels read: what their programs take, without a program."""

from __future__ import annotations

import random
from typing import Any

import pytest

import tspsim
from tspsim.serving.oracle import Oracle

#: Model, cluster, stack, degrees, and the largest error against the program.
KINDS: dict[str, tuple[str, str, str, dict[str, int]]] = {
    "dense": ("qwen3-8b", "mi300x-8", "sglang", {"tp": 1}),
    "captured pieces": ("gpt-oss-120b", "hgx-h100-8", "vllm", {"tp": 2}),
    "latents": ("deepseek-v3", "hgx-h200-8", "sglang", {"dp": 8, "ep": 8}),
    "indexer": ("deepseek-v3.2", "hgx-h200-8", "vllm", {"tp": 8}),
    "recurrences": ("qwen3-next-80b-a3b", "hgx-h100-8", "vllm", {"tp": 4}),
}


def oracle_of(kind: str, **further: Any) -> Oracle:
    model, cluster, stack, degrees = KINDS[kind]
    work = {"model": model, "pass": "decode", "stack": stack, "batch": 32, "context": 1024}
    scenario = {"name": "s", "cluster": cluster, "workload": work, "plans": [{"name": "P", **degrees}]}
    return tspsim.predict(scenario, **further)


def batches(seed: int, count: int, query_len: int = 1) -> list[list[tuple[int, int, int]]]:
    """One short piece or two of two lengths, some beside a longer one, before sequences that decode."""
    draw = random.Random(seed)
    drawn = []
    for _ in range(count):
        lengths = draw.sample([n for n in range(2, 17) if n != query_len], draw.choice((1, 1, 2)))
        pieces = [(length, draw.choice((0, draw.randint(1, 4000))), 1) for length in lengths]
        if draw.random() < 0.4:
            pieces.append((draw.randint(17, 900), draw.choice((0, 500)), 1))
        beside = [(query_len, draw.randint(100, 4000), 1) for _ in range(draw.randint(1, 90))]
        drawn.append([*pieces, *beside])
    return drawn


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_with_a_short_piece_takes_what_its_program_does(kind: str) -> None:
    oracle = oracle_of(kind)
    for batch in batches(1, 12):
        exact_s = oracle._costs.programs.together_s(oracle.work(batch))
        assert float(oracle(batch)) == pytest.approx(exact_s, rel=3e-3)


def test_beside_sequences_that_verify_drafts() -> None:
    oracle = oracle_of("dense", drafts=3)
    for batch in batches(2, 12, oracle.query_len):
        exact_s = oracle._costs.programs.together_s(oracle.work(batch))
        assert float(oracle(batch)) == pytest.approx(exact_s, rel=3e-3)


def test_filled_tables_write_no_program() -> None:
    oracle = oracle_of("dense")
    for batch in batches(3, 150):
        oracle(batch)
    costs = oracle._costs
    before = costs.programs.written + costs._mixed.plain.written
    for batch in batches(3, 150):
        oracle([(queries, context + 1, count) for queries, context, count in batch])
    assert costs.programs.written + costs._mixed.plain.written - before < 5


def test_two_short_pieces_take_no_less_than_one() -> None:
    oracle = oracle_of("dense")
    beside = [(1, 900, 40)]
    one, two = oracle([(5, 700, 1), *beside]), oracle([(5, 700, 1), (9, 700, 1), *beside])
    assert float(two) > float(one) > float(oracle(beside))
