"""Small schedules worked out by hand: what makes each scheduler what it is. Every step takes a second."""

from __future__ import annotations

import pandas as pd
import pytest

from tspsim.serving import AffineCost, Engine, replay


def run(engine, *rows, **options):
    """Steps as lists of rows (queries, context, count), and the answer; rows are (arrival, prompt, outputs)."""
    steps = []

    def second(batch):
        steps.append([tuple(row) for row in batch.rows])
        return 1.0

    requests = pd.DataFrame(rows, columns=["arrival_s", "prompt_tokens", "output_tokens"])
    return steps, replay(requests, second, engine, **options)


def test_vllm_decodes_first_and_fills_the_budget_with_prompts():
    engine = Engine("vllm", max_num_batched_tokens=10)
    steps, answer = run(engine, (0.0, 6, 4), (0.0, 9, 2))
    assert steps == [
        [(6, 0, 1), (4, 0, 1)],  # the second prompt is cut where the budget ends
        [(5, 4, 1), (1, 6, 1)],  # its rest, behind a decode
        [(1, 9, 1), (1, 7, 1)],
        [(1, 8, 1)],
    ]
    assert answer.first_token_s.tolist() == [1.0, 2.0]
    assert answer.end_s.tolist() == [4.0, 3.0]


def test_vllm_without_chunks_waits_for_a_budget_that_holds_the_prompt():
    engine = Engine("vllm", max_num_batched_tokens=10, enable_chunked_prefill=False)
    steps, _ = run(engine, (0.0, 6, 2), (0.0, 5, 1))
    assert steps == [[(6, 0, 1)], [(5, 0, 1), (1, 6, 1)]]


def test_vllm_cuts_long_prompts_so_that_others_pass():
    engine = Engine("vllm", max_num_batched_tokens=10, long_prefill_token_threshold=4)
    steps, answer = run(engine, (0.0, 9, 1), (0.0, 3, 2))
    assert steps == [[(4, 0, 1), (3, 0, 1)], [(4, 4, 1), (1, 3, 1)], [(1, 8, 1)]]
    assert answer.end_s.tolist() == [3.0, 2.0]


def test_vllm_keeps_no_tokens_for_others_where_there_are_none():
    """scheduler.py:754 of 0.33.0: the threshold is off while one request is eligible; adaptive, it is never less than
    an equal share."""
    engine = Engine("vllm", max_num_batched_tokens=10, long_prefill_token_threshold=4)
    assert run(engine, (0.0, 9, 1))[0] == [[(9, 0, 1)]]
    steps, _ = run(engine, (0.0, 3, 3), (0.5, 9, 1))
    assert steps == [[(3, 0, 1)], [(4, 0, 1), (1, 3, 1)], [(4, 4, 1), (1, 4, 1)], [(1, 8, 1)]]
    adaptive = Engine(
        "vllm", max_num_batched_tokens=12, long_prefill_token_threshold=4, long_prefill_token_threshold_adaptive=True
    )
    assert run(adaptive, (0.0, 9, 1), (0.0, 9, 1))[0] == [[(6, 0, 1), (6, 0, 1)], [(3, 6, 1), (3, 6, 1)]]


def test_vllm_the_first_without_room_stops_those_behind_it():
    engine = Engine("vllm", kv_tokens=10, block_size=1)
    _, answer = run(engine, (0.0, 6, 3), (0.5, 5, 1), (0.5, 1, 1))
    # 6 of 10 tokens are taken: the second has no room until the first has ended, and the third waits behind it.
    assert answer.first_token_s.tolist() == [1.0, 4.0, 4.0]


def test_vllm_admits_what_fits_whole_unless_told_otherwise():
    rows = [(0.0, 4, 4), (0.5, 8, 1)]
    whole = Engine("vllm", kv_tokens=12, block_size=1, max_num_batched_tokens=5)
    steps, _ = run(whole, *rows)
    assert steps[1] == [(1, 4, 1)]  # 4 held, one more this step: 7 are free, 8 are needed
    first_piece = Engine("vllm", kv_tokens=12, block_size=1, max_num_batched_tokens=5, scheduler_reserve_full_isl=False)
    steps, _ = run(first_piece, *rows)
    assert steps[1] == [(4, 0, 1), (1, 4, 1)]


def test_vllm_preempts_the_last_and_computes_it_anew_with_its_outputs():
    engine = Engine("vllm", kv_tokens=8, block_size=1, enable_prefix_caching=False)
    steps, answer = run(engine, (0.0, 3, 5), (0.0, 3, 4))
    assert steps == [
        [(3, 0, 1), (3, 0, 1)],
        [(1, 3, 2)],  # 8 blocks are taken
        [(1, 4, 1)],  # the second gives up its four; whoever preempts admits nobody in the same step
        [(1, 5, 1)],  # 6 taken: five tokens (prompt and two outputs) have no room
        [(1, 6, 1)],
        [(5, 0, 1)],  # computed anew: prompt and two outputs, which gives the third
        [(1, 5, 1)],
    ]
    assert answer.preemptions.tolist() == [0, 1]
    assert answer.first_token_s.tolist() == [1.0, 1.0]
    assert answer.end_s.tolist() == [5.0, 7.0]


def test_vllm_finds_what_is_left_of_a_preempted_request():
    """As above: of the four blocks that the second gave up the first has taken three, the last of them first."""
    steps, answer = run(Engine("vllm", kv_tokens=8, block_size=1), (0.0, 3, 5), (0.0, 3, 4))
    assert steps[4:] == [[(1, 6, 1)], [(4, 1, 1)], [(1, 5, 1)]]
    assert answer.preemptions.tolist() == [0, 1]


def test_vllm_blocks_are_taken_when_a_token_needs_one():
    """In blocks of 4, prompts of 4 and 3 hold one each; the fifth token of the first takes the third and last block,
    so that the fifth of the other finds none."""
    engine = Engine("vllm", kv_tokens=12, block_size=4)
    _, answer = run(engine, (0.0, 4, 6), (0.0, 3, 4))
    # Steps: 1 prompts; 2 (5, 4 tokens) takes the third block; 3 the other needs its second: it is preempted.
    assert answer.preemptions.tolist() == [0, 1]
    # It has two outputs. Five tokens need two blocks, which are free when the first ends.
    assert answer.end_s.tolist() == [6.0, 8.0]


def test_asynchronous_scheduling_sees_arrivals_a_step_later():
    rows = [(0.0, 4, 6), (0.5, 4, 1)]
    _, now = run(Engine("vllm"), *rows)
    _, later = run(Engine("vllm", async_scheduling=True), *rows)
    assert now.first_token_s.tolist() == [1.0, 2.0]
    assert later.first_token_s.tolist() == [1.0, 3.0]


def test_asynchronous_scheduling_frees_a_seat_a_step_later():
    rows = [(0.0, 4, 2), (0.0, 4, 4), (0.0, 4, 1)]
    _, now = run(Engine("vllm", max_num_seqs=2), *rows)
    _, later = run(Engine("vllm", max_num_seqs=2, async_scheduling=True), *rows)
    assert now.first_token_s.tolist() == [1.0, 1.0, 3.0]
    assert later.first_token_s.tolist() == [1.0, 1.0, 4.0]


SYNC = {"disable_overlap_schedule": True}


def test_sglang_computes_prompts_first_and_decodes_stand_still():
    engine = Engine("sglang", chunked_prefill_size=8, **SYNC)
    steps, answer = run(engine, (0.0, 4, 3), (0.5, 12, 1))
    assert steps == [[(4, 0, 1)], [(8, 0, 1)], [(4, 8, 1)], [(1, 4, 1)], [(1, 5, 1)]]
    assert answer.end_s.tolist() == [5.0, 3.0]


def test_sglang_mixes_where_it_is_told_to():
    engine = Engine("sglang", chunked_prefill_size=8, enable_mixed_chunk=True, **SYNC)
    steps, _ = run(engine, (0.0, 4, 3), (0.5, 12, 1))
    assert steps == [[(4, 0, 1)], [(7, 0, 1), (1, 4, 1)], [(5, 7, 1), (1, 5, 1)]]


def test_sglang_looks_for_requests_every_so_many_decode_steps():
    rows = [(0.0, 4, 12), (1.5, 4, 1)]
    for interval, first_s in [(1, 3.0), (3, 5.0), (5, 7.0)]:
        # After a prompt it looks at once (at 1.0); then after every so many decode steps.
        _, answer = run(Engine("sglang", scheduler_recv_interval=interval, **SYNC), *rows)
        assert answer.first_token_s[1] == first_s


def test_sglang_keeps_room_for_a_share_of_the_outputs_to_come():
    """The first has 10 of 40 tokens and 19 outputs to come; the second needs 20, and waits until 40 − 10 − share · 19
    is more."""
    rows = [(0.0, 10, 20), (0.5, 10, 10)]
    _, eager = run(Engine("sglang", kv_tokens=40, schedule_conservativeness=0.5, **SYNC), *rows)
    _, careful = run(Engine("sglang", kv_tokens=40, schedule_conservativeness=1.0, **SYNC), *rows)
    assert eager.first_token_s[1] == 2.0
    assert careful.first_token_s[1] == 21.0  # it is looked at again when somebody has left


def test_sglang_retracts_those_with_fewest_outputs_and_they_wait_behind_the_others():
    rows = [(0.0, 6, 20), (1.5, 4, 11), (5.5, 9, 4)]
    forgets = {"kv_tokens": 30, "schedule_conservativeness": 0.01, "disable_radix_cache": True, **SYNC}
    steps, answer = run(Engine("sglang", **forgets), *rows)
    # The second comes with 4 + 11 tokens while 23 are free; the third, with 9 + 4, waits. At 30 tokens the second is
    # retracted with ten outputs, since the first has more; when the first has ended, it is behind the third.
    assert answer.preemptions.tolist() == [0, 1, 0]
    assert steps[-4:] == [[(9, 0, 1), (14, 0, 1)], [(1, 9, 1)], [(1, 10, 1)], [(1, 11, 1)]]
    # Its prompt is in the radix cache, its answer is not.
    steps, _ = run(Engine("sglang", **{**forgets, "disable_radix_cache": False}), *rows)
    assert steps[-4] == [(9, 0, 1), (10, 4, 1)]


def test_sglang_overlap_computes_what_has_ended_once_more():
    steps, answer = run(Engine("sglang"), (0.0, 4, 2), (0.0, 4, 4))
    assert steps == [[(4, 0, 1), (4, 0, 1)], [(1, 4, 2)], [(1, 5, 2)], [(1, 6, 1)]]
    assert answer.end_s.tolist() == [2.0, 4.0]


SYNC_TRT = {"disable_overlap_scheduler": True, "tokens_per_block": 1}


def test_trtllm_admits_nobody_who_might_have_to_leave():
    rows = [(0.0, 4, 6), (0.0, 4, 6)]
    _, answer = run(Engine("trtllm", kv_tokens=19, **SYNC_TRT), *rows)
    assert answer.preemptions.sum() == 0
    assert answer.first_token_s.tolist() == [1.0, 7.0]
    _, both = run(Engine("trtllm", kv_tokens=20, **SYNC_TRT), *rows)
    assert both.first_token_s.tolist() == [1.0, 1.0]


def test_trtllm_may_pause_for_more_use_of_the_cache():
    engine = Engine(
        "trtllm",
        kv_tokens=12,
        capacity_scheduler_policy="MAX_UTILIZATION",
        enable_chunked_prefill=True,
        **SYNC_TRT,
    )
    _, answer = run(engine, (0.0, 4, 6), (0.0, 4, 6))
    assert answer.first_token_s.tolist() == [1.0, 1.0]
    assert answer.preemptions.tolist() == [0, 1]


def test_sglang_s_attention_replicas_share_chunks_and_places():
    """arg_groups/parallel_hook.py:318 and 331 of 0.5.23 (server_args.py of 0.5.6): the chunk is divided by the
    replicas, and so are places; conservativeness is three tenths."""
    options = {"chunked_prefill_size": 40, "max_running_requests": 4, "disable_overlap_schedule": True}
    engine = Engine("sglang", **options)
    rows = [(0.0, 30, 1), (0.0, 30, 1), (0.0, 5, 1), (0.0, 5, 1)]
    assert run(engine, *rows[:1])[0] == [[(30, 0, 1)]]
    steps, _ = run(engine, *rows, dp_size=2)
    assert steps == [[(20, 0, 1)], [(20, 0, 1)], [(10, 20, 1), (5, 0, 1)], [(10, 20, 1), (5, 0, 1)]]
    alone = run(engine, *[(0.0, 4, 3)] * 8)[1]
    together = run(engine, *[(0.0, 4, 3)] * 8, dp_size=4)[1]
    assert (alone.first_token_s == 1.0).sum() == (together.first_token_s == 1.0).sum() == 4
    settings = engine.policy.settings_of(engine, 2)
    assert (settings.options.schedule_conservativeness, engine.options.schedule_conservativeness) == (0.3, 1.0)


def test_sglang_keeps_all_room_for_answers_that_cannot_end_earlier():
    """schedule_policy.py:787 of 0.5.23: two answers of 40 tokens do not fit 70 with their prompts, of which 0.7 is
    hoped for; told to ignore ends the engine admits one after the other and retracts nobody."""
    rows = [(0.0, 4, 40), (0.5, 4, 40)]
    hoping = Engine("sglang", kv_tokens=79, schedule_conservativeness=0.3, disable_overlap_schedule=True)
    hoped, told = (run(hoping, *rows, ignore_eos=ignores)[1] for ignores in (False, True))
    assert hoped.first_token_s.tolist() == [1.0, 2.0] and hoped.preemptions.sum() > 0
    assert told.first_token_s[1] > told.end_s[0] - 1.5 and told.preemptions.sum() == 0


def test_trtllm_does_not_cut_prompts_by_default_and_then_in_whole_blocks():
    rows = [(0.0, 6, 1), (0.0, 7, 1)]
    options = {"max_num_tokens": 10, "disable_overlap_scheduler": True, "tokens_per_block": 4}
    steps, _ = run(Engine("trtllm", **options), *rows)
    assert steps == [[(6, 0, 1)], [(7, 0, 1)]]
    steps, _ = run(Engine("trtllm", enable_chunked_prefill=True, **options), *rows)
    assert steps == [[(6, 0, 1), (4, 0, 1)], [(3, 4, 1)]]


def test_trtllm_with_balance_begins_prompts_together():
    """Two attention replicas decode; a prompt arrives at one. Without balance it is computed at once and both wait for
    it; with balance it waits until the other has one too, or for so many steps."""
    rows = [(0.0, 4, 40), (0.0, 4, 40), (0.5, 100, 1), (10.5, 100, 1)]
    plain = Engine("trtllm", **SYNC_TRT)
    _, answer = run(plain, *rows, dp_size=2)
    assert answer.first_token_s.tolist() == [1.0, 1.0, 2.0, 12.0]
    balanced = {"enable_balance": True, "timeout_iters": 30, "batching_wait_iters": 0}
    _, answer = run(Engine("trtllm", attention_dp_config=balanced, **SYNC_TRT), *rows, dp_size=2)
    assert answer.first_token_s.tolist() == [1.0, 1.0, 12.0, 12.0]
    impatient = {"enable_balance": True, "timeout_iters": 3, "batching_wait_iters": 0}
    _, answer = run(Engine("trtllm", attention_dp_config=impatient, **SYNC_TRT), *rows, dp_size=2)
    assert answer.first_token_s.tolist() == [1.0, 1.0, 4.0, 14.0]


def test_trtllm_lets_prompts_wait_for_more_of_them_while_others_decode():
    """One that comes alone waits its steps out, two that are enough begin at once; nobody waits in an idle engine."""
    rows = [(0.0, 4, 30), (1.5, 6, 1), (12.5, 6, 1), (12.6, 6, 1)]
    patient = {"batch_wait_timeout_iters": 5, "batch_wait_max_tokens_ratio": 0.6, "max_num_tokens": 20, **SYNC_TRT}
    steps, answer = run(Engine("trtllm", **patient), *rows)
    assert answer.first_token_s.tolist() == [1.0, 8.0, 14.0, 14.0]
    assert steps[7] == [(6, 0, 1), (1, 10, 1)]
    half = {**patient, "batch_wait_max_tokens_ratio": 0.0}
    assert run(Engine("trtllm", **half), *rows)[1].first_token_s.tolist() == [1.0, 3.0, 14.0, 14.0]


def test_atom_computes_prompts_first_and_takes_their_blocks_at_once():
    engine = Engine("atom", max_num_batched_tokens=128, kv_tokens=400, block_size=1)
    steps, answer = run(engine, (0.0, 10, 3), (0.5, 200, 1), (0.5, 200, 1))
    # The rest of the long prompt goes first in its second step; the third finds no blocks for its own whole prompt.
    assert steps[:3] == [[(10, 0, 1)], [(128, 0, 1)], [(72, 128, 1)]]
    assert steps[3] == [(128, 0, 1)]
    assert answer.end_s.tolist() == [7.0, 3.0, 5.0]


def test_atom_cuts_prompts_in_multiples_of_64_also_where_they_are_alone():
    steps, _ = run(Engine("atom", max_num_batched_tokens=70), (0.0, 142, 1))
    assert steps == [[(64, 0, 1)], [(70, 64, 1)], [(8, 134, 1)]]  # what was begun takes what the budget leaves


def test_static_waits_for_a_full_batch_and_runs_it_to_the_end():
    steps, answer = run(Engine("static", max_batch_size=2), (0.0, 4, 3), (0.5, 6, 1), (0.75, 2, 1))
    assert steps == [
        [(4, 0, 1), (6, 0, 1)],
        [(1, 6, 1), (1, 4, 1)],  # what has ended is computed all the same
        [(1, 7, 1), (1, 5, 1)],
        [(2, 0, 1)],
    ]
    assert answer.first_token_s.tolist() == [1.5, 1.5, 4.5]
    assert answer.end_s.tolist() == [3.5, 1.5, 4.5]


def test_static_waits_no_longer_than_its_first_may():
    _, answer = run(Engine("static", max_batch_size=2, batch_timeout_s=0.25), (1.0, 4, 2), (5.0, 1, 1))
    assert answer.first_token_s.tolist() == [2.25, 6.25]


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm", "atom"])
def test_one_request_alone_takes_its_prompt_and_a_decode_for_every_further_output(name):
    cost = AffineCost(2.0**-6, 2.0**-12, 2.0**-20)
    requests = pd.DataFrame({"arrival_s": [0.25], "prompt_tokens": [1000], "output_tokens": [257]})
    answer = replay(requests, cost, Engine(name))
    first_s = 0.25 + 2.0**-6 + 1000 * 2.0**-12
    decodes_s = 256 * (2.0**-6 + 2.0**-12) + 2.0**-20 * sum(range(1000, 1256))
    assert answer.first_token_s[0] == first_s
    assert answer.end_s[0] == first_s + decodes_s
