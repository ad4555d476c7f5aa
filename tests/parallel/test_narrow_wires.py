"""ZeRO 3 with narrow types on the way and a second copy of the weights (ZeRO++)."""

from __future__ import annotations

from typing import Any

import pytest

import tspsim
from tspsim.base.errors import InputError
from tspsim.step.result import PlanResult

PLUS = {"name": "ZeRO++", "zero": 3, "secondary_shard": 8, "weight_wire": "int8", "gradient_wire": "int4"}
PLAIN = {"name": "ZeRO3", "zero": 3}


def steps(device: str, fabric: str, *plans: dict[str, Any], model: str = "llama-3.1-70b") -> list[PlanResult]:
    """Of 16 nodes with so few tokens that the step is its exchanges."""
    scenario = {
        "name": "wires",
        "cluster": {"device": device, "nodes": 16, "fabric": fabric},
        "workload": {"model": model, "pass": "training", "sequence": 64},
        "plans": list(plans),
    }
    return list(tspsim.simulate(scenario).plans)


#: ½·max(in, out) + in + ¼·max(in, out) against 3·max(in, out), by hand from the rates of a node's links and its rails.
DERIVED = {
    ("mi300x", "rails-400g"): 1.71,
    ("mi355x", "rails-400g"): 1.80,
    ("h100", "rails-400g"): 1.71,
    ("b200", "rails-400g"): 2.25,
    ("mi300x", "rails-200g"): 2.31,
    ("b200", "rails-200g"): 2.89,
}


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(("device", "fabric"), DERIVED)
def test_the_gain_is_what_links_inside_and_outside_of_a_node_leave_and_never_four(device: str, fabric: str) -> None:
    plus, plain = steps(device, fabric, PLUS, PLAIN)
    gain = plain.step_time_s / plus.step_time_s
    assert gain == pytest.approx(DERIVED[device, fabric], rel=0.06)


def test_layers_move_a_quarter_of_the_bytes_between_nodes() -> None:
    """3M gathered and summed becomes ½M + 0 + ¼M; tables are gathered once, so whole models move a little more."""
    plus, plain = steps("mi300x", "rails-400g", PLUS, PLAIN)
    nic = [next(link.carried_bytes for link in plan.links if link.kind == "nic") for plan in (plus, plain)]
    tables, layers = 2 * 128256 * 8192, 70.6e9 - 2 * 128256 * 8192
    expected = (0.75 * layers + 0.75 * tables) / (3 * layers + 2 * tables)
    assert nic[0] / nic[1] == pytest.approx(expected, rel=0.005)


def test_a_second_copy_is_an_eighth_of_the_weights() -> None:
    plus, plain = steps("mi300x", "rails-400g", PLUS, PLAIN)
    second = plus.memory.parts["secondary_weights"]
    assert second == 16 * plus.memory.parts["weights"]
    assert plus.memory.peak_bytes - plain.memory.peak_bytes == second


def test_each_part_alone_helps_and_none_changes_flops() -> None:
    keys: list[dict[str, Any]] = [
        {"secondary_shard": 8},
        {"weight_wire": "int8"},
        {"secondary_shard": 8, "gradient_wire": "int4"},
    ]
    plans = [{"name": f"P{index}", "zero": 3, **each} for index, each in enumerate(keys)]
    *parts, plain, whole = steps("b200", "rails-200g", *plans, PLAIN, PLUS)
    for part in parts:
        assert whole.step_time_s < part.step_time_s < plain.step_time_s
        assert part.mfu * part.step_time_s == pytest.approx(plain.mfu * plain.step_time_s)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"zero": 2, "weight_wire": "int8"}, "weight_wire: int8 is of training with zero: 3"),
        ({"zero": 3, "gradient_wire": "int4"}, "gradient_wire: needs secondary_shard"),
        ({"zero": 3, "secondary_shard": 8, "shard_group": 8}, "secondary_shard"),
        ({"zero": 3, "secondary_shard": 7}, "secondary_shard: 7 ranks cannot be taken"),
        ({"zero": 3, "weight_wire": "int7"}, "did you mean 'int"),
    ],
)
def test_what_narrow_types_need_is_said(plan: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        steps("mi300x", "rails-400g", {"name": "P", **plan})
