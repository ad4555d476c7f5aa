"""What a stack's host launches, counted by the operators it launches for: the parts of ``megatron-core``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tspsim
from tspsim.base.errors import InputError
from tspsim.operators import Computes, Gemm, MemoryBound, Role
from tspsim.parallel import load_stack
from tspsim.parallel.serving_engine import Captured
from tspsim.step.result import PlanResult

#: Of the host for a kernel, far longer than any kernel of the step.
KERNEL_S = 5e-3
EXPERTS = {"model": "moonlight-16b-a3b", "sequence": 256}


def trained(
    folder: Path, workload: dict[str, Any] | None = None, plan: dict[str, Any] | None = None, **keys: Any
) -> PlanResult:
    import yaml

    data = {"name": "mine", **{key: {"value": value, "source": "the test"} for key, value in keys.items()}}
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(data))
    result = tspsim.simulate({
        "name": "launches",
        "cluster": {"device": "h100", "nodes": 1},
        "workload": {"pass": "training", **EXPERTS, **(workload or {}), "stack": str(file)},
        "plans": [{"name": "P", "ep": 8, "zero": 1, "recomputation": "none", **(plan or {})}],
    }).plan("P")  # fmt: skip
    assert result.ran, result.error
    return result


def test_a_step_behind_its_host_grows_by_what_is_launched_more(tmp_path: Path) -> None:
    """26 of 27 layers choose experts once, forward, and have one gradient of the router's input."""
    counts = {"choice of experts": 11, "router: input gradient": 4}
    times = [trained(tmp_path, kernel="5 ms", **more).step_time_s for more in ({}, {"role_launches": counts})]
    assert times[1] - times[0] == pytest.approx(26 * (10 + 3) * KERNEL_S, rel=1e-3)


def test_casts_are_launched_for_products_in_eight_bits_alone(tmp_path: Path) -> None:
    """Of a layer of Llama four products and both gradients of each; the head stays in bf16."""
    dense = {"model": "llama-3.1-8b", "sequence": 256}
    for precision, launches in (("bf16", 0), ("fp8", 2 * 32 * 12)):
        work = {**dense, "precision": precision}
        times = [trained(tmp_path, work, {"ep": 1}, kernel="5 ms", cast_launches=more).step_time_s for more in (0, 2)]
        assert times[1] - times[0] == pytest.approx(launches * KERNEL_S, rel=1e-3, abs=1e-9), precision


def test_a_plain_all_to_all_launches_what_it_needs_and_a_library_less(tmp_path: Path) -> None:
    """Two exchanges forward and two backward in each of 26 layers."""
    usual: dict[str, Any] = {}
    for dispatch, launches in (("ranks", 1), ("experts", 6)):
        times = [
            trained(tmp_path, plan={"expert_dispatch": dispatch}, kernel="5 ms", collective="1 us", **more).step_time_s
            for more in (usual, {"exchange_launches": [1, 6]})
        ]
        assert times[1] - times[0] == pytest.approx(26 * 4 * launches * KERNEL_S, rel=1e-3), dispatch


def test_a_host_that_reads_counts_launches_experts_behind_the_choice(tmp_path: Path) -> None:
    """It cannot get ahead: what it launches behind the choice in a layer is not hidden by the layers before it."""
    work, plan = {**EXPERTS, "sequence": 8192, "sequences_per_replica": 2}, {"micro_batch": 1}
    free, bound = (trained(tmp_path, work, plan, kernel="30 us", reads_counts=reads) for reads in (False, True))
    assert bound.step_time_s > 1.004 * free.step_time_s
    frame = bound.timeline.frame()  # type: ignore[union-attr]
    frame = frame[(frame["rank"] == 0) & (frame["layer"] == 5)].drop_duplicates("name").set_index("name")
    chosen, launched = frame.loc["norm, router"], frame.loc["issue experts"]
    assert launched.start_s >= chosen.end_s - 1e-9
    assert "read counts of rows" not in set(free.timeline.frame()["name"])  # type: ignore[union-attr]


def test_a_host_that_is_ahead_without_experts_counts_with_them_alone(tmp_path: Path) -> None:
    dense = {"model": "llama-3.1-8b", "sequence": 256}
    for work, plan in ((dense, {"ep": 1}), (EXPERTS, {"ep": 8})):
        nothing, ahead = (
            trained(tmp_path, work, plan, kernel=kernel, ahead_without_experts=True) for kernel in ("0 us", "5 ms")
        )
        assert (ahead.step_time_s == nothing.step_time_s) is (work is dense)


def test_a_host_that_queues_chunks_does_not_wait_for_messages(tmp_path: Path) -> None:
    """Of interleaved pipelines alone: without chunks it waits, as frameworks that synchronise behind messages."""
    work = {"model": "llama-3.1-8b", "sequence": 2048, "sequences_per_replica": 8}
    for vpp in (1, 2):
        plan = {"ep": 1, "pp": 4, "vpp": vpp, "micro_batch": 1}
        waits, queues = (
            trained(tmp_path, work, plan, kernel="50 us", queues_chunks=queued).step_time_s for queued in (False, True)
        )
        assert queues == waits if vpp == 1 else queues < 0.99 * waits


def test_versions_say_what_graphs_hold() -> None:
    stacks = {name: load_stack(f"megatron-core{name}").stack() for name in ("", "@unfused", "@graphs", "@whole-graphs")}
    choice, qkv = MemoryBound("softmax", 1.0, 1, role=Role.EXPERT_CHOICE), Gemm(8, 8, 8, "bf16", role=Role.QKV)
    usual, unfused, graphs, whole = (stack.launches_of for stack in stacks.values())
    assert unfused(choice) > usual(choice) > graphs(choice) == 0.0
    assert unfused(qkv) == usual(qkv) > graphs(qkv) == 0.0
    assert stacks["@graphs"].expert_exchange_s(Captured.NOTHING, library=True) > 0.0, "exchanges are in no graph"
    assert not stacks["@whole-graphs"].launches(experts=True) and whole is not usual
    assert not any(stack.launches(experts=False) for stack in stacks.values())


def test_a_narrow_product_has_its_casts_and_gradients_their_own_counts() -> None:
    stack = load_stack("megatron-core").stack()
    for computes in Computes:
        wide, narrow = (Gemm(8, 8, 8, dtype, role=Role.QKV, computes=computes) for dtype in ("bf16", "fp8"))
        assert stack.launches_of(narrow) == stack.launches_of(wide) + stack.cast_launches


def test_an_unknown_role_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"choise of experts.*choice of experts"):
        trained(tmp_path, kernel="1 us", role_launches={"choise of experts": 2})
