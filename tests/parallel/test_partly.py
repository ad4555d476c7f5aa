"""Some layers recomputed, activations in eight bits, or in the host's memory: memory, time, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers.engine import architecture, job_of, question, replica_flops

import tspsim
from tspsim.base.errors import InputError
from tspsim.parallel.job import Job
from tspsim.parallel.recomputed import PartialRecompute
from tspsim.parallel.state.memory import kept_activations, peak_bytes

MODEL = architecture(512, layers=8)
#: Ways to spread a replica, each with mixtures of layers in its programs.
SPREADS: dict[str, dict[str, Any]] = {
    "dp": {}, "tp": {"tp": 2}, "tsp": {"tsp": 2}, "zero-3": {"dp": 4, "zero": 3}, "gathered": {"sp": 2},
}  # fmt: skip


def training(**switches: Any) -> Job:
    return job_of(MODEL, pass_="training", **switches)


def peak(job: Job) -> float:
    return peak_bytes(job)


def told(**plan: Any) -> Any:
    asked = {"model": "tsp-8b", "pass": "training", "sequence": "8Ki"}
    scenario = {"name": "try", "cluster": "hgx-h200-8", "workload": asked, "plans": [{"name": "P", "tp": 8, **plan}]}
    return tspsim.simulate(scenario).plans[0]


@pytest.mark.parametrize("spread", SPREADS.values(), ids=SPREADS)
def test_each_further_layer_adds_one_forward_of_a_layer_and_frees_what_it_kept(spread: dict[str, Any]) -> None:
    none, full = (training(**spread, recomputation=again) for again in ("none", "full"))
    forward = replica_flops(full) - replica_flops(none)
    peaks = [peak(none)]
    for layers in range(1, 9):
        partly = training(**spread, recomputation="full", recomputed=PartialRecompute(layers))
        added = replica_flops(partly) - replica_flops(none)
        assert added == pytest.approx(forward * layers / 8, rel=1e-12)
        peaks.append(peak(partly))
    assert peaks[1:] == sorted(peaks[1:], reverse=True) and peaks[-1] == peak(full)
    assert spread.get("tsp") or peaks[1] < peaks[0]


def test_block_frees_exactly_what_its_layers_kept() -> None:
    none, partly = training(recomputation="none"), training(recomputation="full", recomputed=PartialRecompute(3))
    (block,) = set(MODEL.blocks)
    saved = kept_activations(none, 1, block) - kept_activations(none.with_recomputation("full"), 1, block)
    assert peak(none) - peak(partly) == 3 * saved


def test_every_second_layer_is_half_of_them_and_groups_keep_one_input_and_one_group() -> None:
    block, every = (training(recomputation="full", recomputed=PartialRecompute(*how)) for how in ((4,), (2, "every")))
    assert peak(block) == peak(every) and replica_flops(block) == replica_flops(every)
    full = training(recomputation="full")
    uniform = training(recomputation="full", recomputed=PartialRecompute(4, "uniform"))
    assert replica_flops(uniform) == replica_flops(full)
    (kind,) = set(MODEL.blocks)
    inputs, whole = (kept_activations(full.with_recomputation(again), 1, kind) for again in ("full", "none"))
    assert peak(uniform) - peak(full) == pytest.approx(3 * whole - 6 * inputs, rel=1e-12)


def test_all_layers_in_full_are_full_to_the_bit_and_fewer_are_faster() -> None:
    full, none = told(recomputation="full"), told(recomputation="none")
    every = told(recomputation={"what": "full", "layers": 32})
    assert every.step_time_s == full.step_time_s and every.memory.peak_bytes == full.memory.peak_bytes
    few, many = (told(recomputation={"what": "full", "layers": layers}) for layers in (8, 24))
    assert none.step_time_s < few.step_time_s < many.step_time_s < full.step_time_s
    assert none.mfu > few.mfu > full.mfu
    assert few.settings["recomputation"] == {"what": "full", "layers": 8, "method": "block"}


def test_eight_bits_halve_the_columns_and_cost_two_casts() -> None:
    wide, store = (training(recomputation="none", activation_store=name) for name in (None, "fp8"))
    columns = 2 * wide.tokens * MODEL.ffn * MODEL.layers
    assert peak(wide) - peak(store) == pytest.approx(columns, rel=1e-12)
    assert replica_flops(wide) == replica_flops(store)
    slow, fast = told(recomputation="none", activation_store="fp8"), told(recomputation="none")
    assert 0.0 < slow.step_time_s / fast.step_time_s - 1.0 < 0.05
    assert slow.settings["activation_store"] == "fp8" and "activation_store" not in fast.settings


def test_products_in_eight_bits_keep_their_inputs_so_and_others_are_refused() -> None:
    wide, narrow = training(recomputation="none"), training(recomputation="none", activation_store="fp8")
    work = replace(narrow.work, precision="fp8")
    products = replace(narrow, work=work, plan=replace(narrow.plan, activation_store="fp8_products"))
    assert peak(products) < peak(narrow) < peak(wide)
    with pytest.raises(InputError, match="these are in bf16; use fp8"):
        told(recomputation="none", activation_store="fp8_products")


def test_activations_in_the_hosts_memory_leave_room_and_take_the_link() -> None:
    here, away = told(recomputation="none"), told(recomputation="none", offload_layers=8)
    assert away.memory.peak_bytes < here.memory.peak_bytes and away.memory.parts["offload_buffers"] > 0
    assert away.step_time_s >= here.step_time_s
    timeline = away.timeline.frame()
    copies = timeline[timeline.name.str.startswith("activations ")]
    there = copies[copies.name == "activations to host"]
    assert len(there) == 8 and len(copies) == 16
    # One way takes what a layer keeps over the link's rate, and nothing comes back before it has left.
    back = copies[copies.name == "activations from host"]
    for layer, end in zip(there.layer, there.end_s, strict=True):
        assert float(back[back.layer == layer].start_s.iloc[0]) >= end


@pytest.mark.parametrize(("pp", "layers"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_a_layer_in_the_hosts_memory_never_takes_more_than_one_that_stays(pp: int, layers: int) -> None:
    spread = {"tp": 8 // pp, "pp": pp, "recomputation": "none"}
    here, away = (told(**spread, offload_layers=count).memory.peak_bytes for count in (0, layers))
    assert away <= here


def test_the_host_has_all_layers_at_most() -> None:
    all_away = told(recomputation="none", offload_layers=32)
    assert all_away.memory.parts.get("kept_activations", 0.0) == 0.0


@pytest.mark.parametrize(
    ("plan", "key", "message"),
    [
        ({"recomputation": {"layers": 40}}, "recomputation", "40 are more than the 32 layers of a chunk"),
        ({"recomputation": {"what": "cheap", "layers": 2, "method": "uniform"}}, "recomputation", "groups"),
        ({"recomputation": {"layers": 4, "method": "blok"}}, "recomputation", "method"),
        ({"recomputation": {"what": "full"}}, "recomputation", "layers"),
        ({"offload_layers": 33, "recomputation": "none"}, "offload_layers", "at most 32"),
        ({"activation_store": "fp9"}, "activation_store", "fp8"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(plan: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        told(**plan)
    assert key in str(refused.value) and message in str(refused.value)


def test_passes_without_a_backward_take_none_of_it() -> None:
    for plan in ({"offload_layers": 1}, {"activation_store": "fp8"}, {"recomputation": {"layers": 1}}):
        with pytest.raises(InputError, match="keeps nothing for a backward"):
            tspsim.simulate(question("tsp-8b", [{"name": "P", **plan}], sequence="8Ki"))
