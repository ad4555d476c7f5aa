"""The planner takes the least that fits of layers recomputed, stored narrow, or sent to the host; bounds lie below."""

from __future__ import annotations

from dataclasses import replace

import tspsim
from tspsim.hardware import Costs
from tspsim.parallel import build_mesh, peak_memory, scheme_of
from tspsim.parallel.recomputed import PartialRecompute
from tspsim.step.paths import LowerBound
from tspsim.step.question import look_up
from tspsim.step.simulation import scheduled, step_of
from tspsim.studies.planner.candidate import Candidate
from tspsim.studies.planner.space import Space

ASKED = {
    "name": "llama",
    "cluster": "hgx-b200-8",
    "workload": {
        "model": "llama-2-70b", "pass": "training", "sequence": "8Ki", "global_batch": 8, "precision": "fp8",
        "adapters": {"rank": 16, "targets": ["qkv", "output"]},
    },
    "plans": [{"name": "P", "recomputation": "none"}],
}  # fmt: skip


def test_a_plan_that_does_not_fit_gives_way_to_the_fewest_layers_that_do() -> None:
    asked = look_up(tspsim.load(ASKED))
    job = scheduled(asked, asked.plans[0])
    room, cluster = asked.device.visible_memory_bytes, asked.cluster

    def fits(tried: object) -> bool:
        return sum(peak_memory(tried, scheme_of(tried.plan).residency).values()) <= room  # type: ignore[attr-defined]

    assert not fits(job)
    space = Space(asked.model, asked.work, cluster, 8)
    mesh = build_mesh(job.plan, cluster.gpus, cluster.gpus_per_node)
    stored, block, away = (each.job.plan for each in space.thinner(Candidate(job, mesh, ()), fits))
    assert stored.activation_store == "fp8" and stored.recomputation == "none"
    assert block.recomputation == "full" and block.recomputed is not None
    fewer = replace(block, recomputed=PartialRecompute(block.recomputed.layers - 1))
    assert fits(replace(job, plan=block)) and not fits(replace(job, plan=fewer))
    assert fits(replace(job, plan=away)) and away.offload_layers
    wide = replace(job, work=replace(job.work, precision="bf16"))
    kept = [each.job.plan.activation_store for each in space.thinner(Candidate(wide, mesh, ()), fits)]
    assert not any(kept), "a search does not change what is computed"


def test_bounds_lie_below_steps_whose_layers_differ() -> None:
    asked = look_up(tspsim.load({**ASKED, "workload": {**ASKED["workload"], "model": "tsp-8b", "precision": "bf16"}}))
    costs = Costs(asked.device)
    bound = LowerBound(asked.cluster, costs, asked.device.peak_of("bf16"), asked.device.compute_slowdown)
    plan = asked.plans[0]
    for change in (
        {"recomputation": "full", "recomputed": PartialRecompute(5)},
        {"recomputation": "full", "recomputed": PartialRecompute(3, "every")},
        {"recomputation": "full", "recomputed": PartialRecompute(4, "uniform")},
        {"offload_layers": 6},
        {"activation_store": "fp8"},
        {"recomputation": "full", "recomputed": PartialRecompute(7), "zero": 3},
    ):
        job = scheduled(asked, replace(plan, **change))
        mesh = build_mesh(job.plan, asked.cluster.gpus, asked.cluster.gpus_per_node)
        step_s = step_of(asked, job, costs).makespan_s
        assert 0.5 * step_s < bound.step_s(job, mesh) <= step_s, change
        assert bound.floor_s(job) <= bound.compute_s(job) <= step_s, change
        assert bound.even_s(job, mesh) <= step_s, change
