"""Runs that are too long for memory: what lies in files, and what is read from them, is what memory would have held."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim.base import catalog
from tspsim.scenario.traffic import TrafficSpec
from tspsim.serving import metrics, spill_pages
from tspsim.serving import waits as all_waits
from tspsim.serving.engine import Engine
from tspsim.serving.log import StepKind, StepLog
from tspsim.serving.metrics import Bill, Cache, measure
from tspsim.serving.replicas import Members, ReplicaPool
from tspsim.serving.service import Outcome, Service
from tspsim.serving.spill_pages import PAGE, SpillPages
from tspsim.serving.spread import Typical
from tspsim.serving.streams import ValueStream, reached
from tspsim.serving.traffic import Clients
from tspsim.serving.waits import KeptWaits, Waits
from tspsim.serving.work import AffineCost

ASKED = (0.0, 50.0, 90.0, 99.0, 100.0)
anything = st.floats(-1e300, 1e300) | st.sampled_from([0.0, 1.0, 7e-3, 7.000001e-3])


def in_pieces(values: Any, size: int) -> Iterator[Any]:
    return (values[first : first + size] for first in range(0, len(values), size))


@given(st.lists(anything, min_size=1, max_size=60), st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_percentiles_and_means_of_pieces_are_those_of_one_array_to_the_bit(listed, size) -> None:
    values = np.array(listed)
    stream = ValueStream(lambda: in_pieces(values, size))
    assert stream.percentiles(ASKED) == [float(np.percentile(values, each)) for each in ASKED]
    assert stream.mean() == values.mean()


@pytest.mark.parametrize("count", [129, 65_537, 300_001])
def test_sums_of_many_values_are_numpys_own(count) -> None:
    values = np.random.default_rng(count).lognormal(0.0, 3.0, count)
    stream = ValueStream(lambda: in_pieces(values, 4096))
    assert stream.mean() == values.mean()
    assert stream.percentiles(ASKED) == [float(np.percentile(values, each)) for each in ASKED]


@given(st.lists(st.tuples(anything, st.integers(1, 9)), min_size=1, max_size=40), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_a_value_of_weight_n_is_n_values(pairs, size) -> None:
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    whole = np.sort(np.repeat(values, weights))
    ranks = [1, len(whole) // 2 + 1, len(whole)]
    found = reached(lambda: zip(in_pieces(values, size), in_pieces(weights, size), strict=True), ranks)
    assert found == [whole[rank - 1] for rank in ranks]


def test_a_shelf_gives_back_what_lay_on_it_in_whatever_order_it_is_changed(monkeypatch) -> None:
    monkeypatch.setattr(spill_pages, "MOST_PAGES", 2)
    kind = np.dtype([("a", "i8"), ("b", "i4")])
    shelf, expected = SpillPages(kind), np.zeros(6 * PAGE, dtype=kind)
    for _ in range(6):
        shelf.append(np.zeros(PAGE, dtype=kind))
    for number, place in enumerate(np.random.default_rng(0).integers(0, 6 * PAGE, 200).tolist()):
        for rows, where in ((shelf.page(place // PAGE), place % PAGE), (expected, place)):
            rows[where] = (number, -number)
    assert np.array_equal(np.concatenate(list(shelf)), expected)
    assert np.array_equal(np.concatenate(list(pickle.loads(pickle.dumps(shelf)))), expected)


def test_a_log_that_lies_in_a_file_has_the_rows_that_were_added(monkeypatch) -> None:
    monkeypatch.setattr(spill_pages, "MOST_PAGES", 1)
    log, rows = StepLog(), 2 * PAGE + 5
    for number in range(rows):
        log.add(number, number + 0.5, 1, StepKind.MIXED, number % 64, 1, 0, 16 * number)
    assert len(log) == rows and log.column("used_tokens").tolist() == [16 * number for number in range(rows)]
    assert log.column("end_s")[-1] == rows - 0.5


def run(requests: int) -> tuple[Clients, Outcome]:
    stated = {
        "arrivals": {"kind": "closed", "concurrency": 16},
        "prompt": {"kind": "uniform", "of": 400, "from": 0.1},
        "output": {"kind": "uniform", "of": 6, "from": 0.1},
        "requests": requests,
    }
    clients = Clients(catalog.validate(stated, TrafficSpec).draw(), 1e-3)
    pool = ReplicaPool([Members(Engine("vllm", kv_tokens=16 * 512), AffineCost(1e-3, 1e-6, 1e-8), 2)], "least_load")
    return clients, Service(clients, pool).run()


def measured(waits: Waits, outcome: Outcome) -> dict[str, Any]:
    bounds = {"ttft": 0.01, "e2e": 0.1}
    return measure(waits, outcome.logs, gpus=2, bill=Bill({"rental": 2.0}), cache=Cache(2**13), bounds=bounds)


def test_answers_read_from_files_are_those_of_memory_to_the_bit(monkeypatch) -> None:
    clients, outcome = run(2 * PAGE + 100)
    in_memory = Waits.of(clients.table)
    for module in (spill_pages, all_waits):
        monkeypatch.setattr(module, "MOST_PAGES", 1)
    told = measured(in_memory, outcome)
    monkeypatch.setattr(metrics, "ONCE", 1)
    again, filed = run(2 * PAGE + 100)
    read = Waits.of(again.table)
    assert not isinstance(in_memory, KeptWaits) and isinstance(read, KeptWaits)
    assert measured(read, filed) == told
    assert Typical.of(read, filed.logs, 1) == Typical.of(in_memory, outcome.logs, 1)
    assert np.array_equal(read.end_s, in_memory.end_s) and again.table[PAGE].end_s == clients.table[PAGE].end_s
    for whole, piece in zip(in_memory.ends(300), read.ends(300), strict=True):
        assert np.array_equal(whole.ttft_s, piece.ttft_s)
