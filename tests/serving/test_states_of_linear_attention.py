"""States of linear attention: a prompt's beginning is found up to where one was kept, and keeping it takes memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim.base.errors import InputError
from tspsim.model import load_model
from tspsim.parallel import load_stack
from tspsim.scenario import load
from tspsim.serving import AffineCost, Engine, Replica, Request
from tspsim.serving.answer import deployment_of
from tspsim.serving.blocks import BlockTable, Node, PrefixPool, Snapshot, States
from tspsim.step.question import look_up

PAGED = States(live=2, snapshot=1)
#: As vLLM keeps them where it is told nothing.
VLLM = States(live=1, snapshot=1, at="last", decoding=0)


def block_table(blocks: list[int]) -> BlockTable:
    return BlockTable(Request(0, 0.0, 4 * len(blocks), 1, tuple(blocks), 4), 4)


def compute(pool: PrefixPool, blocks: list[int], pieces: list[int]) -> int:
    """A sequence comes, computes its blocks in pieces that end there, and leaves: blocks that were found."""
    mine = block_table(blocks)
    match = pool.find(mine, len(blocks))
    pool.share(mine, match)
    mine.looked_at = match.blocks
    pool.take(len(blocks) - match.blocks)
    for end in pieces:
        if end > match.blocks:
            pool.remember(mine, end)
            pool.keep_states(mine, end)
    pool.give_back(len(blocks) - mine.shared)
    pool.release(mine)
    return match.blocks


def test_a_beginning_is_found_up_to_the_last_state_that_was_kept():
    pool = PrefixPool(float("inf"), 4, in_turn=True, states=PAGED)
    assert compute(pool, [1, 2, 3, 4, 5], [3, 5]) == 0
    assert pool.find(block_table([1, 2, 3, 4, 5, 6]), 6).blocks == 5
    assert pool.find(block_table([1, 2, 3, 4, 9]), 5).blocks == 3  # four are the same, and a state is behind three
    assert pool.find(block_table([1, 2, 9]), 3).blocks == 0


def test_where_a_second_prompt_parts_from_the_first_a_state_is_kept_for_the_third():
    """mamba_branching_seqlen of SGLang, the shared-prefix junction of vLLM."""
    pool = PrefixPool(float("inf"), 4, in_turn=True, states=PAGED)
    found = [compute(pool, [1, 2, 3, 10 * each], [4]) for each in (1, 2, 3, 4)]
    assert found == [0, 0, 3, 3]
    plain = PrefixPool(float("inf"), 4, in_turn=True)
    assert [compute(plain, [1, 2, 3, 10 * each], [4]) for each in (1, 2, 3)] == [0, 3, 3]


def test_a_state_is_forgotten_with_the_block_in_front_of_it_and_takes_its_room():
    pool = PrefixPool(8, 4, in_turn=True, states=States(live=0, snapshot=2))
    assert compute(pool, [1, 2, 3], [3]) == 0
    assert (pool.used, pool._idle_blocks) == (0, 5)  # three blocks and a state of two
    assert compute(pool, [7, 8, 9, 6], [4]) == 0  # takes one: the state, which was freed first
    assert pool.find(block_table([1, 2, 3]), 3).blocks == 0


def test_a_state_that_is_kept_can_be_taken_while_its_sequence_runs():
    pool = PrefixPool(8, 4, in_turn=True, states=States(live=0, snapshot=2))
    mine = block_table([1, 2, 3])
    pool.take(3)
    pool.remember(mine, 3)
    pool.keep_states(mine, 3)
    assert (pool.used, pool.free, pool.find(block_table([1, 2, 3]), 3).blocks) == (3, 5, 3)
    pool.take(4)
    assert (pool.free, pool.find(block_table([1, 2, 3]), 3).blocks) == (1, 0)


def test_a_pool_of_its_own_forgets_the_state_used_longest_ago():
    pool = PrefixPool(float("inf"), 4, in_turn=True, states=States(most=2))
    for first in (1, 4, 7):
        compute(pool, [first, 2, 3], [3])
    assert [pool.find(block_table([first, 2, 3]), 3).blocks for first in (1, 4, 7)] == [0, 3, 3]


prefixes = st.lists(st.integers(0, 2), min_size=1, max_size=6)
rules = st.builds(
    States,
    snapshot=st.integers(0, 3),
    at=st.sampled_from(("pieces", "last", "every")),
    grid=st.integers(1, 3),
    every=st.integers(0, 3),
    inside=st.booleans(),
    most=st.none() | st.integers(0, 4),
)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(prefixes, st.booleans(), st.integers(0, 6)), max_size=40),
    in_turn=st.booleans(),
    states=rules,
)
def test_no_block_is_lost_and_nothing_is_found_without_its_state(steps: Any, in_turn: bool, states: States):
    """Over random comings and goings: blocks held and free are all there are, states lie behind blocks that are there,
    and a match ends at one of them, never behind what blocks alone would give."""
    pool, here = PrefixPool(24, 4, in_turn=in_turn, states=states), []
    for blocks, leaves, which in steps:
        if leaves and here:
            mine, own = here.pop(which % len(here))
            pool.give_back(own - mine.shared)
            pool.release(mine)
        else:
            mine = block_table(blocks)
            match = pool.find(mine, which)
            assert match.blocks <= mine.junction <= max(which, 0)
            ends = [0, *mine.ends]
            kept = [start + place for start, node in zip(ends, match.nodes, strict=False) for place in node.kept]
            assert not match.blocks or match.blocks in kept
            if len(blocks) - match.blocks + match.idle > pool.free:
                continue
            pool.share(mine, match)
            mine.looked_at = match.blocks
            pool.take(len(blocks) - match.blocks)
            pool.remember(mine, which, part=True)
            pool.keep_states(mine, min(which, len(blocks)))
            here.append((mine, len(blocks)))
        nodes = {id(node): node for mine, _ in here for node in mine.nodes}
        every = [*nodes.values(), *(freed for freed in pool._idle if isinstance(freed, Node))]
        assert pool.used == sum(node.cached for node in nodes.values()) + sum(own - mine.shared for mine, own in here)
        assert pool.used + pool.saved == sum(own for _, own in here)
        assert pool.used + pool._idle_blocks <= pool.capacity and pool._idle_blocks == sum(pool._idle.values())
        for node in every:
            kept = [Snapshot(node, place) for place in node.kept]
            assert [pool._idle.get(state, 0) for state in kept] == [states.snapshot] * len(kept)
            assert all(0 < place <= node.cached for place in node.kept)
    for mine, own in here:
        pool.give_back(own - mine.shared)
        pool.release(mine)
    assert pool.used == 0


# --- engines -----------------------------------------------------------------------------------------------------


def serve(engine: Engine, *requests: Request) -> Replica:
    env = simpy.Environment()
    replica = Replica(env, engine, AffineCost(1.0))
    for request in requests:
        env.timeout(request.arrival_s).callbacks.append(lambda _, request=request: replica.submit(request))
    env.run()
    return replica


def prompts(*blocks: list[int]) -> list[Request]:
    return [Request(number, 20.0 * number, 16 * len(each), 3, tuple(each), 16) for number, each in enumerate(blocks)]


def test_vllm_ends_pieces_at_blocks_so_that_a_state_is_kept():
    """_mamba_block_aligned_split: 100 of 112 tokens become 96, and the rest of a block is a piece of its own."""
    engine = Engine("vllm", max_num_batched_tokens=100, states=PAGED)
    replica = serve(engine, Request(0, 0.0, 112, 1))
    assert [tokens for tokens in replica.log.column("chunk_tokens").tolist() if tokens] == [96, 16]
    three = [Request(number, 20.0 * number, 120, 1, (1, 2, 3, 4, 5, 6, 7), 16) for number in range(2)]
    replica = serve(engine, *three)
    assert [tokens for tokens in replica.log.column("chunk_tokens").tolist() if tokens] == [96, 16, 8, 8]
    assert three[1].cached_tokens == 112


#: Requests one after the other, as identities of 16 tokens, prompt and answer; found and computed by the cache manager
#: and the scheduler's split of vLLM 0.33.0 themselves (four groups of blocks of 16, 100 tokens a step), with and
#: without kernels that write states from inside.
ONE_BY_ONE = (
    (
        [
            ([1, 2, 1, 2, 2, 2, 2, 0, 1, 0], 160, 1),
            ([1, 2, 1, 510, 511, 581, 591], 95, 20),
            ([1, 2, 520, 2, 0, 0, 0, 525], 128, 1),
            ([1, 2, 1, 2, 2, 2, 2, 0, 530, 2, 1, 1, 0], 208, 3),
            ([1, 2, 1, 2, 2, 2, 2, 0, 1, 540, 1, 542, 1, 1], 224, 1),
            ([1, 2, 1, 2, 2, 2, 551, 2, 553, 2, 0], 176, 1),
            ([1, 2, 1, 2, 1, 1, 0, 586], 127, 3),
            ([1, 2, 1, 570, 587], 79, 3),
        ],
        [0, 0, 0, 48, 144, 48, 48, 48],
        [96, 48, 16, 48, 32, 15, 32, 80, 16, 80, 64, 16, 64, 16, 48, 64, 16, 16, 48, 15, 16, 15],
        [96, 64, 48, 47, 32, 96, 80, 80, 80, 48, 80, 16, 63, 31],
    ),
    (
        [
            ([2, 1, 1, 0, 0, 2, 0, 980, 990, 991, 992], 123, 60),
            ([1, 2, 993, 994, 995], 32, 60),
            ([2, 1, 1, 0, 0, 2, 0, 980, 990, 991, 992, 920, 0], 213, 1),
            ([0, 2, 1, 2, 0, 1, 0, 2, 0, 2, 996], 160, 20),
            ([1, 2, 993, 0, 0, 997], 80, 20),
            ([0, 0, 0, 1, 2, 0, 2], 117, 1),
            ([1, 2], 32, 1),
            ([2, 1, 1, 0, 0, 2, 0, 987, 998, 999, 900], 123, 60),
        ],
        [0, 0, 112, 0, 16, 0, 16, 112],
        [96, 16, 11, 16, 16, 64, 32, 5, 96, 48, 16, 32, 16, 16, 16, 96, 5, 16, 11],
        [96, 27, 32, 64, 37, 96, 64, 32, 32, 16, 96, 5, 16, 11],
    ),
)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(("asked", "found", "pieces", "whole"), ONE_BY_ONE)
def test_hits_and_pieces_are_those_of_vllm_s_own_cache_manager(
    asked: Any, found: list[int], pieces: list[int], whole: list[int], inside: bool
):
    mine = [
        Request(number, 1000.0 * number, prompt, answer, tuple(blocks), 16)
        for number, (blocks, prompt, answer) in enumerate(asked)
    ]
    replica = serve(Engine("vllm", max_num_batched_tokens=100, states=replace(VLLM, inside=inside)), *mine)
    assert [request.cached_tokens for request in mine] == found
    assert [tokens for tokens in replica.log.column("chunk_tokens").tolist() if tokens] == (whole if inside else pieces)


def test_a_state_of_the_same_step_is_found_in_the_next():
    """Two prompts with the same beginning at once: the second one waits for the state, and then reads its end alone."""
    mine = [Request(number, 0.0, 48, 1, (1, 2, 10 + number), 16) for number in range(2)]
    serve(Engine("vllm", states=None), *mine)
    assert (mine[1].cached_tokens, mine[1].first_token_s) == (32, 1.0)
    mine = [Request(number, 0.0, 48, 1, (1, 2, 10 + number), 16) for number in range(2)]
    serve(Engine("vllm", states=VLLM), *mine)
    assert (mine[1].cached_tokens, mine[1].first_scheduled_s) == (32, 1.0)


def test_tensorrt_llm_keeps_states_where_it_is_told_to_and_reads_prompts_up_to_there():
    for interval, pieces, hit in ((0, [112], 0), (32, [32, 32, 32, 16], 96)):
        mine = [Request(number, 50.0 * number, 112, 1, (1, 2, 3, 4, 5, 6, 7 + number), 16) for number in range(2)]
        state = {"mamba_state_config": {"periodic_snapshot_interval": interval}, "tokens_per_block": 16}
        replica = serve(Engine("trtllm", states=States(live=1, snapshot=1), **state), *mine)
        chunks = [tokens for tokens in replica.log.column("chunk_tokens").tolist() if tokens]
        assert (chunks, mine[1].cached_tokens) == ([*pieces, *(pieces if not hit else [112 - hit])], hit)


@pytest.mark.parametrize("scheduler", ["vllm", "sglang", "trtllm", "atom"])
def test_a_hybrid_finds_no_more_than_a_model_without_states(scheduler: str):
    asked = ([1, 2, 3, 4], [1, 2, 3, 9], [1, 2, 3, 8], [1, 2, 3, 4])
    found = {}
    for name, states in (("none", None), ("paged", PAGED), ("grid", States(grid=2)), ("never", States(most=0))):
        mine = prompts(*asked)
        told = {"mamba_state_config": {"periodic_snapshot_interval": 32}} if scheduler == "trtllm" else {}
        serve(Engine(scheduler, block_tokens=16, kv_tokens=4096, states=states, **told), *mine)
        found[name] = [request.cached_tokens for request in mine]
    assert all(hybrid <= plain for hybrid, plain in zip(found["paged"], found["none"], strict=True))
    assert sum(found["paged"]) > 0
    assert scheduler == "trtllm" or sum(found["never"]) == 0
    assert all(tokens % 32 == 0 for tokens in found["grid"])


def test_states_of_requests_that_run_take_blocks():
    """Of twelve blocks, four a prompt and its answer and two its states: two run at once where three would."""
    mine = [Request(number, 0.0, 50, 8) for number in range(3)]
    serve(Engine("vllm", kv_tokens=12 * 16), *mine)
    assert len({request.first_token_s for request in mine}) == 1
    mine = [Request(number, 0.0, 50, 8) for number in range(3)]
    serve(Engine("vllm", kv_tokens=12 * 16, states=PAGED), *mine)
    assert sorted(request.first_token_s > 5.0 for request in mine) == [False, False, True]
    with pytest.raises(InputError, match="take"):
        serve(Engine("vllm", kv_tokens=5 * 16, states=PAGED), Request(0, 0.0, 50, 8))
    mine = [Request(number, 0.0, 50, 8) for number in range(3)]
    serve(Engine("sglang", kv_tokens=4096, states=States(running=2)), *mine)
    assert sorted(request.first_token_s > 5.0 for request in mine) == [False, False, True]


# --- stacks ------------------------------------------------------------------------------------------------------


def deployed(stack: str, model: str, device: str = "h100", tp: int = 4, **engine: Any) -> Any:
    asked = {
        "name": "hybrid",
        "cluster": {"device": device, "nodes": 1},
        "workload": {"model": model, "stack": stack, "precision": {"weights": "fp8"}, "engine": engine},
        "traffic": {"arrivals": {"kind": "closed", "concurrency": 2}, "prompt": 1024, "output": 8},
        "plans": [{"name": "A", "tp": tp}],
    }
    question = look_up(load(asked))
    return deployment_of(question, question.plans[0])


@pytest.mark.parametrize(
    ("token_bytes", "state_bytes", "block"),
    [
        # Where no kernel writes states from inside.
        # "Setting attention block size to 544 tokens", padded by 1.49 %: Qwen3-Next-80B, states in bf16 (0.11)
        (2 * 2 * 256 * 2, 2 * (32 * 128 * 128 + 3 * 8192), 544),
        # 528, padded by 0.76 %: Qwen3.5-9B of 0.19, four heads of keys and values, states in fp32; 1,056 in fp8
        (2 * 4 * 256 * 2, 4 * 32 * 128 * 128 + 2 * 3 * 8192, 528),
        (2 * 4 * 256, 4 * 32 * 128 * 128 + 2 * 3 * 8192, 1056),
    ],
)
def test_vllm_s_blocks_are_those_that_its_logs_print(token_bytes: int, state_bytes: int, block: int):
    rule = load_stack("vllm").stack().engine.states
    assert rule is not None
    assert rule.on("gdn", "a100").block_tokens(16, "gdn", token_bytes, state_bytes) == block
    inside = rule.on("gdn", "h200").block_tokens(16, "gdn", token_bytes, state_bytes)
    assert inside % 64 == 0 and block <= inside < block + 64


def test_the_catalogue_s_hybrid_has_the_states_of_that_log():
    model = load_model("qwen3-next-80b-a3b")
    layers = [model.attention_kind.cache(model, block, "bf16", "bf16") for block, _ in model.kinds(0, 1)]
    (state,) = [use.sequence_bytes for use in layers if use.sequence_bytes]
    assert state == 2 * (32 * 128 * 128 + 3 * 8192)


def test_engines_keep_states_each_their_own_way():
    vllm, sglang, trtllm = (deployed(stack, "qwen3-next-80b-a3b") for stack in ("vllm", "sglang", "trtllm"))
    atom = deployed("atom", "qwen3-next-80b-a3b", "mi355x")
    # 36 layers keep states and 12 tokens: three blocks a state, one of which a sequence has.
    assert (vllm.engine.block_tokens, vllm.states.live, vllm.states.snapshot) == (576, 3, 3)
    assert deployed("vllm", "qwen3-next-80b-a3b", "mi355x").engine.block_tokens == 528
    kimi = deployed("vllm", "kimi-linear-48b", "h200")
    assert (kimi.engine.block_tokens, kimi.states.snapshot, kimi.states.inside) == (512, 3, False)
    # mamba_full_memory_ratio 0.9: tokens have 1 of 1.9 parts, five states a request that runs.
    assert sglang.engine.kv_tokens == pytest.approx(sglang.costs.tokens_beside_states() / 1.9, rel=1e-6)
    held = sglang.states.most + 3 * sglang.states.running
    assert sglang.states.grid == 64 and sglang.states.running == held // 5
    assert sglang.cache(1024).sessions == sglang.replicas * sglang.states.running
    assert deployed("sglang", "qwen3-next-80b-a3b", disable_radix_cache=True).states is None
    assert (trtllm.states.at, trtllm.states.every, trtllm.states.snapshot > 10) == ("every", 0, True)
    assert atom.states.most == 0
    assert deployed("vllm", "llama-3.1-8b", tp=1).states is None
