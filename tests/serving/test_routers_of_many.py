"""Routers of many replicas choose as one would who looked at every replica for every request, and look at few."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import simpy
from helpers.serving import Closed, Listed, servers

from tspsim.serving import AffineCost, Engine, Request
from tspsim.serving.replicas import Members, ReplicaPool
from tspsim.serving.routers import ROUTERS
from tspsim.serving.routers.prefix_aware import PREFIX_AWARE, Sent
from tspsim.serving.routers.ranking import load
from tspsim.serving.service import Service
from tspsim.serving.speculation import AcceptanceModel


def looked_at_all(replicas):
    """Least load, by a look at every replica."""
    return min(range(len(replicas)), key=lambda number: load(replicas[number]))


class Plainly:
    """The cache-aware policy, by a look at every replica and every block that it was sent."""

    def __init__(self, replicas, router):
        self.replicas, self.router, self.sent = replicas, router, [OrderedDict() for _ in replicas]

    def __call__(self, request):
        numbers, router = range(len(self.replicas)), self.router
        requests = [load(replica)[0] for replica in self.replicas]
        if max(requests) - min(requests) > router.uneven_by and max(requests) > min(requests) * router.uneven_times:
            return looked_at_all(self.replicas)
        known = [next((i for i, b in enumerate(request.blocks) if b not in s), len(request.blocks)) for s in self.sent]
        best = max(numbers, key=lambda number: known[number])
        if known[best] * request.block_tokens > router.enough * request.prompt_tokens:
            return best
        return min(numbers, key=lambda number: (len(self.sent[number]), load(self.replicas[number])))

    def tell(self, number, request):
        for block in request.blocks:
            self.sent[number][block] = None
            self.sent[number].move_to_end(block)
        while len(self.sent[number]) > self.router.most_blocks:
            self.sent[number].popitem(last=False)


class Checked:
    """A router whose every choice is compared."""

    name, summary = "checked", "compares"

    def __init__(self, router, plainly):
        self.router, self.plainly, self.choices = router, plainly, []

    def open(self, replicas):
        route, plain = self.router.open(replicas), self.plainly(replicas)

        def compared(request):
            wanted = plain(request)
            number = route(request)
            assert number == wanted
            if isinstance(plain, Plainly):
                plain.tell(number, request)
            self.choices.append(number)
            return number

        return compared


def checked(source, members, router, plainly):
    both = ROUTERS.register(Checked(router, plainly))
    try:
        Service(source, ReplicaPool([members], "checked")).run()
    finally:
        ROUTERS.remove("checked")
    return both.choices


def drawn(count, seed=0, rate=400.0, blocks=lambda random, prompt: ()):
    random = np.random.default_rng(seed)
    times = np.cumsum(random.exponential(1.0 / rate, count))
    made = []
    for number, arrival_s in enumerate(times):
        prompt = int(random.integers(20, 400))
        made.append(Request(number, float(arrival_s), prompt, int(random.integers(1, 120)), blocks(random, prompt), 16))
    return made


ENGINES = [
    Engine("vllm"),
    Engine("vllm", kv_tokens=900, max_num_seqs=8),
    Engine("sglang", scheduler_recv_interval=5),
    Engine("trtllm", speculation=AcceptanceModel((0.8, 0.5))),
    Engine("atom", speculation=AcceptanceModel((0.7,), sampled=True, seed=1)),
    Engine("static", max_batch_size=3, batch_timeout_s=0.1),
]


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.scheduler)
def test_least_load_is_that_of_all(engine):
    cost = AffineCost(0.004, 1e-5, 1e-9)
    router = ROUTERS.get("least_load")
    choices = checked(
        Listed(drawn(250)), Members(engine, cost, 24), router, lambda replicas: lambda request: looked_at_all(replicas)
    )
    assert len(set(choices)) == 24
    in_step = Members(engine, cost, 6, dp_size=3)
    checked(Listed(drawn(120, 1)), in_step, router, lambda replicas: lambda request: looked_at_all(replicas))
    checked(Closed(drawn(120, 2), 30), in_step, router, lambda replicas: lambda request: looked_at_all(replicas))
    checked(Listed(drawn(60, 3)), servers(5), router, lambda replicas: lambda request: looked_at_all(replicas))


def chained(random, prompt):
    """Beginnings of a few texts, of any length."""
    text = int(random.integers(0, 6))
    return tuple(range(text << 20, (text << 20) + int(random.integers(0, prompt // 16 + 1))))


def loose(random, prompt):
    """Identities that say nothing of what stands before them."""
    return tuple(int(block) for block in random.integers(0, 9, prompt // 40))


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("blocks", [chained, loose])
@pytest.mark.parametrize("keys", [{}, {"most_blocks": 12}, {"uneven_by": 1, "uneven_times": 1.1, "enough": 0.1}])
def test_the_longest_prefix_is_that_of_all(blocks, keys):
    router = type(PREFIX_AWARE)(**keys)
    members = Members(Engine("vllm"), AffineCost(0.004, 1e-5, 1e-9), 12)
    choices = checked(Listed(drawn(300, 4, blocks=blocks)), members, router, lambda replicas: Plainly(replicas, router))
    assert len(set(choices)) > 1


def test_a_block_that_one_forgets_is_the_other_s():
    sent = Sent(3, most=2)
    sent.add(0, (1, 2))
    sent.add(2, (1, 2))
    assert sent.longest((1, 2, 3)) == (0, 2)
    sent.add(0, (7,))  # forgets block 1
    assert sent.longest((1, 2, 3)) == (2, 2) and sent.count(0) == 2
    assert sent.longest((9,)) == (0, 0)


def test_a_router_of_many_looks_at_few():
    """Looks at loads, not seconds: 256 replicas in bursts and in a stream."""
    looks = 0

    class Counted(Members):
        def build(self, env, on_end, **told):
            replica = super().build(env, on_end, **told)
            steps_done = replica._steps_done

            def counted(time_s):
                nonlocal looks
                looks += 1
                return steps_done(time_s)

            replica._steps_done = counted
            return replica

    requests = drawn(900, 5, rate=3000.0)
    members = Counted(Engine("vllm"), AffineCost(0.004, 1e-5, 1e-9), 256)
    Service(Listed(requests), ReplicaPool([members], "least_load")).run()
    assert looks < 100 * len(requests)


def test_more_replicas_than_a_short_number_holds():
    pool = ReplicaPool([servers(33_000)], "least_load")
    pool.open(simpy.Environment(), lambda request: None)
    pool.give(32_999, Request(0, 0.0, 5, 9))
    assert pool.homes[0] == 32_999
