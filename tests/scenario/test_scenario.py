"""Scenarios: what ships, defaults, degrees, overrides and the plain data of the result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.shipped import SCENARIOS
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, model_serializer

import tspsim
from tspsim.base.errors import InputError, UnknownNameError
from tspsim.parallel import OPTIMIZERS, Optimizer
from tspsim.scenario import ClusterInline, load
from tspsim.scenario.section import Section
from tspsim.step.bound import bounds
from tspsim.step.question import look_up

SIX = ["TSP8", "TP8", "TP4-SP2", "TP2-SP4", "SP8", "TSP8-published"]


def question(**changes: Any) -> dict[str, Any]:
    """A small valid scenario as data."""
    return {
        "name": "small",
        "cluster": {"device": "mi300x", "nodes": 1},
        "workload": {"model": "tsp-8b", "pass": "forward", "sequence": "1Ki"},
        "plans": [{"name": "TSP8", "tsp": 8}, {"name": "TP8", "tp": 8}],
    } | changes


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_shipped_scenario_loads_under_its_own_name(name: str) -> None:
    assert load(name).name == name


def test_the_headline_scenario() -> None:
    scenario = load("tsp-vs-tpsp-1024-mi300x")
    assert [plan.name for plan in scenario.plans] == SIX
    assert scenario.cluster == ClusterInline(device="mi300x", nodes=128, fabric="rails-400g")
    workload = scenario.workload
    assert (workload.model, workload.pass_, workload.sequence) == ("tsp-8b", "forward", 131072)
    assert workload.sequences_per_replica == 1
    assert workload.causal
    assert [plan.degrees(1024)["dp"] for plan in scenario.plans] == [128] * 6
    for plan in scenario.plans:
        assert (plan.partition, plan.exchange, plan.sequence_regions) == ("zigzag", "all_gather", False)
        assert (plan.overlap, plan.recomputation) == (None, "none")


def test_the_memory_scenario() -> None:
    scenario = load("tsp-memory-8x-mi300x")
    assert [plan.name for plan in scenario.plans] == SIX
    assert scenario.cluster == ClusterInline(device="mi300x", nodes=1)
    workload = scenario.workload
    assert (workload.pass_, workload.sequence, workload.sequences_per_replica) == ("training", 131072, 1)
    assert workload.optimizer.name == "adamw-unfused"
    assert workload.optimizer.bytes_per_parameter == 24
    assert workload.runtime_reserve == 2 * 2**30
    for plan in scenario.plans:
        assert (plan.recomputation, plan.exchange, plan.sequence_regions) == ("full", "all_gather", False)


def test_recomputation_left_out_follows_the_pass() -> None:
    training = {"model": "tsp-8b", "pass": "training", "sequence": "1Ki"}
    assert {plan.recomputation for plan in load(question(workload=training)).plans} == {"full"}
    assert {plan.recomputation for plan in load(question()).plans} == {"none"}


def test_optimizers_by_name_and_by_bytes() -> None:
    read = TypeAdapter(Optimizer)
    assert read.validate_python("adamw").bytes_per_parameter == 16
    stated = read.validate_python({"weights": 2, "gradients": 4, "state": 8})
    assert stated.bytes_per_parameter == 14
    assert set(OPTIMIZERS) == {"adamw", "adamw-unfused"}


def test_dp_is_the_gpus_left_and_the_product_is_all_of_them() -> None:
    plan = load(question(plans=[{"name": "mix", "tp": 4, "sp": 2}])).plans[0]
    assert plan.degrees(1024) == {"tsp": 1, "tp": 4, "sp": 2, "pp": 1, "ep": 1, "dp": 128}
    with pytest.raises(InputError, match=r"plans.mix: tp 4 x sp 2 = 8 GPUs a replica do not divide .* 12; 4 would"):
        plan.degrees(12)
    with pytest.raises(InputError, match=r"plans.mix: .* do not divide the cluster's 4$"):
        plan.degrees(4)


def test_a_stated_dp_must_use_every_gpu() -> None:
    plan = load(question(plans=[{"name": "A", "tp": 4, "dp": 2}])).plans[0]
    assert plan.degrees(8)["dp"] == 2
    with pytest.raises(InputError, match=r"plans.A.dp: 2 replicas of 4 GPUs are 8, but the cluster has 16; use 4"):
        plan.degrees(16)


def test_overrides_reach_any_key_and_address_plans_by_name() -> None:
    scenario = load(
        "tsp-vs-tpsp-1024-mi300x",
        [
            "workload.sequence=64Ki",
            "plans.TSP8.overlap=false",
            "plans.1.exchange=ring",
            "cluster.nodes=2",
            "plans.TP8.algorithms.all_reduce=ring",
            "prices.gpu_hour=1.12 USD/h",
        ],
    )
    assert scenario.workload.sequence == 65536
    assert scenario.plan("TSP8").overlap is False
    assert scenario.plan("TP8").exchange == "ring"
    assert scenario.plan("TP8").algorithms == {"all_reduce": "ring"}
    assert isinstance(scenario.cluster, ClusterInline)
    assert scenario.cluster.nodes == 2
    assert scenario.prices.gpu_hour == 1.12


def test_an_override_may_replace_a_whole_section() -> None:
    scenario = load(question(), ["plans=[{name: only, sp: 8}]"])
    assert [plan.name for plan in scenario.plans] == ["only"]


def test_plan_names_with_dots_are_addressed_whole() -> None:
    plans = [{"name": "v1", "tp": 8}, {"name": "v1.5", "tp": 8}]
    scenario = load(question(plans=plans), ["plans.v1.5.tp=4", "plans.v1.tp=2"])
    assert [plan.tp for plan in scenario.plans] == [2, 4]


def test_overrides_leave_the_callers_data_and_shared_aliases_alone() -> None:
    shared = {"name": "A", "tp": 8}
    data = question(plans=[shared, {**shared, "name": "B", "placement": {"node": ["tp"]}}])
    before = json.dumps(data)
    load(data, ["plans.A.tp=4", "plans.B.placement.node=[]"])
    assert json.dumps(data) == before


def test_names_of_the_cluster_and_the_model_are_checked_at_once() -> None:
    with pytest.raises(UnknownNameError, match=r"^cluster.device: unknown device 'mi30x' \(did you mean 'mi3[05]0x'"):
        load(question(cluster={"device": "mi30x"}))
    with pytest.raises(UnknownNameError, match=r"^workload.model: unknown model 'tsp8b' \(did you mean 'tsp-8b'"):
        load(question(workload={"model": "tsp8b", "pass": "forward", "sequence": 8}))


def test_a_model_beside_the_scenario_file_is_found_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    path = tmp_path / "mine.yaml"
    data = question(workload={"model": "./config.json", "pass": "forward", "sequence": 8})
    path.write_text(json.dumps(data))
    assert Path(load(path).workload.model).resolve() == tmp_path / "config.json"


def test_to_dict_is_plain_ordered_and_complete() -> None:
    data = load(question()).to_dict()
    assert json.loads(json.dumps(data)) == data
    assert list(data) == ["name", "description", "cluster", "workload", "plans", "prices", "source"]
    assert data["workload"]["pass"] == "forward"
    assert data["workload"]["sequence"] == 1024
    assert data["workload"]["runtime_reserve"] == 2.0 * 2**30
    assert data["plans"][0]["overlap_chunks"] == 4


def test_a_scenario_is_a_value() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load(question()).name = "other"  # type: ignore[misc]


def test_placement_is_read_in_order() -> None:
    plans = [{"name": "A", "tp": 4, "sp": 2, "placement": {"node": ["sp", "tp"], "rails": ["dp"]}}]
    placement = load(question(plans=plans)).plans[0].placement
    assert placement is not None
    assert (placement.node, placement.rails) == (("sp", "tp"), ("dp",))


def test_loading_imports_nothing_heavy() -> None:
    program = (
        "import sys; from tspsim.scenario import load; load('tsp-memory-8x-mi300x');"
        "print([m for m in ('pandas', 'plotly', 'scipy', 'networkx', 'simpy') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


# A global batch.


def batched(batch: int, *plans: dict[str, Any], **workload: Any) -> dict[str, Any]:
    work = {"model": "llama-3.1-8b", "pass": "training", "sequence": 1024, "global_batch": batch, **workload}
    return question(cluster="h200-2x8", workload=work, plans=list(plans))


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2]), st.integers(1, 12), st.sampled_from([1, 2, 3]))
@settings(deadline=None, max_examples=30)
def test_replicas_share_a_global_batch_in_micro_batches(tp: int, pp: int, each: int, micro_batch: int) -> None:
    """G = dp · micro-batches · sequences of one, or the plan is refused."""
    dp = 16 // (tp * pp)
    data = batched(each * dp, {"name": "P", "tp": tp, "pp": pp, "micro_batch": micro_batch})
    if each % micro_batch:
        with pytest.raises(InputError, match=f"micro_batch: {micro_batch} does not divide the {each} sequences"):
            look_up(load(data))
        return
    asked = look_up(load(data))
    job = asked.job(asked.plans[0])
    assert dp * job.micro_batches * job.sequences == each * dp
    assert load(data).workload.batch_of(dp) == each * dp


def test_plans_of_other_degrees_do_the_same_work_of_a_global_batch() -> None:
    data = batched(32, {"name": "wide", "tp": 8}, {"name": "many", "tp": 2, "zero": 1})
    result = tspsim.simulate(data)
    assert [plan.tokens_per_step for plan in result.plans] == [32 * 1024] * 2
    stated = {key: value for key, value in data["workload"].items() if key != "global_batch"}
    for plan, sequences in zip(result.plans, (16, 4), strict=True):
        alone = {
            **data, "workload": {**stated, "sequences_per_replica": sequences},
            "plans": [each for each in data["plans"] if each["name"] == plan.name],
        }  # fmt: skip
        assert tspsim.simulate(alone).plans[0].step_time_s == plan.step_time_s
    floors = bounds(load(data))
    assert [plan.tokens_per_step for plan in floors.plans] == [32 * 1024] * 2
    assert floors.workload.endswith("32 × 1,024 tokens in all")


def test_a_global_batch_that_replicas_do_not_divide_names_the_plan() -> None:
    with pytest.raises(InputError, match="12 sequences do not divide over 8 replicas of plan 'B'; use a mult"):
        look_up(load(batched(12, {"name": "A", "tp": 4}, {"name": "B", "tp": 2})))
    with pytest.raises(InputError, match=r"^workload: global_batch and sequences_per_replica both say"):
        load(batched(12, {"name": "A"}, sequences_per_replica=1))


def test_a_batch_is_written_as_it_was_stated() -> None:
    scenario = load(batched(32, {"name": "A"}))
    written = scenario.to_dict()
    assert written["workload"]["global_batch"] == 32 and "sequences_per_replica" not in written["workload"]
    apart = scenario.model_copy(update={"workload": scenario.workload.with_sequences(3)}).to_dict()
    assert apart["workload"]["sequences_per_replica"] == 3 and "global_batch" not in apart["workload"]
    assert "global_batch" not in load(question()).to_dict()["workload"]


@pytest.mark.parametrize("text", ["32k", "32K", "0.5M"])
def test_a_length_in_thousands_gets_a_note(text: str) -> None:
    scenario = load(question(), [f"workload.sequence={text}"])
    assert scenario.workload.sequence % 1000 == 0
    (note,) = scenario.in_words()
    assert f"{text} is {scenario.workload.sequence:,} tokens; " in note and "Ki is" in note.replace("Mi", "Ki")
    assert not load(question(), ["workload.sequence=32Ki"]).in_words()


def test_part_of_a_node_is_said_and_told_again() -> None:
    scenario = load(question(), ["cluster.gpus_per_node=4", "plans=[{name: TP4, tp: 4}]"])
    assert "Of each node 4 GPUs are used" in scenario.in_words()[0]
    assert scenario.to_dict()["cluster"]["gpus_per_node"] == 4
    assert "gpus_per_node" not in load(question()).to_dict()["cluster"]


def test_ctrl_c_while_a_scenario_is_written_out_is_ctrl_c() -> None:
    """Pydantic makes of every exception in a part that writes itself one of its own."""

    class Pressed(Section):
        @model_serializer
        def _write(self) -> dict[str, Any]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Pressed().model_dump()
