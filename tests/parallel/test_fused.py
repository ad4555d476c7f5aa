"""Products and sums that meet in slices of one kernel (Flux)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from helpers.bounds import check_below
from helpers.engine import architecture, grid, job_of, play, program, programs_of, sleep

import tspsim
from tspsim.base.errors import InputError
from tspsim.engine.core import Interference
from tspsim.hardware import load_device
from tspsim.hardware.pricers import price
from tspsim.network import Cluster, load_cluster
from tspsim.network import collective as traffic_of
from tspsim.network.specs import CopyEngineSpec
from tspsim.operators import Gemm, Part
from tspsim.parallel import peak_memory, scheme_of
from tspsim.program import Collective, Compute, Instruction
from tspsim.step.bound import bounds

MIB = 2**20


@pytest.mark.parametrize("slices", [1, 2, 8, 64])
@pytest.mark.parametrize("seconds", [1e-4, 1e-3, 1e-2])
def test_a_product_whose_slices_are_reduced_takes_the_longer_and_one_slice_of_each(slices: int, seconds: float) -> None:
    """T = C/n + (n − 1)·max(C, W)/n + W/n: serial of one slice, max(C, W) of many."""
    cluster, size = load_cluster("hgx-h100-8"), 64 * MIB

    def written() -> Iterator[Instruction]:
        for number in range(slices):
            yield Compute((Part(sleep(seconds), slices),), "product", stream="compute")
            yield Collective("reduce_scatter", "x", size // slices, "sum", after=(2 * number,), slices=slices)

    whole = traffic_of(cluster, range(8), "reduce_scatter", size)
    submission = play(cluster, program(*written()), grid(8))
    moved = whole.alone_s
    expected = (seconds + (slices - 1) * max(seconds, moved) + moved) / slices
    assert submission.makespan_s == pytest.approx(expected, rel=1e-9)


def test_a_slice_costs_its_share_of_the_whole_call() -> None:
    device = load_device("mi300x")
    product = Gemm(4096, 8192, 1024)
    assert 8 * price(device, Part(product, 8)).seconds == pytest.approx(price(device, product).seconds, rel=1e-12)
    smaller = 8 * price(device, Gemm(512, 8192, 1024)).seconds
    assert smaller > price(device, product).seconds


def test_fused_hides_sums_without_touching_the_model() -> None:
    """Between the bound of what hiding can give and what exposed sums take."""
    result = tspsim.simulate("ladder-70b-tp8-mi300x")
    layer = {plan.name: plan.tokens_per_step / plan.block_forward_tokens_per_s for plan in result.plans}
    assert layer["NoComm"] < layer["Fused"] < layer["Parallel"] < layer["Standard"]
    # One slice of a sum stays, and kernels beside a transfer are slowed by the device's factor.
    assert layer["Fused"] < 1.06 * layer["NoComm"]
    fused, standard = result.plan("Fused"), result.plan("Standard")
    assert fused.communication_bytes_per_layer == standard.communication_bytes_per_layer
    assert fused.mfu <= 1.0


@pytest.mark.parametrize(
    "plan", [{"tsp": 8, "overlap": "fused"}, {"sp": 8, "overlap": "fused"}, {"tp": 8, "overlap": "fussed"}]
)
def test_where_nothing_is_summed_fused_is_refused(plan: dict[str, object]) -> None:
    with pytest.raises(InputError, match="overlap"):
        tspsim.simulate(
            {
                "name": "refused",
                "cluster": {"device": "mi300x", "nodes": 1},
                "workload": {"model": "llama-3.1-8b", "pass": "forward", "sequence": 4096},
                "plans": [{"name": "P", **plan}],
            }
        )


# --- copy engines -----------------------------------------------------------------------------------------------


def with_engines(gb_per_s: float, latency: str = "0 us") -> Cluster:
    """Eight GPUs behind a switch whose copy engines reach so much out of each."""
    cluster = load_cluster("hgx-h100-8")
    stated = {"value": f"{gb_per_s} GB/s", "source": "a test"}
    engine = CopyEngineSpec(bandwidth=stated, latency={"value": latency, "source": "a test"})  # type: ignore[arg-type]
    return replace(cluster, node=cluster.node.model_copy(update={"copy_engine": engine}))


#: Flux's docs/performance.md, 8 × L20 over PCIe, M 4096, K 12288, N 49152: seconds of the product alone; rows of the
#: narrow side that come, or are summed: 4,096 of 12,288 in bf16.
L20_ROWS = 4096 * 12288 * 2
GATHER_S, SCATTER_S = 5.316e-3, 5.389e-3


@pytest.mark.parametrize(
    ("kind", "compute_s", "expected_ms", "published_ms"),
    [("all_gather", GATHER_S, 5.76, 5.903), ("all_to_all", SCATTER_S, 5.83, 5.730)],
)
def test_the_l20_products_of_flux_come_out_with_copy_engines_of_pcie(
    kind: str, compute_s: float, expected_ms: float, published_ms: float
) -> None:
    """25 GB/s by copy engines (PCIe 4, derived): a product and one slice of its rows; published within 2.5 %."""
    cluster, first, then = with_engines(25.0), kind == "all_gather", kind != "all_gather"

    def written() -> Iterator[Instruction]:
        for number in range(8):
            rows = Collective(kind, "x", L20_ROWS // 8, "rows", algorithm="copy_engines", slices=8)
            product = Part(sleep(compute_s), 8)
            if first:
                yield rows
                yield Compute((product,), "product", after=(2 * number,))
            if then:
                yield Compute((product,), "product")
                yield replace(rows, after=(2 * number,))

    took_s = play(cluster, program(*written()), grid(8)).makespan_s
    wire_s = 7 / 8 * L20_ROWS / 25e9
    assert took_s == pytest.approx((compute_s + 7 * max(compute_s, wire_s) + wire_s) / 8, rel=1e-6)
    assert 1e3 * took_s == pytest.approx(expected_ms, abs=0.006)
    assert 1e3 * took_s == pytest.approx(published_ms, rel=0.025)


def test_over_nccl_the_same_product_waits_for_the_wire() -> None:
    """The published 11.2 ms of 88 MB are 7.9 GB/s, not PCIe: fused over that transport 11.2 and a slice."""
    wire_s = 11.2e-3
    assert 7 / 8 * L20_ROWS / wire_s == pytest.approx(7.9e9, rel=0.01)
    assert 1e3 * max(GATHER_S, wire_s + GATHER_S / 8) == pytest.approx(11.2 + 0.66, abs=0.01)


def test_copies_take_their_rate_and_leave_kernels_theirs() -> None:
    """Beside a library's transfer a kernel takes the device's factor longer, beside copies not at all."""
    size = 64 * MIB
    took = {}
    for algorithm in ("copy_engines", "ring"):
        moved = Collective("all_gather", "x", size, "rows", algorithm=algorithm)
        submission = play(
            with_engines(100.0), program(Compute((sleep(1e-4),), "kernel"), moved), grid(8),
            interference=Interference(1.5, 1.5),
        )  # fmt: skip
        took[algorithm] = submission.timeline.frame().set_index("name")
    kernels = {name: frame.loc["kernel"]["end_s"].max() for name, frame in took.items()}
    assert kernels["copy_engines"] == pytest.approx(1e-4)
    assert kernels["ring"] == pytest.approx(1.5e-4)
    assert took["copy_engines"].loc["rows"]["end_s"].max() == pytest.approx(7 / 8 * size / 100e9)
    slow = traffic_of(with_engines(100.0, "3 us"), range(8), "all_gather", size, algorithm="copy_engines")
    assert slow.latency_s == 3e-6


def layer_s(plans: list[dict[str, Any]], device: str = "mi355x") -> dict[str, float]:
    asked = tspsim.load(
        {
            "name": "copies",
            "cluster": {"device": device, "nodes": 1},
            "workload": {"model": "llama-3.1-70b", "pass": "forward", "sequence": 4096},
            "plans": plans,
        }
    )
    result = tspsim.simulate(asked)
    check_below(bounds(asked), result)
    every = tspsim.simulate(asked, every_rank=True)
    for found, full in zip(result.plans, every.plans, strict=True):
        assert found.ran, found.error
        assert found.step_time_s == pytest.approx(full.step_time_s, rel=1e-9)
    return {plan.name: plan.tokens_per_step / plan.block_forward_tokens_per_s for plan in result.plans}


@pytest.mark.parametrize("regions", [False, True])
def test_on_mi355x_copies_beat_kernels_that_take_compute_units(regions: bool) -> None:
    way = {"tp": 8, "overlap": "fused", "sequence_regions": regions}
    found = layer_s(
        [{"name": "copy", **way, "fused_transport": "copy"}, {"name": "kernel", **way}, {"name": "exposed", "tp": 8}]
    )
    assert found["copy"] < found["kernel"] < found["exposed"]


def test_rows_wait_to_be_added_where_copies_bring_them() -> None:
    parts = [
        peak_memory(job, scheme_of(job.plan).residency)
        for options in ({}, {"fused_transport": "copy"})
        for job in [job_of(architecture(1024, heads=16), tp=4, overlap="fused", options=options)]
    ]
    assert parts[1] == {**parts[0], "partial_rows": 1024 * 1024 * 2.0}


@pytest.mark.parametrize("pass_", ["forward", "training"])
@pytest.mark.parametrize("regions", [False, True])
def test_copies_bring_as_many_bytes_as_sums_and_gathers(pass_: str, regions: bool) -> None:
    def received(**keys: Any) -> float:
        job = job_of(architecture(1024, heads=16), tp=4, pass_=pass_, overlap="fused", sequence_regions=regions, **keys)
        (written,) = programs_of(job)
        passed = {"all_reduce": 2 * 3 / 4, "reduce_scatter": 3 / 4, "all_gather": 3 / 4, "all_to_all": 3 / 4}
        moves = [each.instruction for each in written.unrolled() if isinstance(each.instruction, Collective)]
        return sum(passed[each.kind] * each.size_bytes for each in moves if each.axis == "tp")

    assert received(options={"fused_transport": "copy"}) == pytest.approx(received())


@pytest.mark.parametrize(
    ("device", "plan", "message"),
    [
        ("mi355x", {"tp": 8, "fused_transport": "copy"}, "copy is of `overlap: fused`"),
        ("mi355x", {"tp": 8, "overlap": "fused", "fused_transport": "copies"}, "fused_transport"),
        ("mi300x", {"tp": 8, "overlap": "fused", "fused_transport": "copy"}, "mi300x-8 states no copy_engine"),
    ],
)
def test_what_copies_need_is_said_in_one_line(device: str, plan: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, AssertionError), match=message):
        layer_s([{"name": "P", **plan}], device)
