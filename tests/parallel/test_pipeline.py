"""Pipelines, micro-batches and data parallelism while training: bubbles, volumes and order against closed forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.engine import architecture, model_file, question

import tspsim
from tspsim.base.errors import InputError
from tspsim.parallel.pipeline import (
    IN_ROUNDS,
    chunk_layers,
    interleaved,
    most_in_flight,
    one_forward_one_backward,
    zero_bubble_h1,
)
from tspsim.step.result import PlanResult
from tspsim.steps import BACKWARD, FORWARD, WEIGHTS, Task

MICRO_BATCHES = 16


def trained(**plan: Any) -> PlanResult:
    """One training step of the headless model on one node: stages are equal, so the closed forms hold."""
    question = {
        "name": "pipeline",
        "cluster": {"device": "mi300x", "nodes": 1},
        "workload": {
            "model": "tsp-8b",
            "pass": "training",
            "sequence": 4096,
            "sequences_per_replica": MICRO_BATCHES,
            "optimizer": {"weights": 2, "gradients": 2, "state": 12},
        },
        "plans": [{"name": "P", "recomputation": "none", **plan}],
    }
    return tspsim.simulate(question).plan("P")


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(("stages", "chunks"), [(2, 1), (4, 1), (8, 1), (4, 2), (8, 2), (8, 4)])
def test_the_bubble_is_stages_less_one_over_micro_batches_and_chunks(stages: int, chunks: int) -> None:
    """Narayanan et al. 2021, §2.2: (p − 1)/(v·m) of the time of the micro-batches; messages add a few percent."""
    found = trained(pp=stages, vpp=chunks, dp=8 // stages)
    ideal = (stages - 1) / (MICRO_BATCHES * chunks)
    waiting = found.breakdown_s["bubble"] + sum(found.breakdown_s["exposed_communication"].values())
    assert ideal * 0.97 <= waiting / found.breakdown_s["compute"]
    assert found.breakdown_s["bubble"] / found.breakdown_s["compute"] == pytest.approx(ideal, rel=0.08)


def test_zero_bubble_h1_fills_half_the_bubble_and_more() -> None:
    plain, filled = trained(pp=8), trained(pp=8, schedule="zb-h1")
    assert filled.breakdown_s["compute"] == pytest.approx(plain.breakdown_s["compute"], rel=0.01)
    assert filled.breakdown_s["bubble"] < 0.55 * plain.breakdown_s["bubble"]


@pytest.mark.parametrize("schedule", [one_forward_one_backward, zero_bubble_h1])
@pytest.mark.parametrize("stages", [1, 2, 4, 8])
def test_every_micro_batch_is_visited_once_a_kind(schedule: Any, stages: int) -> None:
    for stage in range(stages):
        tasks = schedule(stages, stage, 6, 1)
        assert sorted(task for task in tasks if task.kind == FORWARD) == [Task(FORWARD, i, 0) for i in range(6)]
        for index in range(6):
            assert tasks.index(Task(FORWARD, index, 0)) < tasks.index(Task(BACKWARD, index, 0))
            if schedule is zero_bubble_h1:
                assert tasks.index(Task(BACKWARD, index, 0)) < tasks.index(Task(WEIGHTS, index, 0))


@pytest.mark.parametrize(("stages", "chunks", "micro_batches"), [(2, 2, 4), (4, 2, 8), (4, 3, 12), (4, 2, 4)])
def test_interleaving_visits_every_chunk_of_every_micro_batch(stages: int, chunks: int, micro_batches: int) -> None:
    for stage in range(stages):
        tasks = interleaved(stages, stage, micro_batches, chunks)
        for kind in (FORWARD, BACKWARD):
            visits = [(task.micro_batch, task.chunk) for task in tasks if task.kind == kind]
            assert sorted(visits) == [(i, chunk) for i in range(micro_batches) for chunk in range(chunks)]


def test_1f1b_keeps_as_many_micro_batches_as_stages_follow() -> None:
    sizes = chunk_layers(32, 4)
    for stage in range(4):
        chunks = IN_ROUNDS.chunks(sizes, 4, stage)
        assert most_in_flight(one_forward_one_backward(4, stage, 16, 1), [chunks[0].layers]) == (4 - stage,)


def test_layers_are_spread_as_evenly_as_can_be_and_ends_get_fewer() -> None:
    assert chunk_layers(126, 16) == (7, *[8] * 14, 7)
    assert sum(chunk_layers(61, 8)) == 61 and max(chunk_layers(61, 8)) - min(chunk_layers(61, 8)) == 1


def received(plan: dict[str, Any], name: str) -> float:
    """Payload of all transfers of that name, a rank, in one step."""
    question = {
        "name": "volumes",
        "cluster": {"device": "mi300x", "nodes": 1},
        "workload": {"model": "tsp-8b", "pass": "training", "sequence": 4096, "sequences_per_replica": 2},
        "plans": [{"name": "P", "recomputation": "none", **plan}],
    }
    frame = tspsim.simulate(question).timeline("P")
    rank = frame[frame["rank"] == frame["rank"].iloc[0]]
    return float(rank.loc[rank["name"] == name, "bytes"].sum())


def test_zero_moves_what_rajbhandari_says() -> None:
    """ZeRO §7: DDP and stages 1 and 2 move 2Ψ a step, stage 3 moves 3Ψ, of Ψ·β bytes; from 2 on gradients are scattered
    in each of the two micro-batches."""
    parameters = 32 * (16 * 4096**2 + 2 * 4096)
    share = 7 / 8 * 2 * parameters
    assert received({"dp": 8}, "sum layer gradients") == pytest.approx(2 * share, rel=1e-6)
    for zero, times in ((1, 1), (2, 2)):
        assert received({"dp": 8, "zero": zero}, "sum layer gradients") == pytest.approx(times * share, rel=1e-6)
        assert received({"dp": 8, "zero": zero}, "gather layer weights") == pytest.approx(share, rel=1e-6)
    # Two micro-batches: gathered ahead of each forward and each backward, scattered in each backward.
    assert received({"dp": 8, "zero": 3}, "gather layer weights") == pytest.approx(4 * share, rel=1e-6)
    assert received({"dp": 8, "zero": 3}, "sum layer gradients") == pytest.approx(2 * share, rel=1e-6)


def test_sequence_shards_sum_their_gradients_too() -> None:
    """They hold the same weights, so the group of the sum is dp × sp."""
    parameters = 32 * (16 * 4096**2 + 2 * 4096)
    alone = received({"tp": 2, "sp": 4, "zero": 1}, "sum layer gradients")
    assert alone == pytest.approx(3 / 4 * 2 * parameters / 2, rel=1e-6)


def test_zero_divides_model_state_among_the_ranks_that_hold_it() -> None:
    whole, divided = trained(tp=2, sp=4).memory.parts, trained(tp=2, sp=4, zero=3).memory.parts
    for part in ("weights", "gradients", "optimizer_state"):
        assert divided[part] == pytest.approx(whole[part] / 4)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("plan", [{"tsp": 8}, {"tsp": 4, "dp": 2}])
def test_the_optimizer_waits_for_every_gradient(plan: dict[str, Any]) -> None:
    question = {
        "name": "order",
        "cluster": {"device": "mi300x", "nodes": 1},
        "workload": {"model": "tsp-8b", "pass": "training", "sequence": 8192},
        "plans": [{"name": "P", **plan}],
    }
    frame = tspsim.simulate(question).timeline("P")
    update = float(frame.loc[frame["name"] == "optimizer step", "start_s"].min())
    assert (frame.loc[frame["name"].str.contains("gradients"), "end_s"] <= update).all()
    sums = frame[frame["name"] == "sum layer gradients"]
    owners = frame[frame["name"] == "attention gradients to owners"].set_index("layer")["end_s"]
    for layer, start_s in zip(sums["layer"], sums["start_s"], strict=True):
        assert start_s >= owners.loc[[layer]].max()


def test_hybrid_sharding_divides_within_groups_and_sums_across() -> None:
    """HSDP with groups of G: (G−1)/G of a reduce-scatter inside, and 2(R−1)/R of 1/G of it between R groups."""
    question = {
        "name": "hybrid",
        "cluster": {"device": "mi300x", "nodes": 4, "fabric": "rails-400g"},
        "workload": {"model": "tsp-8b", "pass": "training", "sequence": 2048},
        "plans": [
            {"name": "all", "zero": 3, "recomputation": "none"},
            {"name": "groups", "zero": 3, "shard_group": 8, "recomputation": "none"},
        ],
    }
    result = tspsim.simulate(question)
    whole, groups = result.plan("all"), result.plan("groups")
    assert groups.memory.parts["optimizer_state"] == pytest.approx(4 * whole.memory.parts["optimizer_state"])
    received = {
        plan.name: {
            kind: sum(
                label.size_bytes
                for label in plan.timeline.labels  # type: ignore[union-attr]
                if label.kind == kind and label.part == "gradients"
            )
            for kind in ("reduce_scatter", "all_reduce")
        }
        for plan in (whole, groups)
    }
    gradients = received["all"]["reduce_scatter"] * 32 / 31
    assert received["groups"]["reduce_scatter"] == pytest.approx(gradients * 7 / 8, rel=1e-6)
    assert received["groups"]["all_reduce"] == pytest.approx(2 * 3 / 4 * gradients / 8, rel=1e-6)
    between = {
        plan.name: next(use.carried_bytes for use in plan.links if use.kind == "nic") for plan in (whole, groups)
    }
    # Weights twice and gradients once must enter a node, (n−1)/n of each; within groups only gradients, out and back.
    assert between["groups"] == pytest.approx(2 / 3 * between["all"], rel=1e-3)


def test_groups_that_divide_state_are_checked() -> None:
    with pytest.raises(tspsim.errors.InputError, match="shard_group: 8 ranks divide nothing with zero: 0"):
        trained(pp=1, shard_group=8)
    with pytest.raises(tspsim.errors.InputError, match="shard_group: 3 ranks cannot be taken"):
        trained(pp=1, zero=1, shard_group=3)


def uneven(folder: Path, stage_layers: list[int]) -> PlanResult:
    """A small model with a large vocabulary: its head weighs as much as four of its sixteen layers."""
    model = model_file(folder, architecture(2048, layers=16, ffn=8192, vocab=131072))
    plan = {"name": "P", "pp": 4, "dp": 2, "recomputation": "none", "stage_layers": stage_layers}
    work = {"sequence": 4096, "sequences_per_replica": 8}
    return tspsim.simulate(question(model, [plan], cluster="hgx-h100-8", pass_="training", **work)).plan("P")


def flops_of(plan: PlanResult) -> float:
    assert plan.timeline is not None
    return float(plan.timeline.frame()["flops"].sum())


def test_the_embedding_and_the_head_may_have_stages_of_their_own(tmp_path: Path) -> None:
    even, alone, both = (uneven(tmp_path, sizes) for sizes in ([4, 4, 4, 4], [6, 5, 5, 0], [0, 8, 8, 0]))
    assert alone.step_time_s < 0.9 * even.step_time_s < both.step_time_s
    assert flops_of(alone) == pytest.approx(flops_of(even), rel=1e-6) == flops_of(both)


def test_interleaved_chunks_may_be_two_more_than_layers(tmp_path: Path) -> None:
    """Llama 3's pipeline: embedding alone first, head alone last, one layer a chunk between them."""
    model = model_file(tmp_path, architecture(2048, layers=14, ffn=8192, vocab=131072))
    plan = {"name": "P", "pp": 4, "vpp": 4, "dp": 2, "recomputation": "none"}
    work = {"pass_": "training", "sequence": 4096, "sequences_per_replica": 8}

    def run(**keys: Any) -> PlanResult:
        return tspsim.simulate(question(model, [plan | keys], cluster="hgx-h100-8", **work)).plan("P")

    own = run(stage_layers=[0, *[1] * 14, 0])
    assert flops_of(own) == pytest.approx(flops_of(run(vpp=1, stage_layers=[3, 4, 4, 3])), rel=1e-6)
    with pytest.raises(InputError, match=r"16 pipeline chunks are more than the 14 layers; .*stage_layers"):
        run()
    with pytest.raises(InputError, match="only the embedding's chunk and the head's"):
        run(stage_layers=[0, 0, 2, *[1] * 12, 0])


@pytest.mark.parametrize("layers", [[6, 0, 5, 5], [8, 8, 0, 0]])
def test_no_other_stage_may_be_empty(tmp_path: Path, layers: list[int]) -> None:
    with pytest.raises(InputError, match="only the embedding's chunk and the head's"):
        uneven(tmp_path, layers)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(("vpp", "turns"), [(1, 2), (1, 4), (2, 2)])
def test_a_pipeline_empties_in_every_turn_of_gradient_accumulation(vpp: int, turns: int) -> None:
    """The bubble (p − 1)/v of a micro-batch's work comes once a turn: from the closed form of one turn."""

    def seconds(sequences: int, **more: int) -> float:
        question: dict[str, Any] = {
            "name": "turns",
            "cluster": {"device": "h100", "nodes": 1},
            "workload": {"model": "llama-3.1-8b", "pass": "training", "sequence": 4096},
            "plans": [{"name": "P", "pp": 4, "dp": 2, "vpp": vpp, "recomputation": "full", **more}],
        }
        question["workload"]["sequences_per_replica"] = sequences
        plan = tspsim.simulate(question).plan("P")
        assert plan.ran, plan.error
        return plan.step_time_s

    one, two = seconds(8), seconds(16)
    at_once, in_turns = seconds(8 * turns), seconds(8 * turns, accumulation=turns)
    steady = (two - one) / 8
    bubble = one - 8 * steady
    assert bubble > 2.0 / vpp * steady
    assert at_once == pytest.approx(8 * turns * steady + bubble, rel=0.01)
    assert in_turns == pytest.approx(at_once + (turns - 1) * bubble, rel=0.04)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"pp": 4, "accumulation": 3}, "3 turns do not divide the 8 micro-batches"),
        ({"accumulation": 2}, "turns are of a pipeline"),
        ({"pp": 4, "vpp": 2, "accumulation": 4}, "groups of pp = 4, not 2"),
    ],
)
def test_turns_that_cannot_be_are_refused(plan: dict[str, Any], said: str) -> None:
    question = {
        "name": "turns",
        "cluster": {"device": "h100", "nodes": 1},
        "workload": {"model": "llama-3.1-8b", "pass": "training", "sequence": 4096, "sequences_per_replica": 8},
        "plans": [{"name": "P", "dp": 8 // plan.get("pp", 1), "recomputation": "full", **plan}],
    }
    with pytest.raises(InputError, match=said):
        tspsim.simulate(question)
