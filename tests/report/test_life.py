"""The figure of one request's life draws what the engine did: a token where a step that decodes ends, else nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.draws import in_turn

import tspsim
from tspsim.report.serving import life
from tspsim.report.serving.adapter import view_of
from tspsim.report.serving.view import LoadRun

QUESTION: dict[str, Any] = {
    "name": "lives",
    "cluster": {"device": "h200", "nodes": 1},
    "workload": {"model": "llama-3.1-70b"},
    "traffic": {
        "arrivals": {"kind": "closed", "concurrency": 6},
        "prompt": {"kind": "uniform", "of": "8Ki", "from": 0.8},
        "output": {"kind": "uniform", "of": 96, "from": 0.8},
        "requests": 12,
    },
    "plans": [
        {"name": "TP8", "tp": 8},
        {"name": "DP2", "tp": 4, "dp": 2},
        {"name": "1P1D", "pools": {"prefill": {"replicas": 1, "tp": 4}, "decode": {"replicas": 1, "tp": 4}}},
    ],
}


@pytest.mark.parametrize("stack", in_turn(["vllm", "sglang", "trtllm"], 3))
def test_tokens_come_at_the_ends_of_steps_that_decode_and_never_between(stack: str) -> None:
    question = QUESTION | {"workload": {**QUESTION["workload"], "stack": stack}}
    flat = 0
    for served in view_of(tspsim.simulate(question)).served:
        (run,) = served.runs
        assert run.requests is not None and run.requests.ended.all()
        for place in range(len(run.requests)):
            flat += held_to_the_log(run, place)
    if stack == "sglang":
        assert flat, "prompts are read alone here, and nobody's line rises meanwhile"


def held_to_the_log(run: LoadRun, place: int) -> int:
    """Rows of the log that read prompts alone while the request waits for its next token."""
    requests, engine = run.requests, run.engine_of(place)
    assert requests is not None and engine is not None, "one row hides the ends of its steps, not who took them"
    output = int(requests.output_tokens[place])
    when, count, whole = life.tokens(run, place, engine)
    assert whole and (np.diff(when) > 0).all() and (np.diff(count) > 0).all()
    assert (when[0], count[0]) == (requests.first_token_s[place], 1.0)
    assert (when[-1], count[-1]) == (requests.end_s[place], output)
    assert abs(len(when) - output) <= 3, "a token a step, but for what an engine sees a step late"
    # No moment lies inside a row that decodes nothing.
    steps = engine.steps.within(when[0], when[-1])
    alone = steps.sequences == 0
    for start_s, end_s in zip(steps.start_s[alone], steps.end_s[alone], strict=True):
        assert not ((when > start_s + 1e-9) & (when < end_s - 1e-9)).any()
    figure = life.drawn(run, place)
    (line,) = (trace for trace in figure["data"] if trace["name"] == "tokens out")
    assert (line["mode"], line["line"]["shape"]) == ("lines", "hv")
    return int(alone.sum())


def test_what_nobody_knows_is_not_drawn() -> None:
    (served,) = view_of(tspsim.simulate(QUESTION | {"plans": QUESTION["plans"][:1]})).served
    (run,) = served.runs
    assert run.requests is not None
    when, count, whole = life.tokens(run, 3, None)
    assert (when.tolist(), whole) == ([run.requests.first_token_s[3], run.requests.end_s[3]], False)
    assert count.tolist() == [1.0, run.requests.output_tokens[3]]
