"""What a plan may choose is searched, stated plans take part, and the answer says what was looked at."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import tspsim
from tspsim.base.errors import InfeasibleError, InputError
from tspsim.cli import main
from tspsim.hardware import Costs
from tspsim.parallel import Job, Plan
from tspsim.report.plan import sure
from tspsim.step.paths import Division, Effort, LowerBound
from tspsim.step.question import look_up
from tspsim.step.simulation import run_plan
from tspsim.studies.planner import Planner, ServingPlanner
from tspsim.studies.planner.candidate import LONGEST_NAME, Candidate, name_of
from tspsim.studies.planner.clock import Deadline
from tspsim.studies.planner.limit import Limits
from tspsim.studies.planner.sets import Sets
from tspsim.studies.planner.space import Space
from tspsim.studies.planner.written import scenario_text

MIXTURE = """
name: little-mixture
layers: 4
hidden: 2048
attention: {heads: 16, kv_heads: 16, head_dim: 128}
mlp: {kind: moe, experts: 32, topk: 6, width: 1408, shared_width: 2816}
embedding: {vocab: 32000, tied: false}
source: made up for a test
"""


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "little-mixture.yaml"
    path.write_text(MIXTURE)
    return str(path)


def question(model: str, *plans: dict[str, Any], nodes: int = 1, **workload: Any) -> dict[str, Any]:
    stated = {"model": model, "pass": "training", "sequence": "4Ki", "global_batch": 16, **workload}
    cluster: dict[str, Any] = {"device": "b200", "nodes": nodes}
    if nodes > 1:
        cluster["fabric"] = "rails-400g"
    return {"name": "searched", "cluster": cluster, "workload": stated, "plans": list(plans)}


OVERLAPPED = {
    "name": "overlapped",
    "ep": 8,
    "zero": 1,
    "recomputation": "none",
    "expert_dispatch": "experts",
    "expert_overlap": "shared_experts",
}
INTERLEAVED = {**OVERLAPPED, "name": "interleaved", "expert_overlap": "micro_batches"}


def test_no_stated_plan_is_better_than_the_best_and_the_claim_names_what_was_searched(mixture: str) -> None:
    planned = Planner(tspsim.load(question(mixture, OVERLAPPED, INTERLEAVED)), jobs=1, budget_s=0.8).only_best()
    stated = [each.result.tokens_per_s for each in planned.stated if each.result is not None]
    assert len(stated) == 2
    assert planned.best[0].result.tokens_per_s >= max(stated)
    claim = " ".join(sure(planned))
    assert "No searched plan" in claim or "Searched plans that were not simulated" in claim
    assert "expert_dispatch (ranks, links, experts)" in claim
    assert "expert_overlap (none, shared_experts, micro_batches)" in claim
    assert "shard_group" in claim


def families_like(space: Space, degrees: dict[str, int]) -> Iterator[Job]:
    """Families of such degrees at micro-batches of one sequence."""
    for spread in space.spreads():
        if spread.sequences == 1 and all(spread.plan.degree(axis) == degree for axis, degree in degrees.items()):
            yield from space.families_of(spread)


def of_each_new_key(space: Space) -> Iterator[Candidate]:
    """A plan for every way to dispatch, what hides it, and every group that divides state."""
    wanted = {(way, hidden) for way in space.searched()["expert_dispatch"] for hidden in ("none", "shared_experts")}
    for family in families_like(space, {"ep": 8, "pp": 1, "tsp": 1, "sp": 1}):
        if family.plan.recomputation != "full":
            continue
        for staged in space.within_stage(family):
            key = staged.plan.expert_dispatch, staged.plan.expert_overlap
            if key not in wanted:
                continue
            wanted.discard(key)
            zeros = {1, 3} if key == ("ranks", "none") else {1}
            yield from (each for each in space.plans(next(space.layouts(staged))) if each.plan.zero in zeros)
    assert not wanted


def test_no_bound_exceeds_the_step_for_any_key_that_is_searched(mixture: str) -> None:
    source = question(mixture, {"name": "any"}, nodes=4, sequences_per_replica=1, global_batch=None)
    asked = look_up(tspsim.load(source))
    space = Space(asked.model, asked.work, asked.cluster, 32)
    device = asked.device
    bound = LowerBound(asked.cluster, Costs(device), max(device.peak_flops_per_s.values()), device.compute_slowdown)
    groups = set()
    for candidate in of_each_new_key(space):
        result = run_plan(replace(asked, work=candidate.job.work, plans=(candidate.plan,)), candidate.plan)
        assert result.ran, result.error
        assert bound.step_s(candidate.job, candidate.mesh) <= result.step_time_s, candidate.name
        own = [Division(candidate.plan.zero, candidate.plan.shard_group, candidate.mesh)]
        assert bound.outline_s(candidate.job, candidate.mesh, own) <= result.step_time_s, candidate.name
        groups.add(candidate.plan.shard_group)
    assert groups == {None, 8, 16}


def test_no_bound_of_a_schedule_within_a_stage_exceeds_the_step_of_any_pipeline_around_it(mixture: str) -> None:
    """The pipeline says how many micro-batches meet: what is bounded before it is chosen holds where most do."""
    asked = look_up(tspsim.load(question(mixture, {"name": "any"}, sequences_per_replica=1, global_batch=None)))
    space, device = Space(asked.model, asked.work, asked.cluster, 64), asked.device
    bound = LowerBound(asked.cluster, Costs(device), max(device.peak_flops_per_s.values()), device.compute_slowdown)
    sets, orders = Sets(space, bound, device.visible_memory_bytes), set()
    for family in families_like(space, {"pp": 2, "ep": 4, "tp": 1, "sp": 1, "tsp": 1}):
        if (family.plan.recomputation, family.plan.expert_dispatch, family.plan.expert_pieces) != ("none", "ranks", 1):
            continue
        for staged in space.within_stage(family):
            if not staged.plan.hiding.micro_batches or staged.plan.rail_axes:
                continue
            for layout in space.layouts(staged):
                result = run_plan(replace(asked, work=layout.job.work, plans=(layout.plan,)), layout.plan)
                assert result.ran, result.error
                for least_s in (sets.staged_s(staged), sets.beside_s(staged, family)):
                    assert least_s <= result.step_time_s, layout.plan
                orders.add((layout.plan.schedule, layout.plan.vpp))
    assert orders >= {("1f1b", 1), ("1f1b", 2), ("dualpipe", 1)}


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("keys", [{}, {"pass": "forward"}, {"model": "llama-3.1-8b"}], ids=str)
def test_the_first_family_of_the_shallowest_pipeline_gives_the_floor_of_each_spread(
    mixture: str, keys: dict[str, Any]
) -> None:
    """It is looked for once for all spreads that differ in the pipeline alone, whose floors no search may exceed."""
    workload = {"model": mixture, "global_batch": 4} | keys
    source = question(workload.pop("model"), {"name": "any"}, **workload)
    asked = look_up(tspsim.load({**source, "cluster": {"device": "b200", "nodes": 1, "gpus_per_node": 4}}))
    device = asked.device
    space = Space(asked.model, asked.work, asked.cluster, 4)
    bound = LowerBound(asked.cluster, Costs(device), max(device.peak_flops_per_s.values()), device.compute_slowdown)
    sets, depths = Sets(space, bound, device.visible_memory_bytes), set()
    for spread in space.spreads():
        own = next(space.families_of(spread), None)
        floor_s = bound.first_s(own, sets.shapes(own, space.pipelines(own))) if own is not None else math.inf
        assert sets.first_s(spread) == floor_s, spread.plan
        depths.add(spread.plan.pp)
    assert depths >= {1, 2, 4}


def test_a_name_stays_within_what_a_scenario_takes() -> None:
    degrees = {"tp": 4, "sp": 2, "pp": 16, "ep": 64, "dp": 1024}
    longest = Plan(
        "", degrees, exchange="ulysses", sequence_regions=True, overlap=True, recomputation="cheap", micro_batch=16,
        vpp=5, zero=3, shard_group=128, expert_dispatch="experts", expert_overlap="shared_experts",
        rail_axes=("sp", "pp"),
    )  # fmt: skip
    assert len(name_of(longest)) <= LONGEST_NAME
    assert "Z3/128" in name_of(longest)


# --- time -------------------------------------------------------------------------------------------------------


def test_a_deadline_is_of_work_that_is_counted_and_not_of_time() -> None:
    effort = Effort()
    deadline = Deadline(10.0, effort.now)
    time.sleep(0.02)
    assert effort.spent_s == 0.0
    effort.add(6.0)
    assert (deadline.left_s, deadline.passed) == (4.0, False)
    assert deadline.nearer(0.5).at_s == 8.0
    assert deadline.within(1.0, effort.now).at_s == 7.0
    effort.add(5.0)
    assert deadline.passed
    assert not Deadline().passed


@pytest.mark.parametrize("plans", [[OVERLAPPED], []])
def test_an_answer_comes_however_little_time_there_is(mixture: str, plans: list[dict[str, Any]]) -> None:
    source = question(mixture, *(plans or [{"name": "stands for none"}]))
    planned = Planner(tspsim.load(source), stated=bool(plans), jobs=1, budget_s=0.01).run()
    assert planned.best
    assert not planned.complete
    assert planned.gap > 0.0


# --- limits -----------------------------------------------------------------------------------------------------


def test_limits_are_read_and_name_what_they_know() -> None:
    limits = Limits.of(["step<=20s", "memory_free>=8GiB", "schemes=tsp,tp"], serves=False)
    assert (limits.ceiling("step"), limits.floor("memory_free")) == (20.0, 8 * 2**30)
    assert limits.admits({"tsp": 8, "tp": 1})
    assert limits.admits({"tp": 8})
    assert not limits.admits({"tp": 2, "sp": 2})
    assert not limits.admits({})
    assert Limits.of(["schemes=dp"], serves=False).admits({"pp": 4})
    for wrong, words in (
        ("tpot<=50ms", "serving steps"), ("steps<=1s", "unknown limit"), ("schemes=tpp", "unknown scheme"),
        ("step=1s", "no limit"), ("step<=1GiB", "--limit"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            Limits.of([wrong], serves=False)


def test_plans_keep_their_limits_or_the_answer_says_that_none_does(mixture: str) -> None:
    source = tspsim.load(question(mixture, OVERLAPPED))
    free = 120e9
    limited = Planner(source, jobs=1, budget_s=0.5, limits=[f"memory_free>={free}B", "schemes=tp"]).only_best()
    assert limited.best
    assert all(found.headroom_bytes >= free and found.candidate.plan.tp > 1 for found in limited.best)
    assert limited.to_json()["plan"]["kept_limits"] == ["memory_free>=1.2e+11", "schemes=tp"]
    with pytest.raises(InfeasibleError, match="no plan keeps step"):
        Planner(source, jobs=1, limits=["step<=1us", "schemes=dp"]).only_best()


# --- what can be used again -------------------------------------------------------------------------------------


def test_the_best_is_written_as_a_scenario_that_runs_to_the_same_answer(
    mixture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, best, numbers = tmp_path / "asked.yaml", tmp_path / "best.yaml", tmp_path / "numbers.json"
    asked.write_text(yaml.safe_dump(question(mixture, OVERLAPPED)))
    arguments = ["plan", str(asked), "--jobs", "1", "--budget", "0.5 s", "--write", str(best), "--json", str(numbers)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    entry = yaml.safe_load(numbers.read_text())["plan"]["best"][0]
    result = tspsim.simulate(tspsim.load(str(best)))
    assert result.plans[0].step_time_s == entry["step_time_s"]
    pasted = printed[printed.index("plans:\n") : printed.index("\n\n", printed.index("plans:\n"))]
    assert yaml.safe_load(pasted)["plans"] == [entry["keys"]]


def test_the_best_plan_of_a_serving_step_is_written_with_its_batch(tmp_path: Path) -> None:
    workload = {"model": "llama-3.1-8b", "pass": "decode", "context": "4Ki", "batch": 16}
    cluster = {"device": "h100", "nodes": 1}
    source = {"name": "decode", "cluster": cluster, "workload": workload, "plans": [{"name": "a"}]}
    best = ServingPlanner(tspsim.load(source), limits=["tpot<=20ms", "schemes=tp"], budget_s=0.8).run().best[0]
    path = tmp_path / "best.yaml"
    path.write_text(scenario_text(best.source_scenario))
    assert tspsim.simulate(tspsim.load(str(path))).plans[0].step_time_s == best.result.step_time_s
