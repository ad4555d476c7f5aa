"""Two pools: throughput of the slower one, exposed transfers in closed form, alone and with two on one NIC."""

from __future__ import annotations

from collections import Counter

import pytest
from helpers.serving import Closed, Listed, servers

from tspsim.model.attention import CacheUse
from tspsim.network import build_cluster
from tspsim.network.wires import GpuPlace, Wires
from tspsim.parallel.decode import ContextShare
from tspsim.serving.cache_paths import KVLayout
from tspsim.serving.disaggregation import Disaggregated, Handover
from tspsim.serving.replicas import ReplicaPool
from tspsim.serving.requests import Request
from tspsim.serving.service import Outcome, Service

LAYERS = 10
TOKEN_BYTES = 1e5
#: Bytes of a prompt of 10,000 tokens.
PROMPT, SIZE = 10_000, LAYERS * 10_000 * TOKEN_BYTES
CLUSTER = build_cluster("h200", 3, "rails-400g")
RATE = CLUSTER.fabric.nic.bandwidth.value * CLUSTER.fabric.efficiency.value
LATENCY = 2 * CLUSTER.fabric.nic.latency.value
MOVED_S = SIZE / RATE


def holder(gpu: int) -> list[KVLayout]:
    use = Counter({CacheUse(token_bytes=TOKEN_BYTES): LAYERS})
    return [KVLayout(((GpuPlace(0, gpu),),), (use,), ContextShare())]


def desk(read_s: float, step_s: float, givers=(0,), takers=(8,), handover: Handover | None = None) -> Disaggregated:
    return Disaggregated(
        ReplicaPool([servers(len(givers), lambda request: read_s)], name="prefill"),
        ReplicaPool([servers(len(takers), lambda request: step_s * request.output_tokens)], name="decode"),
        ([holder(gpu) for gpu in givers], [holder(gpu) for gpu in takers]),
        lambda env: Wires(env, [CLUSTER]),
        handover or Handover(),
    )


def served(desk: Disaggregated, arrivals=(0.0,), outputs: int = 11) -> Outcome:
    return Service(Listed([Request(i, at_s, PROMPT, outputs) for i, at_s in enumerate(arrivals)]), desk).run()


def test_a_pulled_cache_is_waited_for_with_its_handshake_and_all_its_bytes():
    outcome = served(desk(2.0, 0.1, handover=Handover(handshake_s=0.05)))
    (transfer,), (request,) = outcome.transfers, outcome.requests
    assert transfer.size_bytes == pytest.approx(SIZE)
    assert transfer.exposed_s == pytest.approx(0.05 + MOVED_S + LATENCY)
    assert request.end_s == pytest.approx(2.0 + 0.05 + MOVED_S + LATENCY + 10 * 0.1)
    assert (transfer.source, transfer.destination) == ("prefill 0", "decode 0")


@pytest.mark.parametrize("share", [0.2, 0.9, 1.0, 1.2, 5.0])
def test_a_pushed_cache_hides_behind_the_prompt_but_for_its_last_layer(share):
    read_s = share * MOVED_S
    (transfer,) = served(desk(read_s, 0.1, handover=Handover(push=True))).transfers
    expected = max(MOVED_S / LAYERS, MOVED_S - read_s * (LAYERS - 1) / LAYERS)
    assert transfer.exposed_s == pytest.approx(expected, abs=3 * LATENCY)
    assert transfer.start_s == pytest.approx(read_s / LAYERS)


def test_two_that_are_pulled_from_one_nic_at_once_take_twice_as_long():
    # Two replicas of the second pool, one of the first with two prompts that end at the same time.
    split = desk(2.0, 0.1, givers=(0, 0), takers=(8, 16))
    one, other = served(split, arrivals=(0.0, 0.0)).transfers
    assert one.exposed_s == other.exposed_s == pytest.approx(2 * MOVED_S + LATENCY)


def test_the_second_of_two_shares_only_while_the_first_is_under_way():
    split = desk(2.0, 0.1, givers=(0, 0), takers=(8, 16))
    first, second = served(split, arrivals=(0.0, 0.5 * MOVED_S)).transfers
    # Half a cache alone, then both at half rate until the first is through, then the second alone.
    assert first.exposed_s == pytest.approx(1.5 * MOVED_S + LATENCY)
    assert second.exposed_s == pytest.approx(1.5 * MOVED_S + LATENCY)


def test_two_on_nics_of_their_own_do_not_meet():
    split = desk(2.0, 0.1, givers=(0, 1), takers=(8, 9))
    assert [each.exposed_s for each in served(split, arrivals=(0.0, 0.0)).transfers] == [
        pytest.approx(MOVED_S + LATENCY)
    ] * 2


def test_two_pushed_through_one_nic_end_when_all_bytes_are_through():
    read_s = 0.5 * MOVED_S
    split = desk(read_s, 0.1, givers=(0, 0), takers=(8, 16), handover=Handover(push=True))
    one, other = served(split, arrivals=(0.0, 0.0)).transfers
    assert one.end_s == other.end_s == pytest.approx(read_s / LAYERS + 2 * MOVED_S, rel=1e-4)


@pytest.mark.parametrize(("at_once", "first_s"), [(True, 2.0), (False, 2.0 + MOVED_S + LATENCY + 10 * 0.1)])
def test_the_first_token_comes_from_who_streams_it(at_once, first_s):
    (request,) = served(desk(2.0, 0.1, handover=Handover(first_token_at_once=at_once))).requests
    assert request.first_token_s == pytest.approx(first_s)


def test_one_output_needs_no_second_pool():
    outcome = served(desk(2.0, 0.1), outputs=1)
    assert outcome.transfers == ()
    assert outcome.requests[0].end_s == outcome.requests[0].first_token_s == 2.0


@pytest.mark.parametrize(("x", "y"), [(1, 1), (3, 1), (1, 3), (2, 5)])
def test_throughput_is_that_of_the_slower_pool(x, y):
    read_s, written_s = 1.0, 0.25 * 10
    requests = [Request(number, 0.0, 10, 11) for number in range(400)]
    split = desk(read_s, 0.25, givers=tuple(range(x)), takers=tuple(range(8, 8 + y)))
    outcome = Service(Closed(requests, concurrency=40), split).run()
    ends = sorted(request.end_s for request in outcome.requests)
    rate = 300 / (ends[349] - ends[49])
    assert rate == pytest.approx(min(x / read_s, y / written_s), rel=0.02)
    assert len(outcome.transfers) == 400


@pytest.mark.parametrize("push", [True, False])
def test_answers_on_their_way_count_where_they_go(push):
    """Four prompts are read at once: each goes on at a replica of its own, though none of them is there yet."""
    requests = [Request(i, 0.0, PROMPT, 11) for i in range(4)]
    pools = [
        ReplicaPool([servers(4, lambda request: 2.0)], name="prefill"),
        ReplicaPool([servers(4, lambda request: 0.1 * request.output_tokens)], "least_load", name="decode"),
    ]
    everywhere = [[holder(gpu) for gpu in range(4)], [holder(gpu) for gpu in range(8, 12)]]
    both = Disaggregated(*pools, everywhere, lambda env: Wires(env, [CLUSTER]), Handover(push=push))
    Service(Listed(requests), both).run()
    assert sorted(pools[1].homes) == [0, 1, 2, 3]
