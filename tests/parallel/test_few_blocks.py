"""Kernels of few blocks, which move bytes at the rate of the multiprocessors that they occupy."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tspsim
from tspsim.hardware import Costs, load_device
from tspsim.operators import MemoryBound, Role
from tspsim.parallel import build_mesh, scheme_of, write_program
from tspsim.parallel.expert_rows import routed_shard
from tspsim.parallel.experts.expert import mapping
from tspsim.parallel.job import Job
from tspsim.program import Compute
from tspsim.step.paths import LowerBound
from tspsim.step.paths.kernels import filling
from tspsim.step.question import look_up
from tspsim.step.simulation import scheduled, step_of


def job(stack: str) -> Job:
    question = look_up(tspsim.load("deepseek-v3-2048-h800", [f"workload.stack={stack}"]))
    return scheduled(question, question.plans[0])


def test_a_kernel_of_few_blocks_streams_at_the_rate_of_its_multiprocessors() -> None:
    device = load_device("h800")
    whole, start = MemoryBound("copy", 1e8), device.time(MemoryBound("copy", 1.0)).seconds
    alone = device.time(whole).seconds - start
    for units in (4, 20, 66, 132, 300):
        fewer = device.time(replace(whole, units=units)).seconds - start
        assert fewer == pytest.approx(alone * max(1.0, 132 / units), rel=0.01)


def test_arrivals_are_counted_and_mapped_to_rows_of_experts() -> None:
    """30,712 tokens reach a rank of 64, and choose eight experts each: 8 bytes an index read once to count, and once
    more to map; 4 bytes a position and three numbers a row cleared and filled (TileKernels, get_fused_mapping)."""
    own = job("hai-llm")
    shard = routed_shard(own)
    count, fill = mapping(own, shard, None)
    assert isinstance(count, MemoryBound) and isinstance(fill, MemoryBound)
    tokens = count.rows
    assert 4096 < tokens <= shard.all_rows == 32768
    assert count.hbm_bytes == 8 * 8 * tokens
    assert fill.hbm_bytes == 2 * 8 * 8 * tokens + 2 * 3 * 4 * shard.all_rows
    assert count.units == fill.units == 4
    assert mapping(job("ideal"), shard, None) == ()


def test_gradients_of_experts_weights_read_an_activation_and_its_gradient() -> None:
    shard = routed_shard(job("hai-llm"))
    assert shard.weights_gradient().hbm_bytes == 2 * 2 * shard.all_rows * 2048


@pytest.mark.parametrize("beside", [True, False])
def test_gradients_are_cast_on_the_exchange_s_multiprocessors_beside_kernels(beside: bool) -> None:
    """DeepSeek's profile: the forward's cast is a kernel among others, the backward's is on the exchange's stream."""
    own = job("hai-llm")
    casts = own.work.stack.casts if beside else ()
    own = replace(own, work=replace(own.work, sequences=32, stack=replace(own.work.stack, casts=casts)))
    program = write_program(scheme_of(own.plan), own, {"pp": 3}).unrolled()
    found: dict[str, set[tuple[str, int]]] = {}
    for each in program:
        for operator in getattr(each.instruction, "operators", ()):
            if operator.role is Role.EXPERT_CAST:
                found.setdefault(each.instruction.name, set()).add((each.instruction.stream, operator.units))
    assert found == {
        "cast for dispatch": {("compute", 0)},
        "cast for dispatch gradients": {("beside experts", 20) if beside else ("compute", 0)},
    }


def test_steps_of_the_stack_hold_these_kernels() -> None:
    names = ("count rows of experts", "map rows to experts", "d weights of experts")
    for stack, wanted in (("hai-llm", set(names)), ("ideal", set())):
        few = job(stack)
        few = replace(few, work=replace(few.work, sequences=32))
        program = write_program(scheme_of(few.plan), few, {"pp": 3}).unrolled()
        operators = (operator for each in program for operator in getattr(each.instruction, "operators", ()))
        assert {operator.name for operator in operators} & set(names) == wanted


def test_bounds_lie_below_a_step_with_kernels_beside_others() -> None:
    """Only kernels that fill the device follow each other."""
    asked = look_up(
        tspsim.load(
            {
                "name": "few",
                "cluster": {"device": "h800", "nodes": 1},
                "workload": {"model": "deepseek-v2-lite", "pass": "training", "precision": "fp8_block",
                             "stack": "hai-llm", "sequence": 4096, "sequences_per_replica": 1},
                "plans": [{"name": "EP8", "ep": 8, "zero": 1, "expert_dispatch": "ranks_fp8", "micro_batch": 1}],
            }
        )
    )  # fmt: skip
    own, costs = scheduled(asked, asked.plans[0]), Costs(asked.device)
    bound = LowerBound(asked.cluster, costs, asked.device.peak_of("fp8"), asked.device.compute_slowdown)
    mesh, step_s = build_mesh(own.plan, 8, 8), step_of(asked, own, costs).makespan_s
    assert 0.5 * step_s < bound.step_s(own, mesh) <= step_s
    program = [each.instruction for each in write_program(scheme_of(own.plan), own, {}).unrolled()]
    few = [step for step in program if isinstance(step, Compute) and step.few]
    assert few and not {step.name for step in filling(program)} & {step.name for step in few}
