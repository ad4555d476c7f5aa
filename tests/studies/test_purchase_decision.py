"""A purchase: offers become scenarios, money and energy add up, needs hold, curves mean what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.shipped import SCENARIOS

from tspsim.base.errors import InputError
from tspsim.network import build_cluster
from tspsim.report.comparison_page import page
from tspsim.scenario import ClusterInline, load
from tspsim.scenario.project import Parts
from tspsim.step.question import look_up
from tspsim.step.simulation import simulate
from tspsim.studies.planner.query import searched_apart
from tspsim.studies.purchase import Decision, decide, expand
from tspsim.studies.purchase.fabric import FabricBill
from tspsim.studies.purchase.needs import Need, need
from tspsim.studies.uncertainty import Z_LOW

PURCHASES = [name for name in SCENARIOS if load(name).offers and load(name).traffic is None]

#: Its schedule is stated: none is searched for on every offer and size of a test.
TSP8 = {"name": "TSP8", "tsp": 8, "tsp_schedule": "published"}


def purchase(**changes: Any) -> dict[str, Any]:
    """Two offers for a short forward pass."""
    return {
        "name": "small",
        "workload": {"model": "llama-3.1-8b", "pass": "forward", "sequence": "8Ki"},
        "plans": [TSP8, {"name": "TP8", "tp": 8}, {"name": "TP4-SP2", "tp": 4, "sp": 2}],
        "offers": [
            {"name": "A", "cluster": {"device": "mi300x", "nodes": 2, "fabric": "rails-400g"}},
            {"name": "B", "cluster": {"device": "h200", "nodes": 2, "fabric": "rail-optimised-400g"}},
        ],
        "project": {"tokens": "1T", "rate": "3 Mtokens/s"},
    } | changes


def decided(scenario: dict[str, Any], *, curves: bool = False) -> Decision:
    questions = expand(load(scenario))
    return decide(questions, [simulate(question) for question in questions], curves=curves, jobs=1)


def sized(scenario: dict[str, Any]) -> Decision:
    """With the machine that is large enough, without curves."""
    questions = expand(load(scenario))
    return decide(questions, [simulate(question) for question in questions], curves=False, needs=True, jobs=1)


@pytest.fixture(scope="module")
def small() -> Decision:
    return decided(purchase(), curves=True)


def test_offers_become_scenarios_of_the_same_work() -> None:
    whole = load(purchase())
    a, b = expand(whole)
    assert (a.name, b.name) == ("A", "B")
    assert a.workload == b.workload == whole.workload and a.plans == b.plans == whole.plans
    assert a.cluster == whole.offers[0].cluster == whole.cluster  # the first offer's when left out
    assert expand(a) == [a]


def test_an_offer_may_have_its_own_plans_and_prices() -> None:
    offers = purchase()["offers"]
    offers[1] |= {"plans": ["TP8"], "prices": {"gpu_hour": "3 USD/h"}}
    _, b = expand(load(purchase(offers=offers)))
    assert [plan.name for plan in b.plans] == ["TP8"] and b.prices.gpu_hour == 3.0
    decision = decided(purchase(offers=offers))
    assert dict(decision.rows[1].rates.usd_per_gpu_hour) == {"stated": 3.0}
    assert set(decision.rows[0].rates.usd_per_gpu_hour) == {"hyperscaler", "neocloud", "rental"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"offers": [{"name": "A", "cluster": {"device": "mi300y"}}]}, "offers.A.cluster.device: unknown device"),
        ({"offers": [{"name": "A", "cluster": "mi300x-9"}]}, "unknown cluster 'mi300x-9'"),
        ({"offers": [{"name": "A", "cluster": "mi300x-8"}] * 2}, "two offers are named 'A'"),
        ({"offers": [{"name": "A", "cluster": "mi300x-8", "plans": ["TP9"]}]}, "did you mean 'TP8'"),
        ({"project": {"deadline": "10 h"}}, "a deadline needs a token budget"),
        ({"project": {"price": "free"}}, "use hyperscaler, neocloud, rental or owned"),
        ({"project": {"power": {"cooling": 1.3}}}, "all-in power has the host and the cooling in it already"),
        ({"project": {"failures": {"node_mtbf": "0 s"}}}, "project.failures.node_mtbf"),
        ({"project": {"tokens": "many"}}, "project.tokens"),
        ({"project": {"fabrik": {}}}, "did you mean 'fabric'"),
    ],
)
def test_wrong_terms_are_told_in_one_line(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as caught:
        load(purchase(**changes))
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_each_offer_takes_its_fastest_plan(small: Decision) -> None:
    for row in small.rows:
        assert row.best is not None
        assert row.best.tokens_per_s == max(plan.tokens_per_s for plan in row.result.plans)
        assert row.headroom_bytes == row.best.memory.capacity_bytes - row.best.memory.peak_bytes > 0


def test_money_and_energy_follow_from_rate_price_and_power(small: Decision) -> None:
    a = small.rows[0]
    assert a.best is not None and a.outcome is not None and a.outcome.kwh is not None
    each = a.best.tokens_per_s / 16
    assert a.measure("tokens_per_usd") == pytest.approx(each * 3600 / 1.40)
    assert a.measure("tokens_per_joule") == pytest.approx(each / 1790.0)
    assert a.measure("tokens_per_usd") == pytest.approx(1e6 / a.best.cost["usd_per_million_tokens"]["neocloud"])
    assert a.outcome.run.work_s == pytest.approx(1e12 / a.best.tokens_per_s)
    assert a.outcome.gpu_hours == pytest.approx(16 * a.outcome.run.elapsed_s / 3600)
    assert a.outcome.usd["rental"] == pytest.approx(1.55 * a.outcome.gpu_hours)
    assert a.outcome.kwh == pytest.approx(1.79 * a.outcome.gpu_hours)
    assert a.outcome.days * 86400 == pytest.approx(a.outcome.run.elapsed_s)


def test_power_from_the_device_adds_host_fabric_and_cooling_once() -> None:
    power = {"basis": "device", "host": "400 W", "cooling": 1.25}
    parts = {"nic_power": "25 W", "switch_power": "1000 W", "optic_power": "9 W"}
    row = decided(purchase(project={"power": power, "fabric": parts})).rows[0]
    # 16 NICs on 8 rails that share one switch's ports, an optic at both ends of 16 cables.
    fabric = (16 * 25 + 1000 + 32 * 9) / 16
    assert row.rates.fabric_watts_per_gpu == pytest.approx(fabric)
    assert row.rates.watts_per_gpu == pytest.approx((750 + 400 + fabric) * 1.25)


def test_the_fabric_is_paid_once() -> None:
    parts = {"nic": "1500 USD", "switch": "40000 USD", "optic": "800 USD", "years": 4}
    hour = (16 * 1500 + 40000 + 32 * 800) / (4 * 8766 * 16)
    shown, added = (
        decided(purchase(project={"fabric": {**parts, "in_price": inside}})).rows[0].rates for inside in (True, False)
    )
    assert shown.fabric_usd_per_gpu_hour == added.fabric_usd_per_gpu_hour == pytest.approx(hour)
    assert shown.usd == 1.40
    assert added.usd == pytest.approx(1.40 + hour)


def test_an_offer_s_own_fabric_replaces_the_project_s() -> None:
    offers = purchase()["offers"]
    offers[1] |= {"fabric": {"nic": "160 USD", "years": 1, "in_price": False}}
    a, b = decided(purchase(offers=offers, project={"fabric": {"nic": "80 USD", "years": 1}})).rows
    assert a.rates.fabric_usd_per_gpu_hour == pytest.approx(80 / 8766)
    assert b.rates.fabric_usd_per_gpu_hour == pytest.approx(160 / 8766)
    assert a.rates.usd == 1.40
    assert b.rates.usd == pytest.approx(1.74 + 160 / 8766)


def test_the_bill_counts_every_switch_and_cable_of_a_fat_tree() -> None:
    """32 nodes of 8: 256 endpoints on 64-port switches are 8 leaves of 32 and 4 spines."""
    plain = FabricBill.of(build_cluster("mi300x", 32, "fat-tree-400g"))
    assert plain == FabricBill(nics=256, switches=12, optics=2 * (256 + 256), gpus=256)
    thin = FabricBill.of(build_cluster("mi300x", 32, "fat-tree-400g", oversubscription=4))
    assert thin.optics == 2 * (256 + 64)
    assert FabricBill.of(build_cluster("mi300x", 1)) == FabricBill(0, 0, 0, 8)
    assert plain.usd(Parts(nic="1 USD", switch="100 USD", optic="0.5 USD")) == 256 + 1200 + 512


PIECES = Parts(nic="1500 USD", switch="40000 USD", optic="900 USD")


@pytest.mark.parametrize("fabric", ["rail-optimised-400g", "fat-tree-400g", "rails-400g", "rails-200g"])
@pytest.mark.parametrize("oversubscription", [1.0, 3.0])
def test_a_cluster_pays_for_its_part_of_a_fabric_that_grows(fabric: str, oversubscription: float) -> None:
    """More nodes never cost less in all; a GPU's part is at most that in a larger cluster, and of a switch a stage."""
    counts = [*range(2, 40), 64, 65, 127, 129, 256]
    clusters = [build_cluster("h100", nodes, fabric, oversubscription=oversubscription) for nodes in counts]
    bills = [FabricBill.of(cluster) for cluster in clusters]
    costs = [bill.usd(PIECES) for bill in bills]
    assert costs == sorted(costs)
    rounding = 3 * (PIECES.switch + 2 * PIECES.optic)
    for index, nodes in enumerate(counts):
        for more, cost in zip(counts[index:], costs[index:], strict=True):
            assert costs[index] <= cost * nodes / more + rounding


def test_two_nodes_do_not_pay_for_thirty_two() -> None:
    small, large = (
        {
            fabric: FabricBill.of(build_cluster("h100", nodes, fabric))
            for fabric in ("rail-optimised-400g", "fat-tree-400g")
        }
        for nodes in (2, 32)
    )
    assert small["rail-optimised-400g"] == FabricBill(nics=16, switches=2, optics=64, gpus=16)  # was 12 and 544
    assert small["fat-tree-400g"] == FabricBill(nics=16, switches=1, optics=32, gpus=16)
    assert large["rail-optimised-400g"] == large["fat-tree-400g"] == FabricBill(256, 12, 1024, 256)


def billed(**cluster: Any) -> FabricBill:
    question = load({
        "name": "billed", "cluster": {"device": "h100", **cluster},
        "workload": {"model": "llama-3.1-8b", "pass": "forward", "sequence": "4Ki"},
        "plans": [{"name": "TP8", "tp": 8}],
    })  # fmt: skip
    return FabricBill.of(look_up(question).cluster)


@pytest.mark.parametrize("common", ["rail-optimised-400g", "ethernet-100g"])
@pytest.mark.parametrize("nodes", [(4, 4), (2, 7), (32, 33)])
def test_islands_pay_for_their_switches_and_those_between_them(common: str, nodes: tuple[int, int]) -> None:
    """Nodes were counted as switches, and an island of 32 of them as one switch."""
    own, ends = ("infiniband-400g-lambda", "fat-tree-400g"), (*nodes, sum(nodes))
    isles = [{"nodes": count, "fabric": fabric} for count, fabric in zip(nodes, own, strict=True)]
    whole = billed(nodes=sum(nodes), fabric=common, islands=isles)
    parts = [billed(nodes=count, fabric=fabric) for count, fabric in zip(ends, (*own, common), strict=True)]
    assert whole.nics == parts[-1].nics == 8 * sum(nodes)
    assert whole.switches == sum(part.switches for part in parts)
    assert whole.optics == sum(part.optics for part in parts)


def test_a_measured_fabric_is_billed_as_what_it_is() -> None:
    rows = [[0 if a == b else 380 for b in range(8)] for a in range(8)]
    measured = billed(nodes=8, fabric="fat-tree-400g", measured={"unit": "GB/s", "rows": rows})
    assert (
        measured == billed(nodes=8, fabric="fat-tree-400g") == FabricBill(64, 1, 128, 64)
    )  # was 8 switches, 184 optics


def test_a_stated_confidence_is_kept_by_what_is_large_enough() -> None:
    plans = {"plans": [TSP8], "offers": purchase()["offers"][:1]}
    terms = {"tokens": "1T", "deadline": "3 days"}
    (plain,) = sized(purchase(**plans, project=terms)).rows
    (sure,) = sized(purchase(**plans, project=terms | {"confidence": 0.95})).rows
    assert plain.need is not None and sure.need is not None and plain.need.likely is not None
    assert sure.need.nodes > plain.need.nodes and sure.need.likely is not None
    assert (plain.need.likely.in_time or 0.0) < 0.95 <= (sure.need.likely.in_time or 0.0)
    with pytest.raises(InputError, match="deadline or rate"):
        load(purchase(project={"tokens": "1T", "confidence": 0.95}))


def test_electricity_is_added_only_when_stated() -> None:
    without, with_it = (decided(purchase(prices=p)).rows[0].outcome for p in ({}, {"electricity": "0.1 USD/kWh"}))
    assert without is not None and with_it is not None and with_it.kwh is not None
    assert with_it.usd["neocloud"] - without.usd["neocloud"] == pytest.approx(0.1 * with_it.kwh)


def test_the_needed_size_reaches_the_rate_and_a_node_less_does_not(small: Decision) -> None:
    for row, question in zip(small.rows, expand(load(purchase())), strict=True):
        assert row.best is not None and row.need is not None
        assert row.need.tokens_per_s >= 3e6
        fewer = question.model_copy(
            update={"cluster": question.cluster.model_copy(update={"nodes": row.need.nodes - 1})}  # type: ignore[union-attr]
        )
        assert simulate(fewer).plan(row.best.name).tokens_per_s < 3e6


def test_the_needed_size_is_one_whose_replicas_share_a_global_batch_evenly() -> None:
    """Three nodes would be fast enough, but 16 sequences do not divide over three replicas."""
    batch = {"model": "llama-3.1-8b", "pass": "forward", "sequence": "8Ki", "global_batch": 16}
    (offer, _), plans = purchase()["offers"], [{"name": "TSP8", "tsp": 8}]
    (scenario,) = expand(load(purchase(workload=batch, plans=plans, offers=[offer], project={"rate": "0.7 Mtokens/s"})))
    (run,) = simulate(scenario).plans
    cluster = build_cluster("mi300x", 2, "rails-400g")
    found = need(scenario, cluster, "TSP8", run.tokens_per_s, lambda asked: simulate(asked).plans[0])
    assert isinstance(found, Need) and found.nodes == 4 and found.tokens_per_s >= 0.7e6
    assert found.hint.startswith("3 nodes should be enough, but their replicas do not share the 16 sequences")
    assert scenario.project is not None
    fast = scenario.model_copy(update={"project": scenario.project.model_copy(update={"rate": 1e12})})
    refused = need(fast, cluster, "TSP8", run.tokens_per_s, lambda asked: simulate(asked).plans[0])
    assert isinstance(refused, str) and "share 16 sequences a step evenly; state a larger global_batch" in refused


def test_a_smaller_machine_than_a_plan_s_groups_of_shards_has_one_group() -> None:
    """128 ranks in groups of 64 that divide the state; the machine that is needed has 16."""
    work = {"model": "llama-3.1-8b", "pass": "training", "sequence": "8Ki"}
    offer = {"name": "MI355X", "cluster": {"device": "mi355x", "nodes": 16, "fabric": "rails-400g"}}
    plans = [{"name": "FSDP", "zero": 3, "shard_group": 64}]
    terms = {"rate": "0.2 Mtokens/s"}
    (scenario,) = expand(load(purchase(workload=work, plans=plans, offers=[offer], project=terms)))
    (run,) = simulate(scenario).plans
    cluster = build_cluster("mi355x", 16, "rails-400g")
    found = need(scenario, cluster, "FSDP", run.tokens_per_s, lambda asked: simulate(asked).plans[0])
    assert isinstance(found, Need) and found.gpus < 64 and found.tokens_per_s >= 0.2e6
    assert found.scenario.plans[0].shard_group is None


def test_a_rate_is_priced_a_day_and_to_the_end_of_the_budget(small: Decision) -> None:
    """By hand: GPUs · price · hours, all-in watts, and what a failure costs."""
    for row in small.rows:
        need = row.need
        assert need is not None and need.day is not None and need.outcome is not None and need.run is not None
        assert need.gpus == 8 * need.nodes
        assert need.day.usd["neocloud"] == pytest.approx(need.gpus * 24 * row.rates.usd_per_gpu_hour["neocloud"])
        assert row.rates.watts_per_gpu is not None
        assert need.day.kwh == pytest.approx(need.gpus * 24 * row.rates.watts_per_gpu / 1000)
        assert need.run.work_s == pytest.approx(1e12 / need.tokens_per_s)
        assert need.outcome.days == pytest.approx(need.run.elapsed_s / 86400)
        assert need.outcome.usd["neocloud"] == pytest.approx(need.day.usd["neocloud"] * need.outcome.days)
        assert need.outcome.kwh == pytest.approx((need.day.kwh or 0.0) * need.outcome.days)


def test_a_rate_without_a_budget_is_priced_a_day() -> None:
    row = decided(purchase(project={"rate": "3 Mtokens/s"}), curves=True).rows[0]
    assert row.outcome is None and row.need is not None
    assert row.need.outcome is None and row.need.day is not None and row.need.day.usd["neocloud"] > 0


def test_the_page_says_what_a_rate_takes() -> None:
    questions = expand(load(purchase(project={"rate": "3 Mtokens/s"})))
    results = [simulate(question) for question in questions]
    text = page(results, decide(questions, results, jobs=1))
    assert "Large enough for 3.00 M tokens/s" in text and "$ a day, neocloud" in text and "kWh a day" in text


def test_fabric_prices_have_a_doubt_of_their_own() -> None:
    """Added at half its price to twice it, nine times of ten; the GPU's own price does not move."""
    parts = {"nic": "9000 USD", "years": 1, "in_price": False, "range": [0.5, 2.0]}
    row = decided(purchase(project={"fabric": parts})).rows[0]
    offer, hour = row.uncertainty, row.rates.fabric_usd_per_gpu_hour
    assert offer is not None and hour == pytest.approx(9000 / 8766)
    plain = offer.per_token("tokens_per_dollar", {})
    for normal, factor in ((Z_LOW, 0.5), (-Z_LOW, 2.0)):
        moved = offer.per_token("tokens_per_dollar", {"fabric prices": normal})
        assert moved / plain == pytest.approx((1.40 + factor * hour) / (1.40 + hour))
    shown = decided(purchase(project={"fabric": {**parts, "in_price": True}})).rows[0].uncertainty
    assert shown is not None and "fabric prices" not in shown.factors


def test_a_deadline_counts_failures_too() -> None:
    row = decided(purchase(project={"tokens": "1T", "deadline": "24 h"}), curves=True).rows[0]
    assert row.need is not None and row.need.run is not None
    assert row.need.run.elapsed_s <= 86400 < 86400 + row.need.run.elapsed_s - row.need.run.work_s
    assert row.need.tokens_per_s > 1e12 / 86400


def test_weak_scaling_of_independent_replicas_is_ideal(small: Decision) -> None:
    for row in small.rows:
        assert [point.nodes for point in row.weak] == [1, 2, 4, 16, 128, 2048]
        assert all(point.efficiency == pytest.approx(1.0, rel=1e-9) for point in row.weak)


def test_strong_scaling_leaves_the_node_when_replicas_run_out_and_loses(small: Decision) -> None:
    for row in small.rows:
        inside = [point for point in row.strong if not point.crosses]
        across = [point for point in row.strong if point.crosses]
        assert inside and across and max(point.nodes for point in inside) <= 2 < min(point.nodes for point in across)
        assert all(point.efficiency < min(each.efficiency for each in inside) for point in across)


def test_the_winner_is_compared_with_every_other_offer(small: Decision) -> None:
    assert small.measure == "tokens_per_dollar" and small.winner is not None
    (verdict,) = small.verdicts
    loser = next(row for row in small.rows if row is not small.winner)
    assert (verdict.a, verdict.b) == (small.winner.name, loser.name)
    ratio = (small.winner.measure("tokens_per_usd") or 0) / (loser.measure("tokens_per_usd") or 1)
    assert verdict.ratio == pytest.approx(ratio) and ratio >= 1
    assert verdict.low < verdict.ratio < verdict.high and 0.5 <= verdict.probability <= 1


def test_energy_ranks_where_the_project_says_so(small: Decision) -> None:
    """The same two offers by joules: the ratio is that of tokens a joule, and the verdict turns on watts."""
    found = decided(purchase(project={"rank": "tokens_per_joule"}))
    assert found.measure == "tokens_per_joule" and found.winner is not None
    most = {row.name: row.measure("tokens_per_joule") or 0.0 for row in small.rows}
    assert most[found.winner.name] == max(most.values())
    (verdict,) = found.verdicts
    assert verdict.ratio == pytest.approx(max(most.values()) / min(most.values()))
    watts = {row.name: row.rates.watts_per_gpu or 0.0 for row in found.rows}
    assert found.today_s_ratio(verdict) == pytest.approx(watts[verdict.a] / watts[verdict.b])
    # Level where the watts are as the rates a GPU are.
    assert verdict.ratio * watts[verdict.a] / watts[verdict.b] == pytest.approx(verdict.break_even_price_ratio)
    assert "tokens a joule" in found.in_words()[0] and f"a GPU of {verdict.a} draws" in found.in_words()[1]
    told = found.to_json()
    assert told["measure"] == "tokens_per_joule" and "power_ratio_today" in told["verdicts"][0]


def test_a_rank_by_what_an_offer_does_not_have_is_refused() -> None:
    offers = [{"name": "A", "cluster": {"device": "l20", "nodes": 1}}, *purchase()["offers"][1:]]
    with pytest.raises(InputError, match="A has no price"):
        decided(purchase(project={"rank": "tokens_per_dollar"}, offers=offers))


def test_doubts_weigh_the_same_price_as_the_ranking() -> None:
    offers = purchase()["offers"]
    offers[0] |= {"fabric": {"nic": "9000 USD", "years": 1, "in_price": False}}
    decision = decided(purchase(offers=offers))
    assert decision.winner is not None
    loser = next(row for row in decision.rows if row is not decision.winner)
    ratio = (decision.winner.measure("tokens_per_usd") or 0) / (loser.measure("tokens_per_usd") or 1)
    assert decision.verdicts[0].ratio == pytest.approx(ratio)


def test_an_offer_on_which_nothing_fits_keeps_its_place() -> None:
    workload = {"model": "llama-3.1-70b", "pass": "training", "sequence": "1Ki"}
    offers = purchase()["offers"]
    offers[1] |= {"plans": ["SP8"]}
    plans = [{"name": "TP8", "tp": 8}, {"name": "SP8", "sp": 8}]
    decision = decided(purchase(workload=workload, offers=offers, plans=plans, project={"tokens": "1G"}), curves=True)
    assert decision.rows[1].best is None and decision.rows[1].outcome is None
    assert decision.winner is decision.rows[0] and decision.verdicts == ()
    assert [row.name for row in decision.ranked("tokens_per_s")] == ["A", "B"]


def test_the_same_purchase_gives_the_same_json(small: Decision) -> None:
    assert decided(purchase(), curves=True).to_json() == small.to_json()


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("name", PURCHASES)
def test_every_shipped_purchase_runs_on_every_offer(name: str) -> None:
    """With fewer tokens and nodes, to be quick; every offer has a plan that fits, and one that does is enough."""
    batch = "global_batch=32" if load(name).workload.global_batch else "sequences_per_replica=1"
    questions = expand(load(name, ["workload.sequence=8Ki", f"workload.{batch}"]))
    assert len(questions) >= 2
    for question in questions:
        assert isinstance(question.cluster, ClusterInline)
        few = question.cluster.model_copy(update={"nodes": min(4, question.cluster.nodes)})
        question, _, _ = searched_apart(question.model_copy(update={"cluster": few}), True)
        # Those first whose schedule need not be searched for.
        plans = sorted(question.plans, key=lambda plan: plan.degrees(few.nodes * 8).get("tsp", 1))
        alone = (question.model_copy(update={"plans": (plan,)}) for plan in plans)
        assert any(simulate(each).plans[0].ran for each in alone), question.name


def test_the_purchase_compares_all_seven_devices() -> None:
    devices = [question.cluster.device for question in expand(load("purchase-8b-128k"))]  # type: ignore[union-attr]
    assert devices == ["mi300x", "mi325x", "mi355x", "h100", "h200", "b200", "gb200"]


def test_tsp_moves_fewer_bytes_than_tp_and_tp_sp_in_the_grouped_query_scenario() -> None:
    result = simulate(expand(load("gqa-tsp-moves-fewer-bytes"))[0])
    moved = {plan.name: plan.communication_bytes_per_layer["total"] for plan in result.plans}
    assert moved["TSP8"] < moved["TP4-SP2"] and moved["TSP8"] < moved["TP8"]


def test_what_the_fabric_scenario_is_about() -> None:
    """Groups across nodes feel the NIC more than replicas do; a thin fabric is never faster."""
    rates = {
        result.scenario["name"]: {plan.name: plan.tokens_per_s for plan in result.plans}
        for result in map(simulate, expand(load("nic-400g-against-800g")))
    }
    gain = {plan: rates["800G rails"][plan] / rates["400G rails"][plan] for plan in rates["400G rails"]}
    assert gain["TP8-SP2"] > gain["TP8"] >= 1.0
    for plan, rate in rates["400G any to any"].items():
        assert rates["400G four to one"][plan] <= rate * (1 + 1e-9)


def test_one_ring_wastes_a_mesh_and_not_a_switch() -> None:
    loss = {}
    for question in expand(load("ring-mesh-against-switch", ["workload.sequence=64Ki"])):
        result = simulate(question)
        loss[question.name] = result.plan("SP8").tokens_per_s / result.plan("SP8-one-ring").tokens_per_s
    assert min(loss["MI300X mesh"], loss["MI355X mesh"]) > 1.2
    assert max(loss["H200 switch"], loss["B200 switch"]) == pytest.approx(1.0, abs=0.02)


@pytest.mark.slow
def test_the_purchase_is_a_page_with_a_report_of_every_offer(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tspsim", "compare", "purchase-8b-128k", "--html", str(tmp_path / "page.html")]
    subprocess.run(command, check=True, capture_output=True)
    assert len(list((tmp_path / "page-reports").glob("*.html"))) == 7
