"""Kernels and collectives beside each other: a stack's own factors for a vendor's library."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tspsim.base import catalog
from tspsim.hardware import load_device
from tspsim.model import load_model
from tspsim.parallel import load_stack
from tspsim.validation.runs import Run, simulate_run

#: FSDP within a node, whose gathers and sums run beside its kernels.
SHARDED = Run(
    load_model("llama-3.1-8b"), "mi300x", 8, 8192, 1, 8, zero=3, recomputation="full", stack="fsdp2"
)  # fmt: skip


@pytest.mark.parametrize("name", ["primus", "megatron-core", "fsdp1", "fsdp2", "torchtitan", "torchtitan-eager"])
def test_a_vendors_factors_hold_on_its_devices_alone(name: str) -> None:
    stack = replace(load_stack(name).stack(), exchange_units=None)
    amd, nvidia = load_device("mi300x"), load_device("h100")
    assert (stack.slowdown(amd), stack.communication_slowdown(amd)) == (1.49, 1.24)
    own = nvidia.compute_slowdown, nvidia.communication_slowdown
    assert (stack.slowdown(nvidia), stack.communication_slowdown(nvidia)) == own
    without = replace(stack, overlap_slowdown=())
    assert (without.slowdown(amd), without.communication_slowdown(amd)) == (
        amd.compute_slowdown, amd.communication_slowdown,
    )  # fmt: skip


def test_kernels_that_give_up_units_to_exchanges_have_a_factor_where_none_was_measured() -> None:
    amd = load_device("mi300x")
    stack = replace(load_stack("primus").stack(), exchange_units=76)
    assert (stack.slowdown(amd), stack.communication_slowdown(amd)) == (1.49, 1.24)
    assert replace(stack, overlap_slowdown=()).slowdown(amd) == pytest.approx(304 / 228)


def test_the_factors_and_their_source_are_among_the_facts() -> None:
    facts = {fact.what: fact for fact in load_stack("primus").provenance()}
    fact = facts["stack primus: overlap slowdown"]
    assert fact.value == "amd 1.49 and 1.24" and "2412.14335" in fact.source


def test_a_step_with_overlap_takes_longer_on_its_devices(tmp_path: Path) -> None:
    data = yaml.safe_load(catalog.locate("stacks", "fsdp2").read_text(encoding="utf-8"))
    del data["overlap_slowdown"]
    file = tmp_path / "plain.yaml"
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    slower, plain = (simulate_run(replace(SHARDED, stack=stack)).seconds for stack in ("fsdp2", str(file)))
    assert 1.01 * plain < slower < 1.5 * plain
    elsewhere = replace(SHARDED, device="h200")
    assert simulate_run(elsewhere).seconds == simulate_run(replace(elsewhere, stack=str(file))).seconds
