"""What every answer of an oracle obeys, over kinds of attention, and what it refuses."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tspsim
from tspsim.serving.oracle import Oracle

#: Model, cluster, stack and degrees: dense, latents, windows, chunks, an indexer, compressed entries, linear layers.
KINDS = {
    "dense": ("qwen3-8b", "mi300x-8", "sglang", {"tp": 1}),
    "latents": ("deepseek-v3", "hgx-h200-8", "sglang", {"tp": 8}),
    "windows": ("gpt-oss-120b", "hgx-h100-8", "vllm", {"tp": 2}),
    "chunks": ("llama-4-scout", "hgx-h100-8", "vllm", {"tp": 8}),
    "indexer": ("deepseek-v3.2", "hgx-h200-8", "vllm", {"tp": 8}),
    "compressed": ("deepseek-v4-flash", "hgx-b200-8", "sglang", {"tp": 4}),
    "linear": ("kimi-linear-48b", "hgx-h100-8", "vllm", {"tp": 4}),
}
Rows = list[tuple[int, int, int]]
#: Of a step, between the tables of all of its parts: 0.003, a little more of few very unequal contexts.
TABLES = 0.005
few = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@cache
def oracle_of(kind: str, drafts: int | None = None) -> Oracle:
    model, cluster, stack, degrees = KINDS[kind]
    work = {"model": model, "pass": "decode", "stack": stack, "batch": 32, "context": 1024}
    plans = [{"name": "P", **degrees}]
    return tspsim.predict({"name": "laws", "cluster": cluster, "workload": work, "plans": plans}, drafts=drafts)


prompts = st.lists(st.tuples(st.integers(17, 900), st.integers(0, 5000), st.just(1)), min_size=1, max_size=5)
decodes = st.lists(st.tuples(st.just(1), st.integers(1, 5000), st.just(1)), min_size=1, max_size=30)


@pytest.mark.parametrize("kind", KINDS)
@few
@given(data=st.data())
@pytest.mark.in_turn(5)
def test_a_step_is_its_program_s_whatever_the_order(kind: str, data: st.DataObject) -> None:
    oracle = oracle_of(kind)
    rows: Rows = data.draw(prompts) + data.draw(decodes)
    seconds = float(oracle(rows))
    assert seconds == pytest.approx(oracle._costs.exact(oracle.work(rows)).seconds, rel=TABLES)
    assert float(oracle(data.draw(st.permutations(rows)))) == pytest.approx(seconds, rel=1e-12)
    # A row of three sequences is three rows.
    query, context, _ = data.draw(st.sampled_from(rows))
    several = float(oracle([*rows, (query, context, 3)]))
    assert several == pytest.approx(float(oracle([*rows, *[(query, context, 1)] * 3])), rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@few
@given(data=st.data())
def test_more_work_is_never_quicker(kind: str, data: st.DataObject) -> None:
    oracle, exact = oracle_of(kind), 1.0 - TABLES
    rows: Rows = data.draw(st.one_of(decodes, st.builds(Rows.__add__, prompts, decodes)))
    seconds = float(oracle(rows))
    place = data.draw(st.integers(0, len(rows) - 1))
    query, context, _ = rows[place]
    more = data.draw(st.integers(1, 700))
    longer = [*rows[:place], (query, context + more, 1), *rows[place + 1 :]]
    assert float(oracle(longer)) >= seconds * exact
    if query > 1:
        longer = [*rows[:place], (query + more, context, 1), *rows[place + 1 :]]
        assert float(oracle(longer)) >= seconds * exact
    assert float(oracle([*rows, (1, more, 1)])) >= seconds * exact


@pytest.mark.parametrize("kind", ["indexer", "compressed", "windows"])
@pytest.mark.parametrize("contexts", [(100, 4000), (1900, 2200), (60, 200)])
def test_contexts_on_both_sides_of_a_selection_wait_once(kind: str, contexts: tuple[int, int]) -> None:
    """Of a batch around the indexer's ``topk`` the longest's wait is that of sequences which all select."""
    oracle = oracle_of(kind)
    draw = np.random.default_rng(3)
    for sequences in (2, 33, 64):
        rows = [(1, int(context), 1) for context in draw.integers(*contexts, sequences)]
        exact = oracle._costs.exact(oracle.work(rows)).seconds
        assert float(oracle(rows)) == pytest.approx(exact, rel=TABLES)
        # A run of steps has the same first one.
        each = oracle._costs.decode_each_s([oracle.work(rows)], 3)
        assert float(each[0]) == pytest.approx(exact, rel=TABLES)


def test_drafts_are_computed() -> None:
    plain, verifying = oracle_of("dense", 0), oracle_of("dense", 3)
    assert verifying.query_len == 4
    assert float(verifying([(4, 1000, 64)])) > 1.2 * float(plain([(1, 1000, 64)]))
    for rows in ([(4, 1000, 64)], [(300, 64, 1), (4, 900, 20)]):
        exact = verifying._costs.exact(verifying.work(rows)).seconds
        assert float(verifying(rows)) == pytest.approx(exact, rel=TABLES)
    for drafts in (-1, 1.5, "3"):
        with pytest.raises(tspsim.errors.InputError, match="drafts: is a whole number from 0 on"):
            oracle_of("dense", drafts)


def test_one_token_and_four_mi_of_context() -> None:
    oracle = oracle_of("linear")
    one = float(oracle([(1, 0, 1)]))
    assert 0.0 < one <= float(oracle([(1, 1, 1), (1, 0, 1)]))
    far = [float(oracle([(1, context, 1)])) for context in (1 << 12, 1 << 20, 1 << 22)]
    assert far == sorted(far) and math.isfinite(far[-1])
    assert float(oracle([(512, (1 << 22) - 512, 1)])) > far[-1]


def test_what_no_replica_holds_is_refused() -> None:
    oracle = oracle_of("dense")
    with pytest.raises(tspsim.errors.InputError, match=r"batch: needs 4,194,305 tokens in the cache; one replica of"):
        oracle([(1, 1 << 22, 1)])
    with pytest.raises(tspsim.errors.InputError, match="at most 1,048,576 are priced"):
        oracle([(1, 1, 10**12)])


@pytest.mark.parametrize(
    "row",
    [
        (1.0, 5, 1), (1, math.nan, 1), (1, 5, math.inf), (1, -5, 1), (-1, 5, 1), (1, 5, -1), (0, 5, 1), (1, 5, 0),
        (None, 5, 1), ("1", 5, 1), (Fraction(1), 5, 1), (1, 5), (1, 5, 1, 1), 7, None,
        (np.float64(1.0), 5, 1), (np.int64(1), np.int64(-5), np.int64(1)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("beside", [[], [(1, 7, 1)], [(512, 0, 1), (1, 7, 2)]])
def test_rows_that_are_none_are_one_line(row: Any, beside: Rows) -> None:
    with pytest.raises(tspsim.errors.InputError) as refused:
        oracle_of("dense")([*beside, row])
    said = str(refused.value)
    assert said.startswith("batch: a row is three whole numbers: query tokens, tokens in the cache before, how many; ")
    assert "\n" not in said


@pytest.mark.parametrize("batch", [[], (), iter(())])
def test_an_empty_batch_takes_no_step(batch: Any) -> None:
    with pytest.raises(tspsim.errors.InputError, match="batch: an empty batch takes no step"):
        oracle_of("dense")(batch)


def test_whole_numbers_of_any_class_and_rows_of_any_kind() -> None:
    oracle = oracle_of("dense")
    seconds = float(oracle([(512, 64, 1), (1, 900, 2)]))
    whole = np.array([(512, 64, 1), (1, 900, 2)], dtype=np.int32)
    for batch in (whole, list(whole), iter([(512, 64, True), [1, 900, 2]]), [[512, 64, 1], (1, 900, 2)]):
        assert float(oracle(batch)) == seconds
