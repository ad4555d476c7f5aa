"""Equal replicas whose steps end at the same time: what happens then does not depend on who is looked at first."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.serving import Closed

from tspsim.scenario import load
from tspsim.serving.answer import serve_plan
from tspsim.serving.engine import Engine
from tspsim.serving.replicas import Members, ReplicaPool
from tspsim.serving.requests import Request
from tspsim.serving.service import Service
from tspsim.serving.work import AffineCost
from tspsim.step.question import look_up


@pytest.mark.parametrize("every_step", [False, True])
def test_a_request_sent_when_a_step_ends_elsewhere_is_in_the_step_that_begins_then(every_step) -> None:
    requests = [Request(0, 0.0, 1, 20), Request(1, 0.0, 1, 5), Request(2, 0.0, 1, 3)]
    pool = ReplicaPool([Members(Engine("vllm"), AffineCost(1.0), 2)])
    outcome = Service(Closed(requests, 2), pool, every_step=every_step).run()
    # The second ends at 5 s on its replica, and the third comes to the other, one of whose steps ends then too.
    assert [request.first_token_s for request in outcome.requests] == [1.0, 1.0, 6.0]


def test_runs_of_steps_end_to_the_bit_where_steps_by_themselves_do() -> None:
    question = look_up(
        load(
            {
                "name": "in-step",
                "cluster": {"device": "b200", "nodes": 1},
                "workload": {"model": "llama-3.1-8b"},
                "traffic": {
                    "arrivals": {"kind": "closed", "concurrency": 64},
                    "prompt": 17,
                    "output": {"kind": "uniform", "of": 200, "from": 0.8},
                    "requests": 120,
                },
                "plans": [{"name": "P", "tp": 2, "engine": {"max_num_batched_tokens": 64}}],
            }
        )
    )
    folded, stepped = (serve_plan(question, question.plans[0], every_step=each).runs[0].waits for each in (False, True))
    assert np.array_equal(folded.first_token_s, stepped.first_token_s)
    assert np.array_equal(folded.end_s, stepped.end_s)
