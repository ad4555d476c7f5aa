"""Orders of nodes on unequal links: as data, in closed form, and searched."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tspsim
from tspsim import cli
from tspsim.base.errors import InputError
from tspsim.network import between_nodes, build_cluster, with_pairs
from tspsim.scenario import Scenario
from tspsim.step.question import look_up
from tspsim.step.simulation import run_plan, scheduled
from tspsim.studies.mapping import annealed, form_of, mapped
from tspsim.studies.planner.written import scenario_text

SLOW = [[0, 300, 30, 300], [300, 0, 300, 30], [30, 300, 0, 300], [300, 30, 300, 0]]


def equal(rate: float, nodes: int = 4) -> list[list[float]]:
    return [[0.0 if here == there else rate for there in range(nodes)] for here in range(nodes)]


def asked(rows: list[list[float]], batch: int = 8, **plan: Any) -> Scenario:
    cluster = {"device": "mi300x", "nodes": len(rows), "fabric": "rails-400g", "measured": {"rows": rows}}
    workload = {"model": "llama-3.1-70b", "pass": "training", "sequence": "4Ki", "global_batch": batch}
    return tspsim.load({"name": "mapping", "cluster": cluster, "workload": workload,
                        "plans": [{"name": "P", "tp": 8, **plan}]})  # fmt: skip


def step_s(scenario: Scenario) -> float:
    (plan,) = tspsim.simulate(scenario).plans
    return plan.step_time_s


def test_measured_bandwidths_are_what_nodes_get() -> None:
    cluster = with_pairs(build_cluster("mi300x", 4, "rails-400g"), [[each * 1e9 for each in row] for row in SLOW])
    found = between_nodes(cluster) / 1e9
    for here, there in permutations(range(4), 2):
        assert found[here, there] == pytest.approx(SLOW[here][there])
    assert np.isinf(np.diag(found)).all()


def test_equal_links_read_the_same_off_switches_and_off_a_matrix() -> None:
    switched = build_cluster("mi300x", 4, "rails-400g")
    found = between_nodes(switched)
    assert found[0, 1] == pytest.approx(8 * 50e9 * 0.96)
    assert between_nodes(with_pairs(switched, equal(found[0, 1]))) == pytest.approx(found)


def test_a_step_on_a_matrix_of_the_fabric_s_own_rate_takes_what_it_takes_on_the_fabric() -> None:
    matrix = asked(equal(384.0), pp=2, zero=1)
    plain = matrix.model_copy(update={"cluster": matrix.cluster.model_copy(update={"measured": None})})  # type: ignore[union-attr]
    assert step_s(matrix) == pytest.approx(step_s(plain), rel=1e-3)


def test_the_slope_of_a_micro_batch_in_the_message_time_is_that_of_the_hidden_critical_path() -> None:
    """2(p − 1)/p = 1.5 for four stages, beyond where the slowest stage decides; flat below."""
    found = []
    for rate in (380.0, 10.0, 7.0):
        few, many = asked(equal(rate), 8, pp=4), asked(equal(rate), 12, pp=4)
        question = look_up(many)
        form = form_of(question, scheduled(question, question.plans[0]))
        message_s = form.message_bytes / form.rate[0, 1]
        found.append((message_s, (step_s(many) - step_s(few)) / 4, form.pipeline_s(np.arange(4))))
    (free_x, free, closed), (low_x, low, low_closed), (high_x, high, high_closed) = found
    assert (low - free) / (low_x - free_x) < 1.2
    assert (high - low) / (high_x - low_x) == pytest.approx(1.5, rel=0.06)
    assert (high_closed - low_closed) / (high_x - low_x) == pytest.approx(1.5, rel=1e-9)
    assert closed == pytest.approx(free, rel=0.06)


def test_nothing_is_gained_on_equal_links() -> None:
    found = mapped(asked(equal(300.0), pp=2, zero=1), turns=300)
    assert found.gain == 1.0
    assert found.order == (0, 1, 2, 3)
    assert found.source_scenario.plans[0].placement is not None
    assert not found.source_scenario.plans[0].placement.order


def test_annealing_finds_the_best_of_all_orders_and_simulation_agrees() -> None:
    scenario = asked(SLOW, pp=2, zero=1)  # type: ignore[arg-type]
    question = look_up(scenario)
    form = form_of(question, scheduled(question, question.plans[0]))
    best = min(form.step_s(np.array(order)) for order in permutations(range(4)))
    ((found_s, order), *_) = annealed(form.step_s, 4, turns=300)
    assert found_s == pytest.approx(best, rel=1e-8)
    found = mapped(scenario, turns=300)
    assert found.order == order
    assert found.gain > 1.5
    assert step_s(found.source_scenario) == found.result.step_time_s


def test_a_search_follows_from_its_seed() -> None:
    scenario = tspsim.load("pipette-mapping")
    assert [plan.name for plan in scenario.plans] == ["Mapped", "Default"]
    found = mapped(scenario, "Default")
    placement = scenario.plan("Mapped").placement
    assert placement is not None
    assert found.order == placement.order
    written = scenario.model_copy(update={"plans": (scenario.plan("Mapped"),)})
    assert step_s(written) == found.result.step_time_s
    assert 1.05 < found.gain < 1.15


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("order", [[1, 0], [8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7]])
def test_an_order_of_nodes_and_one_of_gpus_place_alike_and_fold_exactly(order: list[int]) -> None:
    rows = [[0.0, 300.0], [40.0, 0.0]]
    question = look_up(asked(rows, 4, pp=2, placement={"order": order}))
    folded, whole = (run_plan(question, question.plans[0], every_rank=every) for every in (False, True))
    assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
    for one, other in zip(folded.links, whole.links, strict=True):
        assert one.carried_bytes == pytest.approx(other.carried_bytes, rel=1e-9)
    assert folded.settings["placement"]["order"] == order
    nodes = look_up(asked(rows, 4, pp=2, placement={"order": [1, 0]}))
    assert folded.step_time_s == run_plan(nodes, nodes.plans[0]).step_time_s


def test_an_order_moves_the_same_bytes_over_other_links() -> None:
    plain, turned = (asked(SLOW, pp=2, zero=1, **keys) for keys in ({}, {"placement": {"order": [2, 0, 3, 1]}}))  # type: ignore[arg-type]
    one, other = (tspsim.simulate(each).plans[0] for each in (plain, turned))
    assert one.communication_bytes_per_layer == other.communication_bytes_per_layer
    assert one.memory == other.memory
    assert one.step_time_s != other.step_time_s


@pytest.mark.parametrize("order", [[0, 1, 2], [0, 1, 2, 2], [0, 1, 2, 4]])
def test_what_is_no_order_is_refused_where_it_stands(order: list[int]) -> None:
    with pytest.raises(InputError, match="are no order of 4 nodes") as error:
        look_up(asked(SLOW, placement={"order": order}))  # type: ignore[arg-type]
    assert "placement.order" in str(error.value)


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        ({"rows": [[0, 900], [900, 0]]}, "384 GB/s that a node's NICs reach"),
        ({"rows": [[0, 0], [9, 0]]}, "must be over 0"),
        ({"rows": [[0, 9, 9], [9, 0, 9], [9, 9, 0]]}, "3 rows for 2 nodes"),
        ({"rows": [[0, 9], [9]]}, "as many columns"),
        ({"rows": [[0, 9], [9, 0]], "unit": "GB"}, "unit"),
    ],
)
def test_a_matrix_that_cannot_be_is_refused(measured: dict[str, Any], said: str) -> None:
    cluster = {"device": "mi300x", "nodes": 2, "fabric": "rails-400g", "measured": measured}
    workload = {"model": "llama-3.1-8b", "pass": "training", "sequence": "1Ki"}
    with pytest.raises(InputError, match=said) as error:
        look_up(tspsim.load({"name": "x", "cluster": cluster, "workload": workload, "plans": [{"name": "P", "tp": 8}]}))
    assert "measured" in str(error.value)


def test_the_command_writes_a_scenario_that_takes_what_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, written, answer = (tmp_path / name for name in ("asked.yaml", "best.yaml", "answer.json"))
    file.write_text(scenario_text(asked(SLOW, pp=2, zero=1)), encoding="utf-8")  # type: ignore[arg-type]
    assert cli.main(["plan", str(file), "--place", "P", "--write", str(written), "--json", str(answer)]) == 0
    capsys.readouterr()
    told = json.loads(answer.read_text(encoding="utf-8"))
    assert step_s(tspsim.load(written)) == told["step_time_s"] < told["default_step_time_s"]
