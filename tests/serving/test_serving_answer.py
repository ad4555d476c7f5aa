"""From a scenario with traffic to its answer: one small model on one GPU, so that every law is cheap to look at."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tspsim
from tspsim.base.errors import InputError
from tspsim.scenario import load
from tspsim.serving import points
from tspsim.serving.answer import deployment_of, serve_plan
from tspsim.serving.highest import highest_rate
from tspsim.step.cells import flat
from tspsim.step.question import look_up
from tspsim.step.result import PlanResult, Result

CONTRACT = {
    "ttft_s", "tpot_s", "itl_s", "e2e_s", "output_tokens_per_s", "output_tokens_per_s_per_gpu", "requests_per_s",
    "goodput_requests_per_s", "tokens_per_s_per_user", "usd_per_million_output_tokens", "usd_per_million_tokens", "kv",
    "preemptions", "prefix_hit_share", "wall_s", "requests",
}  # fmt: skip


def question(**changes: Any) -> dict[str, Any]:
    return {
        "name": "small-service",
        "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": 1},
        "workload": {"model": "llama-3.1-8b", "stack": "vllm"},
        "traffic": {
            "arrivals": {"kind": "closed", "concurrency": 8},
            "prompt": {"kind": "uniform", "of": "1Ki", "from": 0.8},
            "output": {"kind": "uniform", "of": 128, "from": 0.8},
            "requests": 40,
        },
        "plans": [{"name": "one", "tp": 1}],
    } | changes


def answered(*overrides: str, **changes: Any) -> Result:
    return tspsim.simulate(load(question(**changes), overrides))


def only(result: Result) -> PlanResult:
    (plan,) = result.plans
    assert plan.ran, plan.error
    return plan


@pytest.fixture(scope="module")
def small() -> Result:
    return answered()


def test_an_entry_holds_the_contract(small: Result) -> None:
    entry = small.to_json()["plans"][0]
    assert entry["serving"].keys() >= CONTRACT
    assert {"mean", "p50", "p90", "p99"} <= entry["serving"]["ttft_s"].keys()
    assert {"capacity_tokens", "peak_share", "sessions"} <= entry["serving"]["kv"].keys()
    for name in ("ttft_s", "tpot_s"):
        assert entry["range"][name]["low"] < entry["serving"][name]["mean"] < entry["range"][name]["high"]
    assert entry["range"]["low"] < entry["tokens_per_s"] < entry["range"]["high"]
    assert entry["serving"]["concurrency"] == 8 and entry["serving"]["requests"] == 40
    json.loads(small.dumps())


def test_rates_waits_and_money_fit_each_other(small: Result) -> None:
    plan = only(small)
    serving = plan.serving
    assert plan.tokens_per_s == pytest.approx(serving["output_tokens_per_s"])
    assert serving["output_tokens_per_s"] * serving["wall_s"] == pytest.approx(serving["output_tokens"])
    usd = small.plans[0].cost["usd_per_gpu_hour"]["rental"]
    assert serving["usd_per_million_output_tokens"]["rental"] == pytest.approx(
        usd / 3600 / serving["output_tokens_per_s"] * 1e6
    )
    e2e, ttft = serving["e2e_s"]["mean"], serving["ttft_s"]["mean"]
    assert 0.0 < ttft < e2e < serving["wall_s"]
    busy = sum(seconds for kind, seconds in serving["engine_s"].items() if kind != "idle")
    assert busy <= serving["wall_s"] * (1 + 1e-9)


def test_little_s_law_within_ramp_and_drain() -> None:
    serving = only(answered("traffic.requests=400")).serving
    assert serving["requests_per_s"] * serving["e2e_s"]["mean"] == pytest.approx(8, rel=0.05)


def test_one_client_waits_for_a_prefill_and_then_steps() -> None:
    lengths = ["traffic.prompt=1000", "traffic.output=101", "traffic.arrivals.concurrency=1", "traffic.requests=3"]
    plan = only(answered(*lengths))
    ttft, tpot = plan.serving["ttft_s"], plan.serving["tpot_s"]
    assert ttft["p99"] == pytest.approx(ttft["p50"]) and tpot["p99"] == pytest.approx(tpot["p50"])
    assert plan.serving["e2e_s"]["mean"] == pytest.approx(ttft["mean"] + 100 * tpot["mean"])


def test_every_step_by_itself_gives_the_same_answer() -> None:
    scenario = load(question())
    folded, stepped = tspsim.simulate(scenario), tspsim.simulate(scenario, every_step=True)
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert only(stepped).serving[name] == pytest.approx(only(folded).serving[name], rel=1e-9)


def test_the_same_question_gives_the_same_bits(small: Result) -> None:
    assert answered().dumps() == small.dumps()


def test_a_curve_has_every_point_and_tells_the_best() -> None:
    plan = only(answered("traffic.arrivals.concurrency=[1, 4, 16]", "traffic.requests=32"))
    assert [point["concurrency"] for point in plan.curve] == [1, 4, 16]
    rates = [point["output_tokens_per_s"] for point in plan.curve]
    assert rates == sorted(rates) and plan.serving["concurrency"] == 16
    tpot = [point["tpot_s"]["mean"] for point in plan.curve]
    assert tpot == sorted(tpot)
    assert all(point["range"]["tpot_s"]["low"] < point["tpot_s"]["mean"] for point in plan.curve)
    assert [run.label["concurrency"] for run in plan.runs] == [1, 4, 16]
    assert (
        only(answered("traffic.requests=32", "traffic.arrivals.concurrency=4")).serving["ttft_s"]
        == (plan.curve[1]["ttft_s"])
    )


def test_drafts_put_out_more_tokens_a_step() -> None:
    plain = only(answered("traffic.arrivals.concurrency=1", "traffic.requests=4"))
    drafts = only(
        answered(
            "traffic.arrivals.concurrency=1",
            "traffic.requests=4",
            "plans.one.speculation={tokens: 3, draft: ngram, accepted: 3}",
        )
    )
    assert drafts.serving["tpot_s"]["mean"] < 0.5 * plain.serving["tpot_s"]["mean"]
    assert any("with 3 drafts (ngram) a step puts out 3 tokens" in note for note in drafts.notes)


def test_sampled_drafts_come_out_as_expected_ones_in_the_mean() -> None:
    spec = "plans.one.speculation={{tokens: 2, draft: ngram, rate: 0.6, mode: {mode}}}"
    means = [
        only(answered("traffic.requests=60", spec.format(mode=mode))).serving["tpot_s"]["mean"]
        for mode in ("expected", "sampled")
    ]
    assert means[1] == pytest.approx(means[0], rel=0.05)


def test_an_engine_takes_its_options_by_their_own_names() -> None:
    few = only(answered("workload.engine={max_num_seqs: 2}"))
    assert few.settings["engine"]["max_num_seqs"] == 2
    assert few.serving["ttft_s"]["mean"] > 5 * only(answered()).serving["ttft_s"]["mean"]
    tight = only(answered("plans.one.engine={num_gpu_blocks: 300}"))
    assert tight.serving["kv"]["capacity_tokens"] == 4800
    blocks = -(-(tight.serving["prompt_tokens"] + tight.serving["output_tokens"]) // 40 // 16)
    assert tight.serving["kv"]["sessions"] == pytest.approx(300 / blocks)
    assert tight.serving["preemptions"] > 0 or tight.serving["kv"]["peak_share"] > 0.5


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("workload.engine={max_num_seq: 2}", r"workload\.engine\.max_num_seq: unknown option of vllm .*max_num_seqs"),
        ("workload.engine={max_num_seqs: 0}", r"workload\.engine\.max_num_seqs: '0' is not allowed"),
        ("plans.one.engine={policy: vlm}", r"plans\.one\.engine\.policy: unknown scheduler 'vlm' .*'vllm'"),
        ("workload.engine={num_gpu_blocks: -1}", r"workload\.engine\.num_gpu_blocks: '-1' is not a whole number"),
        ("workload.engine={max_num_seqs: few, max_num_batched_tokens: 512}", r"max_num_seqs: 'few' is not a whole"),
        ("workload.engine={max_num_seqs: true}", r"workload\.engine\.max_num_seqs: true is not a number"),
        ("workload.engine={gpu_memory_utilization: 1.5}", r"workload\.engine\.gpu_memory_utilization: '1.5' is no"),
        ("plans.one.engine={gpu_memory_utilization: much}", r"plans\.one\.engine\.gpu_memory_utilization: .much. is"),
        ("traffic.prompt=200Ki", "the model has 131,072 positions"),
    ],
)
def test_a_mistake_is_told_where_it_stands(override: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        answered(override)


def test_a_share_of_memory_may_be_all_of_it() -> None:
    whole = only(answered("workload.engine={gpu_memory_utilization: 1}")).serving["kv"]["capacity_tokens"]
    assert whole > only(answered("workload.engine={gpu_memory_utilization: 0.9}")).serving["kv"]["capacity_tokens"]


def test_prompts_that_are_not_cut_have_the_room_of_the_most_that_a_step_reads() -> None:
    def capacity(options: str) -> float:
        told = only(answered("workload.stack=sglang", f"workload.engine={options}")).serving
        return float(told["kv"]["capacity_tokens"])

    stated = capacity("{chunked_prefill_size: 4096}")
    assert capacity("{chunked_prefill_size: -1, max_prefill_tokens: 4096}") == stated
    assert capacity("{chunked_prefill_size: -1}") == capacity("{chunked_prefill_size: 16384}") < stated


def test_mlperf_bounds_each_percentile_by_itself() -> None:
    """One in a hundred may wait too long for its first token, and another one in a hundred for the others."""
    arrivals = "traffic.arrivals={kind: poisson, rate: 3}"
    bounds = "traffic.slo={ttft: 64 ms, tpot: 7.3 ms}"
    lengths = "traffic.requests=200"
    both = only(answered(arrivals, bounds, lengths)).serving
    apart = only(answered(arrivals, bounds, lengths, "traffic.protocol=mlperf_server")).serving
    assert "kept_share" not in both and apart["good_share"] == both["good_share"] < apart["kept_share"] < 1.0
    either = [
        only(answered(arrivals, f"traffic.slo={{{one}}}", lengths)).serving["good_share"]
        for one in ("ttft: 64 ms", "tpot: 7.3 ms")
    ]
    assert apart["kept_share"] == min(either)


def test_a_rate_that_no_plan_serves_is_refused_with_the_highest() -> None:
    (plan,) = answered(
        "traffic.arrivals={kind: poisson, rate: 100}", "traffic.requests=300", "traffic.prompt=4Ki"
    ).plans
    assert not plan.ran and plan.error is not None
    assert "requests come at 100/s, and it serves about" in plan.error


@pytest.mark.slow
def test_the_rate_that_is_served_at_most_does_not_depend_on_how_few_were_sent() -> None:
    """A burst of 100 prompts is read before their answers weigh: they looked served 1.6 times as fast as 20,000."""
    told = []
    for requests in (100, 1000):
        (plan,) = answered("traffic.arrivals={kind: poisson, rate: 4000}", f"traffic.requests={requests}").plans
        assert plan.error is not None
        told.append(float(plan.error.split("about ")[1].split("/s")[0]))
    assert told[0] == pytest.approx(told[1], rel=0.1)


def test_a_request_longer_than_the_caches_is_refused() -> None:
    (plan,) = answered("workload.engine={kv_tokens: 512}").plans
    assert plan.error is not None and "does not fit the caches of a replica, which hold 512" in plan.error


def test_a_model_that_does_not_fit_is_refused_with_its_memory() -> None:
    (plan,) = answered("workload.model=llama-3.1-70b").plans
    assert plan.error is not None and not plan.ran and plan.memory.parts["weights"] > plan.memory.capacity_bytes


@pytest.mark.in_turn(2, group="rates")
def test_the_highest_rate_is_where_bounds_are_just_kept_however_few_requests_are_stated() -> None:
    """A hundred that come at once keep bounds at any rate: 344 requests/s in a run of 1.7 s."""
    slo = "traffic.slo={ttft: 500 ms, tpot: 12 ms}"
    plan = only(answered("traffic.arrivals={kind: poisson, rate: highest}", slo, "traffic.requests=100"))
    served = plan.serving
    rate = served["highest_rate_requests_per_s"]
    assert served["bounds"]["kept"] and served["bounds"]["share"] >= 0.9 and served["steady"]["answers"] >= 5
    assert rate < served["lowest_rate_over_bounds_requests_per_s"] < 1.03 * rate
    assert served["steady"]["requests_per_s"] == pytest.approx(rate, rel=0.05)
    two = f"traffic.arrivals={{kind: poisson, rate: [0.1, {1.1 * rate}]}}"
    above = only(answered(two, slo, "traffic.requests=1000"))
    assert [point["bounds"]["kept"] for point in above.curve] == [True, False]


def test_bounds_that_nobody_can_keep_are_told_with_the_one_that_is_missed() -> None:
    """A wait that keeps its bound is not told as the reason."""
    stated = ["traffic.arrivals={kind: fixed, rate: highest}", "traffic.slo={ttft: 5 s, tpot: 1 ms}"]
    (plan,) = answered(*stated).plans
    assert plan.error is not None and "at no rate" in plan.error and "TTFT" not in plan.error
    assert all(part in plan.error for part in ("TPOT", "6.57 ms", "90 %", "1.00 ms"))


def test_replicas_share_the_load() -> None:
    two = answered("cluster.gpus_per_node=2", "traffic.arrivals.concurrency=16", "traffic.requests=80")
    plan = only(two)
    assert plan.settings["replicas"] == 2 and len(plan.runs[0].logs) == 2
    one = only(answered("traffic.requests=40"))
    assert plan.serving["output_tokens_per_s_per_gpu"] == pytest.approx(
        one.serving["output_tokens_per_s_per_gpu"], rel=0.1
    )


def test_shared_beginnings_are_met_in_the_cache() -> None:
    shared = only(answered("traffic.prefix={share: 0.5}", "traffic.prompt=1024"))
    assert shared.serving["prefix_hit_share"] == pytest.approx(0.5, abs=0.1)
    assert shared.serving["ttft_s"]["mean"] < only(answered("traffic.prompt=1024")).serving["ttft_s"]["mean"]


def test_further_draws_widen_the_ranges_and_leave_the_answer() -> None:
    stated = ["traffic.arrivals={kind: gamma, rate: 6, cv: 3}", "traffic.requests=60"]
    one, four = (only(answered(*stated, f"traffic.seeds={count}")) for count in (1, 4))
    assert one.serving["ttft_s"] == four.serving["ttft_s"] and four.serving["seeds"]["count"] == 4
    assert four.serving["seeds"]["ttft_s"]["std"] > 0.0
    ends, wider = (plan.to_json()["range"]["ttft_s"] for plan in (one, four))
    assert wider["low"] < ends["low"] < ends["high"] < wider["high"]


def test_an_interrupt_keeps_the_points_that_were_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    from tspsim.serving import answer as room

    real, calls = room.point, []

    def stopped(*given: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*given, **named)

    monkeypatch.setattr(room, "point", stopped)
    result = answered("traffic.arrivals.concurrency=[1, 2, 4]", "traffic.requests=8")
    assert result.interrupted
    plan = only(result)
    assert [point["concurrency"] for point in plan.curve] == [1, 2]
    assert plan.notes[0] == "interrupted: 2 of 3 points were finished"


def test_an_entry_is_one_row_of_a_table(small: Result) -> None:
    cells = flat(small.to_json()["plans"][0])
    assert {"ttft_s_mean", "tpot_s_p99", "output_tokens_per_s", "kv_peak_share", "ttft_s_low"} <= cells.keys()
    assert cells["decode_step_parts_s_attention"] > 0.0 and not any(isinstance(cell, dict) for cell in cells.values())
    assert "wall_s" not in cells and cells["serving_wall_s"] == only(small).serving["wall_s"]


def test_a_question_s_plan_may_be_served_alone(small: Result) -> None:
    looked = look_up(load(question()))
    assert serve_plan(looked, looked.plans[0]).to_json() == only(small).to_json()


def test_engines_of_every_stack_serve() -> None:
    for stack, device in (("vllm", "h100"), ("sglang", "h100"), ("trtllm", "h100"), ("atom", "mi300x")):
        plan = only(answered(f"workload.stack={stack}", f"cluster.device={device}", "traffic.requests=16"))
        assert plan.settings["engine"]["scheduler"] == stack
        assert np.isfinite(plan.serving["tpot_s"]["mean"])


@pytest.mark.in_turn(2, group="rates")
def test_highest_rates_of_a_trace_stretch_its_time() -> None:
    trace = {"kind": "trace", "file": "azure-2023-conv-1000", "rate": "highest"}
    asked = question(traffic={"arrivals": trace, "requests": 40, "slo": {"ttft": "1 s", "tpot": "20 ms"}})
    looked = look_up(load(asked))
    traffic = looked.scenario.traffic
    assert traffic is not None
    found = highest_rate(deployment_of(looked, looked.plans[0]), traffic)
    assert found.rate is not None and found.rate > 1.0


ELSEWHERE = {"tp": 1, "cluster": {"device": "h100", "nodes": 1}, "replicas": 1, "router": "least"}


@pytest.mark.parametrize("plan", [{"tp": 1, "router": "least"}, {"pools": {"prefill": ELSEWHERE, "decode": {"tp": 1}}}])
def test_an_unknown_router_is_told_where_it_stands(plan: dict[str, Any]) -> None:
    asked = look_up(load(question(plans=[{"name": "one", **plan}])))
    with pytest.raises(InputError, match=r"unknown router 'least' .did you mean 'least_load'") as error:
        deployment_of(asked, asked.plans[0])
    assert error.value.key == ("plans.one.pools.prefill.router" if "pools" in plan else "plans.one.router")


@pytest.mark.parametrize("seeds", [1, 2])
def test_ctrl_c_while_ranges_are_served_ends_the_curve_with_the_points_before(
    monkeypatch: pytest.MonkeyPatch, seeds: int
) -> None:
    """It was swallowed there: the curve went on to its end, with a range of the requests that had come."""
    asked = look_up(load(question(), ["traffic.arrivals.concurrency=[1, 2, 4]", f"traffic.seeds={seeds}"]))
    serve, calls = points.serve, 0

    def interrupted(*given: Any, **keys: Any) -> Any:
        nonlocal calls
        calls += 1
        waits, outcome = serve(*given, **keys)
        # The second point's slower steps, or its last draw.
        return waits, replace(outcome, interrupted=True) if calls == 2 * (2 + seeds) else outcome

    monkeypatch.setattr(points, "serve", interrupted)
    found = serve_plan(asked, asked.plans[0])
    assert any(note.startswith("interrupted: 1 of 3 points") for note in found.notes)
    assert len(found.runs) == 1
