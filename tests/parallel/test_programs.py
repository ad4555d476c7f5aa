"""What schemes tell ranks to do: eight layers written out, as worked examples, and the work every scheme must keep.

``UPDATE_GOLDEN=1 pytest tests/parallel/test_programs.py`` writes tests/golden anew; read the difference before it is
committed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from helpers.engine import architecture, job_of, moe, programs_of, replica_flops

from tspsim.model import Architecture
from tspsim.operators import Attention, Gemm, Operator, Part
from tspsim.parallel import Job
from tspsim.program import Collective, Compute, Instruction, Program, Repeat, SendReceive

GOLDEN = Path(__file__).parents[1] / "golden"

#: Plans whose layer is written out as a worked example, with the model and what is asked; position 1 of the token axis,
#: so that zigzag order shows. What holds of all plans is a law: tests/parallel/test_order_of_layers.py.
WRITTEN: dict[str, tuple[Architecture, dict[str, Any]]] = {
    "tp": (architecture(512), {"tp": 4}),
    "sp-ring": (architecture(512), {"sp": 4, "exchange": "ring"}),
    "sp-token-ring": (architecture(512), {"sp": 4, "exchange": "token_ring"}),
    "tsp": (architecture(512), {"tsp": 4}),
    "experts-ep-pieces": (moe(), {"dp": 4, "ep": 4, "expert_pieces": 2}),
    "training-tp-ladder": (
        architecture(512),
        {"pass_": "training", "tp": 4, "recomputation": "none", "options": {"residual": "ladder"}},
    ),
    "training-tsp": (architecture(512), {"pass_": "training", "tsp": 4, "recomputation": "none"}),
    "training-zero-3-groups": (
        architecture(512),
        {"pass_": "training", "dp": 4, "zero": 3, "shard_group": 2, "recomputation": "none"},
    ),
}

#: Every way to cut one replica over eight ranks (or four, where heads ask for it).
PLANS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "tp": {"tp": 8},
    "tp, sequence regions": {"tp": 8, "sequence_regions": True},
    "tp, overlapped": {"tp": 8, "overlap": True},
    "tp, both": {"tp": 8, "overlap": True, "sequence_regions": True},
    "sp": {"sp": 8},
    "sp, overlapped": {"sp": 8, "overlap": True},
    "sp, contiguous": {"sp": 8, "partition": "contiguous"},
    "ring": {"sp": 8, "exchange": "ring"},
    "ring, contiguous": {"sp": 8, "exchange": "ring", "partition": "contiguous"},
    "ring, in turn": {"sp": 8, "exchange": "ring", "overlap": False},
    "ulysses": {"sp": 4, "exchange": "ulysses"},
    "ulysses, contiguous": {"sp": 4, "exchange": "ulysses", "partition": "contiguous"},
    "tp4-sp2": {"tp": 4, "sp": 2},
    "tp2-sp4, ring": {"tp": 2, "sp": 4, "exchange": "ring", "sequence_regions": True},
    "tp2-sp2, ulysses": {"tp": 2, "sp": 2, "exchange": "ulysses"},
    "tsp": {"tsp": 8},
    "tsp, in turn": {"tsp": 8, "overlap": False},
    "tsp, contiguous": {"tsp": 8, "partition": "contiguous"},
    "tsp of two": {"tsp": 2},
    "tsp, gathered, two groups": {"tsp": 8, "weight_transport": "gather", "head_groups": 2},
    "tsp, several rings, blocks": {
        "tsp": 8,
        "weight_transport": "multi_ring",
        "head_groups": 1,
        "overlap_by": "blocks",
    },
    "ring over several": {"sp": 8, "exchange": "ring", "context_transport": "multi_ring"},
    "sp, blocks": {"sp": 8, "overlap": True, "overlap_by": "blocks"},
}
MODELS = {
    "multi-head": architecture(1024, heads=16),
    "grouped": architecture(1024, heads=32, kv_heads=8, head_dim=32, ffn=3584),
    "wide attention, no gate": architecture(640, heads=16, kv_heads=8, head_dim=64, ffn=3200, gated=False),
    "with a vocabulary": architecture(1024, heads=16, vocab=32_000),
}


# The text of a program.


def size_of(operator: Operator) -> str:
    if isinstance(operator, Part):
        return f"1/{operator.of} of {size_of(operator.whole)}"
    if isinstance(operator, Gemm):
        times = f"{operator.batch} × " if operator.batch > 1 else ""
        return f"gemm {times}{operator.m}×{operator.n}×{operator.k}"
    if isinstance(operator, Attention):
        pieces = " ".join(f"{queries}:{context}" for queries, context in operator.segments)
        mask = "causal" if operator.causal else "full"
        back = "" if operator.direction == "forward" else " backward"
        return f"attention{back} {pieces} {mask} {operator.heads}/{operator.kv_heads}×{operator.head_dim}"
    return f"{operator.op} {operator.hbm_bytes / 1024:g} KiB"


def kind_of(instruction: Instruction) -> str:
    if isinstance(instruction, Compute):
        return "kernels"
    if isinstance(instruction, Collective):
        root = f" from {instruction.root}" if instruction.kind == "broadcast" else ""
        return f"{instruction.kind} {instruction.axis}{root}"
    ends = [f"to {instruction.to:+d}"] if instruction.to is not None else []
    ends += [f"from {instruction.source:+d}"] if instruction.source is not None else []
    return f"message {instruction.axis} {' '.join(ends)}"


def line(index: int, instruction: Instruction) -> str:
    if isinstance(instruction, Compute):
        size = ", ".join(size_of(operator) for operator in instruction.operators) or "nothing"
    else:
        size = f"{instruction.size_bytes / 1024:g} KiB"
    after = f"  after {', '.join(map(str, instruction.after))}" if instruction.after else ""
    where = f"{index:3}  {instruction.stream:16}  {kind_of(instruction):24}  {instruction.part}: {instruction.name}"
    return f"{where}  [{size}]{after}"


def text(job: Job) -> str:
    """The layers of position 1 (or of the only one): what is waited for is an index of the same layer; a negative one
    counts back from its first line into the layer before."""
    program = programs_of(job)[min(1, job.plan.token_shards - 1)]
    lines = [f"{program.role} of {job.model.layers} layers, {job.work.sequence} tokens"]
    for item in program.items:
        if isinstance(item, Repeat):
            lines += ["", f"layer, {item.times} times, step {item.layer_step:+d}"]
            lines += [line(index, instruction) for index, instruction in enumerate(item.body)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", WRITTEN)
def test_a_layer_is_written_as_its_worked_example(name: str) -> None:
    model, asked = WRITTEN[name]
    found = text(job_of(model, **asked))
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")


def test_no_worked_example_is_without_its_plan() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == {*WRITTEN}


# Work: what is computed does not depend on how it is spread.


@pytest.fixture(params=PLANS)
def switches(request: pytest.FixtureRequest) -> dict[str, Any]:
    return PLANS[request.param]


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("sequences", [1, 2])
def test_a_replicas_forward_has_the_models_flops(switches: dict[str, Any], model: Architecture, sequences: int) -> None:
    job = job_of(model, sequences=sequences, **switches)
    assert replica_flops(job) == job.work.tokens_per_replica * model.forward_flops_per_token(job.work.sequence)


def test_a_window_leaves_as_much_to_attend_however_shards_see_each_other(switches: dict[str, Any]) -> None:
    """Windows of a 32nd of the sequence; a first corner that is not full is counted as full where one call sees all."""
    model = architecture(1024, heads=16, window=64, full_every=2)
    found = replica_flops(job_of(model, sequence=2048, **switches), "attention")
    assert found == pytest.approx(replica_flops(job_of(model, sequence=2048), "attention"), rel=0.002)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("model", [model for model in MODELS.values() if not model.vocab], ids=list(MODELS)[:3])
def test_the_backward_has_twice_the_forwards_products_and_two_and_a_half_times_its_attention(
    switches: dict[str, Any], model: Architecture
) -> None:
    forward = job_of(model, **switches)
    training = job_of(model, pass_="training", **switches, recomputation="none")
    assert replica_flops(training, "gemm") == 3 * replica_flops(forward, "gemm")
    assert replica_flops(training, "attention") == 3.5 * replica_flops(forward, "attention")


@pytest.mark.in_turn(5)
def test_full_recomputation_adds_exactly_one_forward_and_selective_its_attention(switches: dict[str, Any]) -> None:
    model = MODELS["grouped"]
    forward = job_of(model, **switches)
    none, selective, full = (
        job_of(model, pass_="training", **switches, recomputation=policy) for policy in ("none", "selective", "full")
    )
    assert replica_flops(full) - replica_flops(none) == replica_flops(forward)
    assert replica_flops(selective) - replica_flops(none) == replica_flops(forward, "attention")


@pytest.mark.in_turn(5)
def test_the_head_costs_its_two_gradients_and_folded_its_product_once_more(switches: dict[str, Any]) -> None:
    """TSP keeps no logits: each vocabulary shard multiplies again as it passes (a stated choice of the schedule)."""
    model, bare = MODELS["with a vocabulary"], MODELS["multi-head"]
    extra = [
        replica_flops(job_of(spoken, pass_=pass_, **switches)) - replica_flops(job_of(bare, pass_=pass_, **switches))
        for pass_, spoken in (("forward", model), ("training", model))
    ]
    assert extra[0] == 2 * 1024 * model.hidden * model.vocab
    assert extra[1] == extra[0] * (4 if switches.get("tsp", 1) > 1 else 3)


@pytest.mark.in_turn(5)
def test_overlap_and_partition_do_not_change_how_many_bytes_are_asked_for(switches: dict[str, Any]) -> None:
    def asked(**changes: Any) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for program in programs_of(job_of(MODELS["grouped"], **{**switches, **changes})):
            for instruction in communications(program):
                kind = instruction.kind if isinstance(instruction, Collective) else "message"
                sizes[kind] = sizes.get(kind, 0) + instruction.size_bytes
        return sizes

    assert asked() == asked(overlap=False) == asked(overlap=True) == asked(partition="contiguous")


# Order.


def communications(program: Program) -> Iterator[Collective | SendReceive]:
    for issued in program.unrolled():
        if not isinstance(issued.instruction, Compute):
            yield issued.instruction


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("pass_", ["forward", "training"])
def test_every_wait_is_for_an_earlier_instruction(switches: dict[str, Any], pass_: str) -> None:
    for program in programs_of(job_of(MODELS["with a vocabulary"], pass_=pass_, **switches)):
        for index, issued in enumerate(program.unrolled()):
            assert all(0 <= other < index for other in issued.after)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("pass_", ["forward", "training"])
def test_kernels_and_communication_do_not_share_a_stream(switches: dict[str, Any], pass_: str) -> None:
    for program in programs_of(job_of(MODELS["with a vocabulary"], pass_=pass_, **switches)):
        for issued in program.unrolled():
            assert isinstance(issued.instruction, Compute) == (issued.instruction.stream == "compute")


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("pass_", ["forward", "training"])
def test_ranks_of_a_replica_ask_for_the_same_communication_in_the_same_order(
    switches: dict[str, Any], pass_: str
) -> None:
    """The condition under which no order of arrival can lock ranks against each other."""
    programs = programs_of(job_of(MODELS["with a vocabulary"], pass_=pass_, **switches))
    for one, other in pairwise(programs):
        assert list(communications(one)) == list(communications(other))


def test_layers_count_up_in_the_forward_and_down_in_the_backward(switches: dict[str, Any]) -> None:
    for program in programs_of(job_of(architecture(1024, heads=16, layers=3), pass_="training", **switches)):
        layers = [issued.layer for issued in program.unrolled() if issued.layer >= 0]
        turns = [layer for layer, after in pairwise([*layers, -1]) if layer != after]
        assert turns == [0, 1, 2, 1, 0]


def test_nothing_waits_beside_compute_where_overlap_is_off() -> None:
    """In turn: whatever moves is waited for by the next kernel."""
    for switches in (
        {"tsp": 4, "overlap": False},
        {"tp": 4},
        {"sp": 4},
        {"sp": 4, "exchange": "ring", "overlap": False},
    ):
        for program in programs_of(job_of(architecture(512), **switches)):
            issued = list(program.unrolled())
            for index, entry in enumerate(issued):
                if isinstance(entry.instruction, Compute):
                    continue
                later = [
                    number
                    for number in range(index + 1, len(issued))
                    if isinstance(issued[number].instruction, Compute)
                ]
                assert not later or index in issued[later[0]].after, entry.instruction.name


def test_a_folded_rank_never_waits_for_a_reduction_in_its_forward() -> None:
    for program in programs_of(job_of(architecture(512), tsp=4)):
        kinds = {instruction.kind for instruction in communications(program) if isinstance(instruction, Collective)}
        assert kinds == {"broadcast", "all_gather"}


def test_every_rank_broadcasts_its_shard_once_a_layer_and_shards_hop_one_time_less_than_there_are() -> None:
    for program in programs_of(job_of(architecture(512, layers=1), tsp=8)):
        moves = list(communications(program))
        roots = [move.root for move in moves if isinstance(move, Collective) and move.kind == "broadcast"]
        hops = [move for move in moves if isinstance(move, SendReceive)]
        assert roots == list(range(8)) and len(hops) == 7
