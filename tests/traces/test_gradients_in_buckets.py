"""Replicas that have whole weights sum gradients in buckets of several layers, as many as a framework likes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.profiles import kineto, of_lane, written

import tspsim
from tspsim import traces
from tspsim.base.errors import InputError
from tspsim.step.question import Question, look_up
from tspsim.traces.lay import lay
from tspsim.traces.simulated import Operation, Simulated


def question(**plan: Any) -> Question:
    work = {"model": "llama-3.2-1b", "pass": "training", "stack": "megatron-core", "sequence": 4096}
    chosen = {"name": "P", "recomputation": "none", **plan}
    return look_up(tspsim.load({"name": "t", "cluster": "hgx-h100-8", "workload": work, "plans": [chosen]}))


def read(path: Path, operations: list[Operation]) -> traces.Trace:
    document = kineto([], device="h100", world_size=8)
    document["traceEvents"] = of_lane(operations)
    return traces.read([written(path, document)])


def of_replicas(item: Operation) -> bool:
    return item.is_transfer and item.axis == "dp" and item.layer >= 0


@pytest.mark.parametrize("zero", (0, 1))
def test_a_few_buckets_are_the_gradients_of_all_layers(zero: int, tmp_path: Path) -> None:
    asked = question(zero=zero)
    lane = Simulated(asked, asked.plans[0]).lane(0)
    assert sum(of_replicas(item) for item in lane.operations) >= 16
    few = [item for item in lane.operations if not of_replicas(item) or item.layer % 5 == 0]
    laid = lay(read(tmp_path / "few.json", few), asked)
    assert laid.matched_share > 0.99


def test_without_any_it_is_another_plan(tmp_path: Path) -> None:
    asked = question()
    lane = Simulated(asked, asked.plans[0]).lane(0)
    none = [item for item in lane.operations if not item.is_transfer]
    with pytest.raises(InputError, match="expected 16 all-reduces, found 0"):
        lay(read(tmp_path / "none.json", none), asked)


def test_shards_of_every_layer_are_no_buckets(tmp_path: Path) -> None:
    asked = question(zero=3)
    lane = Simulated(asked, asked.plans[0]).lane(0)
    few = [item for item in lane.operations if not of_replicas(item) or item.layer % 5 == 0]
    with pytest.raises(InputError, match="it is of another plan than stated"):
        lay(read(tmp_path / "few.json", few), asked)
