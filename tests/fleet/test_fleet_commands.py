"""Commands over fleets: what is wrong is one line with its place and what is allowed, exit code 2, and nothing written;
a sweep has a row a point."""

from __future__ import annotations

import csv
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from tspsim import cli
from tspsim.base.errors import InputError
from tspsim.scenario import Scenario
from tspsim.scenario import load as load_scenario
from tspsim.studies import best_plans, fleet_sweep, fleet_worker
from tspsim.studies.query import Query

MACHINE = {"device": "h100", "nodes": 4, "fabric": "rails-400g"}
HEAD = "job_id,user,gpu_num,submit_time,start_time,end_time\n"
RAN = "job_id,user,gpu_num,submit_time,duration\n"


def job(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "hours": "1 h"} | keys


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def asked(*jobs: dict[str, Any], **changes: Any) -> str:
    Path("q.json").write_text(json.dumps({"name": "q", "cluster": MACHINE, "jobs": jobs} | changes), encoding="utf-8")
    return "q.json"


def refused(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """The one line of a command that is refused and writes nothing."""
    before = sorted(Path().rglob("*"))
    assert cli.main([*command, "--json", "out.json"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert sorted(Path().rglob("*")) == before
    return line


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (RAN.replace("gpu_num", "cards") + "a,u,8,5,3\n", "row 1: no column says gpus; name one"),
        (RAN.replace(",duration", ",kind") + "a,u,8,5,x\n", "row 1: no column says runs; name one"),
        (HEAD + "a,u,8,100,90,80\n", "row 2, column end_time: lies 10 s before start_time; times do not go back"),
        (RAN + "a,u,8,5,60\nb,u,8,9,-3\n", "row 3, column duration: '-3' is not a number of at least 0"),
        (RAN + "a,u,8,nan,60\n", "row 2, column submit_time: 'nan' is not a time: seconds, or such as 2023-05-17T08"),
        (RAN + "a,u,8.5,5,60\n", "row 2, column gpu_num: '8.5' is not a whole number"),
        (RAN + "a,u,40,5,60\n", "row 2: job a has 40 GPUs; at most the cluster's 4 nodes of 8 GPUs"),
        (
            RAN + "".join(f"{n},u,8,{n},6{'x' * (n == 9876)}\n" for n in range(10_000)),
            "row 9878, column duration: '6x'",
        ),
    ],
)
def test_a_wrong_log_is_told_with_file_row_and_column(capsys: pytest.CaptureFixture[str], log: str, told: str) -> None:
    Path("log.csv").write_text(log, encoding="utf-8")
    line = refused(capsys, "run", asked({"name": "log", "file": "log.csv"}))
    assert "log.csv: " in line and told in line


@pytest.mark.parametrize(
    ("jobs", "told"),
    [
        ([job("a", nodes=5)], "job 'a': nodes: 5, and the cluster has 4"),
        ([job("a", gpus=9)], "jobs.a.gpus: 9 of one node, which has 8; use nodes"),
        ([job("a", after="b"), job("b", after="c"), job("c", after="a")], "circle: a → b → c → a"),
        ([job("a", after="bb"), job("b")], "unknown job 'bb' (did you mean 'b'?)"),
        ([job("a", hours="-2 h")], "jobs.a.hours"),
        ([job("a", submit="-1 h")], "jobs.a.submit"),
        ([job("a", nodes=0)], "jobs.a.nodes"),
    ],
)
def test_wrong_jobs_are_told_with_their_key(
    capsys: pytest.CaptureFixture[str], jobs: list[dict[str, Any]], told: str
) -> None:
    line = refused(capsys, "run", asked(*jobs))
    assert "q.json" in line and told in line


def test_one_job_is_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", asked(job("a")), "--json", "out.json"]) == 0
    assert capsys.readouterr().out.startswith("1 job on 4 nodes, 32 × H100")


def test_answers_of_a_sweep_are_kept_by_what_a_fleet_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("log.csv").write_text(RAN + "a,u,8,5,60\nb,u,32,9,60\n", encoding="utf-8")
    name = asked({"name": "log", "file": "log.csv"}, job("a", nodes=3), needs={"p95_wait": "1 h"})
    over = ["sweep", name, "--over", "cluster.nodes=4,5", "--over", "scheduler=fcfs,easy", "--out", "t.csv"]
    assert cli.main([*over, "--html", "t.html"]) == 0
    first, page = Path("t.csv").read_text(encoding="utf-8"), Path("t.html").read_text(encoding="utf-8")
    assert "Work that lasts" in page and "figure-heat" in page and "4 points, 4 ran" in page
    assert cli.main(over) == 2  # the store is there
    calls: list[Query[object]] = []
    monkeypatch.setattr(fleet_sweep, "answer", lambda asked: calls.extend(asked) or fleet_worker.answer(asked))
    # What is asked of `compare`, and words, are not what a fleet is; its log is.
    assert cli.main([*over, "--resume", "--set", "needs.p95_wait=2 h", "--set", "description=words"]) == 0
    assert not calls and Path("t.csv").read_text(encoding="utf-8") == first
    Path("log.csv").write_text(RAN + "a,u,8,5,60\nb,u,32,9,61\n", encoding="utf-8")
    assert cli.main([*over, "--resume"]) == 0
    assert len(calls) == 4 and Path("t.csv").read_text(encoding="utf-8") != first
    # A worker elsewhere gets the question as bytes, and says the same.
    (told,) = fleet_worker.answer([pickle.loads(pickle.dumps(calls[0]))])
    assert (told.key, told.text) == (calls[0].key, fleet_worker.answer(calls[:1])[0].text)
    Path("log.csv").write_text(RAN + "a,u,8,5,60\n", encoding="utf-8")
    with pytest.raises(InputError, match="a worker reads another catalog or log"):
        fleet_worker.answer(calls[:1])


def test_a_plan_that_is_searched_for_is_searched_once_for_all_points(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []

    def found(scenarios: list[Scenario], **_: object) -> list[tuple[Scenario, None]]:
        searched.extend(scenario.name for scenario in scenarios)
        return [(load_scenario({**each.to_dict(), "plans": [{"name": "best", "tp": 8}]}), None) for each in scenarios]

    monkeypatch.setattr(best_plans, "with_best", found)
    work = {"model": "llama-3.1-8b", "pass": "training", "sequence": 4096}
    name = asked(job("trained", nodes=2) | {"workload": work, "plan": "best"}, job("other", nodes=2))
    table = fleet_sweep.FleetSweep(name, ["scheduler=fcfs,easy", "cluster.nodes=4,6"]).run(jobs=1)
    assert table.ran == 4 and len(searched) == 1


def test_a_sweep_over_a_fleet_has_a_row_a_point(capsys: pytest.CaptureFixture[str]) -> None:
    name = asked(job("wide", nodes=3), job("other", nodes=2), job("late", nodes=1))
    over = ["--over", "cluster.nodes=2..6*2", "--over", "scheduler=fcfs,easy", "--over", "jobs.late.hours=1 h,3 h"]
    assert cli.main(["sweep", name, *over, "--out", "t.csv"]) == 0
    assert "8 rows of 8 points; 4 ran" in capsys.readouterr().out
    rows = list(csv.DictReader(Path("t.csv").read_text(encoding="utf-8").splitlines()))
    assert ["the cluster has 2" in row["error"] for row in rows] == [True] * 4 + [False] * 4
    assert [float(row["horizon_s"]) / 3600 for row in rows[4:]] == [2.0, 4.0, 2.0, 3.0]
    assert cli.main(["run", name, "--set", "scheduler=easy", "--set", "jobs.late.hours=3 h", "--json", "a.json"]) == 0
    single = json.loads(Path("a.json").read_text(encoding="utf-8"))["fleet"]
    assert float(rows[-1]["productive"]) == single["productive"] and float(rows[-1]["cost_usd"]) == single["cost_usd"]
    capsys.readouterr()
    for wrong, told in (
        (["--over", "clster.nodes=2,4"], "did you mean 'cluster'?"),
        (["--over", "cluster.nodes=2,4", "--jobs", "2", "--scheduler", "tcp://a:1"], "names other workers than"),
    ):
        assert cli.main(["sweep", name, *wrong, "--out", "w.csv"]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert told in line and not Path("w.csv").exists()
