"""Groups of one axis that cannot lie in each other are refused, not a bug."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.engine import model_file, moe, question

import tspsim
from tspsim.base.errors import InputError
from tspsim.parallel import Plan, build_mesh

ONE_AND_NONE: dict[str, dict[str, Any]] = {"groups of one": {"zero": 2, "shard_group": 1}, "no groups": {"zero": 0}}


def test_groups_of_contexts_and_experts_that_do_not_fit_are_refused() -> None:
    plan = Plan("P", {"tp": 36, "sp": 2, "ep": 2}, options={"kvp": 9})
    with pytest.raises(InputError, match=r"plans\.P: groups of 9 ranks of tp do not fit"):
        build_mesh(plan, 72, 72)


def test_expert_groups_that_cannot_be_filled_are_refused_before_they_are_placed() -> None:
    """Where experts stand on nodes is asked before plans are checked."""
    scenario = question(
        "qwen3-30b-a3b",
        [{"name": "P", "tp": 2, "sp": 2, "ep": 3, "expert_dispatch": "staying_by_nodes"}],
        pass_="prefill",
        sequence=1024,
    )
    with pytest.raises(InputError, match=r"plans\.P\."):
        tspsim.simulate(scenario)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("keys", [{}, {"tp": 2, "sequence_regions": True}, {"tsp": 2}], ids=str)
def test_groups_of_one_divide_nothing(keys: dict[str, Any], tmp_path: Path) -> None:
    """Every rank keeps its gradients and state, and sums them with the others: ZeRO 0 but for its order."""
    model = model_file(tmp_path, moe(512, count=8))
    alone, plain = ({"name": name, "ep": 2, **keys, **zero} for name, zero in ONE_AND_NONE.items())
    one, none = tspsim.simulate(question(model, [alone, plain], pass_="training", sequence=1024)).plans
    assert one.memory.parts["optimizer_state"] == none.memory.parts["optimizer_state"]
    assert one.step_time_s == pytest.approx(none.step_time_s, rel=0.05)


def test_folded_ranks_divide_whole_experts_whatever_their_replicas_divide(tmp_path: Path) -> None:
    """Both ranks of an axis of two hold all experts."""
    model = moe(512, count=8)
    plans = [{"name": name, "tsp": 2, **zero} for name, zero in ONE_AND_NONE.items()]
    one, none = tspsim.simulate(question(model_file(tmp_path, model), plans, pass_="training", sequence=1024)).plans
    less = none.memory.parts["optimizer_state"] - one.memory.parts["optimizer_state"]
    assert less == 12 * model.layers * model.routed_parameters_per_layer / 2
