"""vLLM's steps against a second, plain simulator: one step after another, every request looked at in every step."""

from __future__ import annotations

from collections import deque

from helpers.plain_requests import Plain, assert_replayed_alike, lengths, step_s
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim.serving import Engine


def plain_loop(requests, step_s, *, budget, seats, kv_tokens, block, threshold, whole):
    """The rules of vLLM's scheduler, word by word; a step's rows are given as a list."""
    free = float("inf") if kv_tokens is None else kv_tokens // block
    coming = deque(sorted(requests, key=lambda r: r.arrival_s))
    waiting, running, now = deque(), [], 0.0

    def missing(request, tokens):
        return -(-(request.computed + tokens) // block) - request.blocks

    while coming or waiting or running:
        if not running and not waiting:
            now = max(now, coming[0].arrival_s)
        while coming and coming[0].arrival_s <= now:
            waiting.append(coming.popleft())
        left, scheduled, preempted, index = budget, [], False, 0
        # Of 0.31.0 and later: it keeps tokens for others, and is off where there are none.
        most = threshold if len(running) + len(waiting) > 1 else 0
        while index < len(running) and left > 0:
            request = running[index]
            tokens = min(request.known - request.computed, left)
            if most:
                tokens = min(tokens, most)
            while missing(request, tokens) > free:
                victim = running.pop()
                free += victim.blocks
                victim.blocks = victim.computed = 0
                victim.preemptions += 1
                waiting.appendleft(victim)
                preempted = True
                if victim is request:
                    break
            if index == len(running):
                break
            free -= missing(request, tokens)
            request.blocks += missing(request, tokens)
            left -= tokens
            scheduled.append((request, tokens))
            index += 1
        while waiting and not preempted and left > 0 and len(running) < seats:
            request = waiting[0]
            tokens = min(request.known, left, most or left)
            if missing(request, request.known if whole else tokens) > free:
                break
            free -= missing(request, tokens)
            request.blocks += missing(request, tokens)
            running.append(waiting.popleft())
            left -= tokens
            scheduled.append((request, tokens))
        now += step_s([(tokens, request.computed, 1) for request, tokens in scheduled])
        for request, tokens in scheduled:
            request.computed += tokens
            if request.computed == request.known:
                request.made += 1
                request.first_s = now if request.first_s is None else request.first_s
                if request.made == request.outputs:
                    request.end_s = now
                    free += request.blocks
                    running.remove(request)
    return requests


@settings(max_examples=60)
@given(
    requests=lengths,
    budget=st.integers(2, 80),
    seats=st.integers(1, 12),
    blocks=st.none() | st.integers(0, 30),
    block=st.sampled_from([1, 4, 16]),
    threshold=st.sampled_from([0, 5, 17]),
    whole=st.booleans(),
)
def test_vllm_is_the_plain_loop(requests, budget, seats, blocks, block, threshold, whole):
    longest = max(prompt + outputs - 1 for _, prompt, outputs in requests)
    kv_tokens = None if blocks is None else (-(-longest // block) + blocks) * block
    asked = [Plain(i, a / 16, prompt, outputs) for i, (a, prompt, outputs) in enumerate(requests)]
    kept = {"kv_tokens": kv_tokens, "block": block, "threshold": threshold, "whole": whole}
    plain_loop(asked, step_s, budget=budget, seats=seats, **kept)
    engine = Engine(
        "vllm",
        max_num_batched_tokens=budget,
        max_num_seqs=seats,
        kv_tokens=kv_tokens,
        block_size=block,
        long_prefill_token_threshold=threshold,
        scheduler_reserve_full_isl=whole,
        enable_prefix_caching=False,
    )
    assert_replayed_alike(asked, engine)
