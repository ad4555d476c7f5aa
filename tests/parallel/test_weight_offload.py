"""Weights of some layers in the host's memory: memory, the closed form, the link they share, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers.engine import architecture, job_of, question, replica_flops

import tspsim
from tspsim.base.errors import InputError
from tspsim.network import host_bandwidth, load_cluster
from tspsim.parallel import peak_memory, scheme_of
from tspsim.parallel.checks import check
from tspsim.parallel.job import Job
from tspsim.parallel.state.weight_offload import BUFFERS
from tspsim.step.bound import bounds

LINK = host_bandwidth(load_cluster("mi300x-8").node)
MODEL = architecture(512, layers=8)


def told(pass_: str = "prefill", cluster: Any = "mi300x-8", model: str = "llama-3.1-70b", **keys: Any) -> Any:
    plan = {name: keys.pop(name) for name in list(keys) if name not in WORK}
    return tspsim.simulate(question(model, [{"name": "P", **plan}], cluster=cluster, pass_=pass_, **keys)).plans[0]


WORK = ("sequence", "batch", "context", "chunk", "sequences_per_replica", "adapters", "lengths", "global_batch")


def peak(job: Job) -> dict[str, float]:
    return dict(peak_memory(job, scheme_of(job.plan).residency))


def test_memory_loses_what_is_away_and_keeps_room_for_two_layers() -> None:
    here, away = (job_of(MODEL, host_bytes_per_s=LINK, offload_weights=layers) for layers in (0, 3))
    layer = away.weight_bytes * MODEL.block_parameters(MODEL.blocks[0])
    assert peak(here)["weights"] - peak(away)["weights"] == 3 * layer
    assert peak(away)["weight_buffers"] == BUFFERS * layer and "weight_buffers" not in peak(here)
    assert replica_flops(here) == replica_flops(away)


def test_layers_that_all_come_take_the_closed_form() -> None:
    """W/b + (n − 1)·max(C, W/b) + C, with C of the same layers at home."""
    for tokens, hides in ((512, False), (32768, True)):
        here, away = (told(sequence=tokens, tp=8, offload_weights=layers) for layers in (0, 80))
        kernels = away.timeline.frame()
        copies = kernels[kernels.name == "weights from host"]
        assert len(copies) == 80
        copy_s = float((copies.end_s - copies.start_s).max())
        layer_s = here.step_time_s / 80
        assert (layer_s > copy_s) == hides
        closed = copy_s + 79 * max(layer_s, copy_s) + layer_s
        assert away.step_time_s == pytest.approx(closed, rel=0.02)


def test_every_fourth_layer_hides_behind_four_layers_compute() -> None:
    """A copy is paid beyond the compute of its group: from W/b = g·C tokens on nothing is."""
    few, many = ([told(sequence=tokens, tp=8, offload_weights=layers).step_time_s for layers in (0, 20)]
                 for tokens in (1024, 2048))  # fmt: skip
    assert few[1] > 1.3 * few[0] and many[1] == pytest.approx(many[0], rel=1e-6)


def test_a_decoding_step_hides_nothing_of_what_it_reads_once() -> None:
    away = told("decode", batch=1, context=4096, tp=8, offload_weights=80)
    copied = (told("decode", batch=1, context=4096, tp=8).memory.parts["weights"] - away.memory.parts["weights"]) / LINK
    assert copied <= away.step_time_s <= 1.01 * copied


def test_it_never_is_above_its_ceiling_which_knows_the_link() -> None:
    for work in ({"pass": "prefill", "sequence": 2048}, {"pass": "decode", "batch": 4, "context": 4096},
                 {"pass": "forward", "sequence": 2048}):  # fmt: skip
        asked = {"name": "t", "cluster": "mi300x-8", "workload": {"model": "llama-3.1-70b", **work},
                 "plans": [{"name": "P", "tp": 8, "offload_weights": 80}]}  # fmt: skip
        ran, (bound,) = tspsim.simulate(asked).plans[0], bounds(tspsim.load(asked)).plans
        assert bound.model.limit == "links"
        # The link's own rate over that of copies, and the part of a layer that is not in its way.
        assert 0.8 < ran.tokens_per_s / bound.tokens_per_s < 1.0


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("away", [4, 8, 16])
def test_training_brings_layers_twice_and_takes_them_back_once(away: int) -> None:
    step = told("training", model="tsp-8b", sequence="4Ki", tp=4, pp=2, sequences_per_replica=4, offload_weights=away)
    frame = step.timeline.frame()
    names = frame[frame.stream.str.contains("host")].name.value_counts()
    assert names["weights from host"] == 2 * 4 * away * 2 and names["weights to host"] == 2 * away
    assert step.step_time_s >= told("training", model="tsp-8b", sequence="4Ki", tp=4, pp=2,
                                    sequences_per_replica=4).step_time_s  # fmt: skip


def test_frozen_weights_come_and_never_go_back() -> None:
    lora = {"rank": 16, "targets": ["qkv"]}
    step = told("training", model="tsp-8b", sequence="4Ki", tp=8, zero=1, adapters=lora, offload_weights=32)
    frame = step.timeline.frame()
    assert not (frame.name == "weights to host").any() and (frame.name == "weights from host").sum() == 64


def test_what_comes_waits_for_room_and_for_what_the_nic_brings() -> None:
    """Two layers at most are here or on their way; beside a gather between nodes the copies are slower."""
    alone = told("forward", sequence="64Ki", tp=8, offload_weights=80).timeline.frame()
    two = {"device": "mi300x", "nodes": 2, "fabric": "rails-400g"}
    beside = told("forward", two, sequence="64Ki", tp=1, sp=16, exchange="ring", context_transport="ring",
                  model="tsp-8b", offload_weights=32).timeline.frame()  # fmt: skip
    single = told("forward", sequence="64Ki", sp=8, exchange="ring", context_transport="ring", model="tsp-8b",
                  offload_weights=32).timeline.frame()  # fmt: skip

    def longest(frame: Any) -> float:
        copies = frame[frame.name == "weights from host"]
        return float((copies.end_s - copies.start_s).max())

    assert longest(beside) > 1.05 * longest(single)
    copies, kernels = alone[alone.name == "weights from host"], alone[alone.stream == "compute"]
    for layer in range(2, 80):
        start = float(copies[copies.layer == layer].start_s.iloc[0])
        assert start >= float(kernels[kernels.layer == layer - 2].end_s.max()) - 1e-12


def test_it_goes_with_activations_that_wait_there_too() -> None:
    keys = {"tp": 8, "recomputation": "none", "offload_layers": 32}
    one, both = (told("training", model="tsp-8b", sequence="8Ki", **keys, **more)
                 for more in ({}, {"offload_weights": 32}))  # fmt: skip
    assert both.memory.peak_bytes < one.memory.peak_bytes and both.step_time_s > one.step_time_s


@pytest.mark.parametrize(
    ("pass_", "plan", "message"),
    [
        ("prefill", {"tp": 8, "offload_weights": 81}, "use at most 80"),
        ("prefill", {"tsp": 8, "offload_weights": 1}, "weights travel between ranks"),
        ("training", {"tp": 8, "zero": 1, "offload_weights": 1}, "use zero: 0"),
        ("training", {"zero": 3, "offload_weights": 1}, "zero: 3"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(pass_: str, plan: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        told(pass_, sequence=4096, **plan)
    assert "offload_weights" in str(refused.value) and message in str(refused.value)


def test_a_job_whose_host_link_is_not_known_is_refused() -> None:
    job = job_of(MODEL, host_bytes_per_s=LINK, offload_weights=2)
    with pytest.raises(InputError, match="link to its host"):
        check(replace(job, work=replace(job.work, host_bytes_per_s=0.0)))
