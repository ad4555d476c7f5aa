"""A GPU that may draw less runs its matrix units slower in a long step, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

import tspsim
from tspsim.base.errors import InputError
from tspsim.hardware import load_device
from tspsim.operators import Gemm, MemoryBound

QUESTION: dict[str, Any] = {
    "name": "limited", "plans": [{"name": "Z3", "zero": 3}],
    "workload": {"model": "tsp-8b", "pass": "forward", "sequence": "4Ki"},
}  # fmt: skip


def test_h100_at_500_watts_has_the_clock_of_the_catalogs_h100_with_that_limit() -> None:
    h100, stated = load_device("h100"), load_device("h100-96gb-500w")
    clock = stated.spec.sustained.gemm.value / h100.spec.sustained.gemm.value
    assert h100.power_limited(500.0).spec.clock_at_limit == pytest.approx(clock, rel=0.01)
    assert (h100.power_limited(500.0).tdp_watts, h100.power_limited(700.0).spec.clock_at_limit) == (500.0, 1.0)


def test_products_slow_by_the_clock_and_copies_do_not() -> None:
    h100 = load_device("h100")
    limited, product = h100.power_limited(500.0), Gemm(8192, 8192, 8192, "bf16")
    slower = limited.time(product).seconds / h100.time(product).seconds
    assert slower == pytest.approx(1.0 / limited.spec.clock_at_limit)
    assert limited.time(MemoryBound("copy", 1e9, 100)) == h100.time(MemoryBound("copy", 1e9, 100))


def test_a_scenario_states_the_limit_and_less_power_is_never_faster() -> None:
    steps = {}
    for watts in (700, 600, 500, 400):
        cluster = {"device": "h100", "power_limit": f"{watts} W"}
        steps[watts] = tspsim.simulate(QUESTION | {"cluster": cluster}).plans[0].step_time_s
    assert steps[700] == tspsim.simulate(QUESTION | {"cluster": {"device": "h100"}}).plans[0].step_time_s
    assert steps[700] < steps[600] < steps[500] < steps[400] < 1.4 * steps[700]


@pytest.mark.parametrize("watts", ["900 W", "50 W"])
def test_a_limit_that_is_none_of_the_device_is_refused(watts: str) -> None:
    with pytest.raises(InputError, match=r"cluster\.power_limit.*700 W of h100"):
        tspsim.simulate(QUESTION | {"cluster": {"device": "h100", "power_limit": watts}})
