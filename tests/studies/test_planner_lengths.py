"""`tspsim plan` on sequences of unequal length: shared ones, pipelines, never above the bound, no worse than stated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.engine import architecture, model_file

import tspsim
from tspsim.base.errors import InputError
from tspsim.parallel.lengths import OF_LENGTHS
from tspsim.step.bound import bounds
from tspsim.step.question import look_up
from tspsim.studies.planner import Planner
from tspsim.studies.planner.candidate import plan_keys
from tspsim.studies.planner.scheme_map import Points
from tspsim.studies.planner.space import Space

MODEL = architecture(512, layers=2, heads=8, kv_heads=4, vocab=1024)
LENGTHS = {"kind": "lognormal", "median": 600, "sigma": 1.5, "floor": 64}


def asked(folder: Path, **plan: Any) -> dict[str, Any]:
    work = {"model": model_file(folder, MODEL), "pass": "training", "sequence": 4096, "global_batch": 12,
            "lengths": LENGTHS}  # fmt: skip
    cluster = {"node": "mi300x-8", "gpus_per_node": 4}
    return {"name": "lengths", "cluster": cluster, "workload": work, "plans": [{"name": "Stated", **plan}]}


@pytest.mark.in_turn(5, group="searches")
def test_the_best_is_no_worse_than_what_is_stated_and_below_its_bound(tmp_path: Path) -> None:
    scenario = asked(tmp_path, sp=4)
    found = Planner(tspsim.load(scenario), jobs=1, budget_s=1.5).only_best()
    (stated,) = tspsim.simulate(scenario).plans
    best = found.best[0]
    assert best.step_s <= stated.step_time_s and found.simulated > 1
    # What it found, asked again in its own words, is what it said.
    again = tspsim.load(scenario | {"plans": [best.candidate.keys]})
    (plan,), (bound,) = tspsim.simulate(again).plans, bounds(again).plans
    assert plan.step_time_s == pytest.approx(best.step_s, rel=1e-12) and plan.tokens_per_s <= bound.tokens_per_s
    assert found.tokens == plan.tokens_per_step


def test_it_tries_shared_sequences_pipelines_and_rooms_and_writes_their_keys(tmp_path: Path) -> None:
    question = look_up(tspsim.load(asked(tmp_path, sp="auto")))
    space = Space(question.model, question.work, question.cluster, 12)
    plans = [family.plan for family in space.families()]
    assert {plan.pp for plan in plans} == {1, 2} and any(plan.sp == 4 for plan in plans)
    shared = [plan for plan in plans if plan.options.get("dynamic_sp")]
    assert len({plan.options["rank_tokens"] for plan in shared}) >= 3
    layouts = (layout for family in space.families() for staged in space.within_stage(family)
               for layout in space.layouts(staged))  # fmt: skip
    names = dict[str, Any]()
    for layout in layouts:
        for candidate in space.plans(layout):
            assert candidate.name not in names, "a name tells the plan"
            names[candidate.name] = plan_keys(candidate.plan)
    assert any("auto" in name and "PP2" in name for name in names)
    keys = next(keys for name, keys in names.items() if "auto" in name)
    assert set(keys) & set(OF_LENGTHS) == {"dynamic_sp", "rank_tokens"} and "micro_batch" not in keys


def test_a_map_over_lengths_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one longest length"):
        Planner(tspsim.load(asked(tmp_path, sp="auto")), jobs=1).run(Points((1024,), (1,)))
