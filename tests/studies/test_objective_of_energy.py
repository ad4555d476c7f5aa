"""Most tokens a joule, and most a dollar, are the same plan of one device."""

from __future__ import annotations

import pytest

import tspsim


@pytest.mark.slow
def test_a_joule_and_a_dollar_choose_the_same_plan_of_one_device() -> None:
    question = {
        "name": "energy", "cluster": {"device": "h100", "nodes": 2, "fabric": "rails-400g"},
        "workload": {"model": "qwen3-8b", "pass": "training", "sequence": "4Ki", "global_batch": 64},
    }  # fmt: skip
    found = [
        tspsim.plan(question, objective=objective, budget=5).best[0]
        for objective in ("tokens_per_joule", "tokens_per_dollar")
    ]
    assert found[0].result.step_time_s == found[1].result.step_time_s and found[0].result.gpus == found[1].result.gpus
