"""Requests served have one rate on every surface: the steady part's, with the whole run's named as such."""

from __future__ import annotations

from typing import Any

import pytest

import tspsim
from tspsim.base.units import compact, digits
from tspsim.report import requests
from tspsim.report.serving import adapter, curves, words
from tspsim.serving.steady import figures
from tspsim.step.result import Result

ASKED: dict[str, Any] = {
    "name": "chat",
    "cluster": {"device": "h200", "gpus_per_node": 1},
    "workload": {"model": "llama-3.1-8b", "stack": "vllm"},
    "traffic": {
        "arrivals": {"kind": "poisson", "rate": 4},
        "prompt": {"kind": "lognormal", "mean": 400, "sigma": 0.5},
        "output": {"kind": "lognormal", "mean": 80, "sigma": 0.5},
        "slo": {"ttft": "1 s", "tpot": "30 ms"},
        "requests": 100,
    },
    "plans": [{"name": "one"}, {"name": "two", "engine": {"max_num_seqs": 64}}],
}


@pytest.fixture(scope="module")
def served() -> Result:
    return tspsim.simulate(ASKED)


def cells(result: Result, width: int) -> dict[str, str]:
    """Heading → cell of the first plan."""
    table = requests.table([result], width=width)
    return {str(column.header).replace("\n", " "): str(next(iter(column.cells))) for column in table.columns}


def test_the_terminal_has_the_rate_of_the_steady_part_and_names_the_other(served: Result) -> None:
    plan = served.plans[0]
    steady, whole = plan.serving["steady"], plan.serving["output_tokens_per_s"]
    assert steady["output_tokens_per_s"] > 1.02 * whole  # ramp and drain are in the other
    wide, narrow = cells(served, 160), cells(served, 100)
    assert wide["output tokens/s"] == narrow["tok/s"] == compact(steady["output_tokens_per_s"])
    assert wide["per GPU"] == narrow["per GPU"] == compact(steady["output_tokens_per_s_per_gpu"])
    assert wide["with ramp and drain"].startswith(compact(whole)) and "whole run" not in narrow
    assert compact(steady["output_tokens_per_s"], "output tokens/s") in repr(plan)
    assert compact(figures(plan.serving)["output_tokens_per_s"]) in requests.headline(plan, served.plans[1:])


def test_the_page_says_of_every_rate_whose_it_is(served: Result) -> None:
    view = adapter.view_of(served)
    run = view.ranked[0].best
    whole = compact(run.rate("output_tokens_per_s"))
    assert words.spread(run).startswith(f"with ramp and drain {whole} output tokens/s, likely ")
    built = curves.build(view)
    assert built is not None and built["whole"] == curves.WHOLE
    room = digits(view.ranked[0].best.metrics["kv"]["sessions"])
    told = " ".join([*words.sentences(view), *requests.sentences(view.ranked[0].plan)])
    assert told.count(f"{room} such requests") == 1 and told.count(f"{room} sessions as long as these") == 1
