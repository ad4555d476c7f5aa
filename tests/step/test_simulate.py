"""The one call: what it answers, in which order, to the bit; and that no answer passes what physics allows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from helpers.bounds import check_below
from helpers.draws import in_turn
from helpers.engine import architecture, make_anew, model_file, question
from helpers.processes import said_in_any_process
from helpers.shipped import SCENARIOS as SHIPPED

import tspsim
from tspsim.base.errors import InputError, UnknownNameError
from tspsim.engine.core import Submission
from tspsim.engine.system import SimulatedRank
from tspsim.network import Traffic
from tspsim.operators import Operator
from tspsim.parallel import Job
from tspsim.program import Compute
from tspsim.program.instructions import Mesh
from tspsim.scenario import Scenario, load
from tspsim.step import simulation
from tspsim.step.bound import bounds
from tspsim.step.description import too_large
from tspsim.step.result import Result
from tspsim.step.simulation import Question, look_up, run, run_plan
from tspsim.studies.planner.query import searched_apart

#: Runs of thousands of GPUs in pipelines, which take many seconds each; their claims: test_published_runs.py.
LARGE_RUNS = ("llama-3-405b-", "deepseek-v3-2048-h800")
LARGE = {name for name in SHIPPED if name.startswith(LARGE_RUNS)}
SCENARIOS = sorted(
    name
    for name, asked in ((name, load(name)) for name in SHIPPED if name not in LARGE)
    if asked.traffic is None and asked.loop is None
)
HEADLINE = "tsp-vs-tpsp-1024-mi300x"
NAMES = ["TSP8", "TP8", "TP4-SP2", "TP2-SP4", "SP8", "TSP8-published"]

#: Keys of a plan that ran, in the order of the design's contract; others may stand between them.
CONTRACT = [
    "name",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "step_time_s",
    "block_forward_tokens_per_s",
    "mfu",
    "dropped_share",
    "breakdown_s",
    "memory",
    "communication_bytes_per_layer",
    "cost",
    "range",
]


@pytest.fixture(scope="module")
def headline() -> Result:
    return shipped(HEADLINE)[1]


@pytest.fixture(scope="module")
def memory() -> Result:
    return shipped("tsp-memory-8x-mi300x")[1]


def in_order(expected: list[str], keys: list[str]) -> bool:
    """Whether ``expected`` is a subsequence of ``keys``."""
    left = iter(keys)
    return all(key in left for key in expected)


# The contract.


def test_the_top_of_the_json_is_the_contracts(headline: Result) -> None:
    found = headline.to_json()
    assert in_order(["schema", "scenario", "cluster", "plans", "provenance"], list(found))
    assert found["schema"] == 1 and found["scenario"]["name"] == HEADLINE
    assert found["cluster"]["gpus"] == 1024 and found["cluster"]["device"]["name"] == "mi300x"


def test_plans_stand_in_the_scenarios_order_with_the_contracts_keys(headline: Result) -> None:
    plans = headline.to_json()["plans"]
    assert [plan["name"] for plan in plans] == NAMES
    for plan in plans:
        assert in_order(CONTRACT, list(plan))
        assert list(plan["breakdown_s"]) == ["compute", "exposed_communication", "bubble", "idle"]
        assert list(plan["memory"]) == ["peak_bytes", "capacity_bytes", "fits", "parts"]
        assert list(plan["communication_bytes_per_layer"]) == ["attention", "mlp", "total"]
        assert list(plan["range"]) == ["low", "high", "basis"]
        assert plan["range"]["low"] < plan["tokens_per_s"] < plan["range"]["high"]
        assert plan["memory"]["peak_bytes"] == pytest.approx(sum(plan["memory"]["parts"].values()))


def test_a_refused_plan_keeps_its_place_with_an_error_and_its_memory_and_no_rates(memory: Result) -> None:
    plans = memory.to_json()["plans"]
    assert [plan["name"] for plan in plans] == NAMES
    *ran, refused, published = plans
    ran.append(published)
    assert all("error" not in plan and plan["memory"]["fits"] for plan in ran)
    assert refused["error"] and not refused["memory"]["fits"] and refused["memory"]["parts"]
    rates = {"tokens_per_s", "tokens_per_s_per_gpu", "step_time_s", "block_forward_tokens_per_s", "mfu", "range"}
    assert not rates & set(refused)


def test_the_json_is_plain_and_survives_a_round_trip(headline: Result, memory: Result) -> None:
    for result in (headline, memory):
        assert json.loads(result.dumps()) == result.to_json()


def test_every_number_has_a_source(headline: Result) -> None:
    rows = headline.to_json()["provenance"]
    assert all(set(row) >= {"what", "value", "source", "basis"} and all(row.values()) for row in rows)
    assert any("16·h² parameters" in row["source"] for row in rows)


def test_the_defaults_that_decide_answers_are_stated(headline: Result) -> None:
    said = " ".join(headline.defaults)
    for word in ("zigzag", "exchange", "all-reduces are exposed", "sequence regions are off", "overlap"):
        assert word in said


#: Degrees and keys of a plan, with what an answer assumes of it and what it does not say.
ASSUMED = [
    ({"dp": 8}, (), ("zigzag", "gather K and V", "Tensor-parallel", "TSP")),
    ({"tp": 8}, ("sequence regions are off",), ("zigzag", "gather K and V", "TSP")),
    ({"tp": 8, "sequence_regions": True}, ("Gathers and sums",), ("sequence regions are off",)),
    ({"tp": 8, "overlap": True}, (), ("exposed",)),
    ({"sp": 8}, ("zigzag", "gather K and V"), ("Tensor-parallel", "TSP")),
    ({"sp": 8, "exchange": "ring"}, ("zigzag",), ("gather K and V",)),
    ({"tsp": 8}, ("zigzag", "TSP"), ("Tensor-parallel", "gather K and V")),
]


@pytest.mark.parametrize(("plan", "said", "unsaid"), ASSUMED, ids=lambda part: str(part)[:40])
def test_an_answer_states_what_it_assumes_of_its_own_plans_only(
    plan: dict[str, Any], said: tuple[str, ...], unsaid: tuple[str, ...]
) -> None:
    scenario = {
        "name": "assumed",
        "cluster": {"device": "h100", "nodes": 1},
        "workload": {"model": "llama-3.1-8b", "pass": "forward", "sequence": 8192},
        "plans": [{"name": "plan", **plan}],
    }
    text = " ".join(tspsim.simulate(tspsim.load(scenario)).defaults)
    assert all(words in text for words in said)
    assert not any(words in text for words in unsaid)


def test_the_settings_of_a_plan_are_told_with_their_defaults_filled_in(headline: Result) -> None:
    settings = {plan.name: plan.settings for plan in headline.plans}
    assert settings["TSP8"]["overlap"] is True and settings["TP8"]["overlap"] is False
    assert {each["partition"] for each in settings.values()} == {"zigzag"}
    assert {each["recomputation"] for each in settings.values()} == {"none"}


def test_a_scenario_is_a_name_a_path_or_a_mapping(tmp_path: Path) -> None:
    asked = question("tsp-8b", [{"name": "TP8", "tp": 8}], sequence=4096)
    path = tmp_path / "asked.yaml"
    path.write_text(json.dumps(asked), encoding="utf-8")
    mapped, read = tspsim.simulate(asked), tspsim.simulate(path)
    assert mapped.dumps() == read.dumps() == tspsim.simulate(tspsim.load(asked)).dumps()


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=f"did you mean '{HEADLINE}'"):
        tspsim.simulate("tsp-vs-tpsp-1024-mi300")
    with pytest.raises(UnknownNameError, match="did you mean 'TSP8'"):
        tspsim.simulate(question("tsp-8b", [{"name": "TSP8", "tsp": 8}], sequence=4096)).plan("TPS8")


def test_a_precision_the_device_lacks_is_refused() -> None:
    with pytest.raises(InputError, match=r"workload\.precision"):
        tspsim.simulate(question("tsp-8b", [{"name": "TP8", "tp": 8}], sequence=4096, precision="int3"))


def test_progress_is_told_before_every_plan() -> None:
    told: list[tuple[str, float]] = []
    plans = [{"name": "a", "tp": 8}, {"name": "b", "sp": 8}]
    tspsim.simulate(question("tsp-8b", plans, sequence=4096), progress=lambda name, share: told.append((name, share)))
    assert told == [("a", 0.0), ("b", 0.5)]


def test_the_message_of_a_plan_that_does_not_fit_names_the_largest_part(memory: Result) -> None:
    refused = memory.plan("SP8")
    assert refused.error == too_large(refused.memory)
    assert re.search(r"[\d.]+ GiB more than its 192\.0; largest part: optimizer state", refused.error)


# The timeline.


def test_the_timeline_has_the_contracts_columns_and_a_row_an_instruction(headline: Result) -> None:
    frame = headline.timeline("TSP8-published")
    columns = ["rank", "stream", "name", "kind", "layer", "start_s", "end_s", "bytes", "flops"]
    assert in_order(columns, list(frame.columns))
    classes = headline.plan("TSP8-published").classes
    assert len(frame) == len(classes) * 48 * 32
    assert set(frame["rank"]) == {entry.representative for entry in classes}
    assert frame["end_s"].max() - frame["start_s"].min() == headline.plan("TSP8-published").step_time_s
    assert set(frame["layer"]) == set(range(32))
    assert {"broadcast", "all_gather", "send_recv", "gemm", "attention"} <= set(frame["kind"])


def test_the_timeline_is_ordered_by_rank_stream_and_start(headline: Result) -> None:
    frame = headline.timeline("TP4-SP2")
    order = frame.sort_values(["rank", "stream", "start_s", "end_s"], kind="stable")
    assert list(order.index) == list(frame.index)


def test_kernels_of_a_rank_add_up_to_its_share_of_the_models_flops(headline: Result) -> None:
    frame = headline.timeline("TP8")
    tokens = 128 * 1024
    asked = look_up(tspsim.load(HEADLINE))
    assert frame["flops"].sum() * 8 == pytest.approx(tokens * asked.model.forward_flops_per_token(tokens), rel=1e-12)


def test_a_refused_plan_has_no_timeline(memory: Result) -> None:
    with pytest.raises(UnknownNameError, match="timeline of plan"):
        memory.timeline("SP8")


def test_every_rank_gives_the_same_answer_and_every_timeline(tmp_path: Path) -> None:
    model = model_file(tmp_path, architecture(1024, layers=2))
    plans = [{"name": "TSP8", "tsp": 8}, {"name": "TP8", "tp": 8}]
    folded, whole = (
        tspsim.simulate(question(model, plans, cluster="mi300x-2x8", sequence=4096), every_rank=every_rank)
        for every_rank in (False, True)
    )
    for name in ("TSP8", "TP8"):
        assert whole.plan(name).tokens_per_s == pytest.approx(folded.plan(name).tokens_per_s, rel=1e-9)
        assert set(whole.timeline(name)["rank"]) == set(range(16))


# The same bits in any process.


def test_the_answer_is_the_same_to_the_bit_in_any_process_and_order() -> None:
    """What was asked in this process before is another order."""
    script = (
        "import hashlib, pandas, tspsim\n"
        "found = {}\n"
        "for name in ('tsp-8x-mi355x', 'tsp-memory-8x-mi300x'):\n"
        "    result = tspsim.simulate(tspsim.load(name, ['workload.sequence=4Ki']))\n"
        "    found[name] = hashlib.sha256(result.dumps().encode()).hexdigest()\n"
        "    for plan in result.plans:\n"
        "        if plan.ran:\n"
        "            table = pandas.util.hash_pandas_object(result.timeline(plan.name), index=False).to_numpy()\n"
        "            found[name, plan.name] = hashlib.sha256(table.tobytes()).hexdigest()\n"
        "print(sorted((str(key), value) for key, value in found.items()))\n"
    )
    shipped("tsp-memory-8x-mi300x")
    assert said_in_any_process(script).count("tsp-memory-8x-mi300x") > 5


def test_asking_again_in_the_same_process_gives_the_same_bits() -> None:
    asked = question(
        "tsp-8b", [{"name": "TSP8", "tsp": 8}, {"name": "SP8", "sp": 8, "exchange": "ring"}], sequence=8192
    )
    first = tspsim.simulate(asked).dumps()
    assert tspsim.simulate(asked).dumps() == first
    make_anew()
    assert tspsim.simulate(asked).dumps() == first


# What physics allows.


#: Instructions up to which every iteration of a shipped plan is run beside those that :mod:`tspsim.engine.steady` runs.
MOST_RUN = 40_000


@cache
def shipped(name: str) -> tuple[Question, Result, dict[str, Submission], dict[str, Question]]:
    """A shipped scenario: what it asks, its answer, and every plan that fits as the engine ran it, with its question
    (a plan with its own routing has its own links)."""
    submissions: dict[str, Submission] = {}
    questions: dict[str, Question] = {}

    def run_and_keep(question: Question, mesh: Mesh, job: Job, *rest: Any, **options: Any) -> Submission:
        submission = run(question, mesh, job, *rest, **options)
        if job.plan.name not in submissions:  # a steady block that is run besides comes second
            whole = submission  # of long plans the rows are looked at that were written out
            if written_out(submission) and submission.instructions <= MOST_RUN:
                whole = run(question, mesh, job, *rest, **options, every_iteration=True)
                assert whole.makespan_s == submission.makespan_s
            submissions[job.plan.name], questions[job.plan.name] = whole, question
        return submission

    asked = look_up(stated(name))
    with patch.object(simulation, "run", run_and_keep), patch.object(simulation, "look_up", lambda *_: asked):
        result = tspsim.simulate(asked.scenario)
    return asked, result, submissions, questions


def stated(name: str) -> Scenario:
    """A shipped scenario without the plan that it leaves to the planner."""
    return searched_apart(tspsim.load(name), True)[0]


def peak_of(asked: Question, operator: Operator) -> float:
    """FLOP/s nobody passes with this operator's type."""
    return asked.device.peak_flops_per_s[getattr(operator, "dtype", "") or asked.work.precision]


#: Twenty plans of sixteen micro-batches each, pipelines of thousands of GPUs, and those that ask what a smaller one
#: asks too (purchase-8b-128k, plan-70b-8k-1024-mi355x): only with -m slow.
LONG = {"tsp-figures-micro-batch", "deepseek-v3-2048-h100", "purchase-70b", "plan-70b-128k-1024-mi355x"}


@pytest.mark.parametrize(
    "name", in_turn((pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in SCENARIOS), 5)
)
def test_a_shipped_scenario_stays_within_what_physics_allows(name: str) -> None:
    """Row by row, transfer by transfer, link by link, and plan by plan below its bound: one run answers all four."""
    asked, result, submissions, questions = shipped(name)
    check_kernels(asked, submissions)
    check_transfers(questions, submissions)
    check_links_and_rates(asked, result)
    check_below(bounds(asked), result)  # of the same question: the schedules it leaves open are chosen once


def written_out(submission: Submission) -> bool:
    """Whether it has rows of iterations that were not run."""
    return any(len(each.role.labels) > sum(map(len, each.role.streams.values())) for each in submission.ranks)


def check_kernels(asked: Question, submissions: Mapping[str, Submission]) -> None:
    """No timeline row passes peak FLOP/s or the memory's bandwidth."""
    for plan, submission in submissions.items():
        columns = submission.timeline.columns()
        taken_s = columns["end_s"] - columns["start_s"]
        least_s = np.zeros(len(submission.timeline.labels))
        known: dict[int, float] = {}  # layers that repeat are one object
        for simulated_rank in submission.ranks:
            first = first_label(columns, simulated_rank)
            for number, issued in enumerate(simulated_rank.role.program.unrolled()):
                instruction = issued.instruction
                if isinstance(instruction, Compute):
                    operators = instruction.operators
                    if id(operators) not in known:
                        known[id(operators)] = sum(least_kernel_s(asked, each) for each in operators)
                    least_s[first + number] = known[id(operators)]
        assert (taken_s >= least_s[columns["label"]] * (1.0 - 1e-9)).all(), plan


def first_label(columns: Mapping[str, Any], simulated_rank: SimulatedRank) -> int:
    """The label of the first instruction of a rank's program."""
    return int(columns["label"][columns["rank"] == simulated_rank.rank.number].min())


def least_kernel_s(asked: Question, operator: Operator) -> float:
    """Seconds an operator needs at peak FLOP/s and full HBM bandwidth, whichever is longer."""
    return max(operator.flops / peak_of(asked, operator), operator.hbm_bytes / asked.device.hbm_bytes_per_s)


def check_transfers(questions: Mapping[str, Question], submissions: Mapping[str, Submission]) -> None:
    """No transfer is faster than its links."""

    def least_s(traffic: Traffic, bandwidth: Sequence[float]) -> float:
        pairs = zip(traffic.links, traffic.link_bytes, strict=True)
        return max((size / bandwidth[link] for link, size in pairs), default=0.0)

    for plan, submission in submissions.items():
        if written_out(submission):
            continue  # these rows have no instructions of their own
        bandwidth = questions[plan].cluster.links.bandwidth_bytes_per_s
        needed_s = {
            channel.number: least_s(instance.traffic, bandwidth) for instance, channel in submission.system.instances
        }
        columns = submission.timeline.columns()
        taken_s: dict[tuple[int, int], float] = dict(
            zip(
                zip(columns["rank"].tolist(), columns["label"].tolist(), strict=True),
                (columns["end_s"] - columns["start_s"]).tolist(),
                strict=True,
            )
        )
        for simulated_rank in submission.ranks:
            rank, first = simulated_rank.rank, first_label(columns, simulated_rank)
            for steps in simulated_rank.role.streams.values():
                for step in steps:
                    for key, _ in step.meets:
                        if key in rank.device.channels:
                            least = needed_s[rank.device.channels[key].number] * (1.0 - 1e-9)
                            assert taken_s[rank.number, first + step.number] >= least, plan


def check_links_and_rates(asked: Question, result: Result) -> None:
    """No link carries more than its capacity over the step, and no rate passes the peak."""
    block_flops = asked.model.layer_forward_flops_per_token(asked.work.sequence, asked.work.causal)
    peak = asked.cluster.gpus * asked.device.peak_flops_per_s[asked.work.precision]
    for plan in result.plans:
        if plan.ran:
            assert all(0.0 <= use.mean <= use.peak * (1.0 + 1e-12) <= 1.0 + 1e-12 for use in plan.links)
            assert all(0.0 <= share <= 1.0 for _, _, share in plan.link_shares)
            assert 0.0 < plan.mfu < 1.0
            assert plan.block_forward_tokens_per_s * block_flops < peak


def test_the_shipped_scenarios_are_there_with_their_plans(headline: Result, memory: Result) -> None:
    assert {HEADLINE, "tsp-memory-8x-mi300x"} <= set(SCENARIOS)
    assert [plan.name for plan in headline.plans] == [plan.name for plan in memory.plans] == NAMES
    assert [plan.name for plan in memory.plans if not plan.ran] == ["SP8"]


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("cluster", ["mi300x-8", "h100-2x8"])
def test_more_bandwidth_never_makes_a_plan_slower(cluster: str, tmp_path: Path) -> None:
    model = model_file(tmp_path, architecture(2048, layers=3))
    switches: list[dict[str, object]] = [
        {"tsp": 8},
        {"tsp": 8, "overlap": False},
        {"tp": 8},
        {"tp": 8, "overlap": True},
        {"sp": 8},
        {"sp": 8, "exchange": "ring"},
        {"tp": 2, "sp": 4, "exchange": "ulysses"},
    ]
    plans = [{"name": str(index), **each} for index, each in enumerate(switches)]
    asked = look_up(tspsim.load(question(model, plans, cluster=cluster, sequence=8192)))
    links = asked.cluster.links
    steps_s = []
    for factor in (0.1, 0.25, 0.5, 0.75, 1.0):
        share = asked.cluster.with_links(dict.fromkeys(zip(links.source, links.target, strict=True), factor))
        steps_s.append([run_plan(replace(asked, cluster=share), plan).step_time_s for plan in asked.plans])
    assert (np.diff(steps_s, axis=0) <= 0.0).all()
    assert (np.array(steps_s[0]) > np.array(steps_s[-1])).all()


# What the headline says.


def test_the_published_gap_is_not_in_the_volumes_and_links(headline: Result) -> None:
    """The published schedule against zigzag baselines with all-reduces exposed: 1.05 to 1.3, never the published 2.0 to
    2.6. The schedule chosen for the machine brings it no further than 1.5."""
    for plan, most in (("TSP8-published", 1.3), ("TSP8", 1.5)):
        folded = headline.plan(plan).block_forward_tokens_per_s
        for rival in ("TP8", "TP4-SP2", "TP2-SP4"):
            assert 1.05 < folded / headline.plan(rival).block_forward_tokens_per_s < most


def test_the_schedule_chosen_for_the_machine_is_faster_than_the_published_one(headline: Result) -> None:
    """Over all links of the mesh, and in larger pieces; of the same bytes and FLOPs."""
    chosen, published = headline.plan("TSP8"), headline.plan("TSP8-published")
    assert 1.1 < chosen.block_forward_tokens_per_s / published.block_forward_tokens_per_s < 1.3
    assert chosen.communication_bytes_per_layer == published.communication_bytes_per_layer
    assert chosen.settings["chosen"] and not published.settings["chosen"]


def test_against_contiguous_tokens_the_gap_is_what_the_last_ranks_extra_work_makes_it(headline: Result) -> None:
    contiguous = tspsim.simulate(tspsim.load(HEADLINE, ["plans.TP2-SP4.partition=contiguous"])).plan("TP2-SP4")
    assert 1.5 < headline.plan("TSP8").tokens_per_s / contiguous.tokens_per_s < 2.0


def test_overlapping_the_all_reduces_makes_tp_faster_and_nothing_overlapped_makes_tsp_slower(headline: Result) -> None:
    switched = tspsim.simulate(tspsim.load(HEADLINE, ["plans.TP8.overlap=true", "plans.TSP8.overlap=false"]))
    assert switched.plan("TP8").tokens_per_s > headline.plan("TP8").tokens_per_s
    assert switched.plan("TSP8").tokens_per_s < headline.plan("TSP8").tokens_per_s
