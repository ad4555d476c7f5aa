"""Attention replicas that step together: own queues and caches, one step for all."""

from __future__ import annotations

import pandas as pd
import pytest
import simpy

from tspsim.serving import AffineCost, Engine, Replica, Request, replay


def requests(*rows):
    return pd.DataFrame(rows, columns=["arrival_s", "prompt_tokens", "output_tokens"])


class Slowest:
    """A second for the replica with most tokens, a hundredth of one for a token; says what each had to do."""

    def __init__(self):
        self.seen = []

    def seconds(self, works):
        self.seen.append([work.tokens for work in works])
        return max(work.tokens for work in works) * 0.01 + 1.0

    def decode_ends_s(self, works, steps):
        raise AssertionError("every step is asked for alone")


def test_each_gets_a_work_of_its_own_and_idle_ones_an_empty_one():
    cost = Slowest()
    replay(requests((0.0, 10, 2), (0.0, 20, 1), (0.0, 30, 1)), cost, Engine("vllm"), dp_size=4, every_step=True)
    assert cost.seen == [[10, 20, 30, 0], [1, 0, 0, 0]]


def test_all_wait_for_the_longest_prompt():
    """The cost of steps in lock-step: a request beside a long prompt decodes as slowly as that is computed."""
    rows = requests((0.0, 10, 5), (0.5, 1000, 1))
    alone = replay(rows[:1], AffineCost(1.0, 0.01), Engine("vllm"))
    beside = replay(rows, AffineCost(1.0, 0.01), Engine("vllm"), dp_size=2)
    assert beside.end_s[0] - alone.end_s[0] == pytest.approx(999 * 0.01)


def test_replicas_have_caches_of_their_own():
    engine = Engine("vllm", kv_tokens=112)
    answer = replay(requests((0.0, 100, 5), (0.0, 100, 5)), AffineCost(1.0), engine, dp_size=2)
    assert answer.end_s.tolist() == [5.0, 5.0]
    answer = replay(requests((0.0, 100, 5), (0.0, 100, 5)), AffineCost(1.0), engine)
    assert answer.end_s.tolist() == [5.0, 10.0]


def dealt(engine, *rows, dp_size=2):
    env = simpy.Environment()
    replica = Replica(env, engine, AffineCost(1.0), dp_size=dp_size)
    for number, (arrival_s, prompt, outputs) in enumerate(rows):
        request = Request(number, arrival_s, prompt, outputs)
        env.timeout(arrival_s).callbacks.append(lambda _, request=request: replica.submit(request))
    env.run(until=rows[-1][0] + 1e-6)
    return [sorted(s.request.number for s in (*lane.running.values(), *lane.waiting, *lane.mailbox, *lane.noted))
            for lane in replica.schedulers]  # fmt: skip


def test_the_one_with_fewest_requests_gets_the_next():
    rows = [(0.0, 10, 50), (0.0, 10, 1), (5.0, 10, 50), (5.5, 10, 50)]
    assert dealt(Engine("vllm"), *rows) == [[0, 3], [2]]


def test_sglang_deals_in_turn_unless_told_otherwise():
    rows = [(0.0, 10, 50), (0.0, 10, 1), (5.0, 10, 50)]
    assert dealt(Engine("sglang"), *rows) == [[0, 2], []]
    assert dealt(Engine("sglang", load_balance_method="total_requests"), *rows) == [[0], [2]]


def test_capacity_is_that_of_all():
    replica = Replica(simpy.Environment(), Engine("vllm", kv_tokens=160), AffineCost(1.0), dp_size=3)
    assert replica.capacity_tokens == 480
    assert Replica(simpy.Environment(), Engine("vllm"), AffineCost(1.0)).capacity_tokens is None
