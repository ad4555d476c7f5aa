"""Prefill workers of SGLang: which attention replica reads a request, and when its result is seen."""

from __future__ import annotations

import pytest
import simpy

from tspsim.scenario import load
from tspsim.serving import AffineCost, Engine, Replica, Request
from tspsim.serving.answer import deployment_of
from tspsim.step.simulation import look_up


def read(engine, *arrivals, dp_size=2, outputs=1):
    """First tokens, and the attention replica, of requests that arrive at these times; a step takes a second."""
    env = simpy.Environment()
    replica = Replica(env, engine, AffineCost(1.0), dp_size=dp_size)
    requests = [Request(number, at_s, 10, outputs) for number, at_s in enumerate(arrivals)]
    placed = []

    def submit(request):
        before = [scheduler.present for scheduler in replica.schedulers]
        replica.submit(request)
        after = [scheduler.present for scheduler in replica.schedulers]
        placed.append(next(i for i, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]))

    for request in requests:
        env.timeout(request.arrival_s).callbacks.append(lambda _, request=request: submit(request))
    env.run()
    return [request.first_token_s for request in requests], placed


def test_rooms_are_drawn_whoever_is_busy():
    engine = Engine("sglang", load_balance_method="follow_bootstrap_room")
    placed = read(engine, *(0.01 * number for number in range(400)), dp_size=4)[1]
    assert placed == read(engine, *(0.01 * number for number in range(400)), dp_size=4)[1]
    counts = [placed.count(rank) for rank in range(4)]
    assert min(counts) > 70 and max(counts) < 130 and len(set(counts)) > 1
    assert placed[:8] != [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("reads_only", "method", "in_turn"),
    [(False, "auto", True), (True, "auto", False), (True, "round_robin", False), (False, "round_robin", True)],
)
def test_a_prefill_worker_follows_rooms(reads_only, method, in_turn):
    """server_args.py, _handle_load_balance_method: auto is by room there, and so is round_robin."""
    placed = read(Engine("sglang", load_balance_method=method, reads_only=reads_only), *[0.0] * 16)[1]
    assert (placed == [0, 1] * 8) is in_turn


def test_a_result_waits_until_the_next_step_is_launched():
    """While the host waits in every layer of a step, launching it takes as long as running it."""
    engine = Engine("sglang", counts_on_host=True)
    assert read(engine, 0.0, dp_size=1)[0] == [1.0]
    assert read(engine, 0.0, 0.5, dp_size=1)[0] == [2.0, 2.0]
    assert read(engine, 0.0, 0.5, 1.5, dp_size=1)[0] == [2.0, 3.0, 3.0]
    assert read(Engine("sglang"), 0.0, 0.5, dp_size=1)[0] == [1.0, 2.0]
    assert read(Engine("sglang", counts_on_host=True, disable_overlap_schedule=True), 0.0, 0.5, dp_size=1)[0] == [1, 2]
    assert read(Engine("vllm", counts_on_host=True), 0.0, 0.5, dp_size=1)[0] == [1.0, 2.0]


def test_arrivals_are_seen_up_to_the_end_of_such_a_step():
    """Two attention replicas: one is busy, and what comes to the other meanwhile is read in the very next step."""
    times, _ = read(Engine("sglang", counts_on_host=True), 0.0, 0.1, 0.2, 1.5)
    assert times == [2.0, 3.0, 3.0, 3.0]


def test_decoding_goes_on_before_a_late_result_only_with_prompts():
    """A graph is launched at once: the result of a prompt before it is not late."""
    first, _ = read(Engine("sglang", counts_on_host=True), 0.0, dp_size=1, outputs=4)
    assert first == [1.0]


def test_a_scenario_says_which_workers_wait_for_counts():
    question = look_up(load({
        "name": "pools", "cluster": {"device": "h200", "nodes": 2, "fabric": "rails-400g"},
        "workload": {"model": "deepseek-v3", "stack": "sglang"},
        "traffic": {"arrivals": {"kind": "closed", "concurrency": 2}, "prompt": 1024, "output": 8, "requests": 4},
        "plans": [{"name": "run", "pools": {
            "prefill": {"replicas": 1, "dp": 8, "ep": 8, "expert_dispatch": "ranks"},
            "decode": {"replicas": 1, "dp": 8, "ep": 8, "expert_dispatch": "low_latency"}}}],
    }))  # fmt: skip
    parts = deployment_of(question, question.plans[0]).parts
    facts = {name: (part.engine.counts_on_host, part.engine.reads_only) for name, part in parts.items()}
    assert facts == {"prefill": (True, True), "decode": (False, False)}
