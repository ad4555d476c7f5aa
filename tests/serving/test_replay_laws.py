"""What holds of every scheduler, for any step function: folding changes nothing, tokens and blocks are kept, time runs
forward, Little's law."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim.serving import POLICIES, AffineCost, CalledCost, Engine, Replica, Request, replay
from tspsim.serving.replay import ON_TIME
from tspsim.serving.replica import ScheduledEvent
from tspsim.serving.speculation import AcceptanceModel

#: Small limits, so that few requests meet all of them; each scheduler's options vary.
OPTIONS = {
    "vllm": st.fixed_dictionaries(
        {
            "max_num_batched_tokens": st.integers(16, 64),
            "max_num_seqs": st.integers(1, 12),
            "long_prefill_token_threshold": st.sampled_from([0, 7]),
            "async_scheduling": st.booleans(),
            "block_size": st.sampled_from([1, 4]),
        }
    ),
    "sglang": st.fixed_dictionaries(
        {
            "chunked_prefill_size": st.sampled_from([-1, 16, 48]),
            "max_running_requests": st.integers(1, 12),
            "page_size": st.sampled_from([1, 4]),
            "scheduler_recv_interval": st.integers(1, 9),
            "enable_mixed_chunk": st.booleans(),
            "disable_overlap_schedule": st.booleans(),
            "schedule_policy": st.sampled_from(["fcfs", "lpm"]),
        }
    ),
    "trtllm": st.fixed_dictionaries(
        {
            "max_batch_size": st.integers(1, 12),
            "max_num_tokens": st.integers(64, 96),
            "enable_chunked_prefill": st.just(True),
            "tokens_per_block": st.sampled_from([1, 8]),
            "capacity_scheduler_policy": st.sampled_from(["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"]),
            "disable_overlap_scheduler": st.booleans(),
            "attention_dp_config": st.sampled_from(
                [{}, {"enable_balance": True, "timeout_iters": 3, "batching_wait_iters": 2}]
            ),
        }
    ),
    "atom": st.fixed_dictionaries(
        {
            "max_num_batched_tokens": st.integers(16, 96),
            "max_num_seqs": st.integers(1, 12),
            "enable_chunked_prefill": st.booleans(),
            "block_size": st.sampled_from([1, 4]),
        }
    ),
    "static": st.fixed_dictionaries(
        {"max_batch_size": st.integers(1, 6), "batch_timeout_s": st.sampled_from([0.0, 0.3]), "pad": st.booleans()}
    ),
}

SPECULATIONS = st.sampled_from([None, None, AcceptanceModel((0.8, 0.5)), AcceptanceModel((0.7,), sampled=True, seed=3)])


@st.composite
def settings_and_requests(draw):
    name = draw(st.sampled_from(sorted(OPTIONS)))
    options = draw(OPTIONS[name])
    rows = draw(
        st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=20)
    )
    speculation = draw(SPECULATIONS)
    spare = draw(st.none() | st.integers(0, 60))
    kv_tokens = None if spare is None else max(p + o for _, p, o in rows) + 20 + spare
    requests = pd.DataFrame(
        [(a / 64, p, o) for a, p, o in rows], columns=["arrival_s", "prompt_tokens", "output_tokens"]
    )
    return Engine(name, kv_tokens=kv_tokens, speculation=speculation, **options), requests


def bent(batch):
    """Seconds that are linear in nothing."""
    tokens = sum(q * n for q, _, n in batch.rows)
    contexts = sum(c * n for _, c, n in batch.rows)
    return 0.01 + 1e-3 * (tokens // 5) + 1e-5 * contexts**0.7


def test_every_scheduler_is_among_those_tested():
    assert set(OPTIONS) == set(POLICIES.names())


@settings(max_examples=30)
@given(case=settings_and_requests(), lanes=st.sampled_from([1, 1, 3]))
def test_folding_changes_nothing(case, lanes):
    engine, requests = case
    folded = replay(requests, bent, engine, dp_size=lanes)
    stepped = replay(requests, bent, engine, dp_size=lanes, every_step=True)
    pd.testing.assert_frame_equal(folded, stepped, rtol=1e-12, atol=0.0)
    affine = AffineCost(0.01, 1e-3, 1e-6)
    folded = replay(requests, affine, engine, dp_size=lanes)
    stepped = replay(requests, affine, engine, dp_size=lanes, every_step=True)
    pd.testing.assert_frame_equal(folded, stepped, rtol=1e-9, atol=0.0)


class Stepwise:
    """Bent steps, whole runs of which are known beforehand."""

    def seconds(self, works):
        return max(bent(work.batch) for work in works if work.tokens)

    def decode_each_s(self, works, steps):
        works = [work.kept() for work in works if work.sequences]
        return np.array([self.seconds([work.later(n) for work in works]) for n in range(steps)])

    def decode_ends_s(self, works, steps):
        return self.decode_each_s(works, steps).cumsum()


def served_by(engine, rows, front_end_s, lanes, every_step):
    """Requests one behind the other at their times, each new one when an earlier one ends: their times, and the log."""
    env, coming = simpy.Environment(), []

    def ended(_request):
        if coming:
            request = coming.pop()
            ScheduledEvent(env, env.now + front_end_s, lambda: replica.submit(request), ON_TIME)

    replica = Replica(env, engine, Stepwise(), dp_size=lanes, on_end=ended, every_step=every_step)
    requests = [Request(i, a, int(p), int(o)) for i, (a, p, o) in enumerate(rows.itertuples(index=False))]
    at_once = requests[: len(requests) // 2 + 1]
    coming += requests[len(at_once) :]
    for request in at_once:
        ScheduledEvent(env, request.arrival_s, lambda request=request: replica.submit(request), ON_TIME)
    env.run()
    return [(each.first_scheduled_s, each.first_token_s, each.end_s) for each in requests], replica.log.to_frame()


@settings(max_examples=35)
@given(case=settings_and_requests(), front_end_s=st.sampled_from([0.0037, 0.0213]), lanes=st.sampled_from([1, 1, 2]))
def test_an_engine_that_plans_whole_runs_is_one_that_plans_step_by_step(case, front_end_s, lanes):
    engine, rows = case
    whole, stepped = (served_by(engine, rows, front_end_s, lanes, every_step) for every_step in (False, True))
    np.testing.assert_allclose(whole[0], stepped[0], rtol=1e-12)


@settings(max_examples=25)
@given(
    rows=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=20),
    options=OPTIONS["vllm"],
    spare=st.none() | st.integers(0, 60),
    front_end_s=st.sampled_from([0.0037, 0.0213]),
)
def test_an_engine_that_plans_ahead_logs_the_steps_in_which_arrivals_are_only_noted(rows, options, spare, front_end_s):
    """They belong to a run that goes on, and more wait in them."""
    kv_tokens = None if spare is None else max(p + o for _, p, o in rows) + 20 + spare
    engine = Engine("vllm", kv_tokens=kv_tokens, **{**options, "async_scheduling": True})
    rows = pd.DataFrame([(a / 64, p, o) for a, p, o in rows])
    whole, stepped = (served_by(engine, rows, front_end_s, 1, every_step)[1] for every_step in (False, True))
    pd.testing.assert_frame_equal(whole, stepped, rtol=1e-12, atol=0.0)


class Watched(CalledCost):
    """A cost that looks at the engine in every step."""

    def __init__(self, step_s):
        super().__init__(step_s)
        self.replica, self.queries, self.outputs = None, 0, 0

    def seconds(self, works):
        for lane, work in zip(self.replica.schedulers, works, strict=True):
            pool, block, slack = lane.pool, lane.block, lane.slack
            decoders = lane.decoders.sequences()
            # Whoever is in a cache holds whole blocks for what is there after the step, and for drafts.
            for each in decoders:
                assert lane.decoders.context(each) >= each.request.prompt_tokens
            prompts = [each.held for each in lane.running.values() if not each.decoding]
            grown = [
                -(-(lane.decoders.context(each) + slack + lane.decoders.advance(1)) // block)
                for each in decoders
                if work.sequences
            ] or [-(-(lane.decoders.context(each) + slack) // block) for each in decoders]
            assert pool.used == sum(prompts) + sum(grown)
            assert pool.used <= pool.capacity
            assert lane.decoders.context_tokens == sum(map(lane.decoders.context, decoders))
            assert lane.decoders.longest == max(map(lane.decoders.context, decoders), default=0)
            self.queries += work.tokens
        return super().seconds(works)


@settings(max_examples=20)
@given(case=settings_and_requests())
def test_tokens_and_blocks_are_kept(case):
    engine, rows = case
    if engine.scheduler == "static":
        engine = Engine("static", kv_tokens=None, pad=False)
    # Somebody who stands still while others decode holds what he held: not what the sum above says.
    cost, env, ended = Watched(bent), simpy.Environment(), []
    replica = Replica(env, engine, cost, every_step=True, on_end=ended.append)
    cost.replica = replica
    requests = [Request(i, a, int(p), int(o)) for i, (a, p, o) in enumerate(rows.itertuples(index=False))]
    for request in requests:
        ScheduledEvent(env, request.arrival_s, lambda request=request: replica.submit(request), ON_TIME)
    env.run()
    assert sorted(request.number for request in ended) == list(range(len(requests)))
    (lane,) = replica.schedulers
    assert lane.pool.used == replica.used_tokens == replica.tokens_ahead == replica.running == replica.waiting == 0
    if engine.speculation is None and not any(request.preemptions for request in requests) and not lane.wastes:
        assert cost.queries == sum(request.prompt_tokens + request.output_tokens - 1 for request in requests)
    if getattr(engine.options, "capacity_scheduler_policy", None) == "GUARANTEED_NO_EVICT":
        assert not any(request.preemptions for request in requests)
    for request in requests:
        assert request.arrival_s <= request.first_scheduled_s < request.first_token_s <= request.end_s
        assert (request.first_token_s == request.end_s) == (request.output_tokens == 1)
    log = replica.log.to_frame()
    assert (log.end_s > log.start_s).all()
    assert (log.start_s.to_numpy()[1:] >= log.end_s.to_numpy()[:-1]).all()


@settings(max_examples=15)
@given(case=settings_and_requests())
def test_logs_of_folded_runs_are_those_of_single_steps(case):
    engine, rows = case
    logs = []
    for every_step in (False, True):
        env = simpy.Environment()
        replica = Replica(env, engine, CalledCost(bent), every_step=every_step)
        for i, (a, p, o) in enumerate(rows.itertuples(index=False)):
            request = Request(i, a, int(p), int(o))
            ScheduledEvent(env, a, lambda replica=replica, request=request: replica.submit(request), ON_TIME)
        env.run()
        logs.append(replica.log.to_frame())
    folded, stepped = logs
    assert folded.steps.sum() == stepped.steps.sum()
    spent = [(log.end_s - log.start_s).groupby(log.kind).sum() for log in logs]
    pd.testing.assert_series_equal(*spent, rtol=1e-9)


PREFIXES = st.lists(st.integers(0, 1), max_size=5)


@settings(max_examples=15)
@given(
    case=settings_and_requests(), prefixes=st.lists(PREFIXES, min_size=20, max_size=20), lanes=st.sampled_from([1, 2])
)
def test_folding_changes_nothing_where_caches_remember(case, prefixes, lanes):
    """Prompts begin with some of a few blocks of eight, and are found, forgotten and computed anew alike."""
    engine, rows = case
    if engine.kv_tokens is not None:
        engine = Engine(
            engine.scheduler, kv_tokens=engine.kv_tokens + 40, speculation=engine.speculation, **dict(engine.options)
        )
    answers = []
    for every_step in (False, True):
        env, requests = simpy.Environment(), []
        replica = Replica(env, engine, CalledCost(bent), dp_size=lanes, every_step=every_step)
        for i, (a, p, o) in enumerate(rows.itertuples(index=False)):
            blocks = (*prefixes[i], *(100 + i for _ in range((int(p) + 40 + int(o)) // 8)))
            requests.append(Request(i, a, int(p) + 8 * len(prefixes[i]), int(o), blocks, 8))
            ScheduledEvent(env, a, lambda replica=replica, request=requests[-1]: replica.submit(request), ON_TIME)
        env.run()
        answers.append(
            [(r.first_scheduled_s, r.first_token_s, r.end_s, r.preemptions, r.cached_tokens) for r in requests]
        )
        assert all(lane.pool.used == 0 for lane in replica.schedulers)
    np.testing.assert_allclose(*answers, rtol=1e-12)


def poisson(rate, count, seed, prompt=(50, 300), output=(5, 60)):
    generator = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "arrival_s": np.cumsum(generator.exponential(1 / rate, count)),
            "prompt_tokens": generator.integers(*prompt, count),
            "output_tokens": generator.integers(*output, count),
        }
    )


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_little(name):
    """Requests in the engine, averaged over time as its log shows them, are arrivals a second times seconds spent."""
    requests, env, spent = poisson(8.0, 800, seed=1), simpy.Environment(), []
    replica = Replica(env, Engine(name), AffineCost(0.01, 5e-5), on_end=lambda r: spent.append(r.end_s - r.arrival_s))
    here, last_s, area = 0, 0.0, 0.0

    def count(change):
        nonlocal here, last_s, area
        area += here * (env.now - last_s)
        here, last_s = here + change, env.now

    inner = replica._on_end
    replica._on_end = lambda request: (count(-1), inner(request))
    for i, (a, p, o) in enumerate(requests.itertuples(index=False)):
        request = Request(i, a, int(p), int(o))
        ScheduledEvent(env, a, lambda request=request: (count(1), replica.submit(request)), ON_TIME)
    env.run()
    assert here == 0
    assert area == pytest.approx(sum(spent), rel=1e-9)


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm", "atom", "static"])
def test_first_come_is_first_served(name):
    """Without a prefix to look for, and with a cache for all, first outputs come in the order of arrivals."""
    requests = poisson(30.0, 300, seed=2)
    answer = replay(requests, AffineCost(0.01, 1e-4), Engine(name))
    assert (np.diff(answer.first_token_s) >= 0).all()


def test_more_cache_is_not_slower_at_last():
    """A storm of preemptions costs time: the same requests end later in a smaller cache."""
    requests = poisson(50.0, 300, seed=3)
    ends = [
        replay(requests, AffineCost(0.01, 1e-4), Engine("vllm", kv_tokens=tokens)).end_s.max()
        for tokens in (None, 4000, 1000, 500)
    ]
    assert ends == sorted(ends)
    assert ends[-1] > 1.2 * ends[0]
