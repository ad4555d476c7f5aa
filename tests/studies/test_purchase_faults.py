"""Faults as scenario entries: slower links and GPUs, what each scheme loses, and wrong entries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tspsim.base.errors import InputError
from tspsim.cli import main
from tspsim.scenario import load
from tspsim.step.result import Result
from tspsim.step.simulation import look_up, simulate
from tspsim.studies import Sweep

SOUND, DEAD, LINK, GPU = "tsp-vs-tpsp-8x-mi300x", "dead-link-mi300x", "slow-link-mi300x", "slow-gpu-mi300x"


def small(faults: dict[str, Any] | None = None, nodes: int = 1, **plan: Any) -> dict[str, Any]:
    """One short forward pass on MI300X nodes."""
    cluster: dict[str, Any] = {"device": "mi300x", "nodes": nodes, "fabric": "rails-400g"}
    if faults:
        cluster["faults"] = faults
    return {
        "name": "small",
        "cluster": cluster,
        "workload": {"model": "tsp-8b", "pass": "forward", "sequence": "8Ki"},
        "plans": [{"name": "P", **(plan or {"tp": 8})}],
    }


def step_s(scenario: dict[str, Any]) -> float:
    return simulate(scenario).plans[0].step_time_s


@pytest.fixture(scope="module")
def answers() -> dict[str, Result]:
    return {name: simulate(load(name, ["workload.sequence=16Ki"])) for name in (SOUND, DEAD, LINK, GPU)}


def test_the_shipped_faults_ask_the_same_plans_as_the_sound_node() -> None:
    assert load(DEAD).plans == load(LINK).plans == load(GPU).plans == load(SOUND).plans


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("name", [DEAD, LINK, GPU])
def test_no_scheme_is_faster_with_a_fault(answers: dict[str, Result], name: str) -> None:
    for sound, hurt in zip(answers[SOUND].plans, answers[name].plans, strict=True):
        assert hurt.step_time_s > sound.step_time_s


def test_every_scheme_waits_for_a_slow_gpu_but_loses_no_more_than_its_kernels(answers: dict[str, Result]) -> None:
    for sound, hurt in zip(answers[SOUND].plans, answers[GPU].plans, strict=True):
        assert 1.0 < hurt.step_time_s / sound.step_time_s <= 1.1
        assert hurt.breakdown_s["idle"] + sum(hurt.breakdown_s["exposed_communication"].values()) > sum(
            sound.breakdown_s["exposed_communication"].values()
        )


def test_a_slow_gpu_is_seen_in_the_timeline(answers: dict[str, Result]) -> None:
    frame = answers[GPU].timeline("TP8")
    compute = frame[(frame["stream"] == "compute") & (frame["layer"] == 0)]
    busy_s = (compute["end_s"] - compute["start_s"]).groupby(compute["rank"]).sum()
    others = busy_s[busy_s.index != 3]
    assert len(others) >= 1
    assert busy_s[3] / others.max() == pytest.approx(1.1, rel=1e-6)


def test_a_slow_link_is_the_busiest_of_the_picture(answers: dict[str, Result]) -> None:
    shares = {(source, target): share for source, target, share in answers[LINK].plan("TP8").link_shares}
    assert max(shares, key=lambda link: shares[link]) in {("0", "1"), ("1", "0")}


def test_a_dead_link_is_seen_in_the_picture_and_the_detour_in_the_timeline(answers: dict[str, Result]) -> None:
    plan = answers[DEAD].plan("TP8")
    assert set(plan.dead_links) == {("0", "1"), ("1", "0")}
    shares = {(source, target): share for source, target, share in plan.link_shares}
    assert shares["0", "1"] == shares["1", "0"] == 0.0 < shares["0", "2"]
    frame = answers[DEAD].timeline("TP8")
    assert frame[frame["kind"] == "all_reduce"]["shape"].str.contains("round dead links").all()
    assert not answers[SOUND].timeline("TP8")["shape"].str.contains("dead").any()


def test_a_pair_that_relays_over_idle_links_pays_latency_alone(answers: dict[str, Result]) -> None:
    """GPUs 0 and 1 of TP2 reduce over GPU 2, whose links to them nobody else uses at that time."""
    sound, hurt = (answers[name].plan("TP2-SP4") for name in (SOUND, DEAD))
    assert hurt.step_time_s == pytest.approx(sound.step_time_s, rel=0.01)


def test_a_plan_whose_ranks_are_cut_off_is_refused_and_others_run() -> None:
    """GPU 0 has no link left: plans that need it are refused by name; one that never sends runs."""
    lonely = {"links": [{"between": [0, far], "factor": 0} for far in range(1, 8)]}
    scenario = small(lonely) | {"plans": [{"name": "TP8", "tp": 8}, {"name": "alone"}]}
    refused, alone = simulate(scenario).plans
    assert refused.error is not None and refused.error.startswith("dead links leave no route from GPU ")
    assert alone.ran


def test_where_no_plan_has_a_way_left_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = ", ".join(f"{{between: [0, {far}], factor: 0}}" for far in range(1, 8))
    overrides = ["--set", "workload.sequence=8Ki", "--set", f"cluster.faults.links=[{cut}]"]
    assert main(["run", DEAD, *overrides, "--json", str(tmp_path / "answer.json")]) == 3
    told = capsys.readouterr().err
    assert "no plan can run; TSP8: dead links leave no route from GPU" in told


def test_a_dead_nic_hurts_only_what_crosses_nodes() -> None:
    nic = {"dead": ["node0/nic0"]}
    across: dict[str, Any] = {"tp": 8, "sp": 2}
    assert step_s(small(nic, nodes=2, **across)) > step_s(small(nodes=2, **across))
    assert step_s(small(nic, nodes=2)) == step_s(small(nodes=2))


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(
    "faults",
    [
        {"links": [{"between": [0, 1], "factor": 0}, {"between": [9, 12], "factor": 0}]},
        {"dead": ["node0/nic3", "node1/nic5"]},
        {"dead": ["rail2/leaf0"], "slow_gpus": [{"gpu": 5, "factor": 1.2}]},
    ],
)
@pytest.mark.parametrize("plan", [{"tsp": 8}, {"tp": 2, "sp": 4}, {"tp": 4, "sp": 4}], ids=str)
def test_folding_changes_nothing_with_dead_links(faults: dict[str, Any], plan: dict[str, Any]) -> None:
    folded, every = (simulate(small(faults, nodes=2, **plan), every_rank=each).plans[0] for each in (False, True))
    assert folded.step_time_s == pytest.approx(every.step_time_s, rel=1e-12)


def test_replicas_elsewhere_do_not_suffer_while_the_step_does() -> None:
    """Two replicas of a forward pass: the node without the fault is done earlier and waits for nobody."""
    hurt = simulate(small({"links": [{"between": [8, 9], "factor": 0.1}]}, nodes=2)).plans[0]
    sound = simulate(small(nodes=2)).plans[0]
    assert hurt.step_time_s > 1.2 * sound.step_time_s
    ends = simulate(small({"links": [{"between": [8, 9], "factor": 0.1}]}, nodes=2), every_rank=True).timeline("P")
    assert ends[ends["rank"] < 8]["end_s"].max() == pytest.approx(sound.step_time_s, rel=1e-9)


def test_folding_changes_nothing_with_faults() -> None:
    faults = {"links": [{"between": [0, 1], "factor": 0.5}], "slow_gpus": [{"gpu": 11, "factor": 1.3}]}
    folded, every = (simulate(small(faults, nodes=2, tsp=8), every_rank=each).plans[0] for each in (False, True))
    assert folded.step_time_s == pytest.approx(every.step_time_s, rel=1e-12)


def test_a_rail_can_lose_bandwidth_too() -> None:
    across: dict[str, Any] = {"tp": 8, "sp": 2}
    rail = {"links": [{"between": ["node0/nic0", "rail0/leaf0"], "factor": 0.25}]}
    assert step_s(small(rail, nodes=2, **across)) > 1.01 * step_s(small(nodes=2, **across))


def test_factors_of_one_change_nothing() -> None:
    faults = {"links": [{"between": [0, 1], "factor": 1.0}], "slow_gpus": [{"gpu": 0, "factor": 1.0}]}
    assert step_s(small(faults)) == pytest.approx(step_s(small()), rel=1e-12)


def test_the_answer_says_what_was_assumed_to_be_broken(answers: dict[str, Result]) -> None:
    assert any("GPU 0 and GPU 1 has 25 %" in sentence for sentence in answers[LINK].defaults)
    assert any("GPU 3 take 1.1 times" in sentence for sentence in answers[GPU].defaults)


def test_a_sweep_tells_slow_gpus_and_slow_links_apart() -> None:
    brief = ["workload.sequence=8Ki"]
    gpus = Sweep(GPU, ["cluster.faults.slow_gpus.0.factor=1,1.2", "plans=TP8"], overrides=brief)
    links = Sweep(LINK, ["cluster.faults.links.0.factor=1,0.1", "plans=TP8"], overrides=brief)
    for sweep in (gpus, links):
        fast, slow = sweep.run(jobs=1).columns["step_time_s"]
        assert isinstance(fast, float) and isinstance(slow, float) and slow > 1.05 * fast


@pytest.mark.parametrize(
    ("faults", "told"),
    [
        ({"links": [{"between": [0, 1], "factor": -0.1}]}, "links.0.factor"),
        ({"dead": ["node0/nic9"]}, "cluster.faults.dead.0: unknown switch or NIC"),
        ({"dead": [3]}, "faults.dead.0"),
        ({"links": [{"between": [0, 1], "factor": 1.5}]}, "links.0.factor"),
        ({"links": [{"between": [0, 0], "factor": 0.5}]}, "no link of their own"),
        ({"links": [{"between": [0, 8], "factor": 0.5}]}, "no link of their own"),
        ({"links": [{"between": [0, "node0/nick0"], "factor": 0.5}]}, "unknown link"),
        ({"links": [{"between": [0], "factor": 0.5}]}, "links.0.between"),
        ({"links": [{"between": [0, 1], "factor": 0.5}, {"between": [1, 0], "factor": 0.5}]}, "named twice"),
        ({"slow_gpus": [{"gpu": 8, "factor": 1.1}]}, "slow_gpus.0.gpu: GPU 8 is not in mi300x-8"),
        ({"slow_gpus": [{"gpu": -1, "factor": 1.1}]}, "slow_gpus.0.gpu"),
        ({"slow_gpus": [{"gpu": 0, "factor": 0.9}]}, "slow_gpus.0.factor"),
        ({"slow_gpus": [{"gpu": 0, "factor": 1.1}, {"gpu": 0, "factor": 1.2}]}, "slow twice"),
        ({"slow_gpu": []}, "did you mean 'slow_gpus'"),
    ],
)
def test_wrong_faults_are_told_in_one_line(faults: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as caught:
        look_up(load(small(faults)))
    assert told in str(caught.value) and "\n" not in str(caught.value)
    assert "cluster" in str(caught.value)
