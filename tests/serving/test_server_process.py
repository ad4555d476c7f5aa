"""The process that reads requests and streams answers: work in order or in turns, and the rate that it bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim.model import load_model
from tspsim.parallel import load_stack
from tspsim.scenario import load
from tspsim.scenario.traffic import TrafficSpec
from tspsim.serving.costs import ProgramCosts
from tspsim.serving.metrics import Waits
from tspsim.serving.requests import Request
from tspsim.serving.traffic import NO_PROCESS, Clients, ProcessTimes
from tspsim.serving.traffic.server_process import ServerProcess
from tspsim.studies.query import Library

SECONDS = st.floats(1e-4, 1e-1)
TIMES = st.builds(ProcessTimes, SECONDS, st.floats(0.0, 1e-4), st.floats(0.0, 1e-3), st.booleans())


def left(times: ProcessTimes, jobs: list[tuple[float, int]]) -> list[float]:
    """When requests, each with its arrival and prompt, leave the process."""
    env = simpy.Environment()
    process, ends = ServerProcess(env, times), [float("nan")] * len(jobs)

    def arrive(number: int) -> None:
        request = Request(number, env.now, jobs[number][1], 1)
        process.read(request, 0.0, lambda: ends.__setitem__(number, env.now))

    for number, (arrival_s, _) in enumerate(jobs):
        event: Any = env.timeout(arrival_s)
        event.callbacks.append(lambda _, number=number: arrive(number))
    env.run()
    return ends


def served(times: ProcessTimes, clients: int, requests: int) -> Waits:
    """A closed loop of 100 tokens in and 10 out over an engine that answers at once."""
    stated = {"arrivals": {"kind": "closed", "concurrency": clients}, "requests": requests, "prompt": 100, "output": 10}
    source = Clients(TrafficSpec.model_validate(stated).draw(), 0.0, times)
    env = simpy.Environment()

    def answer(request: Request) -> None:
        request.first_scheduled_s = request.first_token_s = request.end_s = env.now
        source.ended(request)

    source.begin(env, answer)
    env.run()
    return Waits.of(source.table)


def test_a_burst_in_turns_leaves_together_and_in_order_one_by_one() -> None:
    in_turns = ProcessTimes(request_s=0.01, turns=True)
    assert left(in_turns, [(0.0, 5)] * 4) == pytest.approx([0.04] * 4)
    assert left(replace(in_turns, turns=False), [(0.0, 5)] * 4) == pytest.approx([0.01, 0.02, 0.03, 0.04])


def test_turns_by_hand() -> None:
    """30 ms at 0 and 10 ms at 10: 10 alone, then both half as fast until the second has had its 10, then 10 alone."""
    times = ProcessTimes(prompt_token_s=1e-3, turns=True)
    assert left(times, [(0.0, 30), (0.01, 10)]) == pytest.approx([0.04, 0.03])


@given(TIMES, st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(1, 500)), min_size=1, max_size=12))
@settings(deadline=None)
def test_nobody_is_faster_than_alone_and_no_work_is_lost(times: ProcessTimes, jobs: list[tuple[float, int]]) -> None:
    ends = left(times, jobs)
    for (arrival_s, prompt), end_s in zip(jobs, ends, strict=True):
        assert end_s >= arrival_s + times.before_s(prompt) - 1e-9
    free_s = 0.0
    for arrival_s, prompt in sorted(jobs):
        free_s = max(free_s, arrival_s) + times.before_s(prompt)
    assert max(ends) == pytest.approx(free_s, rel=1e-9), "whatever the order, the last leaves when all work is done"


@given(TIMES, st.floats(1.0, 3.0), st.sampled_from(["request_s", "prompt_token_s", "output_token_s"]))
@settings(deadline=None, max_examples=25)
def test_more_work_is_never_faster(times: ProcessTimes, factor: float, key: str) -> None:
    slower = replace(times, **{key: factor * getattr(times, key)})
    assert served(slower, 4, 16).wall_s >= served(times, 4, 16).wall_s * (1.0 - 1e-9)


@given(TIMES, st.integers(1, 6))
@settings(deadline=None, max_examples=25)
def test_a_closed_loop_never_exceeds_the_rate_of_the_process(times: ProcessTimes, clients: int) -> None:
    """The last answers of all clients may still be streaming when the run ends."""
    requests = 4 * clients
    counted = requests * times.before_s(100) + (requests - clients) * times.after_s(10)
    assert served(times, clients, requests).wall_s >= counted * (1.0 - 1e-9)
    assert times.highest_rate(100, 10) == pytest.approx(1.0 / (times.before_s(100) + times.after_s(10)))


def test_a_process_without_times_changes_nothing() -> None:
    assert served(NO_PROCESS, 3, 9).ttft_s.tolist() == [0.0] * 9
    assert NO_PROCESS.highest_rate(100, 10) == float("inf")


def test_vllm_0_11_parses_a_template_for_every_request_and_0_10_does_not() -> None:
    """One process of 0.8.5 served 76.5 requests/s of 220 and 200 tokens without templates (vLLM pull request 17546)."""
    old, parsing, later = (load_stack(name).stack().engine for name in ("vllm@0.10", "vllm@0.11", "vllm@0.17"))
    assert old.turns and parsing.turns and not later.turns
    assert 4 * old.intake.value < parsing.intake.value <= 8e-3 and later.intake.value == 0.0
    times = ProcessTimes(old.intake.value, old.tokenize.value, old.streamed.value, old.turns)
    assert times.highest_rate(220, 200) == pytest.approx(76.5, rel=0.05)


def test_harmony_renders_chats_without_a_template() -> None:
    """vLLM 0.11.0, serving_chat.py: ``use_harmony`` of gpt_oss; what is left of a request is as in 0.10."""
    old, parsing, grace = (
        load_stack(name).stack().engine.on(device)
        for name, device in (("vllm@0.10", "h100"), ("vllm@0.11", "h100"), ("vllm@0.11", "gb200"))
    )
    oss, qwen = load_model("gpt-oss-20b").chat, load_model("qwen3-32b").chat
    assert (oss, qwen) == ("harmony", "template")
    assert old.intake_of(oss) == old.intake_of(qwen) == old.intake
    assert parsing.intake_of(oss).value == old.intake.value and parsing.intake_of(qwen) == parsing.intake
    assert grace.intake_of(oss).value == pytest.approx(2.1 * parsing.intake_of(oss).value)
    for model, request_s in (("gpt-oss-20b", 1e-3), ("qwen3-14b", 8e-3)):
        work = {"model": model, "pass": "decode", "batch": 1, "context": 100, "stack": "vllm@0.11"}
        scenario = {"name": "s", "cluster": {"device": "h100", "nodes": 1}, "workload": work}
        asked = Library().look_up(load(scenario | {"plans": [{"name": "P", "tp": 1}]}))
        assert ProgramCosts(asked, asked.plans[0]).process.request_s == request_s
