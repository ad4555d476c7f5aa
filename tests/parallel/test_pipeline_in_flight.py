"""Micro-batches under way in closed form are those of walking every task of a step."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tspsim.parallel.pipeline import INTERLEAVED, INTERLEAVED_MICRO_BATCHES, ORDERS, PipelineOrder, most_in_flight
from tspsim.parallel.state.memory import stage_memory
from tspsim.scenario import load
from tspsim.step.question import look_up

SHAPES = [
    (stages, stage, groups * stages, chunks)
    for stages, groups, chunks in itertools.product((1, 2, 3, 4, 8), (1, 2, 3, 4, 7, 11), (1, 2, 3, 5))
    for stage in range(stages)
]


#: Of orders along the stages; the others have two chunks a stage (test_dualpipe.py, test_folded_orders.py).
FROM_ONE_END = [each for each in ORDERS.values() if each.placement.one_way]


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("order", [*FROM_ONE_END, INTERLEAVED, INTERLEAVED_MICRO_BATCHES], ids=lambda each: each.name)
def test_what_a_stage_keeps_is_what_walking_its_tasks_finds(order: PipelineOrder) -> None:
    for stages, stage, micro_batches, chunks in SHAPES:
        if chunks > 1 and order in tuple(ORDERS.values()):
            continue  # one chunk a stage; others stand in for more
        for sizes in ([1.0] * chunks, [float(2 + 3 * chunk % 4) for chunk in range(chunks)]):
            walked = most_in_flight(order.tasks(stages, stage, micro_batches, chunks), sizes)
            found = order.in_flight(stages, stage, micro_batches, sizes)
            assert found == walked, (stages, stage, micro_batches, chunks)


def test_micro_batches_that_fill_no_group_are_counted_as_well() -> None:
    order = ORDERS.get("1f1b")
    for stages, micro_batches in itertools.product((2, 4, 7), range(1, 18)):
        for stage in range(stages):
            walked = most_in_flight(order.tasks(stages, stage, micro_batches, 1), [1.0])
            assert order.in_flight(stages, stage, micro_batches, [1.0]) == walked


def test_a_forward_beside_a_backward_takes_its_place() -> None:
    """Megatron-Core's page on it: "does not add the same activation-memory penalty"; DeepSeek-V3, section 3.2.1."""
    for stages in (1, 2, 4, 8):
        for stage in range(stages):
            kept = INTERLEAVED_MICRO_BATCHES.in_flight(stages, stage, 4 * stages, [1.0])
            assert kept == (2 * (stages - stage - 1) + 1,)


def test_without_stages_interleaved_micro_batches_keep_one_layer_more_than_one_micro_batch() -> None:
    def kept(**plan: Any) -> float:
        workload = {"model": "qwen3-30b-a3b", "sequences_per_replica": 4, "sequence": 4096, "pass": "training"}
        cluster = {"device": "h200", "nodes": 1}
        plans = [{"name": "P", "ep": 8, "micro_batch": 1, "zero": 1, **plan}]
        question = look_up(load({"name": "q", "cluster": cluster, "workload": workload, "plans": plans}))
        return stage_memory(job := question.job(question.plans[0]), job.scheme.residency, 0)["kept_activations"]

    assert kept(expert_overlap="micro_batches") == pytest.approx(kept() * 49 / 48, rel=1e-9)
