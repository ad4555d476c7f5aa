"""Five first users' questions, each from an empty folder by real commands: a buyer, a serving engineer, a researcher,
somebody in a notebook, somebody with measurements. What each must not be told stands in the test's name."""

from __future__ import annotations

import itertools
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from helpers.nccl_logs import nccl_log

import tspsim
from tspsim.base.units import compact
from tspsim.cli import main
from tspsim.serving.steady import figures, interval, tied
from tspsim.studies.purchase.row import OfferRow
from tspsim.validation.devices import device_name


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TSPSIM_CATALOG", raising=False)
    return tmp_path


def written(name: str, data: dict[str, Any]) -> str:
    Path(name).write_text(yaml.safe_dump(data), encoding="utf-8")
    return name


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What a command prints."""
    capsys.readouterr()
    assert main(list(words)) == code, capsys.readouterr().err
    return capsys.readouterr().out


def words_of(page: str) -> str:
    """What somebody reads on a page."""
    body = Path(page).read_text(encoding="utf-8").partition("<main")[2]
    return " ".join(unescape(re.sub(r"<script.*?</script>|<[^>]*>", " ", body, flags=re.DOTALL)).split())


def test_a_buyer_reads_one_verdict_on_every_surface(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who wins, by how much, how surely, in how many days and for how much: terminal, page, memo, JSON and Python."""
    asked = written("buy.yaml", {
        "name": "buy", "description": "One node for a short run",
        "workload": {"model": "llama-3.1-8b", "pass": "training", "sequence": "4Ki", "global_batch": 16},
        "plans": [{"name": "TP8", "tp": 8}, {"name": "FSDP", "zero": 3, "recomputation": "full"}],
        "offers": [{"name": "H200", "cluster": {"device": "h200"}},
                   {"name": "MI300X", "cluster": {"device": "mi300x"}, "prices": {"gpu_hour": "1 USD/h"}}],
        "project": {"tokens": "20G", "deadline": "30 days", "budget": "5 kUSD"},
    })  # fmt: skip
    said = told(capsys, "compare", asked, "--jobs", "1", "--html", "buy.html", "--json", "buy.json")
    bought = json.loads(Path("buy.json").read_text())["purchase"]
    (verdict,), offers = bought["verdicts"], {offer["name"]: offer for offer in bought["offers"]}
    page, _, memo = words_of("buy.html").partition("Print the memo alone")
    winner, likely = offers[bought["winner"]], offers[bought["winner"]]["project"]["likely"]
    assert bought["winner"] == "MI300X" and not verdict["tie"] and verdict["probability"] > 0.6
    probability, days = f"{100 * verdict['probability']:.1f} %", f"{winner['project']['days']:.3g}"
    ratio = f"{verdict['ratio']:.2f} times the tokens a dollar"
    for surface in (said, page, memo):
        assert "MI300X" in surface and ratio in surface and probability in surface and days in surface
        assert f"{likely['days'][0]:.3g} – {likely['days'][1]:.3g}" in surface
        assert f"{likely['usd'][0]:,.0f} – " in surface.replace("$", "")
        assert "H200 neocloud; MI300X stated" in surface and "ceiling for every offer" in surface
    assert "Required: 20 G tokens, within 30 days, for at most $5 k" in memo and "Approved by" in memo
    assert tspsim.compare(asked, jobs=1).to_frame()["tokens_per_s"].max() == pytest.approx(
        offers["H200"]["tokens_per_s"]
    )
    assert main(["compare", asked, "--html", asked]) == 2 and "is an input" in capsys.readouterr().err


def test_a_buyer_is_not_told_a_winner_that_was_not_searched_for(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offers = [
        {"name": name, "cluster": {"device": name, "nodes": 1}, "prices": {"gpu_hour": f"{usd} USD/h"}}
        for name, usd in (("h200", 3.0), ("mi355x", 3.0))
    ]
    asked = written("buy.yaml", {
        "name": "buy",
        "workload": {"model": "qwen3-30b-a3b", "pass": "training", "sequence": "4Ki", "global_batch": 16},
        "plans": "best", "offers": offers, "project": {"tokens": "20G", "deadline": "30 days", "budget": "500 kUSD"},
    })  # fmt: skip
    words = ("compare", asked, "--budget", "0.2 s", "--jobs", "1")
    first = told(capsys, *words)
    assert told(capsys, *words) == first  # whatever else the machine does
    assert first.startswith("Not searched enough") and "It turns when" not in first and " days " in first
    assert "In the names: `" in first
    # A key of the cluster is every offer's, and a machine is an offer's own.
    half = tspsim.load(asked, ["cluster.gpus_per_node=4"])
    assert [offer.cluster.gpus_per_node for offer in half.offers] == [4, 4]  # type: ignore[union-attr]
    capsys.readouterr()
    assert main(["compare", asked, "--set", "cluster.device=b200"]) == 2
    assert "offers.NAME.cluster.device" in capsys.readouterr().err


def goodput(capsys: pytest.CaptureFixture[str], asked: str, requests: int) -> list[tuple[float, float, float]]:
    """Of every plan good requests/s in the steady part, between which values they lie."""
    answer = json.loads(told(capsys, "run", asked, "--set", f"traffic.requests={requests}", "--json", "-"))
    name, served = "goodput_requests_per_s", [plan["serving"] for plan in answer["plans"]]
    return [(figures(each)[name], *interval(each, name)) for each in served]


def winner(rates: list[tuple[float, float, float]]) -> int | None:
    """Which plan serves most; None of a tie."""
    first, second = sorted(range(len(rates)), key=lambda index: -rates[index][0])[:2]
    return None if tied(rates[first], rates[second]) else first


def test_a_serving_engineer_reads_one_rate_on_every_surface(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "init", "serving")
    assert "fits" in told(capsys, "check", "serving.yaml")
    asked = ("run", "serving.yaml", "--set", "traffic.arrivals.rate=10", "--set", "traffic.requests=200")
    said = told(capsys, *asked, "--html", "chat.html", "--json", "chat.json")
    plans = json.loads(Path("chat.json").read_text())["plans"]
    page = words_of("chat.html")
    for plan in plans:
        row = next(line.split() for line in said.splitlines() if line.startswith(f"{plan['name']} ") and " ms" in line)
        steady = plan["serving"]["steady"]
        for figure in (compact(steady["output_tokens_per_s"]), compact(steady["output_tokens_per_s_per_gpu"])):
            assert figure in " ".join(row) and figure in page
        assert steady["run_requests"] >= 200 and plan["serving"]["bounds"]["kept"]
    assert "TP8 ties with DP8" in said or "DP8 ties with TP8" in said  # both answer all that is sent
    first, second = sorted(plans, key=lambda plan: f"{plan['name']} ties with" not in said)
    sooner = second["serving"]["e2e_s"]["mean"] < first["serving"]["e2e_s"]["mean"]
    assert (f"{second['name']} ends a request sooner" in said) is sooner is ("ends a request sooner" in page)
    assert "(a tie with" in page
    assert main(["run", "serving.yaml", "--set", "workload.stack=atom"]) == 2
    assert "runs on devices of amd" in capsys.readouterr().err


@pytest.mark.slow
def test_what_the_search_finds_for_an_engineer_is_what_a_run_of_it_gives(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told(capsys, "init", "serving")
    told(
        capsys, "plan", "serving.yaml", "--budget", "2 s", "--jobs", "1", "--json", "plan.json", "--write", "best.yaml"
    )
    best = json.loads(Path("plan.json").read_text())["plan"]["best"][0]
    run = json.loads(told(capsys, "run", "best.yaml", "--json", "-"))["plans"][0]
    assert figures(run["serving"]) == figures(best["serving"])
    stated = json.loads(told(capsys, "run", "serving.yaml", "--json", "-"))["plans"]
    most = max(figures(plan["serving"])["goodput_requests_per_s"] for plan in stated)
    assert figures(best["serving"])["goodput_requests_per_s"] >= 0.95 * most
    assert "vllm serve meta-llama" in told(capsys, "plan", "best.yaml", "--emit", "vllm")


@pytest.mark.slow
def test_a_serving_engineer_gets_the_same_verdict_of_a_longer_run(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = written("chat.yaml", {
        "name": "chat", "cluster": {"device": "h200", "gpus_per_node": 1},
        "workload": {"model": "llama-3.1-8b", "stack": "vllm"},
        "traffic": {"arrivals": {"kind": "closed", "concurrency": 12},
                    "prompt": {"kind": "lognormal", "mean": 500, "sigma": 0.6},
                    "output": {"kind": "lognormal", "mean": 100, "sigma": 0.6},
                    "slo": {"ttft": "2 s", "tpot": "40 ms"}},
        "plans": [{"name": "usual"}, {"name": "small", "engine": {"max_num_seqs": 4}}],
    })  # fmt: skip
    short, long = (goodput(capsys, asked, requests) for requests in (240, 720))
    for one, other in zip(short, long, strict=True):
        assert one[1] <= other[2] and other[1] <= one[2]
    assert winner(short) in (winner(long), None)
    random = np.random.default_rng(1)
    rows = [f"{at:.3f},500,60" for at in np.cumsum(random.exponential(0.1, 250))]
    Path("trace.csv").write_text("\n".join(["timestamp_s,prompt_tokens,output_tokens", *rows]) + "\n")
    size = [
        "size",
        "trace.csv",
        "--slo",
        "ttft=1s,tpot=30ms",
        "--model",
        "llama-3.1-8b",
        "--on",
        "h200",
        "--on",
        "mi355x",
    ]
    said = told(
        capsys, *size, "--set", "cluster.gpus_per_node=1", "--budget", "0.6 s", "--html", "size.html", "--launch", "go"
    )
    assert "h200: 1 node, 1 GPU" in said and "mi355x: 1 node, 1 GPU" in said
    page = Path("size.html").read_text()
    assert "cheapest" in page and "vllm serve" in page and "One machine" not in page.split("<main")[0]
    assert {each.name for each in Path("go").iterdir()} >= {"h200.sh", "h200.yaml", "mi355x.yaml"}


def test_a_researcher_sees_what_moves_what_and_where_an_order_costs(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told(capsys, "init", "first")
    told(capsys, "check", "first.yaml")
    told(
        capsys,
        "sweep",
        "first.yaml",
        "--over",
        "workload.sequence=4Ki,8Ki,16Ki",
        "--jobs",
        "1",
        "--html",
        "lengths.html",
    )
    page = words_of("lengths.html")
    assert (
        re.search(r"Tokens/s (is highest|rises|falls|peaks)", page)
        and "Effect of each axis" in page
        and "Best: " in page
    )
    also = told(capsys, "compare", "first.yaml", "first.yaml", "--set", "workload.sequence=4Ki")
    assert "Not the same question" not in also
    written("longer.yaml", yaml.safe_load(Path("first.yaml").read_text()) | {"name": "longer"})
    longer = yaml.safe_load(Path("longer.yaml").read_text())
    written("longer.yaml", longer | {"workload": longer["workload"] | {"sequence": "16Ki"}})
    assert "Not the same question: sequence 32,768 and 16,384" in told(capsys, "compare", "first.yaml", "longer.yaml")
    found = json.loads(told(capsys, "run", "first.yaml", "--set", "workload.sequence=8Ki", "--json", "-"))
    assert {plan["communication_bytes_per_step"]["total"] > 0 for plan in found["plans"] if "error" not in plan} == {
        True
    }
    assert "moves" in told(capsys, "docs", "anomalies") or "network" in told(capsys, "docs", "anomalies")


def test_somebody_in_a_notebook_goes_from_a_question_to_a_table_and_a_page(here: Path) -> None:
    asked = {
        "name": "note", "cluster": {"device": "mi300x", "nodes": 1}, "plans": [{"name": "TP8", "tp": 8}],
        "workload": {"model": "llama-3.1-8b", "pass": "forward", "sequence": "8Ki", "global_batch": 8},
    }  # fmt: skip
    result = tspsim.simulate(asked)
    assert next(iter(result.to_frame().columns)).startswith("tokens") and len(repr(result).splitlines()) < 6
    planned = tspsim.plan(asked, budget=0.6)
    again = tspsim.simulate(planned.best)
    assert again.best is not None and again.best.tokens_per_s >= result.plans[0].tokens_per_s
    assert planned.to_frame().shape[0] >= 1 and planned.to_html("plans.html").exists()
    assert "<table" in planned._repr_html_() and {"h100", "mi300x"} <= set(tspsim.catalog("devices").index)


def test_somebody_with_measurements_makes_a_node_of_their_own_better(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told(capsys, "init", "device")
    nccl_log(here / "ar.log", "all_reduce")
    words = ["--nccl-tests", "ar.log", "--op", "all_reduce"]
    assert device_name("their-gpu") is None and device_name("my-gpu") == "my-gpu"  # in a process that looked before
    missed = median_of(told(capsys, "validate", *words, "--node", "my-gpu-8"))
    out = told(capsys, "calibrate", "my-gpu", *words, "--node", "my-gpu-8", "--out", "mine.yaml")
    assert "nothing to write" not in out and Path("mine.yaml").exists()
    node = "topologies/nodes/my-gpu-8.yaml"
    told(capsys, "calibrate", "my-gpu", *words, "--node", "my-gpu-8", "--out", node)
    assert median_of(told(capsys, "validate", *words, "--node", "my-gpu-8")) < missed / 4
    told(capsys, "init", "first")
    assert "my-gpu" in told(capsys, "check", "first.yaml", "--set", "cluster.device=my-gpu")


def median_of(said: str) -> float:
    """Per cent, of the one table that was scored."""
    (scored,) = re.findall(r"^collectives\S* +\S+ +\d+ +\d+ +([\d.]+) %", said, re.MULTILINE)
    return float(scored)


def test_a_deadline_says_what_is_large_enough_or_why_nothing_is(capsys: pytest.CaptureFixture[str]) -> None:
    """A node alone that is in time is large enough; one that is not says how many it would take. Where a step's
    sequences do not divide over the fewest nodes, that is said too."""
    node: dict[str, Any] = {"device": "h200", "gpus_per_node": 8}
    asked = written("late.yaml", {
        "name": "late", "workload": {"model": "llama-3.1-8b", "pass": "forward", "sequence": "8Ki", "global_batch": 16},
        "plans": [{"name": "TP8", "tp": 8}], "project": {"tokens": "20G", "deadline": "30 days"},
        "offers": [{"name": "one", "cluster": node},
                   {"name": "two", "cluster": {**node, "nodes": 2, "fabric": "rail-optimised-400g"}}],
    })  # fmt: skip
    rows = offers_of(tspsim.load(asked))
    assert [row.need.nodes if row.need else 0 for row in rows] == [1, 1]
    assert rows[0].outcome is not None
    late = f"project.deadline='{rows[0].outcome.days / 2.6:.4f} days'"
    said = told(capsys, "compare", asked, "--set", late)  # curves and the page are of other tests
    assert "  large enough       4" in said and "two: 3 nodes should be enough, but their replicas do not share" in said
    assert "the prediction keeps them" in said
    assert "takes 3 nodes, and one is stated without a fabric" in offers_of(tspsim.load(asked, [late]))[0].too_small


def offers_of(asked: Any) -> tuple[OfferRow, ...]:
    """What a buyer is told of every offer, without curves."""
    verdict = tspsim.compare(asked).verdict
    assert verdict is not None
    return verdict.rows


@pytest.mark.slow
def test_six_hundred_and_sixty_thousand_requests_have_one_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """H200 or MI355X for a 70B: machines, dollars and who is cheapest, however long the run; a tie is the only other
    thing that may be said."""
    offers = [{"name": name, "cluster": {"device": name, "nodes": 1}} for name in ("h200", "mi355x")]
    asked = written("machines.yaml", {
        "name": "machines", "workload": {"model": "llama-3.1-70b", "stack": "vllm"},
        "traffic": {"arrivals": {"kind": "poisson", "rate": 3}, "slo": {"ttft": "2 s", "tpot": "60 ms"},
                    "prompt": {"kind": "lognormal", "mean": 1000, "sigma": 0.6},
                    "output": {"kind": "lognormal", "mean": 250, "sigma": 0.6}},
        "plans": [{"name": "TP8", "tp": 8}], "offers": offers, "project": {"requests": "20/s"},
    })  # fmt: skip
    verdicts, rates = [], []
    for requests in (600, 6000, 60_000):
        answer = json.loads(told(capsys, "compare", asked, "--set", f"traffic.requests={requests}", "--json", "-"))
        served = [result["plans"][0]["serving"] for result in answer["results"]]
        name = "output_tokens_per_s"
        rates.append([(figures(each)[name], *interval(each, name)) for each in served])
        verdicts.append(answer["purchase"]["winner"])
    for one, other in itertools.combinations(rates, 2):
        for mine, theirs in zip(one, other, strict=True):
            assert mine[1] <= theirs[2] and theirs[1] <= mine[2], rates
    assert verdicts == ["h200"] * 3
