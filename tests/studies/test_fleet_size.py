"""How many nodes a fleet takes: enough in every draw, one less is not, and what cannot be reached is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tspsim import cli
from tspsim.errors import InputError
from tspsim.fleet import FleetQuestion, answer, load
from tspsim.fleet.needs import reached
from tspsim.studies.fleet_size import fleet_sizes

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


def holds(question: FleetQuestion, nodes: int, seed: int) -> bool:
    cluster = question.cluster.model_copy(update={"nodes": nodes})
    asked = question.model_copy(update={"cluster": cluster, "seed": seed})

    def nobody(_: object) -> Any:
        raise AssertionError("no job here has a step")

    assert question.needs is not None
    return all(each.kept for each in reached(question.needs, answer(asked, nobody)))


def test_so_many_nodes_hold_in_every_draw_and_one_less_does_not_in_one() -> None:
    sizes = fleet_sizes(QUESTION)
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("q.json").write_text(json.dumps(QUESTION), encoding="utf-8")
    assert cli.main(["compare", "q.json", "--json", "a.json"]) == 0
    shown = capsys.readouterr().out
    assert "in the worst of 3 draws 95 % of jobs wait up to" in shown and "With one node less" in shown
    assert (
        json.loads(Path("a.json").read_text(encoding="utf-8"))["fleet_sizes"]
        == fleet_sizes(QUESTION).to_json()["fleet_sizes"]
    )
    assert cli.main(["compare", "q.json", "--set", "needs.p95_wait=1 s", "--set", "needs.done_by=3 days"]) == 3
    assert "no offer reaches" in capsys.readouterr().err
    assert cli.main(["compare", "q.json", "--csv", "c.csv"]) == 2
    assert not Path("c.csv").exists()
    assert cli.main(["compare", "q.json", "--html", "c.html"]) == 0
    page = Path("c.html").read_text(encoding="utf-8")
    assert "Enough in every draw" in page and "figure-waits-0" in page and "With one node less" in page


def test_what_is_needed_has_to_be_said() -> None:
    with pytest.raises(InputError, match="needs: says nothing of what has to hold"):
        fleet_sizes({key: value for key, value in QUESTION.items() if key != "needs"})
    with pytest.raises(InputError, match="needs something: done_by, p95_wait, deadlines or services"):
        fleet_sizes(QUESTION | {"needs": {"draws": 3}})
    with pytest.raises(InputError, match="two offers are named 'few'"):
        fleet_sizes(QUESTION | {"offers": [QUESTION["offers"][1]] * 2})
