"""Checkpoints of training: bytes by hand, what holds a step up against its closed form, and what a run makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.draws import in_turn
from helpers.engine import architecture, model_file

import tspsim
from tspsim.base.errors import InputError
from tspsim.hardware import Costs
from tspsim.network import host_bandwidth, load_cluster
from tspsim.parallel import CHECKPOINTS, build_mesh
from tspsim.scenario.project import Failures
from tspsim.step.paths import LowerBound
from tspsim.step.question import look_up
from tspsim.step.result import PlanResult
from tspsim.step.simulation import scheduled
from tspsim.studies.purchase.checkpoints import CheckpointCost

MODEL = architecture(1024, layers=4, heads=8, kv_heads=4, vocab=4096)
ONE = load_cluster("mi300x-8")


def asked(folder: Path, *plans: dict[str, Any], cluster: Any = "mi300x-8", **work: Any) -> dict[str, Any]:
    return {
        "name": "checkpoints",
        "cluster": cluster,
        "workload": {
            "model": model_file(folder, MODEL), "pass": "training", "sequence": 1024, "global_batch": 8, **work
        },
        "plans": [{"name": f"P{index}", **plan} for index, plan in enumerate(plans)],
    }  # fmt: skip


def run(folder: Path, *plans: dict[str, Any], **more: Any) -> tuple[PlanResult, ...]:
    return tspsim.simulate(asked(folder, *plans, **more)).plans


def test_by_hand_70b_over_128_gpus_hides_its_copy_and_waits_for_a_file() -> None:
    """Ψ·16 B (fp32 weights and 12 B of state) are 8.8 GB per GPU, 0.17 s to the host and 5.6 s at 200 GB/s; the usual
    optimizer's 14 B are 7.7 GB and 4.9 s: gradients are in no checkpoint."""
    scenario = tspsim.load("checkpoint-overlap").to_dict()
    scenario["workload"] = {"model": "llama-3.1-70b", "pass": "training", "sequence": 4096, "global_batch": 128}
    scenario["plans"] = [
        {"name": "O", "tp": 8, "zero": 1, "checkpoint": "overlapped", "checkpoint_rate": "200 GB/s"},
        {"name": "S", "tp": 8, "zero": 1, "checkpoint": "synchronous", "checkpoint_rate": "200 GB/s"},
    ]
    usual = tspsim.simulate(scenario).plans
    wide = {"weights": 4, "gradients": 2, "state": 12}
    scenario["workload"]["optimizer"] = wide
    overlapped, synchronous = tspsim.simulate(scenario).plans
    assert usual[0].checkpoint["bytes_per_gpu"] == pytest.approx(7.72e9, rel=2e-3)
    assert usual[1].checkpoint["file_s"] == pytest.approx(4.94, rel=2e-3)
    assert overlapped.checkpoint["bytes_per_gpu"] == pytest.approx(8.82e9, rel=2e-3)
    assert overlapped.checkpoint["copy_s"] == pytest.approx(8.82 / 52.29, rel=2e-3)
    assert synchronous.checkpoint["file_s"] == pytest.approx(5.64, rel=2e-3)
    assert overlapped.checkpoint["stall_s"] == usual[0].checkpoint["stall_s"] == 0.0
    assert synchronous.checkpoint["stall_s"] == pytest.approx(5.64 + 8.82 / 52.29, rel=0.01)


def test_a_step_is_held_up_as_its_closed_form_says(tmp_path: Path) -> None:
    """Of one node, where nothing shares a GPU's link to its host."""
    keys = {"checkpoint_rate": "1 GB/s", "checkpoint_every": 1000}
    overlapped, eager, staged, synchronous, none = run(
        tmp_path, *[{**keys, "checkpoint": name} for name in CHECKPOINTS], {}, global_batch=64
    )
    told = overlapped.checkpoint
    state = MODEL.parameters * 14.0
    assert told["bytes_per_gpu"] == pytest.approx(state / 8) and told["file_s"] == pytest.approx(state / 1e9, rel=1e-6)
    assert told["copy_s"] == pytest.approx(state / 8 / host_bandwidth(ONE.node))
    assert told["step_without_s"] == none.step_time_s and told["copy_s"] < 0.4 * none.step_time_s
    assert [told["stall_s"], eager.checkpoint["stall_s"], told["back_pressure_s"]] == pytest.approx([0.0] * 3, abs=1e-9)
    assert staged.checkpoint["stall_s"] == pytest.approx(told["copy_s"], rel=1e-3)
    assert synchronous.checkpoint["stall_s"] == pytest.approx(told["copy_s"] + told["file_s"], rel=1e-3)
    for plan in (overlapped, staged, synchronous):
        mean_s = none.step_time_s + plan.checkpoint["stall_s"] / 1000
        assert plan.step_time_s == pytest.approx(mean_s, rel=1e-12) and plan.memory == none.memory
        parts = plan.breakdown_s
        total_s = parts["compute"] + sum(parts["exposed_communication"].values()) + parts["idle"] + parts["bubble"]
        assert total_s == pytest.approx(plan.step_time_s)


@pytest.mark.parametrize("name", ["overlapped", "eager"])
def test_a_file_that_is_slower_than_its_interval_holds_the_next_copies_up(tmp_path: Path, name: str) -> None:
    keys = {"zero": 1, "checkpoint": name, "checkpoint_rate": "2 GB/s"}
    (plan,) = run(tmp_path, keys, global_batch=64)
    told = plan.checkpoint
    assert told["back_pressure_s"] == pytest.approx(told["stall_s"], rel=1e-2)
    assert CheckpointCost.of(plan, Failures()).checkpoint_s == pytest.approx(0.0, abs=1e-4)
    assert plan.step_time_s == pytest.approx(told["copy_s"] + told["file_s"], rel=1e-3)
    assert plan.step_time_s == pytest.approx(told["step_without_s"] + told["stall_s"])
    (staged,) = run(tmp_path, keys | {"checkpoint": "staged"}, global_batch=64)
    assert CheckpointCost.of(staged, Failures()).checkpoint_s == pytest.approx(told["copy_s"], rel=0.1)
    assert staged.step_time_s == pytest.approx(told["copy_s"] + max(told["file_s"], told["step_without_s"]), rel=0.02)
    (rare,) = run(tmp_path, {**keys, "checkpoint_every": 1000}, global_batch=64)
    assert rare.checkpoint["back_pressure_s"] == 0.0 and rare.checkpoint["stall_s"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("keys", "name"),
    in_turn(
        [
            ({"tp": 2, "pp": 2, "vpp": 2, "zero": 1}, "overlapped"),
            ({"tp": 2, "pp": 2, "vpp": 2, "zero": 1}, "eager"),
            ({"pp": 4, "zero": 0}, "staged"),
            ({"tsp": 8, "tsp_schedule": "published"}, "overlapped"),
            ({"zero": 3, "shard_group": 4}, "synchronous"),
            ({"zero": 2}, "eager"),
        ]
    ),
    ids=str,
)
def test_every_schedule_writes_them_folded_as_every_rank_and_above_its_bound(
    tmp_path: Path, keys: dict[str, Any], name: str
) -> None:
    cluster = {"device": "mi300x", "nodes": 2, "fabric": "rails-400g"} if keys.get("tp") else "mi300x-8"
    scenario = asked(tmp_path, {**keys, "checkpoint": name, "checkpoint_rate": "10 GB/s"}, cluster=cluster)
    folded, full = (tspsim.simulate(scenario, every_rank=every).plans[0] for every in (False, True))
    assert folded.step_time_s == pytest.approx(full.step_time_s, rel=1e-12)
    question = look_up(tspsim.load(scenario))
    job, device = scheduled(question, question.plans[0]), question.device
    mesh = build_mesh(job.plan, question.cluster.gpus, 8)
    bound = LowerBound(question.cluster, Costs(device), max(device.peak_flops_per_s.values()), device.compute_slowdown)
    assert bound.step_s(job, mesh) <= folded.step_time_s * (1 + 1e-9)


def test_what_a_step_s_own_copies_expose_stays_beside_the_checkpoint_s(tmp_path: Path) -> None:
    keys = {"checkpoint": "staged", "checkpoint_rate": "1 GB/s", "checkpoint_every": 5, "offload_layers": 4}
    both, offloads = run(tmp_path, keys, {"offload_layers": 4})
    exposed = both.breakdown_s["exposed_communication"]
    idle = both.breakdown_s["bubble"] + both.breakdown_s["idle"]
    assert offloads.breakdown_s["exposed_communication"]["copy_out"] > 0.0
    assert both.breakdown_s["compute"] + sum(exposed.values()) + idle == pytest.approx(both.step_time_s, rel=1e-12)


def test_all_ranks_together_write_the_state_once(tmp_path: Path) -> None:
    for keys in ({"zero": 1}, {"zero": 0}, {"tp": 4, "zero": 1}, {"zero": 3}, {"tsp": 8}):
        (plan,) = run(tmp_path, {**keys, "checkpoint": "overlapped", "checkpoint_rate": "1 GB/s"})
        assert plan.checkpoint["file_s"] == pytest.approx(MODEL.parameters * 14.0 / 1e9, rel=0.01), keys


def test_a_run_takes_what_was_simulated_in_place_of_what_is_stated(tmp_path: Path) -> None:
    failures = Failures(node_mtbf="100 h", restart="10 min", checkpoint="60 s")
    keys = {"zero": 1, "checkpoint_rate": "1 GB/s"}
    hidden, waits, none = run(
        tmp_path, {**keys, "checkpoint": "overlapped"}, {**keys, "checkpoint": "synchronous"}, {"zero": 1}
    )
    costs = [CheckpointCost.of(plan, failures) for plan in (hidden, waits, none)]
    assert [cost.tokens_per_s for cost in costs] == pytest.approx([none.tokens_per_s] * 3)
    assert costs[2].checkpoint_s == 60.0 and costs[1].checkpoint_s == pytest.approx(waits.checkpoint["stall_s"])
    runs = [cost.schedule(30 * 86_400.0, 16, failures) for cost in costs]
    assert runs[0].elapsed_s < runs[1].elapsed_s < runs[2].elapsed_s
    assert runs[0].interval_s >= max(hidden.checkpoint["file_s"] + hidden.checkpoint["copy_s"], none.step_time_s)
    assert 0.95 < runs[0].goodput < 1.0


@pytest.mark.parametrize(
    ("plan", "work", "said"),
    [
        ({"checkpoint": "overlaped"}, {}, "did you mean 'overlapped'"),
        ({"checkpoint": "synchronous"}, {}, "plans.P0.checkpoint_rate: is needed with checkpoint: synchronous"),
        ({"checkpoint_rate": "1 GB/s"}, {}, "plans.P0.checkpoint_rate: is of plans that write checkpoints"),
        ({"checkpoint": "eager"}, {"pass": "forward"}, "plans.P0.checkpoint: is of training"),
    ],
    ids=str,
)
def test_wrong_keys_say_what_is_right(tmp_path: Path, plan: dict[str, Any], work: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        look_up(tspsim.load(asked(tmp_path, plan, **work)))
    assert said in str(error.value), error.value
