"""Steps on clusters of unequal nodes: where replicas sum and where a pipeline crosses."""

from __future__ import annotations

from typing import Any

import pytest

import tspsim
from tspsim.base.errors import InputError
from tspsim.step.bound import bounds
from tspsim.step.simulation import look_up, run_plan
from tspsim.studies.planner.planner import Planner

SCENARIO = "holmes-mixed-nics"


def test_the_shipped_islands_keep_sums_off_the_slow_wire() -> None:
    scenario = tspsim.load(SCENARIO, ["workload.global_batch=32"])
    answer = tspsim.simulate(scenario)
    assert [plan.name for plan in answer.plans] == ["Holmes", "Default", "DP"]
    holmes, default, replicas = (plan.step_time_s for plan in answer.plans)
    assert holmes < default < replicas
    # What replicas sum across: 2·Ψ·β·(d − 1)/d over a node's port, Ψ of a node all eight ranks' share.
    parameters, port = 70.55e9, 12.5e9 * 0.9
    across_s = 2 * parameters * 2 * (7 / 8) / port
    exposed = answer.plan("DP").breakdown_s["exposed_communication"]
    assert exposed["all_gather"] + exposed["reduce_scatter"] == pytest.approx(across_s, rel=0.05)
    for floor, plan in zip(bounds(scenario).plans, answer.plans, strict=True):
        assert plan.tokens_per_s <= floor.tokens_per_s


def small(**cluster: Any) -> dict[str, Any]:
    islands = [{"nodes": 2, "fabric": "infiniband-400g-lambda"}, {"nodes": 2, "fabric": "rails-200g"}]
    whole = {"device": "h100", "nodes": 4, "fabric": "ethernet-100g", "islands": islands} | cluster
    workload = {"model": "llama-3.1-8b", "pass": "training", "sequence": "4Ki", "global_batch": 8}
    plans = [{"name": "Holmes", "tp": 8, "pp": 2, "zero": 1, "placement": {"node": ["tp", "dp"]}},
             {"name": "DP", "tp": 8, "zero": 1}]  # fmt: skip
    return {"name": "small", "cluster": whole, "workload": workload, "plans": plans}


def test_folded_equals_every_rank_on_islands() -> None:
    found = look_up(tspsim.load(small()))
    for plan in found.plans:
        folded, whole = (run_plan(found, plan, every_rank=every) for every in (False, True))
        assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
        for one, other in zip(folded.links, whole.links, strict=True):
            assert one.carried_bytes == pytest.approx(other.carried_bytes, rel=1e-9)


def test_a_faster_wire_between_islands_is_never_slower() -> None:
    slow, fast = (tspsim.simulate(small(fabric=fabric)).plans for fabric in ("ethernet-100g", "rails-200g"))
    for one, other in zip(slow, fast, strict=True):
        assert other.step_time_s < one.step_time_s


def test_the_planner_plans_for_islands() -> None:
    planned = Planner(tspsim.load(small()), top=1, jobs=1, budget_s=0.5).only_best()
    stated = [each.result.step_time_s for each in planned.stated if each.result is not None]
    assert planned.best[0].result.step_time_s <= min(stated)


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ({"islands": [{"nodes": 3, "fabric": "rails-200g"}]}, "islands have 3 nodes, but the cluster has 4"),
        ({"islands": [{"nodes": 4, "fabric": "rails-100g"}]}, r"islands\.0\.fabric: unknown fabric"),
        ({"measured": {"rows": [[0, 1, 1, 1]] * 4}}, "not both"),
    ],
)
def test_wrong_islands_are_refused_where_they_stand(cluster: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        look_up(tspsim.load(small(**cluster)))
    assert "cluster" in str(error.value)


FEW = {"model": "llama-3.1-8b", "pass": "training", "sequence": "4Ki", "global_batch": 16}
STAGED = {"tp": 8, "pp": 2, "zero": 1}


def of_devices(*devices: str | None, device: str = "mi355x", **plans: dict[str, Any]) -> dict[str, Any]:
    """An island of one node of each device."""
    islands = [{"nodes": 1, "fabric": "rails-400g", **({"device": name} if name else {})} for name in devices]
    cluster = {"device": device, "nodes": len(devices), "fabric": "rails-400g", "islands": islands}
    return {"name": "devices", "cluster": cluster, "workload": FEW,
            "plans": [{"name": name, **keys} for name, keys in plans.items()]}  # fmt: skip


def test_an_island_of_the_cluster_s_own_device_changes_nothing() -> None:
    plain, named = (tspsim.simulate(of_devices(*devices, P=STAGED)) for devices in ((None, None), (None, "mi355x")))
    assert plain.plan("P").to_json() == named.plan("P").to_json()


def test_islands_of_another_device_compute_as_long_as_a_cluster_of_it() -> None:
    plans = {"P": STAGED, "DP": {"tp": 8, "zero": 1}}
    there = tspsim.simulate(of_devices("mi300x", "mi300x", **plans))
    alone = tspsim.simulate(of_devices(None, None, device="mi300x", **plans))
    for name in plans:
        one, other = there.plan(name), alone.plan(name)
        assert one.breakdown_s["compute"] == pytest.approx(other.breakdown_s["compute"], rel=0.01)
        assert one.step_time_s == pytest.approx(other.step_time_s, rel=0.05)
        assert one.mfu == pytest.approx(other.mfu, rel=0.05)
        assert one.memory.capacity_bytes == other.memory.capacity_bytes
        assert one.cost["usd_per_gpu_hour"] == pytest.approx(other.cost["usd_per_gpu_hour"])


def test_stages_cut_to_their_devices_get_nearly_all_of_both() -> None:
    cut = {"stage_layers": [20, 12]}
    mixed = tspsim.simulate(of_devices(None, "mi300x", even=STAGED, cut=STAGED | cut, DP={"tp": 8, "zero": 1}))
    rates = {plan.name: plan.tokens_per_s for plan in mixed.plans}
    fast, slow = (
        tspsim.simulate(of_devices(None, None, device=device, P=STAGED)).plan("P").tokens_per_s
        for device in ("mi355x", "mi300x")
    )
    assert slow * 0.99 < rates["even"] < rates["cut"] < fast
    assert rates["cut"] == pytest.approx((fast + slow) / 2, rel=0.1)
    assert rates["DP"] < rates["cut"]
    scenario = of_devices(None, "mi300x", cut=STAGED | cut)
    assert rates["cut"] <= bounds(tspsim.load(scenario)).plans[0].tokens_per_s
    prices = mixed.plan("cut").cost["usd_per_gpu_hour"]
    both = [tspsim.hardware.load_device(name).prices_usd_per_hour for name in ("mi355x", "mi300x")]
    assert prices == pytest.approx({basis: (both[0][basis] + both[1][basis]) / 2 for basis in prices})


def test_folded_equals_every_rank_on_two_devices() -> None:
    found = look_up(tspsim.load(of_devices(None, "mi300x", P=STAGED)))
    for plan in found.plans:
        folded, whole = (run_plan(found, plan, every_rank=every) for every in (False, True))
        assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)


@pytest.mark.parametrize(
    ("devices", "device", "said"),
    [
        ((None, "mi325x"), "mi300x", "mi325x is faster in memory"),
        ((None, "mi355x"), "mi300x", "links in nodes of mi355x are faster"),
        ((None, "h100"), "mi355x", "other links"),
        ((None, "mi356x"), "mi355x", "unknown device"),
    ],
)
def test_devices_that_do_not_go_together_are_refused(devices: tuple[str | None, ...], device: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        look_up(tspsim.load(of_devices(*devices, device=device, P=STAGED)))
    assert "cluster.islands" in str(error.value)
