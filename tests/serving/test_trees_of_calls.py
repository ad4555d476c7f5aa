"""Agents as trees of calls: who waits for whom, what prompts begin with, and how long a task takes, by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simpy
import yaml

import tspsim
from tspsim.base import catalog
from tspsim.base.errors import InputError
from tspsim.scenario.traffic import TrafficSpec
from tspsim.serving.requests import Request
from tspsim.serving.tasks import tasks
from tspsim.serving.traffic import Clients, RequestTable

FAN = [
    {"name": "plan"},
    {"name": "search", "after": ["plan"], "times": 3, "tool": True, "memory": 1000},
    {"name": "report", "after": ["search"], "goes_on": "plan", "new": 7},
]


def asked(prefix: dict[str, Any], tasks_: int = 2, clients: int = 1) -> dict[str, Any]:
    return {
        "prompt": 100, "output": 10, "requests": tasks_, "prefix": prefix,
        "arrivals": {"kind": "closed", "concurrency": clients},
    }  # fmt: skip


def run(stated: dict[str, Any], answer_s: float = 1.0) -> RequestTable:
    """Every request is answered after the same time, how many there may be."""
    traffic = catalog.validate(stated, TrafficSpec)
    env, clients = simpy.Environment(), Clients(traffic.draw())

    def take(request: Request) -> None:
        def end(_: simpy.Event) -> None:
            request.first_token_s = request.end_s = env.now
            clients.ended(request)

        env.timeout(answer_s).callbacks.append(end)

    clients.begin(env, take)
    env.run()
    return clients.table


def test_calls_wait_for_all_that_they_need_and_the_next_task_for_the_last() -> None:
    fan = {"kind": "calls", "calls": FAN, "tool": "2 s", "tool_kind": "fixed", "task": 64}
    book = run(asked(fan, tasks_=10))
    assert book.arrival_s.tolist() == [0, 3, 3, 3, 4, 5, 8, 8, 8, 9]
    assert book.drawn.prompt_tokens[:5].tolist() == [164, 1174, 1174, 1174, 64 + 110 + 30 + 7]
    found = tasks(book, None, 8, {"rental": 3.6})
    assert found["task_s"]["mean"] == 5.0 and found["path_model_s"] == 3.0 and found["depth"] == 3
    assert found["tool_s"] == 6.0 and found["model_s"] == 5.0 and found["tasks"] == 2
    assert found["first_token_s"]["p99"] == 1.0


def test_tools_wait_for_workers_and_calls_without_one_do_not() -> None:
    book = run(asked({"kind": "calls", "calls": FAN, "tool": "2 s", "tool_kind": "fixed", "workers": 1}, tasks_=5))
    assert book.arrival_s.tolist() == [0, 3, 5, 7, 8] and book.tool_wait_s.tolist() == [0, 0, 2, 4, 0]


def test_calls_that_go_on_with_a_text_begin_with_its_blocks_and_all_with_the_tasks() -> None:
    traffic = catalog.validate(asked({"kind": "calls", "calls": FAN, "task": 64}, tasks_=10), TrafficSpec).draw()
    shared = traffic.shared
    plan, search, other, report = (shared.blocks(number) for number in (0, 1, 2, 4))
    assert len(plan) == (164 + 10) // 16 and report[: len(plan)] == plan and search[:4] == plan[:4] == other[:4]
    assert not set(search[4:]) & set(other[4:]) and not set(shared.blocks(5)) & set(plan)


@pytest.mark.parametrize(
    ("kind", "calls", "depth"),
    [
        ({"kind": "research", "breadth": 3, "depth": 2}, 1 + 3 + 9 + 3 + 1, 5),
        ({"kind": "research", "breadth": 4}, 1 + 4 + 1, 3),
        ({"kind": "debate", "debaters": 3, "rounds": 2}, 7, 3),
        ({"kind": "retrieval", "levels": 2, "breadth": 4}, 2 + 4 + 1, 4),
    ],
    ids=str,
)
def test_shipped_kinds_have_the_calls_and_the_depth_that_they_say(kind: dict[str, Any], calls: int, depth: int) -> None:
    book = run(asked(kind | {"tool": "0 s"}, tasks_=1))
    found = tasks(book, None, 8, {})
    assert found["turns"] == calls and found["depth"] == depth
    assert found["task_s"]["mean"] == depth and found["path_model_s"] == depth and np.isfinite(book.end_s).all()


def test_debaters_read_the_others_and_go_on_with_their_own() -> None:
    prompts = run(asked({"kind": "debate", "debaters": 3, "rounds": 2, "task": 40}, tasks_=7)).drawn.prompt_tokens
    assert prompts.tolist() == [140] * 3 + [140 + 10 + 20 + 100] * 3 + [40 + 30 + 100]


def test_a_chain_of_calls_is_a_conversation_of_agents() -> None:
    chain = [{"name": "0"}, *({"name": str(n), "after": [str(n - 1)], "goes_on": str(n - 1), "tool": True}
                              for n in (1, 2))]  # fmt: skip
    tools = {"tool": "2 s", "tool_kind": "fixed", "workers": 2}
    tree = run(asked({"kind": "calls", "calls": chain, **tools}, tasks_=12, clients=4))
    turns = run(asked({"kind": "agents", "turns": 3, **tools}, tasks_=12, clients=4))
    for column in ("arrival_s", "end_s", "tool_wait_s"):
        assert getattr(tree, column).tolist() == getattr(turns, column).tolist()
    assert tree.drawn.prompt_tokens.tolist() == turns.drawn.prompt_tokens.tolist()


def test_calls_come_from_a_file_and_a_service_says_what_a_task_took(tmp_path: Path) -> None:
    file = tmp_path / "calls.yaml"
    file.write_text("calls:\n- {name: plan}\n- {name: read, after: [plan], times: 2}\n- {name: end, after: [read]}\n")
    traffic = asked({"kind": "calls", "file": "calls.yaml", "tool": "0.5 s"}, tasks_=16, clients=2)
    scenario = {
        "name": "trees", "cluster": {"device": "h100", "nodes": 1}, "traffic": traffic,
        "workload": {"model": "llama-3.1-8b", "stack": "vllm"}, "plans": [{"name": "P", "tp": 8}],
    }  # fmt: skip
    (tmp_path / "trees.yaml").write_text(yaml.safe_dump(scenario))
    (plan,) = tspsim.simulate(tmp_path / "trees.yaml").plans
    with pytest.raises(InputError, match="there is no file"):
        tspsim.load(scenario)
    found = plan.runs[0].metrics["tasks"]
    assert found["turns"] == 4 and found["depth"] == 3 and found["tasks"] == 4
    assert found["path_model_s"] <= found["task_s"]["mean"] < found["model_s"] + found["tool_s"]


UP_TO_4 = {"kind": "uniform", "of": 4, "from": 0.25}
DRAWN = [
    {"kind": "research", "breadth": UP_TO_4, "depth": {"kind": "uniform", "of": 3, "from": 0.3}, "memory": UP_TO_4},
    {"kind": "debate", "debaters": {"kind": "uniform", "of": 4, "from": 0.5}, "rounds": UP_TO_4},
    {"kind": "retrieval", "levels": UP_TO_4, "breadth": {"kind": "lognormal", "median": 3, "sigma": 0.8, "cap": 20}},
    {"kind": "calls", "calls": [FAN[0], FAN[1] | {"times": UP_TO_4, "memory": UP_TO_4}, FAN[2]]},
]
TOOL = {"tool": "2 s", "tool_kind": "exponential"}


@pytest.mark.parametrize("kind", DRAWN, ids=lambda kind: kind["kind"])
def test_drawn_trees_wait_for_the_slowest_and_are_the_same_again(kind: dict[str, Any]) -> None:
    book = run(asked(kind | TOOL | {"task": 64, "workers": 5}, tasks_=120, clients=3))
    plan, sizes = book.drawn, np.diff(book.drawn.begins)
    assert len(plan) == plan.begins[-1] >= 120 > plan.begins[-2] and len(set(sizes)) > 2
    begun = plan.arrival_s if plan.arrival_s is not None else book.arrival_s
    for task, needs in enumerate(plan.follows):
        first = plan.first_of(task)
        assert len(needs) == sizes[task] and plan.conversation_of(first) == task
        for call, needed in enumerate(needs):
            if needed:
                last = max(book.end_s[first + each] for each in needed)
                tool_s = plan.think_s[first + call] + book.tool_wait_s[first + call]
                assert begun[first + call] == pytest.approx(last + tool_s, abs=1e-9)
    names = {block >> 32 for number in range(len(plan)) for block in plan.shared.blocks(number)}
    assert len(names) <= len(plan) + len(sizes) and {plan.shared.conversation(n) for n in range(len(plan))} == set(
        range(len(sizes))
    )
    again = run(asked(kind | TOOL | {"task": 64, "workers": 5}, tasks_=120, clients=3))
    other = run(asked(kind | TOOL | {"task": 64, "workers": 5}, tasks_=120, clients=3) | {"seed": 1})
    assert again.end_s.tolist() == book.end_s.tolist() != other.end_s.tolist()
    found = tasks(book, 5, 8, {})
    assert found["tasks"] == len(sizes) and found["turns"] == pytest.approx(sizes.mean())
    assert found["last_call_ttft_s"]["p99"] <= found["task_s"]["p99"]
    assert found["path_model_s"] <= found["task_s"]["mean"] <= found["model_s"] + found["tool_s"] + found["tool_wait_s"]


@pytest.mark.parametrize("kind", DRAWN, ids=lambda kind: kind["kind"])
def test_the_shapes_of_longer_runs_begin_as_those_of_shorter_ones(kind: dict[str, Any]) -> None:
    short, long_ = (catalog.validate(asked(kind, tasks_=count), TrafficSpec).draw() for count in (50, 150))
    assert long_.begins[: len(short.begins)].tolist() == short.begins.tolist()
    assert list(long_.follows[: len(short.follows)]) == list(short.follows)


def test_a_number_that_is_drawn_without_chance_is_the_stated_one() -> None:
    one = {"kind": "uniform", "of": 3, "from": 1}
    for stated, drawn in (
        ({"kind": "research", "breadth": 3, "depth": 2}, {"kind": "research", "breadth": one, "depth": 2}),
        ({"kind": "retrieval", "levels": 3}, {"kind": "retrieval", "levels": one}),
        ({"kind": "calls", "calls": FAN}, {"kind": "calls", "calls": [FAN[0], FAN[1] | {"times": one}, FAN[2]]}),
    ):
        books = [run(asked(kind | TOOL, tasks_=60, clients=2)) for kind in (stated, drawn)]
        assert books[0].end_s.tolist() == books[1].end_s.tolist()
        assert books[0].drawn.prompt_tokens.tolist() == books[1].drawn.prompt_tokens.tolist()


def test_one_search_below_each_is_a_conversation_and_deeper_or_broader_is_never_faster() -> None:
    def told(**keys: Any) -> dict[str, Any]:
        kind = {"kind": "research", "tool": "2 s", "tool_kind": "exponential", "workers": 4} | keys
        return tasks(run(asked(kind, tasks_=400, clients=2)), 4, 8, {})

    chain = told(breadth=1, depth=3)
    assert chain["depth"] == chain["turns"] == 7
    assert chain["model_s"] + chain["tool_s"] + chain["tool_wait_s"] == pytest.approx(chain["task_s"]["mean"])
    for keys in ("depth", "breadth"):
        waits = [told(**({"depth": 2, "breadth": 2} | {keys: n}))["task_s"]["mean"] for n in (1, 2, 3)]
        assert waits == sorted(waits) and waits[0] < waits[-1]


@pytest.mark.parametrize(
    ("prefix", "told"),
    [
        (
            {"kind": "debate", "debaters": {"kind": "uniform", "of": 1, "from": 1}},
            "prefix.debaters: a task drew 1, and 2 to 100 are allowed",
        ),
        (
            {"kind": "research", "breadth": {"kind": "fixed", "of": 100}, "depth": 3},
            "a task of more than 10,000 calls; draw fewer",
        ),
    ],
    ids=["few", "many"],
)
def test_draws_that_are_not_allowed_are_told(prefix: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        catalog.validate(asked(prefix), TrafficSpec).draw()


@pytest.mark.parametrize(
    ("prefix", "told"),
    [
        ({"kind": "research", "breadth": 101}, "breadth"),
        ({"kind": "research", "breadth": {"kind": "unifrm", "of": 3}}, "did you mean 'uniform'"),
        ({"kind": "research", "breadth": {"kind": "file", "file": "a.csv"}}, "unknown kind of length 'file'"),
        (
            {"kind": "calls", "calls": [{"name": "a", "times": UP_TO_4}, {"name": "b", "goes_on": "a"}]},
            "of which there are drawn",
        ),
        ({"kind": "calls"}, "calls are required"),
        ({"kind": "calls", "calls": [{"name": "a", "after": ["b"]}]}, "needs 'b', which does not stand before it"),
        ({"kind": "calls", "calls": [{"name": "a"}, {"name": "a"}]}, "two calls are called 'a'"),
        (
            {"kind": "calls", "calls": [{"name": "a", "times": 2}, {"name": "b", "goes_on": "a"}]},
            "of which there are 2",
        ),
        ({"kind": "research", "breadth": 100, "depth": 10}, "at most 10,000"),
        ({"kind": "debate", "debaters": 1}, "debaters"),
    ],
    ids=str,
)
def test_wrong_calls_are_told(prefix: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        catalog.validate(asked(prefix), TrafficSpec)


def test_clients_who_send_nothing_are_told() -> None:
    question = {
        "name": "few", "cluster": {"device": "h100", "nodes": 1},
        "workload": {"model": "llama-3.1-8b", "stack": "vllm"}, "plans": [{"name": "P", "tp": 8}],
        "traffic": asked({"turns": 4}, tasks_=16, clients=8),
    }  # fmt: skip
    (plan,) = tspsim.simulate(question).plans
    (told,) = (note for note in plan.notes if "send nothing" in note)
    assert re.findall(r"\d+", told) == ["8", "4", "16", "4", "4", "32"] and "`traffic.requests`" in told
    question["traffic"] = asked({"turns": 4}, tasks_=32, clients=8)
    (plan,) = tspsim.simulate(question).plans
    assert not any("send nothing" in note for note in plan.notes)
