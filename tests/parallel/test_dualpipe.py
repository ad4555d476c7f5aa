"""DualPipe: both ways through the stages, p + 1 micro-batches in flight, weights twice; dispatch in eight bits."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from helpers.engine import architecture, model_file

import tspsim
from tspsim.base.errors import InputError
from tspsim.hardware import Costs
from tspsim.operators import Role
from tspsim.parallel import build_mesh, load_stack, scheme_of, write_program
from tspsim.parallel.dualpipe import DUALPIPE, DUALPIPE_BESIDE, dualpipe
from tspsim.parallel.pipeline import ORDERS
from tspsim.program import Collective
from tspsim.step.paths import LowerBound
from tspsim.step.question import look_up
from tspsim.step.simulation import scheduled, step_of
from tspsim.steps import BACKWARD, FORWARD


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (8, 20), (16, 120)])
def test_every_micro_batch_goes_forward_and_back_once_each_on_every_stage(stages: int, micro_batches: int) -> None:
    for stage in range(stages):
        tasks = dualpipe(stages, stage, micro_batches, 1)
        assert len(tasks) == 2 * micro_batches
        for chunk in (0, 1):
            for kind in (FORWARD, BACKWARD):
                numbers = [task.micro_batch for task in tasks if (task.kind, task.chunk) == (kind, chunk)]
                assert numbers == [*range(micro_batches // 2 - 1), micro_batches - 1]
        # A forward stands beside a backward of the other way.
        for first, second in itertools.pairwise(tasks):
            if first.beside:
                assert (first.kind, second.kind) == (FORWARD, BACKWARD) and first.chunk != second.chunk


@pytest.mark.parametrize("stages", [2, 4, 8, 16])
def test_no_stage_keeps_more_than_one_micro_batch_more_than_there_are_stages(stages: int) -> None:
    """Table 2 of the paper: p + 1 of 1F1B's p."""
    for order in (DUALPIPE, DUALPIPE_BESIDE):
        most = [sum(order.in_flight(stages, stage, 4 * stages, (1.0, 1.0))) for stage in range(stages)]
        assert max(most) == stages + 1


@pytest.mark.parametrize(("stages", "micro_batches"), [(4, 8), (8, 32)])
def test_tasks_of_all_stages_can_be_done(stages: int, micro_batches: int) -> None:
    """Whatever a task waits for is done by a task that does not wait for it."""
    orders = [dualpipe(stages, stage, micro_batches, 1) for stage in range(stages)]
    place, done = [0] * stages, set[tuple[str, int, int, int]]()
    moved = True
    while moved:
        moved = False
        for stage in range(stages):
            while place[stage] < len(orders[stage]):
                kind, number, chunk, _ = orders[stage][place[stage]]
                way = 1 if chunk == 0 else -1
                source = stage - way if kind == FORWARD else stage + way
                if 0 <= source < stages and (kind, number, chunk, source) not in done:
                    break
                done.add((kind, number, chunk, stage))
                place[stage] += 1
                moved = True
    assert place == [2 * micro_batches] * stages


def simulated(tmp_path: Any, schedule: str, **plan: Any) -> tuple[Any, Any]:
    model = model_file(tmp_path, architecture(1024, layers=8, vocab=32_000))
    work = {"model": model, "pass": "training", "sequence": "2Ki", "sequences_per_replica": 16}
    plans = [{"name": "P", "pp": 4, "dp": 2, "schedule": schedule, "recomputation": "none", **plan}]
    asked = {"name": "d", "cluster": "hgx-h100-8", "workload": work, "plans": plans}
    return look_up(tspsim.load(asked)), tspsim.simulate(asked).plans[0]


def test_both_ways_do_the_work_of_one_with_a_smaller_bubble_and_weights_twice(tmp_path: Any) -> None:
    (_, plain), (asked, both) = simulated(tmp_path, "1f1b"), simulated(tmp_path, "dualpipe")
    assert both.step_time_s < plain.step_time_s
    assert both.breakdown_s["bubble"] < plain.breakdown_s["bubble"]
    chunks = [scheduled(asked, asked.plans[0]).chunks(stage) for stage in range(4)]
    held = Counter(layer for pair in chunks for c in pair for layer in range(c.first_layer, c.first_layer + c.layers))
    assert set(held.values()) == {2} and [chunk.way for pair in chunks for chunk in pair] == [1, -1] * 4
    flops = [told.timeline.frame().flops.sum() for told in (plain, both)]
    # Every stage stands for the same ranks in both: layers, embedding and head run as often.
    assert flops[1] == pytest.approx(flops[0], rel=0.01)


def test_a_rank_runs_as_long_folded_as_whole(tmp_path: Any) -> None:
    model = model_file(tmp_path, architecture(512, layers=4))
    work = {"model": model, "pass": "training", "sequence": "1Ki", "sequences_per_replica": 8}
    plans = [{"name": "P", "pp": 2, "dp": 4, "schedule": "dualpipe", "recomputation": "none"}]
    asked = {"name": "d", "cluster": "hgx-h100-8", "workload": work, "plans": plans}
    folded, whole = (tspsim.simulate(asked, every_rank=each).plans[0].step_time_s for each in (False, True))
    assert folded == whole


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 40), (4, 16), (8, 64)])
def test_bounds_lie_below_a_step_from_both_ends(stages: int, micro_batches: int, tmp_path: Any) -> None:
    model = model_file(tmp_path, architecture(1024, layers=8, vocab=32_000))
    work = {"model": model, "pass": "training", "sequence": "2Ki", "sequences_per_replica": micro_batches}
    plan = {"name": "P", "pp": stages, "dp": 8 // stages, "schedule": "dualpipe", "recomputation": "none"}
    asked = look_up(tspsim.load({"name": "d", "cluster": "hgx-h100-8", "workload": work, "plans": [plan]}))
    job, costs = scheduled(asked, asked.plans[0]), Costs(asked.device)
    bound = LowerBound(asked.cluster, costs, asked.device.peak_of("bf16"), asked.device.compute_slowdown)
    mesh, step_s = build_mesh(job.plan, 8, 8), step_of(asked, job, costs).makespan_s
    assert 0.8 * step_s < bound.step_s(job, mesh) <= step_s
    assert max(bound.rough_s(job, mesh), bound.outline_s(job, mesh)) <= step_s


def test_what_does_not_fill_both_ways_is_refused(tmp_path: Any) -> None:
    wrong = ({"vpp": 2}, "vpp 1"), ({"pp": 1, "dp": 8}, "even number of stages"), ({"micro_batch": 4}, "8 and more")
    for plan, said in wrong:
        with pytest.raises(InputError, match=said):
            simulated(tmp_path, "dualpipe", **plan)


def test_a_search_does_not_look_at_it() -> None:
    assert ORDERS.get("dualpipe").for_experts and not ORDERS.get("zb-h1").for_experts


def test_tokens_travel_to_experts_in_eight_bits_and_back_in_sixteen() -> None:
    scenario = tspsim.load("deepseek-v3-2048-h800")
    asked = look_up(scenario)
    narrow = scheduled(asked, asked.plans[0])
    sizes = {}
    for name in ("ranks", "ranks_fp8"):
        job = replace(narrow, plan=replace(narrow.plan, expert_dispatch=name))
        job = replace(job, work=replace(job.work, sequences=32))
        sizes[name] = {
            each.instruction.name: each.instruction.size_bytes
            for each in write_program(scheme_of(job.plan), job, {"pp": 3}).unrolled()
            if isinstance(each.instruction, Collective) and each.instruction.kind == "all_to_all"
        }
    for name, size in sizes["ranks"].items():
        share = (1.0 + 4.0 / 128.0) / 2.0 if "dispatch" in name else 1.0
        assert sizes["ranks_fp8"][name] == pytest.approx(share * size, rel=1e-6), name
    with pytest.raises(InputError, match="these are in bf16"):
        wide = ["workload.precision=bf16", "plans.EP64-PP16.activation_store=wide"]
        look_up(tspsim.load("deepseek-v3-2048-h800", wide))


def test_rows_that_came_in_eight_bits_are_ordered_in_them_and_summed_by_the_exchange() -> None:
    """As DeepSeek's published profile has it: 185 us for 470 MB of rows a layer, and no sum behind a combine."""
    asked = look_up(tspsim.load("deepseek-v3-2048-h800"))
    narrow = scheduled(asked, asked.plans[0])
    moved: dict[str, dict[str, set[float]]] = {}
    for name in ("ranks", "ranks_fp8"):
        job = replace(narrow, plan=replace(narrow.plan, expert_dispatch=name))
        job = replace(job, work=replace(job.work, sequences=32))
        found = moved[name] = {}
        for each in write_program(scheme_of(job.plan), job, {"pp": 3}).unrolled():
            for operator in getattr(each.instruction, "operators", ()):
                if operator.role in (Role.EXPERT_CAST, Role.EXPERT_ROWS, Role.EXPERT_SUM):
                    found.setdefault(operator.name, set()).add(operator.hbm_bytes)
    scaled, hidden, tokens, rows = 1.0 + 4.0 / 128.0, 7168, 4096, 4096 * 8
    assert moved["ranks"]["rows to experts"] == {2.0 * rows * hidden * 2.0}
    for name in ("rows to experts", "d rows to experts"):
        assert moved["ranks_fp8"][name] == {2.0 * rows * hidden * scaled}
    assert moved["ranks_fp8"]["cast rows"] == {tokens * hidden * (2.0 + scaled)}
    # What a rank's experts make of a token is summed before it goes back; behind the combine nothing is left to sum.
    assert len(moved["ranks_fp8"]["sum of experts"]) == 1 and len(moved["ranks"]["sum of experts"]) == 2
    assert max(moved["ranks"]["sum of experts"]) == max(moved["ranks_fp8"]["sum of experts"])


def test_a_stack_gives_multiprocessors_to_exchanges() -> None:
    device = look_up(tspsim.load("deepseek-v3-2048-h800")).device
    assert load_stack("hai-llm").stack().slowdown(device) == pytest.approx(132 / 112)
    assert load_stack("ideal").stack().slowdown(device) == device.compute_slowdown


EXPERTS = """
name: few
layers: 8
hidden: 2048
attention: {heads: 16, kv_heads: 4, head_dim: 128}
mlp: {kind: moe, experts: 16, topk: 4, width: 1024}
embedding: {vocab: 32000, tied: false}
source: made up for a test
"""


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(
    "keys",
    [{"pp": 2, "schedule": "dualpipe"}, {"pp": 2}, {"pp": 2, "vpp": 2}, {"tp": 2, "sequence_regions": True}],
    ids=str,
)
def test_a_bound_of_tasks_that_take_turns_is_close(keys: dict[str, Any], tmp_path: Any) -> None:
    (tmp_path / "few.yaml").write_text(EXPERTS)
    work = {"model": str(tmp_path / "few.yaml"), "pass": "training", "sequence": "4Ki", "global_batch": 64}
    plan = {"name": "P", "ep": 4, "zero": 1, "recomputation": "none", "expert_overlap": "micro_batches", **keys}
    cluster = {"device": "h100", "nodes": 2, "fabric": "rail-optimised-400g", "gpus_per_node": 4}
    asked = look_up(tspsim.load({"name": "d", "cluster": cluster, "workload": work, "plans": [plan]}))
    job, costs = scheduled(asked, asked.plans[0]), Costs(asked.device)
    bound = LowerBound(asked.cluster, costs, asked.device.peak_of("bf16"), asked.device.compute_slowdown)
    mesh, step_s = build_mesh(job.plan, 8, 4), step_of(asked, job, costs).makespan_s
    assert 0.85 * step_s < bound.step_s(job, mesh) <= step_s
    assert max(bound.even_s(job, mesh), bound.rough_s(job, mesh), bound.outline_s(job, mesh)) <= step_s
