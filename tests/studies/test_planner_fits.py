"""A layout is left out before it is bounded only where none of its plans fits."""

from __future__ import annotations

import itertools

import pytest

import tspsim
from tspsim.model import load_model
from tspsim.parallel import peak_memory, scheme_of
from tspsim.studies.planner import Planner
from tspsim.studies.planner.room import layout_bytes


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(("model", "apart"), [("llama-3.1-8b", 199), ("mixtral-8x7b", 397)])
@pytest.mark.in_turn(5, group="searches")
def test_no_plan_of_a_layout_needs_less_than_its_layout_says(model: str, apart: int) -> None:
    asked = tspsim.load("plan-70b-8k-1024-mi355x", ["cluster.nodes=2", f"workload.model={model}"])
    planner = Planner(asked)
    search = planner.search_at(2)
    space, checked = search.space, 0
    for family in itertools.islice(space.families(), 0, None, apart):
        for staged in itertools.islice(space.within_stage(family), 2):
            for layout in itertools.islice(space.layouts(staged), 3):
                least = layout_bytes(layout)
                pipeline = next(each for each in space.pipelines(family) if each[0] == layout.order[-1])
                assert search.sets.least_bytes(family, pipeline) <= least * (1.0 + 1e-12), layout.job.plan
                for candidate in space.plans(layout):
                    needed = sum(peak_memory(candidate.job, scheme_of(candidate.plan).residency).values())
                    assert needed >= least * (1.0 - 1e-12), candidate.name
                    checked += 1
    assert checked > 50


def test_kinds_of_consecutive_layers_are_those_of_each() -> None:
    for name in ("gpt-oss-20b", "deepseek-v2-lite", "llama-3.1-8b"):
        model = load_model(name)
        for first, count in ((0, model.layers), (1, 3), (5, 1), (2, 0)):
            told = [block for block, times in model.kinds(first, count) for _ in range(times)]
            assert told == list(model.blocks[first : first + count])
