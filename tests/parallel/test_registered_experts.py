"""What a stranger registers runs like what is built in: a dispatch, a balance policy, a pipeline order, a buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.engine import job_of, model_file, moe, question

import tspsim
from tspsim.base.errors import UnknownNameError
from tspsim.base.registry import Registry
from tspsim.parallel import ExpertRouting, Job, axes_of, peak_memory, scheme_of, write_program
from tspsim.parallel.balance import BALANCES, Balance, Balanced, ExpertBalance, Visits
from tspsim.parallel.dispatch import DISPATCHES, ExpertDispatch
from tspsim.parallel.ledger import Buffer, Lifetime
from tspsim.parallel.pipeline import ORDERS, Pipeline, PipelineOrder, Refusal
from tspsim.parallel.state.memory import peak
from tspsim.program import Collective, Compute, Program
from tspsim.step.bound import bounds
from tspsim.steps import BACKWARD, FORWARD, Batch, Task

#: Each of four ranks has two of eight experts; the first two are visited most.
UNEVEN = ExpertRouting("measured", shares=(4.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0))
LOADS = (5 / 3, 2 / 3, 2 / 3, 1.0)


def as_it_falls(visits: Visits) -> Balanced:
    """Every rank works on what falls on it."""
    return Balanced(visits.loads)


def levelled(visits: Visits) -> Balanced:
    """Copies of the busiest rank's experts go to the others, which then share the work."""
    loads = visits.loads
    mean = sum(loads) / len(loads)
    return Balanced((mean,) * len(loads), moved_experts=1.0 if max(loads) > mean else 0.0)


def all_then_back(stages: int, stage: int, micro_batches: int, chunks: int) -> list[Task]:
    """GPipe (Huang et al. 2019): all forwards, then all backwards."""
    forwards = [Task(FORWARD, index, 0) for index in range(micro_batches)]
    return forwards + [Task(BACKWARD, index, 0) for index in reversed(range(micro_batches))]


def one_chunk(pipeline: Pipeline) -> Refusal:
    return ("vpp", "gpipe has one chunk a stage; leave vpp out") if pipeline.chunks > 1 else None


@pytest.fixture(autouse=True)
def strangers() -> Iterator[None]:
    """Register them for a test, as a package's entry points would."""
    added: list[tuple[Registry[Any], Any]] = [
        (BALANCES, ExpertBalance("as-it-falls", as_it_falls)),
        (BALANCES, ExpertBalance("levelled", levelled)),
        (DISPATCHES, ExpertDispatch("broadcast", lambda ranks, experts: float(ranks), sums_before_return=False)),
        (ORDERS, PipelineOrder("gpipe", all_then_back, one_chunk, word="gpipe")),
    ]
    for registry, stranger in added:
        registry.register(stranger)
    yield
    for registry, stranger in added:
        registry.remove(stranger.name)


def parts_of(job: Job) -> Any:
    return peak_memory(job, scheme_of(job.plan).residency)


def programs(job: Job) -> list[Program]:
    return [write_program(scheme_of(job.plan), job, {"ep": position}) for position in range(job.plan.ep)]


def rows_of(program: Program) -> int:
    """Rows of the grouped product of a rank's experts, first layer."""
    kernels = [each.instruction for each in program.unrolled() if isinstance(each.instruction, Compute)]
    first = next(kernel for kernel in kernels if kernel.name == "experts")
    return max(getattr(operator, "m", 0) for operator in first.operators)


def moves(program: Program, axis: str = "ep") -> list[tuple[str, int]]:
    found = [each.instruction for each in program.unrolled()]
    return [(move.name, move.size_bytes) for move in found if isinstance(move, Collective) and move.axis == axis]


def test_a_policy_changes_the_program_by_position_in_the_expert_group() -> None:
    """Kernels are each rank's own, exchanges the busiest rank's: all wait for it."""
    job = job_of(moe(), dp=4, ep=4, routing=UNEVEN, expert_balance=Balance("as-it-falls"))
    usual = job_of(moe(), dp=4, ep=4, routing=UNEVEN)
    assert axes_of(job) == ("pp", "sp", "ep") and axes_of(usual) == ("pp", "sp")
    each = programs(job)
    assert [program.role for program in each] == [f"ep {position}" for position in range(4)]
    assert [rows_of(program) for program in each] == pytest.approx([load * 1024 for load in LOADS], abs=1)
    assert len({tuple(moves(program)) for program in each}) == 1
    assert rows_of(write_program(scheme_of(usual.plan), usual)) == rows_of(each[0])
    assert moves(each[0]) == moves(write_program(scheme_of(usual.plan), usual))


@pytest.mark.parametrize("pass_", ["forward", "training"])
@pytest.mark.parametrize("recomputation", ["none", "full"])
def test_moved_experts_are_bytes_in_the_program_and_an_entry_of_the_ledger(pass_: str, recomputation: str) -> None:
    plan = {"dp": 4, "ep": 4, "pass_": pass_, "recomputation": recomputation}
    level, usual = (
        job_of(moe(layers=1), routing=UNEVEN, expert_balance=Balance(policy), **plan)
        for policy in ("levelled", "busiest")
    )
    expert = 3 * 512 * 256 * 2
    program = write_program(scheme_of(level.plan), level)
    arrivals = [size for name, size in moves(program) if name == "experts from other ranks"]
    home = [size for name, size in moves(program) if name == "gradients of moved experts"]
    assert arrivals == [expert] * (2 if pass_ == "training" else 1)
    assert home == [expert] * (pass_ == "training")
    found, before = parts_of(level), parts_of(usual)
    assert found["moved_experts"] == expert * (2 if pass_ == "training" else 1)
    assert "moved_experts" not in before and found["workspace"] < before["workspace"]
    assert axes_of(level) == ("pp", "sp")


def test_a_policy_and_a_dispatch_run_from_a_scenario_and_stay_below_the_bound(tmp_path: Path) -> None:
    model = model_file(tmp_path, moe(1024, layers=4, count=16, topk=4, width=512))
    shares = [8.0, *[1.0] * 15]
    plans = [
        {"name": balance, "ep": 8, "expert_balance": balance, "expert_dispatch": dispatch}
        for balance, dispatch in (("busiest", "ranks"), ("as-it-falls", "ranks"), ("levelled", "broadcast"))
    ]
    asked = tspsim.load(question(model, plans, sequence=4096, routing={"load": "measured", "shares": shares}))
    result = tspsim.simulate(asked)
    whole = tspsim.simulate(asked, every_rank=True)
    for found, every, ceiling in zip(result.plans, whole.plans, bounds(asked).plans, strict=True):
        assert found.ran and found.tokens_per_s <= ceiling.tokens_per_s
        assert found.step_time_s == pytest.approx(every.step_time_s, rel=1e-9)
    usual, falling, levelled_ = result.plans
    assert sum(each.size for each in falling.classes) == 8 and len(falling.classes) > len(usual.classes)
    assert falling.step_time_s <= usual.step_time_s
    assert levelled_.memory.parts["moved_experts"] == 3 * 1024 * 512 * 2
    assert levelled_.settings["expert_dispatch"] == "broadcast"
    stated = [plan.get("expert_balance") for plan in asked.to_dict()["plans"]]
    assert stated == [None, "as-it-falls", "levelled"]


def test_a_dispatch_moves_its_closed_form() -> None:
    job = job_of(moe(), dp=8, ep=8, expert_dispatch="broadcast")
    sizes = {size for _, size in moves(write_program(scheme_of(job.plan), job))}
    assert sizes == {8 * 1024 * 512 * 2}


def test_an_order_of_micro_batches_runs_is_remembered_and_refuses_for_itself(tmp_path: Path) -> None:
    """All forwards first: as many micro-batches are in flight as there are, on every stage."""
    model = model_file(tmp_path, moe(layers=4))
    plans = [{"name": name, "pp": 4, "schedule": name, "recomputation": "full"} for name in ("1f1b", "gpipe")]
    asked = question(model, plans, pass_="training", sequence=1024, sequences_per_replica=8)
    usual, all_first = tspsim.simulate(asked).plans
    assert all_first.ran and all_first.settings["schedule"] == "gpipe"
    assert all_first.memory.parts["kept_activations"] == 2 * usual.memory.parts["kept_activations"]
    with pytest.raises(tspsim.errors.InputError, match=r"plans.gpipe.vpp: gpipe has one chunk a stage"):
        tspsim.simulate({**asked, "plans": [{**plans[1], "vpp": 2, "pp": 2}]})


def test_a_name_that_nobody_registered_is_refused_with_the_nearest() -> None:
    with pytest.raises(tspsim.errors.InputError, match=r"did you mean 'as-it-falls'"):
        tspsim.load(question("mixtral-8x7b", [{"name": "P", "ep": 8, "expert_balance": "as-it-fals"}], sequence=1024))
    with pytest.raises(UnknownNameError, match=r"unknown expert dispatch 'rank' \(did you mean 'ranks'\?\)"):
        DISPATCHES.get("rank")
    with pytest.raises(ValueError, match="expert dispatch 'ranks' is registered twice"):
        DISPATCHES.register(ExpertDispatch("ranks", lambda ranks, experts: 1.0))


def test_a_schemes_own_entry_is_in_the_sum() -> None:
    job = job_of(moe(), tp=2)
    residency = scheme_of(job.plan).residency
    scratch = Buffer("scratch", 1e9, Lifetime.LAYER)
    more = replace(residency, buffers=lambda job: [*residency.buffers(job), scratch])
    before, after = peak_memory(job, residency), peak_memory(job, more)
    assert after == {**before, "scratch": 1e9}


def test_the_peak_is_the_sum_of_what_is_alive_at_the_worst_moment() -> None:
    """A table alone takes the place of the workspace and of its part's layer buffers, where it needs more."""
    model = moe(layers=4, first_dense=1, ffn=1024)
    dense, routed = dict.fromkeys(model.blocks)
    ledger = [
        Buffer("weights", 100.0, Lifetime.STEP),
        Buffer("kept", 3.0, Lifetime.IN_FLIGHT, dense),
        Buffer("kept", 5.0, Lifetime.IN_FLIGHT, routed),
        Buffer("context", 2.0, Lifetime.IN_FLIGHT),
        Buffer("workspace", 10.0, Lifetime.LAYER, dense),
        Buffer("workspace", 20.0, Lifetime.LAYER, routed),
        Buffer("gathered", 4.0, Lifetime.LAYER, dense),
        Buffer("nothing", 0.0, Lifetime.STEP),
        Buffer("logits", 7.0, Lifetime.HEAD),
    ]
    found = peak(ledger, {dense: 2, routed: 6})
    assert found == {"weights": 100, "kept": 36, "context": 16, "workspace": 20, "gathered": 4, "logits": 7}
    assert peak([*ledger, Buffer("gathered", 50.0, Lifetime.TABLE)])["gathered"] == 30
    assert peak([*ledger, Buffer("gathered", 21.0, Lifetime.TABLE)])["gathered"] == 4


def test_a_batch_of_rows_has_the_work_of_its_rows() -> None:
    """Queries meet all of the context and, causal, half of themselves; whole sequences are rows without a context."""
    model = moe()
    whole = Batch([(1024, 0, 3)])
    assert whole.tokens == 3072 and whole.pairs == 3 * 1024**2 / 2
    assert whole.forward_flops_per_token(model, whole.tokens) == model.forward_flops_per_token(1024)
    mixed = Batch([(1024, 0, 1), (1, 4096, 8)])
    decode = Batch([(1, 4096, 8)])
    assert mixed.pairs == Batch([(1024, 0, 1)]).pairs + decode.pairs
    prompt = Batch([(1024, 0, 1)])
    together = mixed.tokens * mixed.layer_flops_per_token(model)
    apart = sum(batch.tokens * batch.layer_flops_per_token(model) for batch in (prompt, decode))
    assert together == pytest.approx(apart, rel=1e-12)
