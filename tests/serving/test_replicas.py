"""A replica on a clock that it shares with others: what routers ask it, and what happens in the middle of a run."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import simpy

from tspsim.base.errors import InputError
from tspsim.serving import AffineCost, CalledCost, Engine, PromptChunk, Replica, Request, StepWork, replay


@pytest.mark.parametrize("every_step", [False, True])
def test_what_routers_ask_is_true_in_the_middle_of_a_run(every_step):
    env = simpy.Environment()
    engine = Engine("vllm", kv_tokens=1600, max_num_seqs=2)
    replica = Replica(env, engine, AffineCost(1.0), every_step=every_step)
    for number in range(3):
        replica.submit(Request(number, 0.0, 100, 50))
    assert (replica.waiting, replica.running, replica.tokens_ahead) == (3, 0, 450)
    env.run(until=0.5)
    assert (replica.waiting, replica.running, replica.tokens_ahead) == (1, 2, 450)
    env.run(until=10.5)  # the prompts, and nine decodes
    assert (replica.waiting, replica.running, replica.tokens_ahead) == (1, 2, 450 - 200 - 20)
    # 110 tokens each with the step under way, and 113 three steps later.
    assert replica.used_tokens == 2 * 112
    env.run(until=13.5)
    assert replica.used_tokens == 2 * 128
    env.run()
    assert (replica.waiting, replica.running, replica.tokens_ahead, replica.used_tokens) == (0, 0, 0, 0)


def test_a_request_in_the_middle_of_a_run_is_seen_at_the_end_of_the_step():
    env, first = simpy.Environment(), {}
    note = lambda request: first.update({request.number: env.now})  # noqa: E731
    replica = Replica(env, Engine("vllm"), AffineCost(1.0), on_first_token=note)
    replica.submit(Request(0, 0.0, 10, 1000))
    env.run(until=400.25)
    replica.submit(Request(1, 400.25, 10, 3))
    env.run()
    assert first == {0: 1.0, 1: 402.0}
    assert replica.log.column("end_s").tolist() == [1.0, 401.0, 402.0, 404.0, 1000.0]


def test_what_arrives_when_a_step_ends_is_in_the_next():
    rows = pd.DataFrame({"arrival_s": [0.0, 3.0], "prompt_tokens": [10, 10], "output_tokens": [9, 1]})
    assert replay(rows, AffineCost(1.0)).first_token_s[1] == 4.0


def test_two_replicas_on_one_clock_are_as_two_alone():
    rng = np.random.default_rng(3)
    traffic = [
        pd.DataFrame(
            {
                "arrival_s": np.cumsum(rng.exponential(0.2, 60)),
                "prompt_tokens": rng.integers(1, 300, 60),
                "output_tokens": rng.integers(1, 60, 60),
            }
        )
        for _ in range(2)
    ]
    engine, cost = Engine("vllm", kv_tokens=2000), lambda batch: 0.01 + 1e-4 * batch.tokens
    alone = [replay(each, cost, engine).end_s.to_numpy() for each in traffic]
    env, ends = simpy.Environment(), [np.zeros(60), np.zeros(60)]
    for which, each in enumerate(traffic):
        keep = lambda request, which=which: ends[which].__setitem__(request.number, request.end_s)  # noqa: E731
        replica = Replica(env, engine, CalledCost(cost), on_end=keep)
        for number, (arrival_s, prompt, outputs) in enumerate(each.itertuples(index=False)):
            request = Request(number, arrival_s, int(prompt), int(outputs))
            arrive = lambda _, replica=replica, request=request: replica.submit(request)  # noqa: E731
            env.timeout(arrival_s).callbacks.append(arrive)
    env.run()
    for mine, own in zip(ends, alone, strict=True):
        np.testing.assert_allclose(mine, own, rtol=1e-12)


def test_a_function_is_called_once_a_step_and_never_ahead():
    """Nothing is priced that does not happen, whatever arrives in between."""
    steps = []
    rows = pd.DataFrame({"arrival_s": [0.0, 20.5, 30.5], "prompt_tokens": [5, 6, 7], "output_tokens": [100, 3, 50]})
    replay(rows, lambda batch: (steps.append(batch.tokens), 1.0)[1])
    stepped = []
    replay(rows, lambda batch: (stepped.append(batch.tokens), 1.0)[1], every_step=True)
    assert steps == stepped
    assert sum(steps) == 5 + 6 + 7 + 99 + 2 + 49


def test_a_request_that_never_fits_is_refused_when_it_is_submitted():
    replica = Replica(simpy.Environment(), Engine("vllm", kv_tokens=64), AffineCost(1.0))
    with pytest.raises(
        InputError, match="a prompt of 60 tokens and 6 outputs take 65 tokens of cache, and there are 64"
    ):
        replica.submit(Request(0, 0.0, 60, 6))
    replica.submit(Request(0, 0.0, 60, 5))


def test_a_work_from_sums_is_the_work_from_contexts():
    listed = StepWork((PromptChunk(8, 2),), (5, 9, 5), 2)
    counted = StepWork.counted((PromptChunk(8, 2),), 2, 3, 19, 9, lambda: (5, 9, 5))
    assert counted == listed
    assert hash(counted) == hash(listed)
    assert (listed.tokens, listed.outputs, listed.longest) == (14, 7, 9)
    assert tuple(listed.batch.rows) == ((8, 2, 1), (2, 9, 1), (2, 5, 2))
    later = StepWork((), (5, 9)).later(3)
    assert (later.contexts, later.context_tokens, later.longest) == ((8, 12), 20, 12)


def test_contexts_of_a_step_that_is_over_are_not_invented():
    works = []

    class Keeping(AffineCost):
        def seconds(self, each):
            works.append(each[0])
            return super().seconds(each)

    rows = pd.DataFrame({"arrival_s": [0.0], "prompt_tokens": [5], "output_tokens": [3]})
    replay(rows, Keeping(1.0), every_step=True)
    assert works[0].contexts == ()
    with pytest.raises(RuntimeError, match="kept"):
        _ = works[1].contexts
    assert (works[1].sequences, works[1].context_tokens) == (1, 5)


@pytest.mark.parametrize("steps", [1, 7])
def test_an_affine_cost_sums_what_it_says_of_each_step(steps):
    cost, works = AffineCost(0.5, 0.01, 1e-4), [StepWork(contexts=(5, 900)), StepWork(contexts=(3,)), StepWork()]
    each = [cost.seconds([work.later(step) for work in works]) for step in range(steps)]
    np.testing.assert_allclose(cost.decode_ends_s(works, steps), np.cumsum(each), rtol=1e-12)
