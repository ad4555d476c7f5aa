"""Agents: turns whose tools run on processors of hosts, over pools of unlike accelerators."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import simpy

import tspsim
from tspsim.base import catalog
from tspsim.scenario.traffic import TrafficSpec
from tspsim.serving.requests import Request
from tspsim.serving.tasks import tasks
from tspsim.serving.traffic import Clients, RequestTable
from tspsim.step.result import PlanResult


def run(stated: dict[str, Any], answer_s: float = 1.0) -> RequestTable:
    """Every request is answered after the same time."""
    traffic = catalog.validate({"prompt": 100, "output": 10, **stated}, TrafficSpec)
    env, clients = simpy.Environment(), Clients(traffic.draw())

    def take(request: Request) -> None:
        def end(_: simpy.Event) -> None:
            request.first_token_s = request.end_s = env.now
            clients.ended(request)

        env.timeout(answer_s).callbacks.append(end)

    clients.begin(env, take)
    env.run()
    return clients.table


def asked(workers: int | None, **more: Any) -> dict[str, Any]:
    prefix = {"kind": "agents", "turns": 3, "tool": "2 s", "tool_kind": "fixed", "workers": workers}
    stated = {key: value for key, value in (prefix | more).items() if value is not None}
    return {"arrivals": {"kind": "closed", "concurrency": 4}, "requests": 12, "prefix": stated}


def test_a_tool_runs_between_turns_and_its_result_is_what_is_new_in_the_next_prompt() -> None:
    book = run(asked(None))
    assert book.drawn.prompt_tokens[:3].tolist() == [100, 210, 320]
    assert book.arrival_s[:3].tolist() == [0.0, 3.0, 6.0]
    assert not book.tool_wait_s.any()


def test_calls_wait_for_a_worker_in_order() -> None:
    """Four calls at once for two workers: two wait two seconds, and then again at the next turn."""
    book = run(asked(2))
    assert sorted(book.arrival_s.reshape(-1, 3)[:, 1]) == [3.0, 3.0, 5.0, 5.0]
    assert sorted(book.tool_wait_s.reshape(-1, 3)[:, 1]) == [0.0, 0.0, 2.0, 2.0]
    found = tasks(book, 2, 8, {})
    assert found["worker_share"] == pytest.approx(4 * 2 * 2.0 / (2 * found["tasks"] / found["tasks_per_s"]))


@pytest.mark.parametrize("kind", ["fixed", "exponential", "lognormal"])
@pytest.mark.parametrize("workers", [1, 3, None])
def test_a_task_is_its_answers_its_calls_and_its_waits(kind: str, workers: int | None) -> None:
    book = run(asked(workers, tool_kind=kind))
    found = tasks(book, workers, 8, {})
    parts = found["model_s"] + found["tool_s"] + found["tool_wait_s"]
    assert found["task_s"]["mean"] == pytest.approx(parts)
    assert found["model_s"] == pytest.approx(3.0)
    assert workers is None or found["worker_share"] <= 1.0


def test_drawn_calls_have_the_mean_that_is_stated() -> None:
    for kind in ("exponential", "lognormal"):
        stated = asked(None, tool_kind=kind) | {"requests": 30_000}
        traffic = catalog.validate({"prompt": 100, "output": 10, **stated}, TrafficSpec)
        assert np.mean(traffic.draw().think_s) == pytest.approx(2.0, rel=0.05)


def test_without_limit_agents_are_conversations() -> None:
    stated = asked(None) | {"prefix": {"turns": 3, "think": "2 s"}}
    assert run(asked(None)).end_s.tolist() == run(stated).end_s.tolist()


# --- over pools ---------------------------------------------------------------------------------------------------


@cache
def alone(reads: str, writes: str) -> PlanResult:
    """One agent on two nodes: what reads its prompts, and what writes its answers."""
    pools = {
        "prefill": {"cluster": {"device": reads, "nodes": 1}, "replicas": 1, "tp": 8},
        "decode": {"replicas": 1, "tp": 8},
        "transfer": "push",
        "fabric": "rails-400g",
    }
    question = {
        "name": "agent",
        "cluster": {"device": writes, "nodes": 1},
        "workload": {"model": "llama-3.1-70b", "stack": "vllm"},
        "traffic": {
            "arrivals": {"kind": "closed", "concurrency": 1},
            "prompt": 4096,
            "output": 64,
            "prefix": {"kind": "agents", "turns": 2, "tool": "1 s", "tool_kind": "fixed", "workers": 1},
            "requests": 4,
        },
        "plans": [{"name": "P", "pools": pools}],
    }
    (plan,) = tspsim.simulate(question).plans
    assert plan.ran, plan.error
    return plan


def test_what_an_agent_waits_for_is_what_reads_and_what_writes() -> None:
    """t_pre(X) + what of the cache's way is exposed + t_dec(Y): readers and writers add up whichever they are paired
    with, to the little that a cache's last layer takes over slower NICs."""

    def model_s(reads: str, writes: str) -> float:
        return float(alone(reads, writes).serving["tasks"]["model_s"])

    b, m = "b200", "mi355x"
    assert model_s(b, m) + model_s(m, b) == pytest.approx(model_s(b, b) + model_s(m, m), rel=2e-3)
    # Both have 8 TB/s, and one sequence's answers are bytes and all-reduces: who reads decides.
    assert all(model_s(b, writes) < model_s(m, writes) for writes in (b, m))
    assert model_s(b, m) == pytest.approx(model_s(b, b), rel=0.03)


def test_a_mix_costs_what_both_nodes_cost() -> None:
    """The best that a mix can save on what writes is the ratio of prices, where writers are as fast."""
    mixed, same = alone("b200", "mi355x"), alone("b200", "b200")
    for basis, usd in mixed.serving["tasks"]["usd_per_task"].items():
        hours = mixed.serving["wall_s"] / 3600.0 / 2
        assert usd == pytest.approx(16 * mixed.cost["usd_per_gpu_hour"][basis] * hours)
        # Half of the GPUs cost 2.10 instead of 2.90 dollars or the like.
        assert mixed.cost["usd_per_gpu_hour"][basis] < same.cost["usd_per_gpu_hour"][basis]


def test_the_shipped_question_of_agents_is_answered() -> None:
    whole = tspsim.load("agents-b200-reads-mi355x-writes", ["traffic.requests=96"])
    (plan,) = tspsim.simulate(whole.model_copy(update={"plans": whole.plans[:1]})).plans
    found = plan.serving["tasks"]
    assert found["tasks"] == 16 and 0.0 < found["worker_share"] <= 1.0
    assert plan.runs[0].transfers and plan.to_json()["serving"]["tasks"]["turns"] == 6
