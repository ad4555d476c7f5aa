"""Scenarios with traffic: what they take, what they leave out, and one line for each mistake."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.shipped import SCENARIOS

from tspsim.base.errors import InputError
from tspsim.model import load_model
from tspsim.scenario import load
from tspsim.scenario.acceptance import length_of, measured, rate_of
from tspsim.scenario.workload import SpeculationSpec

SHIPPED = ["kimi-k2.6-mi355x-vs-b200", "glm-5.1-mi355x-vs-b200", "deepseek-v3.2-mi355x-vs-b200"]


def question(**changes: Any) -> dict[str, Any]:
    """The design's own example, smaller."""
    return {
        "name": "served",
        "cluster": {"device": "mi355x", "nodes": 1},
        "workload": {"model": "kimi-k2.6", "stack": "vllm", "precision": {"weights": "int4", "kv": "fp8"}},
        "traffic": {
            "arrivals": {"kind": "closed", "concurrency": 64},
            "prompt": {"kind": "uniform", "of": "8Ki", "from": 0.8},
            "output": {"kind": "uniform", "of": "1Ki", "from": 0.8},
            "requests": 640,
            "prefix": {"share": 0.0},
            "slo": {"ttft": "2 s", "tpot": "50 ms"},
        },
        "plans": [{"name": "TP8", "tp": 8}, {"name": "DP8-EP8", "dp": 8, "ep": 8}],
    } | changes


def refused(*overrides: str, **changes: Any) -> str:
    with pytest.raises(InputError) as error:
        load(question(**changes), overrides)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_example_of_the_design_is_read_as_it_stands() -> None:
    traffic = load(question()).traffic
    assert traffic is not None
    assert traffic.arrivals.label == {"concurrency": 64}
    assert traffic.bounds("kimi-k2.6") == {"ttft": 2.0, "tpot": 0.05}
    assert len(traffic.draw()) == 640


def test_a_list_of_loads_makes_a_curve() -> None:
    scenario = load(question(), ["traffic.arrivals.concurrency=[1, 4, 16]", "traffic.requests=null"])
    assert scenario.traffic is not None
    labels = [point.arrivals.label for point in scenario.traffic.points()]
    assert labels == [{"concurrency": 1}, {"concurrency": 4}, {"concurrency": 16}]
    assert [len(point.draw()) for point in scenario.traffic.points()] == [100, 100, 160]


def test_with_traffic_a_workload_says_nothing_of_a_single_step() -> None:
    scenario = load(question())
    stated = scenario.to_dict()["workload"]
    assert not {"pass", "batch", "context", "sequence", "sequences_per_replica"} & stated.keys()
    assert load({**question(), "plans": scenario.to_dict()["plans"]}) is not None
    assert "workload.pass: states the size of a single step" in refused("workload.pass=decode")
    assert "workload.sequence: states the size of a single step" in refused("workload.sequence=4Ki")


def test_without_traffic_nothing_serves_requests() -> None:
    step = question(traffic=None, workload={"model": "kimi-k2.6", "pass": "decode", "batch": 8, "context": "8Ki"})
    assert "traffic" not in load(step).to_dict() and "engine" not in load(step).to_dict()["workload"]
    with pytest.raises(InputError, match=r"workload\.engine: is of a scenario with traffic"):
        load(step, ["workload.engine={max_num_seqs: 4}"])
    with pytest.raises(InputError, match="plan 'TP8': speculation is of a scenario with traffic"):
        load(step, ["plans.TP8.speculation={tokens: 1}"])


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("traffic.arrivals={kind: poisson, rate: 0}", "traffic.arrivals.rate: '0' must be more than zero"),
        ("traffic.arrivals={kind: poisson, rate: -1}", "traffic.arrivals.rate: '-1' must be more than zero"),
        ("traffic.arrivals={kind: poisson, rate: 4 GB}", "measures bytes; requests/s are needed here"),
        ("traffic.arrivals={kind: poison, rate: 4}", "unknown kind of arrivals 'poison' (did you mean 'poisson'?)"),
        ("traffic.arrivals={kind: poisson, rat: 4}", "traffic.arrivals.rat: unknown key (did you mean 'rate'?)"),
        ("traffic.arrivals={kind: gamma, rate: 4}", "state burstiness or cv"),
        ("traffic.arrivals={kind: closed, concurrency: 0}", "traffic.arrivals.concurrency: '0' must be more than zero"),
        ("traffic.arrivals={kind: trace, file: azur-2023-conv-1000}", "did you mean 'azure-2023-conv-1000'?"),
        ("traffic.arrivals={kind: trace, file: ./none.csv}", "no such file"),
        ("traffic.prompt=-5", "traffic.prompt: '-5' must be more than zero"),
        ("traffic.prompt={kind: lognormal, mu: 4}", "needs sigma beside mu, median or mean"),
        ("traffic.prompt={kind: uniform, of: 1Ki, from: 1.5}", "from: 1.5 is more than to: 1"),
        ("traffic.prompt=null", "prompt is required"),
        ("traffic.slo={}", "states no bound"),
        ("traffic.slo.ttft=2", "'2' has no unit"),
        ("traffic.slo.tbt=2 s", "traffic.slo.tbt: unknown key"),
        ("traffic.protocol=mlperf_server", "sends a Poisson process"),
        ("traffic.arrivals={kind: poisson, rate: 4, concurrency: 4}", "is a key of closed, not of poisson"),
        ("traffic.prompt={kind: fixed, of: 100, from: 0.5}", "traffic.prompt.from: is a key of uniform, not of fixed"),
        ("traffic.prefix={shar: 0.5}", "traffic.prefix.shar: unknown key (did you mean 'share'?)"),
        ("traffic.prefix={hash_ids: true}", "hash_ids come from a trace"),
        ("traffic.requests=0", "traffic.requests: '0' must be more than zero"),
        ("workload.speculation={tokens: 2, positions: [0.5]}", "1 shares for 2 drafts; state one a draft"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(override: str, told: str) -> None:
    message = refused(override)
    assert told in message and message.startswith("--set")


def test_bounds_without_traffic_are_told_where_they_belong() -> None:
    step = {key: value for key, value in question().items() if key != "traffic"}
    step["workload"] = {"model": "kimi-k2.6", "pass": "decode", "batch": 8, "context": "8Ki"}
    with pytest.raises(InputError, match=r"slo: unknown key \(did you mean 'traffic.slo'\?\)"):
        load({**step, "slo": {"ttft": "2 s"}})
    assert "traffic.arrivals: is required" in refused(traffic={"slo": {"ttft": "2 s"}})


def test_the_highest_rate_needs_bounds() -> None:
    highest = {"arrivals": {"kind": "poisson", "rate": "highest"}, "prompt": 100, "output": 10}
    assert "the highest rate needs bounds" in refused(traffic=highest)
    scenario = load(question(traffic={**highest, "slo": {"ttft": "1 s", "share": 0.99}}))
    assert scenario.traffic is not None and scenario.traffic.arrivals.searches and scenario.traffic.share == 0.99


def test_a_request_longer_than_the_model_s_positions_is_named() -> None:
    scenario = load(question(), ["traffic.prompt=262144"])
    assert scenario.traffic is not None
    with pytest.raises(InputError, match="the model has 262,144 positions; shorten them, or state a cap"):
        scenario.traffic.draw(load_model(scenario.workload.model))


def test_traces_beside_a_scenario_are_found(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,3\n")
    text = "\n".join(
        [
            "name: beside",
            "cluster: {device: mi355x, nodes: 1}",
            "workload: {model: kimi-k2.6}",
            "traffic: {arrivals: {kind: trace, file: mine.csv}}",
            "plans: [{name: TP8, tp: 8}]",
        ]
    )
    (tmp_path / "beside.yaml").write_text(text)
    scenario = load(tmp_path / "beside.yaml")
    assert scenario.traffic is not None and len(scenario.traffic.draw()) == 1


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_questions_are_one_node_against_one(name: str) -> None:
    scenario = load(name)
    assert [offer.name for offer in scenario.offers] == ["MI355X", "B200"] and scenario.traffic is not None
    loads = [point.arrivals.label["concurrency"] for point in scenario.traffic.points()]
    assert loads[0] == 1 and loads[-1] == 256
    assert "assumed" in scenario.source
    with_drafts = [plan for plan in scenario.plans if plan.speculation is not None]
    assert len(with_drafts) == 1 and len(scenario.plans) == 2


def test_the_shipped_questions_are_all_that_serve_with_offers() -> None:
    serving = [name for name in SCENARIOS if load(name).traffic and load(name).offers]
    assert set(SHIPPED) <= set(serving)


# --- drafts ---------------------------------------------------------------------------------------------------


def test_acceptance_by_position_gives_the_measured_lengths_back() -> None:
    for model, draft, drafts in [("kimi-k2.5", "eagle", 4), ("glm-5.2", "mtp", 4), ("deepseek-v4-pro", "mtp", 3)]:
        found = measured(model, draft)
        assert found is not None
        for count in range(1, drafts + 1):
            assert length_of(found.rates(count)) == pytest.approx(found.lengths[count - 1])


def test_what_was_measured_of_a_model_holds_unless_something_is_stated() -> None:
    spec = SpeculationSpec(tokens=3, draft="eagle")
    assert spec.served("kimi-k2.6").accepted == pytest.approx(2.67)
    assert "Kimi-K2.6-Eagle3" in spec.rates("kimi-k2.6")[1]
    assert spec.rates("llama-3.1-8b") == ((0.7, 0.7, 0.7), "assumed")
    assert SpeculationSpec(tokens=2, rate=0.5).rates("kimi-k2.6") == ((0.5, 0.5), "stated")
    assert SpeculationSpec(tokens=2, positions=(0.8, 0.5)).served("kimi-k2.6").accepted == pytest.approx(2.2)
    stated = SpeculationSpec(tokens=3, accepted=2.5)
    assert length_of(stated.rates("kimi-k2.6")[0]) == pytest.approx(2.5)
    assert length_of((rate_of(2.5, 3),) * 3) == pytest.approx(2.5)


def test_acceptance_is_that_of_prompts_which_are_like_the_stated_ones() -> None:
    random = SpeculationSpec(tokens=3, prompts="random")
    assert random.served("deepseek-v4-pro").accepted == pytest.approx(2.97)
    assert SpeculationSpec(tokens=3).served("deepseek-v4-pro").accepted == pytest.approx(2.49)
    assert SpeculationSpec(tokens=3, prompts="chat").served("deepseek-r1").accepted == pytest.approx(2.5)
    assert "none measured of random" in random.rates("glm-5.2")[1]
    for stated in ({"accepted": 2.5}, {"rate": 0.5}, {"positions": (0.5, 0.5, 0.5)}):
        with pytest.raises(ValueError, match="leave one out"):
            SpeculationSpec.model_validate({"tokens": 3, "prompts": "chat", **stated})


def test_a_scenario_says_in_words_what_is_asked() -> None:
    said = " ".join(load(question()).in_words())
    assert "64 clients send a request" in said and "TTFT ≤ 2.00 s" in said and "6,553 to 8,192 tokens" in said
