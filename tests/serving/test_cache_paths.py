"""Caches between shards: every receiver gets what it will hold, whoever holds it, once."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim.model.attention import CacheUse
from tspsim.network import build_cluster
from tspsim.network.wires import GpuPlace, Wires
from tspsim.parallel.decode import ContextShare
from tspsim.serving.cache_paths import CachePath, KVLayout, messages

LAYERS = 12
GROUPED = CacheUse(token_bytes=4096.0, heads=8)
LATENT = CacheUse(token_bytes=1152.0, heads=1)


def ranks(first: int, tp: int, *, pp: int = 1, shared: int = 1, use: CacheUse = GROUPED) -> KVLayout:
    places = tuple(
        tuple(GpuPlace(0, first + stage * tp * shared + i) for i in range(tp * shared)) for stage in range(pp)
    )
    return KVLayout(places, (Counter({use: LAYERS // pp}),) * pp, ContextShare("", shared, tp, tp, tp))


def received(giver: KVLayout, taker: KVLayout, heads: int) -> dict[int, float]:
    found: dict[int, float] = defaultdict(float)
    for message in messages(giver, taker, heads):
        found[message.destination.gpu] += message.size_bytes
    return found


def test_equal_degrees_send_rank_to_rank():
    sent = list(messages(ranks(0, 4), ranks(4, 4), 8))
    assert [(each.source.gpu, each.destination.gpu) for each in sent] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert sum(each.size_bytes for each in sent) == pytest.approx(1.0)


@pytest.mark.parametrize(("tp_p", "tp_d"), [(2, 4), (4, 2), (1, 8), (8, 1), (4, 4)])
def test_heads_are_cut_anew_and_nothing_is_sent_twice(tp_p, tp_d):
    sent = list(messages(ranks(0, tp_p), ranks(8, tp_d), 8))
    assert sum(each.size_bytes for each in sent) == pytest.approx(1.0)
    assert len(sent) == max(tp_p, tp_d)


def test_a_latent_is_one_slice_that_every_receiver_takes_whole_from_another_giver():
    sent = list(messages(ranks(0, 4, use=LATENT), ranks(4, 4, use=LATENT), 1))
    assert [(each.source.gpu, each.destination.gpu, each.size_bytes) for each in sent] == [
        (0, 4, 1.0), (1, 5, 1.0), (2, 6, 1.0), (3, 7, 1.0),
    ]  # fmt: skip


def test_more_ranks_than_heads_hold_copies_and_take_turns():
    sent = list(messages(ranks(0, 8), ranks(8, 8), 2))
    assert sum(each.size_bytes for each in sent) == pytest.approx(4.0)  # each of two heads in four copies
    assert Counter(each.source.gpu for each in sent) == dict.fromkeys(range(8), 1)


@given(
    st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 3]), st.sampled_from([1, 2]),
    st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 4]), st.sampled_from([1, 2, 8]),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_every_receiver_gets_just_what_it_will_hold(tp_p, pp_p, cp_p, tp_d, pp_d, cp_d, heads):
    giver, taker = ranks(0, tp_p, pp=pp_p, shared=cp_p), ranks(100, tp_d, pp=pp_d, shared=cp_d)
    found = received(giver, taker, heads)
    share = 1 / (min(tp_d, heads) * pp_d * cp_d)
    assert set(found) == {place.gpu for stage in taker.places for place in stage}
    assert all(size == pytest.approx(share) for size in found.values())


def test_what_goes_is_the_cache_of_the_prompt_with_windows_indexers_and_states():
    use = CacheUse(token_bytes=1000.0, heads=4, window=100, shared_token_bytes=32.0, sequence_bytes=5000.0)
    net = Wires(simpy.Environment(), [build_cluster("h200", 2, "rails-400g")])
    carrier = CachePath(net, ranks(0, 4, use=use), ranks(8, 4, use=use))
    _, whole = carrier.of(0, 700)
    # Heads once, what no head divides in four copies; a state of one head is whole on every rank.
    assert whole == pytest.approx(LAYERS * (100 * 1000.0 + 4 * 700 * 32.0 + 4 * 5000.0))
    pieces = [carrier.of(0, 300, ends=False)[1], carrier.of(300, 700)[1]]
    assert sum(pieces) == pytest.approx(whole)


def test_a_cache_over_four_nics_takes_a_quarter_of_the_time():
    net = Wires(simpy.Environment(), [build_cluster("h200", 2, "rails-400g")])
    rate = net.clusters[0].fabric.nic.bandwidth.value * net.clusters[0].fabric.efficiency.value
    for tp in (1, 4):
        way, size_bytes = CachePath(net, ranks(0, tp), ranks(8, tp)).of(0, 1000)
        assert size_bytes == pytest.approx(LAYERS * 1000 * 4096.0)
        assert way.fluid_s == pytest.approx(size_bytes / tp / rate)
