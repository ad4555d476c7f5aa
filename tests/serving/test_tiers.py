"""Tiers behind a cache: loaded where that is faster than to compute, layer by layer, least recently used go first."""

from __future__ import annotations

import pytest
from helpers.serving import Listed
from hypothesis import given, settings
from hypothesis import strategies as st

import tspsim
from tspsim.base.errors import InputError
from tspsim.network import build_cluster
from tspsim.network.collectives.traffic import COPIES, host_bandwidth
from tspsim.scenario import load
from tspsim.serving import AffineCost
from tspsim.serving.engine import Engine
from tspsim.serving.replicas import Members
from tspsim.serving.requests import Request
from tspsim.serving.service import Outcome, Service
from tspsim.serving.tiers import Store, TieredPool, TierSpec

BLOCK, TOKENS = 100, 1000
PROMPT = tuple(range(10))


class Linear:
    """A step takes so long a token of prompts, and a tick."""

    def __init__(self, token_s: float) -> None:
        self.token_s = token_s

    def seconds(self, works) -> float:
        return 1e-6 + self.token_s * sum(chunk.query_tokens for work in works for chunk in work.chunks)

    def decode_ends_s(self, works, steps):
        raise AssertionError("one output each: nothing decodes")


HOST = TierSpec("host", size_bytes=1e6, token_bytes=1.0, token_s=1e-4)


def served(requests, tier=HOST, *, token_s: float = 1e-3, layers: int = 10, overlap: bool = True, replicas: int = 1,
           kv_tokens: int | None = 1000) -> Outcome:  # fmt: skip
    engine = Engine("vllm", kv_tokens=kv_tokens, block_size=BLOCK, max_num_batched_tokens=4096)
    members = Members(engine, Linear(token_s), replicas)
    pool = TieredPool([members], tiers=[tier], layers=layers, overlap=overlap)
    return Service(Listed(requests), pool).run()


def asked(number: int, at_s: float, blocks=PROMPT, tokens: int = TOKENS) -> Request:
    return Request(number, at_s, tokens, 1, tuple(blocks), BLOCK)


def flush(number: int, at_s: float) -> Request:
    """Another prompt that takes all of the cache."""
    return asked(number, at_s, range(1000 + 20 * number, 1010 + 20 * number))


def test_what_the_gpu_forgot_is_loaded_from_the_host():
    first, other, again = asked(0, 0.0), flush(1, 5.0), asked(2, 10.0)
    outcome = served([first, other, again], overlap=False)
    (load_,) = outcome.transfers
    assert (load_.source, load_.request) == ("host", 2)
    # The last block is computed: nine are loaded, at a tenth of what they take to compute.
    assert load_.exposed_s == pytest.approx(900 * 1e-4)
    assert again.first_token_s - 10.0 == pytest.approx(900 * 1e-4 + 100 * 1e-3, rel=1e-3)
    assert first.first_token_s == pytest.approx(1.0, rel=1e-3)
    assert again.cached_tokens == 900


def test_answers_are_loaded_like_prompts_and_not_before_they_are_written():
    """Ten blocks of a prompt and two of its answer; who comes while the answer is written finds ten."""
    text = tuple(range(14))
    first = Request(0, 0.0, 1000, 201, text, BLOCK)
    early, late = Request(1, 1100.0, 1300, 1, text[:12], BLOCK), Request(2, 5000.0, 1400, 1, text, BLOCK)
    members = Members(Engine("vllm", block_size=BLOCK, enable_prefix_caching=False), AffineCost(1.0, 1.0))
    pool = TieredPool([members], tiers=[HOST], layers=10)
    outcome = Service(Listed([first, early, late]), pool).run()
    assert [each.size_bytes for each in outcome.transfers] == pytest.approx([1000.0, 1200.0])


def test_what_the_gpu_still_has_is_not_loaded():
    assert served([asked(0, 0.0), asked(1, 5.0)]).transfers == ()


def test_what_one_attention_replica_has_is_loaded_for_another():
    """The first was read by one of two; a stranger is there now, and the same text goes to the other."""
    again = asked(2, 2.1)
    members = Members(Engine("vllm", block_size=BLOCK), Linear(1e-3), dp_size=2)
    pool = TieredPool([members], tiers=[HOST], layers=10)
    outcome = Service(Listed([asked(0, 0.0), flush(1, 2.0), again]), pool).run()
    assert [each.request for each in outcome.transfers] == [2] and again.cached_tokens == 900


def test_what_is_forgotten_while_the_rest_is_loaded_is_computed():
    """Half of a text is in the cache and the other half on its way when a stranger takes all room."""
    short, again = asked(1, 2.0, range(50, 55), 500), asked(2, 5.0)
    outcome = served([asked(0, 0.0), short, again, flush(3, 5.01)], overlap=False)
    (load_,) = outcome.transfers
    assert load_.size_bytes == pytest.approx(400.0) and load_.end_s == pytest.approx(5.04)
    assert again.cached_tokens == 0 and again.first_token_s == pytest.approx(7.01, rel=1e-3)


@pytest.mark.parametrize("every_step", [False, True])
def test_what_a_run_of_steps_has_taken_so_far_is_not_remembered(every_step):
    """A stranger decodes and takes block after block of a text that nobody holds; in the middle of that it is asked for
    again, and what has been taken until then is loaded."""
    stranger = Request(1, 2.0, 100, 700)
    members = Members(Engine("vllm", kv_tokens=TOKENS, block_size=BLOCK), AffineCost(0.01, 1e-3))
    pool = TieredPool([members], tiers=[HOST], layers=10)
    outcome = Service(Listed([asked(0, 0.0), stranger, asked(2, 7.0)]), pool, every_step=every_step).run()
    # 444 steps after its prompt the stranger has six of ten blocks: four are left, and the last is computed.
    assert [each.size_bytes for each in outcome.transfers] == [pytest.approx(500.0)]


def test_a_load_that_is_slower_than_to_compute_is_no_hit():
    slow = TierSpec("host", 1e6, 1.0, token_s=2e-3)
    outcome = served([asked(0, 0.0), flush(1, 5.0), asked(2, 10.0)], slow)
    assert outcome.transfers == ()
    assert outcome.requests[2].first_token_s - 10.0 == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize(("rest", "layers"), [(100, 10), (500, 10), (900, 10), (500, 1)])
def test_a_load_hides_behind_the_rest_of_the_prompt_but_for_a_layer(rest, layers):
    known = TOKENS - rest
    blocks = (*PROMPT[: known // BLOCK], *range(500, 500 + rest // BLOCK))
    outcome = served([asked(0, 0.0), flush(1, 5.0), asked(2, 10.0, blocks)], layers=layers)
    load_s, rest_s = known * 1e-4, 1e-6 + rest * 1e-3
    (load_,) = outcome.transfers
    assert load_.exposed_s == pytest.approx(max(load_s / layers, load_s - rest_s * (layers - 1) / layers))


def test_latency_decides_short_loads():
    late = TierSpec("host", 1e6, 1.0, token_s=1e-4, latency_s=2.0)
    assert served([asked(0, 0.0), flush(1, 5.0), asked(2, 10.0)], late).transfers == ()


def test_two_loads_of_a_replica_share_its_link():
    pair = [asked(0, 0.0), asked(1, 2.0, range(100, 110)), flush(2, 5.0), flush(3, 7.0)]
    again = [asked(4, 10.0), asked(5, 10.0, range(100, 110))]
    outcome = served([*pair, *again], overlap=False, kv_tokens=2000)
    assert [each.exposed_s for each in outcome.transfers] == [pytest.approx(2 * 900 * 1e-4)] * 2


def test_on_eviction_only_what_was_forgotten_is_kept():
    evicting = TierSpec("host", 1e6, 1.0, 1e-4, on_eviction=True)
    outcome = served([asked(0, 0.0), flush(1, 5.0), asked(2, 10.0)], evicting, overlap=False)
    (load_,) = outcome.transfers
    assert load_.request == 2
    roomy = served([asked(0, 0.0), flush(1, 5.0), asked(2, 10.0)], evicting, kv_tokens=None)
    assert roomy.transfers == ()


def test_a_host_is_its_replicas_own_and_a_store_is_everybodys():
    requests = [asked(0, 0.0), asked(1, 5.0)]  # round robin: each on a replica of its own
    assert served(requests, replicas=2).transfers == ()
    store = TierSpec("remote", 1e6, 1.0, 1e-4, shared=True)
    (load_,) = served([asked(0, 0.0), asked(1, 5.0)], store, replicas=2).transfers
    assert (load_.source, load_.destination) == ("remote", "replica 1")


@given(st.lists(st.integers(0, 20), max_size=60), st.integers(1, 10))
@settings(max_examples=100, deadline=None)
def test_a_store_keeps_the_blocks_used_last_and_never_more_than_it_holds(blocks, room):
    store = Store(room * 2.0)
    for block in blocks:
        store.put(block, 2.0)
        assert store.used_bytes <= store.capacity_bytes
    latest = list(dict.fromkeys(reversed(blocks)))[:room]
    assert len(store) == len(latest)
    assert all(block in store for block in latest)


def test_the_host_is_reached_by_its_own_link_where_it_has_one():
    assert host_bandwidth(build_cluster("h200").node) == pytest.approx(COPIES * 63e9)
    assert host_bandwidth(build_cluster(node="gb200-nvl72").node) == pytest.approx(COPIES * 450e9)


def scenario(tiers: object, kv_tokens: int = 40_000) -> dict:
    return {
        "name": "turns",
        "cluster": {"device": "h200", "gpus_per_node": 1},
        "workload": {"model": "llama-3.1-8b", "stack": "vllm", "engine": {"kv_tokens": kv_tokens}},
        "traffic": {
            "arrivals": {"kind": "closed", "concurrency": 8},
            "prompt": {"kind": "fixed", "of": 6000},
            "output": {"kind": "fixed", "of": 32},
            "prefix": {"turns": 3, "think": "1 s"},
            "requests": 36,
        },
        "plans": [{"name": "plain"}, {"name": "tiers", "tiers": tiers}],
    }


@pytest.mark.in_turn(2, group="rates")
def test_conversations_that_do_not_fit_wait_less_for_their_next_turn():
    plain, tiered = tspsim.simulate(load(scenario({"host": {"size": "100 GB"}}))).plans
    assert tiered.serving["prefix_hit_share"] > plain.serving["prefix_hit_share"]
    assert tiered.serving["ttft_s"]["mean"] < plain.serving["ttft_s"]["mean"]
    assert any(each.source == "host" for each in tiered.runs[0].transfers)


def test_a_piece_that_what_is_forgotten_makes_shorter_is_met_at_its_step():
    engine = {"num_gpu_blocks": 40, "capacity_scheduler_policy": "MAX_UTILIZATION"}
    asked = load(
        {
            "name": "agents",
            "cluster": {"device": "b200"},
            "workload": {
                "model": "deepseek-v4-flash",
                "stack": "trtllm",
                "engine": engine | {"enable_chunked_prefill": True, "max_num_tokens": 512},
            },
            "traffic": {
                "arrivals": {"kind": "closed", "concurrency": 3},
                "prompt": {"kind": "lognormal", "median": 120, "sigma": 1.0, "cap": 600},
                "output": 20,
                "prefix": {"kind": "agents", "turns": 2, "tool": "100 ms", "workers": 2},
                "requests": 12,
                "seed": 774,
            },
            "plans": [
                {
                    "name": "TP8",
                    "tp": 8,
                    "speculation": {"tokens": 3, "draft": "ngram", "rate": 0.6, "mode": "expected"},
                    "tiers": {"host": {"size": "1 GB"}},
                }
            ],
        }
    )
    folded, by_steps = (
        tspsim.simulate(asked, every_step=every).plans[0].runs[0].waits.end_s for every in (False, True)
    )
    assert folded == pytest.approx(by_steps, abs=1e-12)


@pytest.mark.parametrize(
    ("tiers", "said"),
    [
        ({}, "states no tier; state host, remote or both"),
        ({"remote": {"size": "1 TB"}}, "remote has no bandwidth"),
        ({"host": {"size": "0 GB"}}, "must be more than zero"),
        ({"hots": {"size": "1 GB"}}, r"tiers\.hots: unknown key \(did you mean 'host'\?\)"),
    ],
)
def test_wrong_tiers_are_told(tiers, said):
    with pytest.raises(InputError, match=said):
        load(scenario(tiers))
