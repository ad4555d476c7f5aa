"""Orders of two interleaved micro-batches: what the sources state, and laws over every order that is registered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.engine import job_of, moe

import tspsim
from tspsim.base.errors import InputError
from tspsim.engine.instances import Assignment
from tspsim.engine.steady import execute
from tspsim.network import Cluster
from tspsim.operators import Computes, Operator, Role
from tspsim.parallel import Job, build_mesh, load_stack, scheme_of, write_program
from tspsim.parallel.builder import ProgramBuilder
from tspsim.parallel.interleave import INTERLEAVINGS, exchanges_tokens, flat
from tspsim.parallel.stack import IDEAL
from tspsim.parallel.step import Writer
from tspsim.program import Collective, Compute, Instruction, Launch
from tspsim.program.instructions import orders
from tspsim.step.question import look_up
from tspsim.steps import BACKWARD, FORWARD, Task

TRAINING = [order.name for order in INTERLEAVINGS.values() if order.trains]
LAYERS = 3


def job(order: str, stack: str = "", **plan: Any) -> Job:
    """Four micro-batches of a model with shared experts and a dense first layer."""
    model = moe(layers=LAYERS, shared_width=256, first_dense=1, ffn=1024, vocab=1000)
    plan = {"dp": 4, "ep": 4, "sequences": 4, "expert_overlap": "micro_batches", "recomputation": "none", **plan}
    made = job_of(model, pass_="training", **plan)
    runs = replace(load_stack(stack).stack() if stack else IDEAL, interleaving=order)
    return replace(made, work=replace(made.work, stack=runs))


def tasks_of(job: Job) -> tuple[list[Instruction], list[Instruction]]:
    """A forward and a backward in the middle of a step, alone."""
    writer = Writer(scheme_of(job.plan), job, {})
    alone = []
    for kind in (FORWARD, BACKWARD):
        writer.builder = ProgramBuilder("alone", job)
        writer.visit(Task(kind, 1, 0), writer.chunks[0])
        alone.append(flat(writer.builder.program()))
    return alone[0], alone[1]


@cache
def merged(order: str, recomputation: str = "none", stack: str = "") -> tuple[tuple[Instruction, ...], ...]:
    """Both tasks alone, and together."""
    asked = job(order, stack, recomputation=recomputation)
    alone = tasks_of(asked)
    return tuple(alone[0]), tuple(alone[1]), tuple(asked.interleaving.merge(alone))


def kernels(instructions: Sequence[Instruction]) -> Iterator[Operator]:
    for instruction in instructions:
        if isinstance(instruction, Compute):
            yield from instruction.operators


def named(instructions: Sequence[Instruction], layers: tuple[int, int], stream: str) -> list[str]:
    """What a stream issues of two layers, parts as one word, the same once in a row."""
    forward, backward = layers
    words: list[str] = []
    for instruction in instructions:
        back = "backward" in instruction.part
        if instruction.stream != stream or instruction.layer != (backward if back else forward):
            continue
        if instruction.part == "gradients":
            continue
        words.append(f"{instruction.name}{' B' if back else ''}")
    return words


# --- what the sources state -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["megatron-core", "dualpipe"])
def test_a_pair_of_layers_is_issued_as_published(order: str) -> None:
    """NVIDIA/Megatron-LM, ``TransformerLayerSchedulePlan.run``; DeepSeek-V3 (arXiv:2412.19437), figure 4. The second
    layer of the forward stands beside the last but one of the backward, which is the second too."""
    together = merged(order)[2]
    exchanges = named(together, (1, 1), "experts")
    assert exchanges == ["dispatch gradients B", "dispatch", "combine gradients B", "combine"]
    issued = named(together, (1, 1), "compute")
    stages = {
        "attention F": issued.index("attention"),
        "experts B": issued.index("experts backward B"),
        "experts W": issued.index("experts' weight gradients B"),
        "experts F": issued.index("experts"),
        "attention B": issued.index("attention backward B"),
        "attention W": issued.index("QKV backward, weight gradients B"),
        "sum F": issued.index("sum of experts"),
    }
    assert list(stages) == sorted(stages, key=stages.__getitem__)
    shared = issued.index("shared experts"), issued.index("shared experts' down backward B")
    if order == "megatron-core":  # with attention
        assert shared[0] < stages["experts B"] and shared[1] > stages["experts F"]
    else:  # with the routed ones: before them forward, behind them backward
        assert stages["experts W"] < shared[0] < stages["experts F"]
        assert stages["experts B"] < shared[1] < stages["experts W"]


@pytest.mark.parametrize("order", TRAINING)
def test_what_hides_an_exchange_is_the_kernel_of_the_other_way_that_the_sources_put_there(order: str) -> None:
    """Combine beside attention's backward, dispatch beside the experts', combined gradients beside experts, and
    dispatched gradients beside attention: none of the two waits for the other."""
    together = merged(order)[2]
    before: list[int] = []
    for ended in orders((each.stream, each.after) for each in together):
        mask = 0
        for other in ended:
            mask |= before[other] | 1 << other
        before.append(mask)

    def place(name: str, layer: int) -> int:
        return next(number for number, each in enumerate(together) if (each.name, each.layer) == (name, layer))

    for exchange, hiding in (
        ("combine", "attention backward"),
        ("dispatch", "experts backward"),
        ("combine gradients", "experts"),
        ("dispatch gradients", "attention"),
    ):
        first, second = place(exchange, 1), place(hiding, 1)
        assert not before[first] >> second & 1 and not before[second] >> first & 1, (exchange, hiding)


def test_a_layer_made_again_runs_alone_before_its_backward() -> None:
    """Its exchanges are "exposed (not overlapped) by design" (model_chunk_schedule_plan.py)."""
    together = merged("megatron-core", "full")[2]
    again = [number for number, each in enumerate(together) if each.layer == 1 and each.part.endswith(" again")]
    assert len([number for number in again if exchanges_tokens(together[number])]) == 2
    assert again == list(range(again[0], again[-1] + 1))
    assert together[again[-1] + 1].part == "mlp backward" and together[again[-1] + 1].layer == 1


def test_weight_gradients_in_the_backward_hold_up_the_exchange_behind_it() -> None:
    """Without ``delay_wgrad_compute`` the node of a dispatch's backward waits for both gradients."""
    for order, apart in (("megatron-core", True), ("megatron-core-whole", False)):
        together = merged(order)[2]
        back = next(each for each in together if each.name == "combine gradients" and each.layer == 1)
        made = [each for index in back.after for each in kernels([together[index]])]
        assert any(each.computes is Computes.WEIGHT_GRADIENT for each in made) is not apart


def test_the_host_reads_counts_behind_the_launch_of_the_experts_backward() -> None:
    together = merged("megatron-core", stack="megatron-core")[2]
    reads = next(n for n, each in enumerate(together) if each.name == "read counts of rows" and each.layer == 1)
    assert "issue experts backward" in [each.name for each in together[:reads] if each.layer == 1]
    # A library's exchange brings the counts: the host waits for the exchange before it too.
    assert any(exchanges_tokens(together[index]) for index in together[reads].after)


# --- laws of every order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("recomputation", ["none", "full"])
@pytest.mark.parametrize("order", INTERLEAVINGS.names())
def test_an_order_keeps_the_work_and_what_each_task_waits_for(order: str, recomputation: str) -> None:
    forward, backward, together = merged(order if INTERLEAVINGS.get(order).trains else TRAINING[0], recomputation)
    if not INTERLEAVINGS.get(order).trains:
        together = tuple(INTERLEAVINGS.get(order).merge((forward, backward)))
    assert Counter(kernels(together)) == Counter(kernels((*forward, *backward)))
    moved = [each for each in together if isinstance(each, Collective)]
    assert Counter((each.name, each.size_bytes) for each in moved) == Counter(
        (each.name, each.size_bytes) for each in (*forward, *backward) if isinstance(each, Collective)
    )
    launched = [each.host_s for each in together if isinstance(each, Launch)]
    assert sum(launched) == sum(each.host_s for each in (*forward, *backward) if isinstance(each, Launch))
    assert all(0 <= index < number for number, each in enumerate(together) for index in each.after)


@pytest.mark.parametrize("order", TRAINING)
def test_sums_of_gradients_wait_for_all_of_them(order: str) -> None:
    """The last micro-batch's, beside the backward of the layers before."""
    asked = job(order, zero=2)
    together = list(asked.interleaving.merge(tasks_of(asked)))
    before: list[int] = []
    for ended in orders((each.stream, each.after) for each in together):
        mask = 0
        for place in ended:
            mask |= before[place] | 1 << place
        before.append(mask)
    sums = [number for number, each in enumerate(together) if each.stream == "gradients" and each.layer >= 0]
    assert len(sums) >= LAYERS
    for number in sums:
        for other, each in enumerate(together):
            if each.layer == together[number].layer and "backward" in each.part:
                weights = [made for made in kernels([each]) if made.computes is Computes.WEIGHT_GRADIENT]
                assert not weights or before[number] >> other & 1, (together[number].name, each.name)


def test_only_weight_gradients_of_linear_layers_are_deferred() -> None:
    together = merged("dualpipe")[2]
    for each in together:
        made = list(kernels([each]))
        weights = [operator for operator in made if operator.computes is Computes.WEIGHT_GRADIENT]
        if each.layer >= 0 and each.name.endswith("weight gradients"):
            assert weights == made and Role.ROUTER not in {operator.role for operator in made}
        elif each.layer >= 0:
            assert {operator.role for operator in weights} <= {Role.ROUTER}


@pytest.mark.parametrize("order", TRAINING)
@pytest.mark.parametrize("flops_per_s", [1e12, 1e14, 1e16])
def test_hiding_is_never_slower_if_kernels_and_exchanges_do_not_slow_each_other(order: str, flops_per_s: float) -> None:
    """An ideal machine: no launch, and exchanges that are short, like, and long beside kernels."""
    ends: list[float] = []
    for overlap in ("none", "micro_batches"):
        asked = job(order, dp=8, ep=8, expert_overlap=overlap)
        program = write_program(scheme_of(asked.plan), asked, {})
        assignment = Assignment.uniform(build_mesh(asked.plan, 8, 8), program)
        ends.append(execute(eight(), lambda operator: operator.flops / flops_per_s, assignment).makespan_s)
    assert ends[1] <= 1.001 * ends[0]


@cache
def eight() -> Cluster:
    plans = [{"name": "P"}]
    work = {"model": "llama-3.1-8b", "pass": "forward", "sequence": 128}
    return look_up(tspsim.load({"name": "m", "cluster": "hgx-h100-8", "workload": work, "plans": plans})).cluster


# --- what it costs ----------------------------------------------------------------------------------------------


def stepped(folder: Path, overlap: str, **keys: Any) -> float:
    data = {"name": "mine", **{key: {"value": value, "source": "the test"} for key, value in keys.items()}}
    (folder / "mine.yaml").write_text(yaml.safe_dump(data))
    result = tspsim.simulate({
        "name": "costs",
        "cluster": {"device": "h100", "nodes": 1},
        "workload": {
            "model": "moonlight-16b-a3b", "pass": "training", "sequence": 256, "sequences_per_replica": 3,
            "stack": str(folder / "mine.yaml"),
        },
        "plans": [{"name": "P", "ep": 8, "zero": 1, "recomputation": "none", "expert_overlap": overlap}],
    }).plan("P")  # fmt: skip
    assert result.ran, result.error
    return result.step_time_s


def test_nodes_cost_the_host_launches_and_only_where_layers_are_cut_into_nodes(tmp_path: Path) -> None:
    """Eight nodes in a forward and a backward of 26 layers with experts, of three micro-batches."""
    launch_s = 5e-3
    for overlap, nodes in (("none", 0), ("micro_batches", 3 * 26 * 8)):
        times = [stepped(tmp_path, overlap, kernel="5 ms", node_launches=more) for more in (0, 2)]
        assert times[1] - times[0] == pytest.approx(nodes * 2 * launch_s, rel=1e-2, abs=1e-9), overlap


def test_exchanges_are_slower_beside_the_kernels_of_another_micro_batch_alone(tmp_path: Path) -> None:
    for overlap in ("none", "micro_batches"):
        usual, slower = (stepped(tmp_path, overlap, exchange_slowdown=factor) for factor in (1.0, 4.0))
        assert (slower > 1.01 * usual) is (overlap == "micro_batches")


def test_an_unknown_order_is_one_line_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="dualpipe") as caught:
        stepped(tmp_path, "none", interleaving="dualpip")
    assert "\n" not in str(caught.value).strip()
