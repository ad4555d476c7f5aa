"""What was measured of a scenario's own question is stated beside it, is drawn, and changes no answer."""

import json
from typing import Any

import pytest

import tspsim
from tspsim.base.errors import InputError
from tspsim.report.serving.adapter import view_of
from tspsim.scenario import load

POINT = {"concurrency": 4, "tokens_per_s_per_gpu": 100.0, "tpot": "10 ms"}


def asked(*points: dict[str, Any], **arrivals: Any) -> dict[str, Any]:
    traffic: dict[str, Any] = {
        "arrivals": arrivals or {"kind": "closed", "concurrency": [2, 4]},
        "prompt": 256,
        "output": 8,
        "requests": 8,
    }
    if points:
        traffic["published"] = [{"name": "a machine", "source": "a table", "points": list(points)}]
    return {
        "name": "measured",
        "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": 1},
        "workload": {"model": "llama-3.1-8b", "stack": "vllm"},
        "traffic": traffic,
        "plans": [{"name": "one", "tp": 1}],
    }


def test_measured_points_stand_beside_an_answer_that_they_do_not_change() -> None:
    alone, beside = map(tspsim.simulate, (asked(), asked(POINT, {"concurrency": 2, "ttft": "80 ms"})))
    assert [each.serving for each in alone.plans] == [each.serving for each in beside.plans]
    told = json.loads(json.dumps(beside.to_json()))
    assert told["scenario"]["traffic"]["published"][0]["points"][0]["tpot"] == pytest.approx(0.01)
    first, second = view_of(beside).published
    assert (first.load, first.per_user, first.per_gpu, first.source) == (4.0, pytest.approx(100.0), 100.0, "a table")
    assert second.ttft_s == pytest.approx(0.08) and second.per_gpu != second.per_gpu


@pytest.mark.parametrize(
    ("points", "arrivals", "said"),
    [
        ([{"tpot": "10 ms"}], {}, "state concurrency or rate"),
        ([{"concurrency": 4, "rate": "2 requests/s", "tpot": "10 ms"}], {}, "state concurrency or rate"),
        ([{"concurrency": 4}], {}, "says nothing that was measured"),
        ([{**POINT, "tpots": 1}], {}, "tpot"),
        ([{"rate": "2 requests/s", "tpot": "10 ms"}], {}, "points are of a rate"),
        ([POINT], {"kind": "poisson", "rate": "2 requests/s"}, "points are of a concurrency"),
    ],
)
def test_points_of_no_load_or_of_another_one_are_refused(
    points: list[dict[str, Any]], arrivals: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        load(asked(*points, **arrivals))
