"""How many nodes a fleet takes: enough in every draw, one less is not, and what cannot be reached is told."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tspsim import cli
from tspsim.base.errors import InputError
from tspsim.fleet import FleetQuestion, answer, load
from tspsim.fleet.needs import reached
from tspsim.report.memo import sheet
from tspsim.report.memo.fleet import headline, memo_of
from tspsim.studies.fleet_size import FleetSizes, fleet_sizes

QUESTION: dict[str, Any] = {
    "name": "how-many",
    "cluster": {"device": "h100", "nodes": 8, "fabric": "rails-400g"},
    "jobs": [
        {"name": "wide", "nodes": 6, "hours": "2 days"},
        {"name": "many", "nodes": 1, "hours": {"kind": "exponential", "mean": "6 h"}, "count": 120,
         "arrivals": {"kind": "poisson", "rate": "20/day"}},
    ],
    "needs": {"p95_wait": "1 h", "draws": 3},
    "offers": [
        {"name": "H100", "cluster": {"device": "h100", "nodes": 40, "fabric": "rails-400g"}},
        {"name": "few", "cluster": {"device": "b200", "nodes": 7, "fabric": "rails-400g"}},
        {"name": "none", "cluster": {"device": "b200", "nodes": 4, "fabric": "rails-400g"}},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def sizes() -> FleetSizes:
    return fleet_sizes(QUESTION)


def holds(question: FleetQuestion, nodes: int, seed: int) -> bool:
    cluster = question.cluster.model_copy(update={"nodes": nodes})
    asked = question.model_copy(update={"cluster": cluster, "seed": seed})

    def nobody(_: object) -> Any:
        raise AssertionError("no job here has a step")

    assert question.needs is not None
    return all(each.kept for each in reached(question.needs, answer(asked, nobody)))


def test_so_many_nodes_hold_in_every_draw_and_one_less_does_not_in_one(sizes: FleetSizes) -> None:
    found, few, none = sizes.sizes
    question = load(QUESTION)
    assert 6 < found.nodes < 40 and found.low <= found.high <= found.nodes
    assert all(holds(question, found.nodes, seed) for seed in range(3))
    assert not all(holds(question, found.nodes - 1, seed) for seed in range(3))
    assert "7 nodes are too few: 95 % of jobs wait up to" in few.error
    assert none.error == "a job takes 6 nodes; 4 are offered"
    assert found.to_json()["reached"][0]["value"] <= 3600.0 < found.to_json()["with_one_node_less"][0]["value"]
    assert sizes.cheapest == found


def test_the_command_prints_and_writes_it(
    sizes: FleetSizes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("q.json").write_text(json.dumps(QUESTION), encoding="utf-8")
    assert cli.main(["compare", "q.json", "--json", "a.json"]) == 0
    shown = capsys.readouterr().out
    assert "in the worst of 3 draws 95 % of jobs wait up to" in shown and "With one node less" in shown
    assert json.loads(Path("a.json").read_text(encoding="utf-8"))["fleet_sizes"] == sizes.to_json()["fleet_sizes"]
    assert cli.main(["compare", "q.json", "--set", "needs.p95_wait=1 s", "--set", "needs.done_by=3 days"]) == 3
    assert "no offer reaches" in capsys.readouterr().err
    assert cli.main(["compare", "q.json", "--csv", "c.csv", "--html", "c.html"]) == 0
    rows = list(csv.DictReader(Path("c.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["nodes"] for row in rows] == [str(sizes.sizes[0].nodes), "", ""]
    assert float(rows[0]["p95_wait"]) == sizes.sizes[0].reached[0].value and rows[2]["error"].startswith("a job takes")
    page = Path("c.html").read_text(encoding="utf-8")
    assert "Enough in every draw" in page and "figure-waits-0" in page and "With one node less" in page


def test_what_is_needed_has_to_be_said() -> None:
    with pytest.raises(InputError, match="needs: states no needs"):
        fleet_sizes({key: value for key, value in QUESTION.items() if key != "needs"})
    with pytest.raises(InputError, match="needs something: done_by, p95_wait, deadlines or services"):
        fleet_sizes(QUESTION | {"needs": {"draws": 3}})
    with pytest.raises(InputError, match="two offers are named 'few'"):
        fleet_sizes(QUESTION | {"offers": [QUESTION["offers"][1]] * 2})


def test_a_job_of_several_sizes_takes_its_smallest_and_a_log_too_wide_is_too_few() -> None:
    small = {"name": "either", "nodes": [6, 2], "hours": "1 h"}
    two = QUESTION | {"jobs": [small], "offers": [], "needs": {"done_by": "10 h", "draws": 1}}
    assert fleet_sizes(two).sizes[0].nodes == 2
    spared = two | {"failures": {"components": {"gpu": {"rate": 0}}, "spares": 3}}
    assert fleet_sizes(spared).sizes[0].nodes == 5


def test_a_row_of_a_log_says_how_many_nodes_it_takes(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("job_id,user,gpu_num,submit_time,duration\na,u,8,0,60\nb,u,40,9,60\n", encoding="utf-8")
    asked = QUESTION | {
        "jobs": [{"name": "log", "file": str(log)}],
        "offers": [],
        "needs": {"done_by": "1 day", "draws": 1},
    }
    (found,) = fleet_sizes(asked).sizes
    assert found.nodes == 5 and found.fewer == ()


def test_a_plan_that_is_searched_for_is_that_of_the_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str | None] = []

    def best(question: FleetQuestion, **_: object) -> FleetQuestion:
        searched.append(question.cluster.device)
        return question

    monkeypatch.setattr("tspsim.studies.fleet_size.fleet_with_best", best)
    fleet_sizes(QUESTION)
    assert searched == ["h100", "b200"]  # the third takes too few nodes for any job


def test_draws_have_ranges_and_a_memo(sizes: FleetSizes) -> None:
    told = sizes.to_json()["fleet_sizes"][0]
    low, high = told["reached"][0]["of_draws"]
    assert low <= high == told["reached"][0]["value"] and told["cost_usd_of_draws"][0] <= told["cost_usd"]
    memo = memo_of(sizes, load(QUESTION))
    assert memo.standing == "sure" and f"{sizes.sizes[0].nodes} nodes of H100" in memo.verdict
    written = sheet.sheet(memo)
    assert "7 nodes are too few" in written and "single draws take" in written
    able = [sizes.sizes[0], replace(sizes.sizes[0], offer="other")]
    assert headline(able)[0] == "tie"
    assert headline([able[0], replace(able[1], usd_of_draws=None, usd=None)])[0] == "open"
    assert headline([])[1] == "No offer meets the needs."
