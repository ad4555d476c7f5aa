"""Scenarios with traffic at the command line: what is printed, which files appear, exit codes, one line a mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tspsim.cli import main

SERVED = """\
name: small-service
cluster: {device: h100, nodes: 1, gpus_per_node: 1}
workload: {model: llama-3.1-8b, stack: vllm}
traffic:
  arrivals: {kind: closed, concurrency: 4}
  prompt: {kind: uniform, of: 1Ki, from: 0.8}
  output: {kind: uniform, of: 64, from: 0.8}
  requests: 12
  slo: {ttft: 1 s, tpot: 20 ms}
plans:
  - {name: one, tp: 1}
"""
OFFERS = """\
offers:
  - {name: H100, cluster: {device: h100, nodes: 1, gpus_per_node: 1}}
  - {name: B200, cluster: {device: b200, nodes: 1, gpus_per_node: 1}}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "served.yaml").write_text(SERVED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TSPSIM_CATALOG", raising=False)
    return tmp_path


def test_run_prints_the_answer_and_writes_it(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    assert main(["run", "served.yaml", "--json", "out.json"]) == 0
    printed = capsys.readouterr().out
    assert "one serves with 4 clients" in printed and "First tokens come after" in printed
    assert "output tokens cost $" in printed and "4 clients send a request at the start" in printed
    entry = json.loads((here / "out.json").read_text())["plans"][0]
    assert entry["serving"]["requests"] == 12 and entry["range"]["ttft_s"]["low"] > 0


def test_set_reaches_every_key_of_traffic(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["traffic.arrivals={kind: poisson, rate: 2}", "traffic.prompt.of=512", "traffic.slo.ttft=3 s"]
    options += ["traffic.seed=7", "traffic.protocol=vllm_bench", "workload.engine.max_num_seqs=16"]
    arguments = [part for option in options for part in ("--set", option)]
    assert main(["run", "served.yaml", "--json", "-", *arguments]) == 0
    document = json.loads(capsys.readouterr().out)
    stated = document["scenario"]["traffic"]
    assert stated["arrivals"] == {"kind": "poisson", "rate": 2.0} and stated["prompt"]["of"] == 512
    assert (stated["slo"]["ttft"], stated["seed"], stated["protocol"]["kind"]) == (3.0, 7, "vllm_bench")
    assert document["plans"][0]["settings"]["engine"]["max_num_seqs"] == 16


def test_every_step_gives_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for more in ([], ["--every-step"]):
        assert main(["run", "served.yaml", "--json", "-", *more]) == 0
        answers.append(json.loads(capsys.readouterr().out)["plans"][0]["serving"]["e2e_s"])
    assert answers[1] == pytest.approx(answers[0], rel=1e-9)


def test_compare_shows_offers_side_by_side(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "offers.yaml").write_text("\n".join(line for line in SERVED.split("\n") if "cluster" not in line) + OFFERS)
    assert main(["compare", "offers.yaml", "--json", "c.json", "--csv", "c.csv"]) == 0
    printed = capsys.readouterr().out
    assert "H100" in printed and "B200" in printed and "TTFT" in printed
    document = json.loads((here / "c.json").read_text())
    assert [result["scenario"]["name"] for result in document["results"]] == ["H100", "B200"]
    assert document["purchase"]["winner"] in ("H100", "B200")
    header = (here / "c.csv").read_text().splitlines()[0]
    assert header.endswith("requests_per_s,goodput_requests_per_s,tokens_per_s_per_user")


def test_offers_are_counted_out_for_users_and_requests(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    text = "\n".join(line for line in SERVED.split("\n") if "cluster" not in line) + OFFERS
    (here / "offers.yaml").write_text(f"{text}project: {{users: 10, requests: 1 requests/s}}\n")
    assert main(["compare", "offers.yaml", "--json", "c.json"]) == 0
    assert "H100: 3 nodes, 3 GPUs, each machine with 4.00 users at" in capsys.readouterr().out
    document = json.loads((here / "c.json").read_text())
    for offer, result in zip(document["purchase"]["offers"], document["results"], strict=True):
        service, point = offer["service"], result["plans"][0]["serving"]
        assert service["machines"] == 3 and service["load"] == {"concurrency": 4}
        assert service["requests_per_s"] == point["steady"]["goodput_requests_per_s"]
        rental = offer["rates"]["usd_per_gpu_hour"]["rental"]
        assert service["usd_per_hour"]["rental"] == pytest.approx(3 * rental)
        assert service["kwh_per_day"] == pytest.approx(3 * 24 * offer["rates"]["watts_per_gpu"] / 1000)


def test_a_project_s_users_stand_beside_traffic(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    step = SERVED.split("traffic:")[0].replace("stack: vllm", "pass: decode, batch: 4, context: 1Ki")
    (here / "step.yaml").write_text(f"{step}plans: [{{name: one, tp: 1}}]\nproject: {{users: 10}}\n")
    assert main(["run", "step.yaml", "--json", "-"]) == 2
    assert "project.users is of a scenario with traffic" in capsys.readouterr().err


def test_a_sweep_has_a_row_a_point_and_goes_on_where_it_was(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    arguments = ["sweep", "served.yaml", "--over", "traffic.arrivals.concurrency=1,4", "--out", "s.csv", "--jobs", "1"]
    assert main(arguments) == 0
    first = (here / "s.csv").read_text().splitlines()
    assert len(first) == 3 and {"ttft_s_mean", "tpot_s_p99", "serving_wall_s"} <= set(first[0].split(","))
    assert main([*arguments, "--resume"]) == 0
    again = (here / "s.csv").read_text().splitlines()
    assert again == first  # the store had them all
    assert "2 ran" in capsys.readouterr().out


def test_check_says_what_is_asked_and_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "served.yaml"]) == 0
    printed = capsys.readouterr().out
    assert "llama-3.1-8b, requests, 1 point of load" in printed and "vllm, 1 replica, caches of each hold" in printed


@pytest.mark.parametrize(
    ("option", "code", "told"),
    [
        ("traffic.arrivals={kind: poisson, rate: 0}", 2, "traffic.arrivals.rate: '0' must be more than zero"),
        ("traffic.prompt=-5", 2, "traffic.prompt: '-5' must be more than zero"),
        ("traffic.prompt=400Ki", 2, "the model has 131,072 positions"),
        ("workload.engine.max_num_seq=3", 2, "unknown option of vllm 'max_num_seq' (did you mean 'max_num_seqs'?)"),
        ("workload.pass=decode", 2, "workload.pass: states the size of a single step; leave it out beside traffic"),
        ("workload.model=llama-3.1-70b", 3, "no plan fits; the nearest, one, needs"),
        ("workload.engine.kv_tokens=0", 3, "tokens does not fit the caches of a replica, which hold 0"),
        # That it is answered well: test_serving_answer.py.
        pytest.param("traffic.arrivals={kind: fixed, rate: highest}", 0, "", marks=pytest.mark.slow),
    ],
)
def test_a_mistake_is_one_line_and_its_exit_code(
    option: str, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "served.yaml", "--json", "out.json", "--set", option]) == code
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == (1 if code else 0)


def test_an_overload_is_refused_with_the_rate_that_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--set", "traffic.arrivals={kind: poisson, rate: 200}", "--set", "traffic.prompt=4Ki"]
    options += ["--set", "traffic.requests=100"]
    assert main(["run", "served.yaml", "--json", "out.json", *options]) == 3
    assert "requests come at 200/s, and it serves about" in capsys.readouterr().err


def test_ceilings_are_of_one_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bound", "served.yaml"]) == 2
    assert "traffic: ceilings are of one step" in capsys.readouterr().err


def test_ctrl_c_in_a_curve_keeps_what_was_finished(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tspsim.serving import answer as room

    real, calls = room.point, []

    def stopped(*given: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*given, **named)

    monkeypatch.setattr(room, "point", stopped)
    assert main(["run", "served.yaml", "--json", "out.json", "--set", "traffic.arrivals.concurrency=[1, 2, 4]"]) == 130
    told = capsys.readouterr()
    assert told.err.strip() == "tspsim: interrupted" and "interrupted: 2 of 3 points were finished" in told.out
    entry = json.loads((here / "out.json").read_text())["plans"][0]
    assert [point["concurrency"] for point in entry["curve"]] == [1, 2]
