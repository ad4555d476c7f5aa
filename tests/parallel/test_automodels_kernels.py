"""What NeMo Automodel's sources have beside fused kernels: keys of stacks, each against what it counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import tspsim
from tspsim.model import load_model
from tspsim.model.routed import RoutedShard
from tspsim.operators import Computes, MemoryBound, Role
from tspsim.parallel import load_stack
from tspsim.parallel.stack import Stack
from tspsim.step.result import PlanResult

DENSE = {"model": "llama-3.1-8b", "sequence": 4096}
EXPERTS = {"model": "moonlight-16b-a3b", "sequence": 1024}


def trained(folder: Path, workload: dict[str, Any], plan: dict[str, Any] | None = None, **keys: Any) -> PlanResult:
    file = folder / "mine.yaml"
    data = {"name": "mine", **{key: {"value": value, "source": "the test"} for key, value in keys.items()}}
    file.write_text(yaml.safe_dump(data))
    result = tspsim.simulate({
        "name": "kernels",
        "cluster": {"device": "h100", "nodes": 1},
        "workload": {"pass": "training", **workload, "stack": str(file)},
        "plans": [{"name": "P", "zero": 1, "recomputation": "none", **(plan or {})}],
    }).plan("P")  # fmt: skip
    assert result.ran, result.error
    return result


def seconds_of(result: PlanResult, name: str) -> float:
    frame = result.timeline.frame()  # type: ignore[union-attr]
    frame = frame[(frame["rank"] == 0) & (frame["name"] == name)]
    assert len(frame), name
    return float((frame["end_s"] - frame["start_s"]).sum())


def test_a_gradient_is_turned_by_kernels_of_the_backward(tmp_path: Path) -> None:
    """32 layers, each with one rotation forward and one of gradients: a stack counts the launches of each."""
    work = {**DENSE, "sequence": 256}
    times = [
        trained(tmp_path, work, kernel="5 ms", role_launches={"rope": 2, "rope: input gradient": back}).step_time_s
        for back in (1, 4)
    ]
    assert times[1] - times[0] == pytest.approx(32 * 3 * 5e-3, rel=1e-3)


def test_an_attention_kernel_may_be_slower_than_its_librarys(tmp_path: Path) -> None:
    plain, slower = (trained(tmp_path, DENSE, **keys) for keys in ({}, {"attention_factors": [1.5, 2.0]}))
    for name, factor in (("attention", 1.5), ("attention backward", 2.0)):
        assert seconds_of(slower, name) / seconds_of(plain, name) == pytest.approx(factor, rel=0.01)


def test_an_optimizer_may_move_what_its_kernels_count(tmp_path: Path) -> None:
    few, more = (seconds_of(trained(tmp_path, DENSE, optimizer_bytes=size), "optimizer step") for size in (18, 36))
    assert more / few == pytest.approx(2.0, rel=0.01)


def test_norms_of_heads_run_before_the_rotation() -> None:
    together = MemoryBound("qk_norm_rope", 1000.0, 10, role=Role.ROPE)
    apart = Stack("mine", head_norm_tensors=(2.0, 3.0))
    forward = apart.run([together])
    backward = apart.run([MemoryBound("qk_norm_rope", 1000.0, 10, role=Role.ROPE, computes=Computes.INPUT_GRADIENT)])
    assert [(each.op, each.hbm_bytes) for each in forward] == [("rmsnorm", 1000.0), ("rope", 1000.0)]
    assert [(each.op, each.hbm_bytes) for each in backward] == [("rmsnorm", 1500.0), ("rope", 1000.0)]
    assert [each.op for each in apart.run([MemoryBound("rope", 1000.0, 10, role=Role.ROPE)])] == ["rope"]
    assert [each.op for each in Stack("mine").run([together])] == ["qk_norm_rope"]


def test_a_library_reads_tokens_where_they_stand(tmp_path: Path) -> None:
    """No kernel packs rows before it, and the one that orders arrivals reads a token once for all its experts."""
    plan = {"ep": 8, "expert_dispatch": "ranks"}
    packed, placed = (trained(tmp_path, EXPERTS, plan, rows_in_place=here) for here in (False, True))
    names = [set(result.timeline.frame()["name"]) for result in (packed, placed)]  # type: ignore[union-attr]
    assert [any(name.startswith("pack rows") for name in each) for each in names] == [True, False]
    assert placed.step_time_s < packed.step_time_s
    plain = trained(tmp_path, EXPERTS, {**plan, "expert_dispatch": "experts"}, rows_in_place=True)
    assert any(name.startswith("pack rows") for name in set(plain.timeline.frame()["name"]))  # type: ignore[union-attr]

    shard = RoutedShard(load_model("moonlight-16b-a3b"), 8, 8192)
    assert shard.order(3000.0, "order").hbm_bytes == (3000.0 + shard.all_rows) * 2048 * 2.0


def test_garbage_is_collected_in_turn_by_layer_and_micro_batch(tmp_path: Path) -> None:
    work = {**EXPERTS, "sequences_per_replica": 4}
    plan = {"ep": 8, "micro_batch": 1}
    times = [trained(tmp_path, work, plan, collection=each).step_time_s for each in ("0 ms", "2 ms")]
    assert times[1] - times[0] == pytest.approx(27 * 4 * 2e-3)
    answers = [trained(tmp_path, {**work, "pass": "forward"}, plan, collection=each) for each in ("0 ms", "2 ms")]
    assert answers[0].step_time_s == answers[1].step_time_s


def test_stages_that_exchange_messages_between_tasks_wait_for_what_they_send(tmp_path: Path) -> None:
    work = {**DENSE, "sequences_per_replica": 8}
    plan = {"pp": 4, "dp": 2, "micro_batch": 1, "vpp": 2}
    keys = {"kernel": "1 us", "queues_chunks": True}
    free, waits = (trained(tmp_path, work, plan, awaits_sends=each, **keys) for each in (False, True))
    assert 1.0005 < waits.step_time_s / free.step_time_s < 1.1
    names = [set(each.timeline.frame()["name"]) for each in (free, waits)]  # type: ignore[union-attr]
    assert [any(name.endswith(" sent") for name in each) for each in names] == [False, True]


@pytest.mark.parametrize(("version", "awaits", "factors"), [("2025.10", True, (1, 1)), ("flex", False, (1.11, 1.18))])
def test_versions_of_automodel(version: str, awaits: bool, factors: tuple[float, float]) -> None:
    now, then = (load_stack(name).stack() for name in ("automodel", f"automodel@{version}"))
    assert (then.awaits_sends, then.attention_factors, then.collection_s) == (awaits, factors, 0.35e-3)
    assert (now.awaits_sends, now.attention_factors, now.collection_s) == (False, (1.0, 1.0), 0.0)
    assert (then.rows_in_place, then.notice_s, then.exchange_units) == (True, 35e-6, 20)
