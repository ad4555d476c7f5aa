"""The laws of a layer's order over everything that is registered, and that a program which breaks one is caught."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from helpers.draws import in_turn
from helpers.engine import architecture, job_of, latent, moe, programs_of
from helpers.laws_of_schedules import broken
from helpers.order import Order

from tspsim.base.errors import InputError
from tspsim.parallel import CONTEXT_METHODS, SCHEMES, WEIGHT_TRANSPORTS, Job, scheme_of
from tspsim.program import Collective, Instruction, Program, Repeat, SendReceive

MODELS = {"dense": architecture(512), "experts": moe(shared_width=256), "latent": latent()}
#: Ways to cut and to hide, by the axes that they are of; what a plan cannot have is refused and left out.
OF_TOKENS = [
    {"exchange": exchange, **keys}
    for exchange in CONTEXT_METHODS.names()
    for keys in (
        {},
        {"overlap": False},
        {"partition": "contiguous"},
        {"context_transport": "multi_ring"},
        {"overlap": True, "overlap_by": "blocks", "overlap_chunks": 2},
    )
]
OF_WEIGHTS = [
    {"weight_transport": transport, "head_groups": 4, **keys}
    for transport in WEIGHT_TRANSPORTS.names()
    for keys in (
        {},
        {"head_groups": 1},
        {"head_groups": 2},
        {"overlap": False},
        {"mlp_pieces": 2},
        {"overlap_by": "blocks", "overlap_chunks": 2},
        {"together": {"tsp": 2}},
        {"together": {"tsp": 2}, "dp": 2},
    )
]
OF_SUMS: list[dict[str, Any]] = [
    {},
    {"sequence_regions": True},
    {"overlap": True, "overlap_chunks": 2},
    {"overlap": "fused"},
    {"overlap": "fused", "options": {"fused_transport": "copy"}},
    {"options": {"residual": "ladder"}},
    {"options": {"residual": "parallel"}},
]
#: Of what is divided over replicas, with any scheme.
OF_STATE: list[dict[str, Any]] = [{"zero": 2}, {"zero": 3}, {"zero": 3, "shard_group": 2}]
OF_EXPERTS: list[dict[str, Any]] = [
    {"ep": 4},
    {"ep": 4, "expert_pieces": 2},
    {"ep": 4, "expert_overlap": "shared_experts"},
    {"ep": 4, "expert_shards": 0},
]


def plans() -> Iterator[dict[str, Any]]:
    """Every scheme over each of its axes and over all, with every way of its own."""
    for scheme in SCHEMES.values():
        spreads = [{axis: 4} for axis in scheme.axes]
        spreads += [dict.fromkeys(scheme.axes, 2)] if len(scheme.axes) > 1 else []
        for spread in spreads:
            ways: list[dict[str, Any]] = OF_WEIGHTS if scheme.folds else OF_TOKENS if "sp" in spread else OF_SUMS
            yield from (spread | way for way in ways)
    yield from ({"dp": 4} | way for way in (*OF_STATE, *OF_EXPERTS))
    yield from ({axis: 4} | way for axis in ("sp", "tsp") for way in OF_EXPERTS)
    yield {"tp": 2, "dp": 4, "ep": 4, "sequence_regions": True}


def job(model: str, plan: Mapping[str, Any], **work: Any) -> Job | None:
    try:
        return job_of(MODELS[model], **plan, **work)
    except (InputError, ValueError):
        return None


@pytest.mark.parametrize("recomputation", in_turn([None, "none", "selective", "full"], 4))
@pytest.mark.parametrize("model", MODELS)
def test_a_layer_of_every_plan_keeps_the_laws_of_order(model: str, recomputation: str | None) -> None:
    """Forward (None), and training with whatever is made again."""
    asked = 0
    for plan in plans():
        forward = job(model, plan)
        found = forward if recomputation is None else job(model, plan, pass_="training", recomputation=recomputation)
        if found is None:
            continue
        asked += 1
        same = forward is not None and found is not forward and found.plan.zero < 2
        beside = programs_of(forward) if same and forward is not None else [None] * found.plan.token_shards
        pairs = list(zip(programs_of(found), beside, strict=True))
        for position in {0, len(pairs) // 2}:
            assert broken(found, *pairs[position]) == [], (plan, position)
    assert asked > 50


# The laws catch what they are for.


def mutants(program: Program, axes: Collection[str]) -> Iterator[tuple[str, Program]]:
    """One wait left out, or one transfer over some axes twice as large."""

    def put(item: Repeat, index: int, number: int, *instead: Instruction) -> Program:
        body = (*item.body[:number], *instead, *item.body[number + 1 :])
        items = (*program.items[:index], replace(item, body=body), *program.items[index + 1 :])
        return Program(program.role, items)

    for index, item in enumerate(program.items):
        for number, told in enumerate(item.body if isinstance(item, Repeat) else ()):
            assert isinstance(item, Repeat)
            for left in range(len(told.after)):
                after = (*told.after[:left], *told.after[left + 1 :])
                yield f"{told.name} does not wait for {told.after[left]}", put(item, index, number, told.at(0, after))
            if isinstance(told, Collective | SendReceive) and item.layer_step > 0 and told.axis in axes:
                twice = replace(told, size_bytes=2 * told.size_bytes)
                yield f"{told.name} is twice as large", put(item, index, number, twice)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(
    ("model", "plan"),
    [
        ("dense", {"tp": 4}),
        ("dense", {"tp": 4, "overlap": True, "overlap_chunks": 2}),
        ("dense", {"tp": 4, "overlap": "fused", "options": {"fused_transport": "copy"}}),
        ("dense", {"tp": 4, "options": {"residual": "ladder"}}),
        ("dense", {"sp": 4, "exchange": "ring"}),
        ("dense", {"sp": 4, "exchange": "token_ring"}),
        ("dense", {"tsp": 4}),
        ("dense", {"dp": 4, "zero": 3, "pass_": "training", "recomputation": "none"}),
        ("experts", {"dp": 4, "ep": 4, "expert_pieces": 2}),
    ],
    ids=str,
)
def test_who_leaves_out_a_wait_breaks_a_law(model: str, plan: dict[str, Any]) -> None:
    """And who changes a size that the scheme has in closed form: all of them where the order is then another."""
    found = job(model, plan)
    assert found is not None
    program = programs_of(found)[min(1, found.plan.token_shards - 1)]
    order = Order(found, program)
    axes = {closed.axis for closed in scheme_of(found.plan).received(found, False)}
    wrong = [(what, other) for what, other in mutants(program, axes) if Order(found, other) != order]
    assert len(wrong) >= 3 and [what for what, other in wrong if not broken(found, other)] == []
