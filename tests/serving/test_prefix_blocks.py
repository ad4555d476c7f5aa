"""Blocks that remember: who finds what, who forgets first, and that no block is lost or held twice."""

from __future__ import annotations

from math import inf

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim.base.catalog import validate
from tspsim.scenario.traffic import TrafficSpec
from tspsim.serving import AffineCost, Engine, Replica, Request
from tspsim.serving.blocks import PrefixPool, Trail
from tspsim.serving.log import StepKind
from tspsim.serving.replicas import Members, ReplicaPool
from tspsim.serving.service import Service
from tspsim.serving.traffic import Clients


def trail(blocks, block_tokens=4, of=4):
    return Trail(Request(0, 0.0, len(blocks) * of, 1, tuple(blocks), of), block_tokens)


def compute(pool, blocks, *, keep=False):
    """A sequence comes, computes all of its blocks, and leaves unless it is kept."""
    mine = trail(blocks)
    match = pool.find(mine, len(blocks))
    pool.share(mine, match)
    pool.take(len(blocks) - match.blocks)
    pool.remember(mine, len(blocks))
    if not keep:
        pool.release(mine)
    return match.blocks, mine


def found(pool, blocks):
    return pool.find(trail(blocks), len(blocks)).blocks


def test_the_longest_common_beginning_is_found():
    pool = PrefixPool(inf, 4, in_turn=True)
    compute(pool, [1, 2, 3])
    assert [found(pool, blocks) for blocks in ([1, 2, 3, 4], [1, 2, 9], [2, 3], [1])] == [3, 2, 0, 1]


def test_the_least_recently_used_is_forgotten_first_and_of_a_chain_the_last():
    pool = PrefixPool(6, 4, in_turn=True)
    compute(pool, [1, 2, 3])
    compute(pool, [7, 8, 9])
    compute(pool, [1, 2, 3])  # used again
    compute(pool, [5])
    assert (found(pool, [1, 2, 3]), found(pool, [7, 8, 9]), found(pool, [5])) == (3, 2, 1)
    compute(pool, [6, 4])
    assert (found(pool, [1, 2, 3]), found(pool, [7, 8, 9])) == (3, 0)


def test_what_is_held_is_not_forgotten():
    pool = PrefixPool(4, 4, in_turn=True)
    _, mine = compute(pool, [1, 2], keep=True)
    compute(pool, [3, 4])
    compute(pool, [5, 6])
    assert (found(pool, [1, 2]), found(pool, [3]), pool.used) == (2, 0, 2)
    pool.release(mine)
    assert (pool.used, pool.remembered) == (0, 4)


def test_a_shared_block_is_held_once():
    pool = PrefixPool(10, 4, in_turn=False)
    _, first = compute(pool, [1, 2, 3], keep=True)
    hit, second = compute(pool, [1, 2, 4], keep=True)
    assert (hit, pool.used) == (2, 4)
    pool.release(first)
    assert pool.used == 3
    pool.release(second)
    assert (pool.used, pool.remembered) == (0, 4)


def test_two_that_compute_the_same_keep_one_copy():
    pool = PrefixPool(10, 4, in_turn=False)
    one, two = trail([1, 2]), trail([1, 2])
    for mine in (one, two):
        pool.share(mine, pool.find(mine, 2))
        pool.take(2)
    pool.remember(one, 2)
    assert pool.used == 4
    pool.remember(two, 2)
    assert pool.used == 2


def test_in_turn_blocks_without_a_memory_wait_for_their_turn_too():
    """vLLM takes blocks in the order in which they were freed; others take those first that remember nothing."""
    for in_turn, left in ((True, 1), (False, 2)):
        pool = PrefixPool(4, 4, in_turn=in_turn)
        compute(pool, [1, 2])
        pool.take(2)
        pool.give_back(2)  # freed last, with nothing to remember
        pool.take(1)
        assert found(pool, [1, 2]) == left


def test_identities_of_other_lengths_than_blocks():
    assert trail([1, 2, 3], block_tokens=16, of=512).ends == [32, 64, 96]
    small = trail([1, 2, 3, 4, 5], block_tokens=16, of=8)
    assert (small.keys, small.ends) == ([(1, 2), (3, 4)], [1, 2])
    uneven = trail([1, 2, 3], block_tokens=16, of=24)
    assert uneven.ends == [1, 3, 4]


prefixes = st.lists(st.integers(0, 2), min_size=1, max_size=6)


@settings(max_examples=200)
@given(steps=st.lists(st.tuples(prefixes, st.booleans(), st.integers(0, 5)), max_size=40), in_turn=st.booleans())
def test_no_block_is_lost_or_held_twice(steps, in_turn):
    pool, here = PrefixPool(20, 4, in_turn=in_turn), []
    for blocks, leaves, which in steps:
        if leaves and here:
            mine, own = here.pop(which % len(here))
            pool.give_back(own - mine.shared)
            pool.release(mine)
        else:
            mine = trail(blocks)
            match = pool.find(mine, which)
            if len(blocks) - match.blocks + match.idle > pool.free:
                continue
            pool.share(mine, match)
            pool.take(len(blocks) - match.blocks)
            pool.remember(mine, which, part=True)
            here.append((mine, len(blocks)))
        nodes = {id(node): node for mine, _ in here for node in mine.nodes}
        held = sum(node.cached for node in nodes.values()) + sum(own - mine.shared for mine, own in here)
        assert pool.used == held
        assert pool.used + pool._idle_blocks <= pool.capacity
        assert pool.remembered <= pool._idle_blocks
        assert all(node.cached > 0 for node in nodes.values())
    for mine, own in here:
        pool.give_back(own - mine.shared)
        pool.release(mine)
    assert pool.used == 0


def serve(engine, *requests):
    env = simpy.Environment()
    replica = Replica(env, engine, AffineCost(1.0))
    for request in requests:
        env.timeout(request.arrival_s).callbacks.append(lambda _, request=request: replica.submit(request))
    env.run()
    return replica


def request(number, arrival_s, prompt, outputs, blocks):
    return Request(number, arrival_s, prompt, outputs, tuple(blocks), 16)


def test_a_second_prompt_computes_only_what_is_new():
    for name in ("vllm", "sglang", "trtllm"):
        options = {"trtllm": {"tokens_per_block": 16}}.get(name, {})
        first, second = request(0, 0.0, 48, 1, [1, 2, 3]), request(1, 5.0, 80, 1, [1, 2, 9, 8, 7])
        replica = serve(Engine(name, **options), first, second)
        assert (first.cached_tokens, second.cached_tokens) == (0, 32)
        assert replica.log.column("chunk_tokens").tolist() == [48, 48]


def test_at_least_one_token_is_computed_anew():
    same = [request(number, 5.0 * number, 48, 1, [1, 2, 3]) for number in (0, 1)]
    serve(Engine("vllm"), *same)
    assert same[1].cached_tokens == 32  # whole blocks in front of the last token
    same = [request(number, 5.0 * number, 48, 1, [1, 2, 3]) for number in (0, 1)]
    serve(Engine("sglang"), *same)
    assert same[1].cached_tokens == 47


def test_a_switch_turns_it_off():
    for name, switch in [
        ("vllm", {"enable_prefix_caching": False}),
        ("sglang", {"disable_radix_cache": True}),
        ("trtllm", {"enable_block_reuse": False}),
        ("atom", {"enable_prefix_caching": False}),
    ]:
        same = [request(number, 5.0 * number, 64, 1, [1, 2, 3, 4]) for number in (0, 1)]
        serve(Engine(name, **switch), *same)
        assert same[1].cached_tokens == 0


def test_vllm_finds_what_the_same_step_computes():
    """Admitted behind it in one step, the second prompt takes the first one's blocks while they are being computed."""
    first, second = request(0, 0.0, 64, 1, [1, 2, 3, 4]), request(1, 0.0, 64, 1, [1, 2, 3, 5])
    serve(Engine("vllm"), first, second)
    assert second.cached_tokens == 48


def test_the_next_turn_finds_the_answer_of_the_turn_before():
    """Identities may go on over the answer: 32 of prompt, 16 of it, and the rest of a block."""
    first, second = request(0, 0.0, 32, 20, [1, 2, 3]), request(1, 50.0, 80, 1, [1, 2, 3, 4, 5])
    serve(Engine("vllm"), first, second)
    assert second.cached_tokens == 48


@pytest.mark.parametrize(("scheduler", "found"), [("vllm", 384), ("sglang", 399), ("trtllm", 384)])
def test_the_next_turn_of_a_conversation_finds_what_was_answered(scheduler, found):
    """100 asked and 300 answered, all but the last of which have keys and values, in whole blocks."""
    arrivals = {"kind": "closed", "concurrency": 1}
    asked = {"arrivals": arrivals, "prompt": 100, "output": 300, "prefix": {"turns": 2}, "requests": 2}
    clients = Clients(validate(asked, TrafficSpec).draw())
    Service(clients, ReplicaPool([Members(Engine(scheduler), AffineCost(1.0))])).run()
    assert clients.table.cached_tokens.tolist() == [0, found]


def test_longest_prefix_first():
    base = request(0, 0.0, 64, 12, [1, 2, 3, 4])
    stranger, cousin = request(1, 1.5, 64, 1, [6, 7, 8, 9]), request(2, 1.5, 64, 1, [1, 2, 3, 5])
    for policy, order in (("fcfs", [1, 2]), ("lpm", [2, 1])):
        seats = {"max_running_requests": 2, "disable_overlap_schedule": True}
        both = [stranger, cousin]
        for each in (base, *both):
            each.first_token_s = each.end_s = each.first_scheduled_s = float("nan")
        serve(Engine("sglang", schedule_policy=policy, **seats), base, *both)
        assert sorted(both, key=lambda each: each.first_token_s) == [both[index - 1] for index in order]


def test_tokens_that_came_from_elsewhere_are_not_computed():
    env = simpy.Environment()
    replica = Replica(env, Engine("vllm", kv_tokens=160), AffineCost(1.0, 1.0))
    moved = Request(0, 0.0, 100, 3)
    replica.submit(moved, computed=100)
    env.run()
    assert replica.log.column("chunk_tokens").tolist() == [1, 0]
    assert (moved.first_token_s, moved.end_s) == (2.0, 6.0)
    assert replica.used_tokens == 0


@pytest.mark.parametrize(
    ("scheduler", "options"),
    [
        ("vllm", {}),
        ("sglang", {"disable_overlap_schedule": True}),
        ("trtllm", {"disable_overlap_scheduler": True}),
        ("atom", {}),
    ],
)
def test_who_comes_with_a_cache_decodes_with_the_others(scheduler, options):
    """Nobody stands still for it, as where prompts are read: SGLang's and ATOM's steps are of prompts or of decodes."""
    env = simpy.Environment()
    replica = Replica(env, Engine(scheduler, **options), AffineCost(1.0))
    first, second = Request(0, 0.0, 100, 12), Request(1, 3.5, 50, 6)
    for each in (first, second):
        due = env.timeout(each.arrival_s)
        due.callbacks.append(lambda _, each=each: replica.submit(each, computed=each.prompt_tokens - 1))
    env.run()
    assert (first.end_s, second.first_token_s, second.end_s) == (12.0, 5.0, 10.0)
    assert not (replica.log.column("kind") == StepKind.PREFILL).any()
