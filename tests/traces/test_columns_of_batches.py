"""An oracle reads a batch by whole columns: nothing in Python runs once a row."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

import tspsim


@pytest.fixture(scope="module")
def oracle() -> Any:
    scenario = {
        "name": "columns", "cluster": "mi300x-8", "plans": [{"name": "TP1", "tp": 1}],
        "workload": {"model": "qwen3-8b", "pass": "decode", "stack": "sglang", "batch": 32, "context": 1024},
    }  # fmt: skip
    return tspsim.predict(scenario, "TP1")


def calls(oracle: Any, batch: list[tuple[int, int, int]]) -> int:
    """Functions of Python, generators too, that are entered while a batch is turned into work."""
    count = 0

    def entered(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(entered)
    try:
        oracle.work(batch)
    finally:
        sys.setprofile(before)
    return count


def test_a_longer_batch_enters_no_more_functions(oracle: Any) -> None:
    few, many = ([(1, 100 + row, 1) for row in range(rows)] for rows in (4, 400))
    assert calls(oracle, few) == calls(oracle, many)
    # Three of its rows are pieces of prompts in both.
    pieces = [(512, 0, 1), (64, 32, 1), (1, 0, 1)]
    assert calls(oracle, few + pieces) == calls(oracle, many + pieces)


def test_rows_are_what_they_state_however_they_are_written(oracle: Any) -> None:
    work = oracle.work([[1, 7, 2], (1, 9, True), (512, 3, 1), (1, 0, 2)])
    assert work.contexts == (7, 7, 9)
    assert [tuple(chunk) for chunk in work.chunks] == [(512, 3, True), (1, 0, True), (1, 0, True)]
    assert oracle.work(((1, 7, 1), (1, 7, 1), (1, 9, 1))).contexts == (7, 7, 9)


def test_prompts_stand_anywhere_among_the_rows(oracle: Any) -> None:
    decoding = [(1, 700, 1), (1, 900, 1)]
    prompts = [(512, 3, 1), (64, 0, 1)]
    first, between = oracle.work([*prompts, *decoding]), oracle.work([prompts[0], decoding[0], prompts[1], decoding[1]])
    assert first.chunks == between.chunks == ((512, 3, True), (64, 0, True))
    assert first.contexts == between.contexts == (700, 900)
    assert oracle([*prompts, *decoding]) == oracle([list(row) for row in (*prompts, *decoding)])
    # A row of one token without a cache is a prompt of one token, wherever it stands.
    assert oracle.work([(1, 0, 1), *prompts, *decoding]).chunks[0] == (1, 0, True)


def test_a_batch_between_tabulated_ones_is_its_programs(oracle: Any) -> None:
    """As many sequences are asked for at several contexts, by lines that are kept, and lie where their programs do."""
    for sequences, context in ((37, 900), (37, 1400), (37, 901), (38, 900), (33, 5000)):
        batch = [(512, 64, 1), (200, 0, 1), *[(1, context, 1)] * sequences]
        exact = oracle._costs.exact(oracle.work(batch)).seconds
        assert float(oracle(batch)) == pytest.approx(exact, rel=0.003)
