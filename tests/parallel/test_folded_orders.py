"""Zero-bubble orders of a folded pipeline: bubbles and activations against their papers, rates against a page."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from helpers.engine import architecture, model_file

import tspsim
from tspsim.base.errors import InputError
from tspsim.hardware import Costs
from tspsim.parallel import build_mesh, scheme_of, write_program
from tspsim.parallel.pipeline import ORDERS, PipelineOrder, check_tasks
from tspsim.parallel.placement import FOLDED
from tspsim.step.paths import LowerBound
from tspsim.step.question import look_up
from tspsim.step.simulation import scheduled, step_of
from tspsim.steps import BACKWARD, FORWARD, WEIGHTS, Task

ZBV, V_HALF, V_MIN = (ORDERS.get(name) for name in ("zbv", "v-half", "v-min"))
#: Name of an instruction that sends activations.
SENT = "activations to the next stage"
SHAPES = [(2, 6), (3, 12), (4, 16), (6, 24), (8, 32), (8, 15)]


def idle(order: PipelineOrder, stages: int, micro_batches: int, seconds: dict[str, float]) -> float:
    """Idle seconds of the busiest stage, if messages take no time."""
    tasks = [order.tasks(stages, stage, micro_batches, 2) for stage in range(stages)]
    done: dict[tuple[str, int, int], float] = {}
    free, place, moved = [0.0] * stages, [0] * stages, True

    def begin(task: Task, stage: int) -> float | None:
        here = FOLDED.place_of(task.chunk, stage, stages)
        source = {FORWARD: (FORWARD, here - 1), BACKWARD: (BACKWARD, here + 1), WEIGHTS: (BACKWARD, here)}[task.kind]
        if source == (FORWARD, -1):
            return 0.0
        kind, other = source if source != (BACKWARD, 2 * stages) else (FORWARD, here)
        return done.get((kind, task.micro_batch, other))

    while moved:
        moved = False
        for stage in range(stages):
            while place[stage] < len(tasks[stage]):
                task = tasks[stage][place[stage]]
                at_s = begin(task, stage)
                if at_s is None:
                    break
                free[stage] = max(free[stage], at_s) + seconds[task.kind]
                done[task.kind, task.micro_batch, FOLDED.place_of(task.chunk, stage, stages)] = free[stage]
                place[stage], moved = place[stage] + 1, True
    assert place == [6 * micro_batches] * stages
    return max(free) - 2 * micro_batches * sum(seconds.values())


@pytest.mark.parametrize(("stages", "micro_batches"), SHAPES)
def test_bubbles_and_activations_are_those_of_the_papers(stages: int, micro_batches: int) -> None:
    """Qi et al. 2023, §6: no bubble but the way along the stages; Qi et al. 2024, table 1: half and two thirds of
    1F1B's bubble, p/2 + 2 and p/3 + 2 of its p micro-batches, where all tasks take as long."""
    alike = {FORWARD: 1.0, BACKWARD: 1.0, WEIGHTS: 1.0}
    plain = 6.0 * (stages - 1)
    for order, bubble, kept in ((ZBV, 0.2, stages), (V_HALF, 0.5, stages / 2 + 2), (V_MIN, 0.67, stages / 3 + 2)):
        check_tasks(order, stages, micro_batches, 2)
        assert stages - 1 <= idle(order, stages, micro_batches, alike) <= bubble * plain
        for stage in range(stages):
            assert sum(order.in_flight(stages, stage, micro_batches, (0.5, 0.5))) / 2 <= kept


def test_v_min_is_slower_than_1f1b_where_input_gradients_take_longer() -> None:
    """AMD's page has v-min at 0.80 and 0.88 of 1F1B's rate (Primus, tech_blogs/primus_pipeline)."""
    unlike = {FORWARD: 1.0, BACKWARD: 1.3, WEIGHTS: 0.8}
    whole, bubble = 16 * 6.2, 3 * 6.2
    assert 0.75 < (whole + bubble) / (whole + idle(V_MIN, 4, 16, unlike)) < 0.95
    assert (whole + bubble) / (whole + idle(V_HALF, 4, 16, unlike)) > 1.05


def asked(tmp_path: Any, **plan: Any) -> dict[str, Any]:
    model = model_file(tmp_path, architecture(1024, layers=8, vocab=32_000))
    work = {"model": model, "pass": "training", "sequence": "2Ki", "sequences_per_replica": 12}
    plans = [{"name": "P", "pp": 4, "dp": 2, "vpp": 2, "recomputation": "none", **plan}]
    return {"name": "f", "cluster": "hgx-h100-8", "workload": work, "plans": plans}


@pytest.mark.parametrize("schedule", ["zbv", "v-half", "v-min"])
def test_a_folded_step_does_the_same_work_and_its_bounds_lie_below(schedule: str, tmp_path: Any) -> None:
    plain = tspsim.simulate(asked(tmp_path)).plans[0]
    question = look_up(tspsim.load(asked(tmp_path, schedule=schedule)))
    folded = tspsim.simulate(asked(tmp_path, schedule=schedule)).plans[0]
    job, costs = scheduled(question, question.plans[0]), Costs(question.device)
    chunks = [job.chunks(stage) for stage in range(4)]
    held = Counter(layer for pair in chunks for c in pair for layer in range(c.first_layer, c.first_layer + c.layers))
    assert set(held.values()) == {1} and len(held) == 8
    assert chunks[0][0].has_embedding and chunks[0][1].has_head
    flops = [each.timeline.frame().flops.sum() for each in (plain, folded)]
    assert flops[1] == pytest.approx(flops[0], rel=0.01)
    programs = [write_program(scheme_of(job.plan), job, {"pp": stage}).counted() for stage in range(4)]
    sent = [sum(times for step, times in program if step.name == SENT) for program in programs]
    # Of 12 micro-batches in two chunks: the last stage turns them round, and on the first they end.
    assert sent == [12, 24, 24, 12]
    bound = LowerBound(question.cluster, costs, question.device.peak_of("bf16"), question.device.compute_slowdown)
    mesh, step_s = build_mesh(job.plan, 8, 8), step_of(question, job, costs).makespan_s
    assert 0.7 * step_s < bound.step_s(job, mesh) <= step_s
    assert max(bound.rough_s(job, mesh), bound.outline_s(job, mesh)) <= step_s


def test_memory_falls_from_zbv_to_v_min(tmp_path: Any) -> None:
    """The order that AMD's page measured: 18.1, 14.1 and 11.9 GB of Llama 2 7B on eight stages."""
    schedules = ("zbv", "v-half", "v-min")
    peaks = [
        tspsim.simulate(asked(tmp_path, schedule=each)).plans[0].memory.parts["kept_activations"] for each in schedules
    ]
    assert peaks[0] > peaks[1] > peaks[2]


@pytest.mark.parametrize(
    ("plan", "said"),
    [({"vpp": 1}, "vpp 2"), ({"pp": 1, "dp": 8}, "need a pipeline"), ({"micro_batch": 2}, "use 7 and more")],
)
def test_what_does_not_fold_is_refused(plan: dict[str, int], said: str, tmp_path: Any) -> None:
    with pytest.raises(InputError, match=said):
        tspsim.simulate(asked(tmp_path, schedule="v-half", **plan))
