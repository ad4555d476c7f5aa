"""One prompt beside sequences that decode: tabulated over its length, and what it has in the cache."""

from __future__ import annotations

import random
from typing import Any

import pytest

import tspsim
from tspsim.serving.oracle import Oracle

#: Of a step, between tabulated points of every part.
TABLES = 0.005


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    asked: dict[str, Any] = {
        "name": "o", "cluster": "mi300x-8", "plans": [{"name": "TP1", "tp": 1}],
        "workload": {"model": "qwen3-8b", "pass": "decode", "stack": "sglang", "batch": 1, "context": 1},
    }  # fmt: skip
    return tspsim.predict(asked, "TP1")


@pytest.mark.parametrize("cached", [0, 700, 2048, 5000])
@pytest.mark.parametrize("tokens", [17, 127, 128, 129, 1000, 3001])
def test_tables_say_what_the_program_says(oracle: Oracle, tokens: int, cached: int) -> None:
    batch = [(tokens, cached, 1), (1, 500, 1), (1, 3000, 1), (1, 900, 1)]
    exact = sum(oracle._costs.exact(oracle.work(batch)).parts_s.values())
    assert float(oracle(batch)) == pytest.approx(exact, rel=TABLES)


def test_rows_come_in_any_order_and_are_told_apart(oracle: Oracle) -> None:
    """Prompts anywhere among the rows, a first token without anything in the cache, and rows of several."""
    first = oracle.work([(1, 10, 1), (64, 0, 1), (1, 20, 1), (32, 7, 1), (1, 30, 1), (64, 5, 1)])
    assert [tuple(chunk[:2]) for chunk in first.chunks] == [(64, 0), (32, 7), (64, 5)]
    assert first.contexts == (10, 20, 30)
    bare = oracle.work([(1, 0, 1), (1, 20, 1)])
    assert [tuple(chunk[:2]) for chunk in bare.chunks] == [(1, 0)]
    assert bare.contexts == (20,)
    both = oracle.work([(64, 0, 2), (1, 20, 3)])
    assert (len(both.chunks), both.contexts) == (2, (20, 20, 20))
    many = oracle.work([(17 + n, n, 1) for n in range(20)] + [(1, 9, 1)])
    assert (len(many.chunks), many.contexts) == (20, (9,))


@pytest.mark.parametrize(
    "row", [(1.0, 5, 1), (1, 5.0, 1), (1, 5, 1.0), (0, 5, 1), (1, -1, 1), (1, 5, 0), ("1", 5, 1), (1, 5)]
)
def test_rows_that_are_none(oracle: Oracle, row: tuple[Any, ...]) -> None:
    with pytest.raises(tspsim.errors.InputError, match="three whole numbers"):
        oracle.work([(1, 7, 1), row])


@pytest.mark.parametrize("pieces", range(2, 9))
def test_several_pieces_are_what_the_program_says(oracle: Oracle, pieces: int) -> None:
    draw = random.Random(pieces)
    for _ in range(3):
        batch = [(draw.randint(17, 1024), draw.choice([0, draw.randint(1, 6000)]), 1) for _ in range(pieces)]
        batch += [(1, draw.randint(100, 4000), 1) for _ in range(draw.randint(1, 200))]
        exact = sum(oracle._costs.exact(oracle.work(batch)).parts_s.values())
        assert float(oracle(batch)) == pytest.approx(exact, rel=0.003)
