"""Products and sums that meet in slices of one kernel (Flux)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.engine import grid, play, program, sleep

import tspsim
from tspsim.errors import InputError
from tspsim.hardware import load_device
from tspsim.hardware.pricers import price
from tspsim.network import collective as traffic_of
from tspsim.network import load_cluster
from tspsim.operators import Gemm, Part
from tspsim.program import Collective, Compute, Instruction

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
