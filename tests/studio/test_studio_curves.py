"""What the studio copies asks the same; curves along numbers, stated or not."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.studio import FLEET, QUESTION

from tspsim.api import answered, parse_yaml
from tspsim.cli import main
from tspsim.studio import kept
from tspsim.studio.desks import Desks, TabProcesses


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TabProcesses]:
    desks = Desks(tmp_path_factory.mktemp("curves"))
    yield desks.of("tab")
    desks.close()


SEARCHED = QUESTION.replace("plans: [{name: TP8, tp: 8}]", "plans: [{name: best, search: {limits: [schemes=tp]}}]")
OFFERED = SEARCHED + "offers: [{name: A, cluster: {device: h100}}, {name: B, cluster: {device: h200}}]\n"


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("text", [QUESTION, SEARCHED, OFFERED, FLEET], ids=["plans", "searched", "offered", "fleet"])
def test_what_is_copied_as_python_writes_the_command_s_bytes(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("right.yaml").write_text(text, encoding="utf-8")
    assert main(["run", "right.yaml", "--json", "told.json"]) == 0
    exec(kept.script(parse_yaml(text), "some/right.yaml"), {})
    assert Path("right.json").read_bytes() == Path("told.json").read_bytes()


def test_what_is_copied_as_a_command_writes_the_same_bytes(tmp_path: Path) -> None:
    document = tmp_path / "right.json"
    lines = kept.command(QUESTION, "right.yaml").replace("tspsim run", f"{sys.executable} -m tspsim run")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run(["bash", "-ec", lines], cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert document.read_text(encoding="utf-8") == answered(parse_yaml(QUESTION))[0].dumps() + "\n"


def test_a_number_that_is_not_stated_slides_from_as_it_is(desk: TabProcesses) -> None:
    two = QUESTION.replace("nodes: 1", "nodes: 2, fabric: rails-400g")
    points = ["", "400 Gb/s", "100 Gb/s", "0 Gb/s"]
    told = desk.done("front", "curve", two, "q.yaml", "cluster/nic_bandwidth", points)["points"]
    rates = [point["lines"]["TP8"]["tokens_per_s"] for point in told[:3]]
    assert rates[0] == rates[1] and "more than zero" in told[3]["error"]
    priced = desk.done("front", "curve", two, "q.yaml", "prices/gpu_hour", ["1 USD/h", "3 USD/h"])["points"]
    low, high = (point["lines"]["TP8"]["usd"] for point in priced)
    assert high == pytest.approx(3 * low)


def test_a_project_s_days_follow_how_often_nodes_fail(desk: TabProcesses) -> None:
    text = QUESTION + "project: {tokens: 100T}\n"
    told = desk.done("front", "curve", text, "q.yaml", "project/failures/node_mtbf", ["1 days", "1000 days"])["points"]
    often, rarely = (point["lines"]["TP8"] for point in told)
    # Young 1974: what checkpoints of a minute and outages of ten cost where the one node fails every day.
    lost = math.sqrt(2 * 60 / 86_400) + 600 / 86_400
    assert 1 - often["project_goodput"] == pytest.approx(lost, rel=0.1) and often["days"] > rarely["days"]
    work = 100e12 / rarely["tokens_per_s"] / 86_400
    assert rarely["days"] == pytest.approx(work / rarely["project_goodput"])


def test_a_curve_of_a_fleet_has_a_line_for_the_cluster_and_one_a_class(desk: TabProcesses) -> None:
    points = desk.done("front", "curve", FLEET, "q.yaml", "cluster/nodes", ["4", "8", "1"])["points"]
    four, eight, one = (point["lines"] for point in points)
    assert set(four) == {"all jobs", "train", "other"} and "the cluster has 1" in points[2]["error"] and not one
    assert eight["other"]["mean_wait_s"] == 0.0 < four["other"]["mean_wait_s"]
    assert eight["all jobs"]["allocated"] < four["all jobs"]["allocated"]
