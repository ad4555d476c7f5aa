"""What the order of a layer must keep of its schedule: what is hidden is beside what hides it, buffers are as many as
the ledger of memory has, a backward mirrors its forward. :func:`broken` asks these laws and those of layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import ceil, inf

from helpers.laws_of_layers import (
    INWARD,
    ROUTED,
    attends,
    back,
    besides,
    blocks,
    context,
    experts,
    state,
    steps,
    sums,
    weights,
)
from helpers.order import Broken, Order, Row, Visit

from tspsim.network.kinds import KINDS
from tspsim.operators import Computes, Gemm, Role
from tspsim.parallel import Job, scheme_of
from tspsim.parallel.state.memory import peak_memory
from tspsim.program import RING_SHIFT, Collective, Program, Repeat, SendReceive
from tspsim.program.instructions import content


def room(order: Order) -> Broken:
    """What is here and not used yet, or on its way, is no more than the ledger of memory has room for, whatever takes
    long: of weights that travel, and of K and V that go round; of experts that are gathered, one layer's."""
    forward, backward = (
        {pool: most(order, [pair for pair in pairs if pair[2] is turn]) for pool, pairs in pools(order).items()}
        for turn in (False, True)
    )
    for pool, pairs in pools(order).items():
        if order.job.plan.overlap is not False and order.job.plan.weight_transport != "gather":
            yield from early(order, pool, [pair for pair in pairs if not pair[2]] if pool != "mlp" else [])
    ledger = peak_memory(order.job, scheme_of(order.job.plan).residency)
    weights_, context_ = forward["attention"] + forward["mlp"], forward["context"]
    if weights_ > ledger.get("in_flight_weights", 0.0) or context_ > ledger.get("gathered_context", 0.0):
        yield f"{weights_} bytes of weights and {context_} of K and V are here, and the ledger has {ledger}"
    if order.job.plan.weight_transport != "gather" and order.job.plan.recomputation != "full":  # these keep them
        yield from (f"backward {pool} needs more buffers" for pool, size in backward.items() if size > forward[pool])


def early(order: Order, pool: str, pairs: Sequence[tuple[Row, Row, bool]]) -> Broken:
    """In a layer a move waits for no use but that of what had its buffer, so many moves before."""
    waits: dict[int, list[int]] = {}
    for number, (move, *_) in enumerate(pairs):
        ended = [before for before in range(number) if move.place >= 0 and order.follows(move, pairs[before][1])]
        here = waits.setdefault(move.layer, [])
        here.append(min(len(here) + 1, number - max(ended, default=-1)))
    for layer, here in waits.items():
        if here != [min(number, max(here)) for number in range(1, len(here) + 1)]:
            yield f"{layer}: what brings {pool} waits longer than for one of {max(here)} buffers: {here}"


def most(order: Order, pairs: Sequence[tuple[Row, Row, bool]]) -> float:
    """Bytes that are here at most."""
    held = 0.0
    for number, (move, *_) in enumerate(pairs):
        if move.place < 0:
            continue
        here = [other for other, use, _ in pairs[:number] if not order.follows(move, use)]
        sizes = (
            row.instruction.size_bytes for row in (move, *here) if isinstance(row.instruction, Collective | SendReceive)
        )
        held = max(held, float(sum(sizes)))
    return held


def pools(order: Order) -> dict[str, list[tuple[Row, Row, bool]]]:
    """What shares buffers: every move that fills one, the kernel after which it is free, and whether that is in a
    backward."""
    found: dict[str, list[tuple[Row, Row, bool]]] = {"attention": [], "mlp": [], "context": []}
    for visit in order.visits:
        for phase in ("forward", "again", "backward"):
            rows = visit.phase(phase)
            attended = [row for row in rows if row.attends or row.empty]
            dense = [row for row in rows if row.part == "mlp" and row.runs(Role.GATE_UP)]
            groups = [row for row in rows if row.on("weights") and row.part == "attention"]
            pieces = [row for row in rows if row.on("weights", "weights by rail") and row.part == "mlp"]
            hops = [row for row in rows if row.on("context") and phase != "backward"]
            if attended and groups:
                if besides(order):  # what heads do not divide comes first, and last backward
                    groups.pop(-1 if phase == "backward" and order.job.model.latent is not None else 0)
                used = [
                    attended[ceil(len(attended) * number / len(groups)) - 1] for number in range(1, len(groups) + 1)
                ]
                found["attention"] += zip(groups, used, [visit.backward] * len(groups), strict=True)
            if pieces and len(dense) - len(pieces) in (0, 1):
                found["mlp"] += zip(
                    pieces, dense[len(dense) - len(pieces) :], [visit.backward] * len(pieces), strict=True
                )
            if len(attended) - len(hops) == 1 and len(hops) > 1:
                if not isinstance(hops[0].instruction, Collective) or hops[0].instruction.kind == RING_SHIFT:
                    found["context"].append((hops[0]._replace(place=-1), attended[0], visit.backward))  # a rank's own
                found["context"] += zip(hops, attended[1:], [visit.backward] * len(hops), strict=True)
    return found


def brought(order: Order) -> Broken:
    """A layer's forward brings over each axis what its scheme says in closed form, to the byte; more where latents or
    adapters come besides, of which it says nothing."""
    plan, visit = order.job.plan, order.visits[0]
    for closed in scheme_of(plan).received(order.job, False):
        sizes = [0.0]
        for row in visit.phase("forward"):
            move = row.instruction
            if isinstance(move, Collective) and move.axis == closed.axis:
                sizes.append(KINDS.get(move.kind).received_bytes(move.size_bytes, plan.degree(move.axis)))
            elif isinstance(move, SendReceive) and move.axis == closed.axis:
                sizes.append(float(move.size_bytes))
        if not closed.bytes * (1.0 - 1e-9) <= sum(sizes) <= closed.bytes * (inf if besides(order) else 1.0 + 1e-9):
            yield f"a layer brings {sum(sizes):,.0f} bytes over {closed.axis}, and its scheme says {closed.bytes:,.0f}"


def mirrored(order: Order) -> Broken:
    """A backward visits the parts of its layer in the other order and multiplies both gradients of every product; what
    is made again is the forward, to the byte."""
    forward = {visit.layer: visit for visit in order.visits if not visit.backward}
    for visit in (visit for visit in order.visits if visit.backward):
        whole = forward[visit.layer]
        parts = [
            [*dict.fromkeys(row.part for row in each)] for each in (visit.phase("backward"), whole.phase("forward"))
        ]
        if parts[0] != parts[1][::-1]:
            yield f"layer {visit.layer} goes back through {parts[0]}"
        again, made = ([said(row) for row in each] for each in (visit.phase("again"), whole.phase("forward")))
        left = iter(made)
        if order.job.plan.overlap_by != "blocks" and any(each not in left for each in again):
            yield f"layer {visit.layer} is made again otherwise than it was made"
        if order.job.plan.recomputation == "full":
            ways = visit.phase("again"), whole.phase("forward")
            first, then = (multiplied(each for row in way for each in row.shares) for way in ways)
            if first != then:
                yield f"layer {visit.layer} is not made again whole"
        if order.job.work.adapters is None:
            wanted = multiplied(both for row in whole.phase("forward") for both in row.gradients)
            found = multiplied(each for row in visit.phase("backward") for each in row.shares)
            if wanted != found:
                yield f"layer {visit.layer} multiplies {found}, and not {wanted}"


def said(row: Row) -> tuple[object, ...]:
    """What an instruction does, in whatever phase."""
    stream, name, _, *rest = content(row.instruction)
    return stream, name, row.part, *rest


def multiplied(products: Iterable[tuple[Gemm, Fraction]]) -> Counter[tuple[object, ...]]:
    """Tokens that products multiply, by what they make and the sizes of its weights."""
    tokens: Counter[tuple[object, ...]] = Counter()
    for product, part in products:
        own = product.computes == Computes.WEIGHT_GRADIENT
        sizes = (product.m, product.n) if own else (product.n, product.k)
        tokens[(product.computes, product.batch, *sizes)] += part * (product.k if own else product.m)
    return tokens


def in_turn(order: Order, rows: Sequence[Row]) -> Broken:
    """Where nothing is hidden, what moves waits for the kernel before it, and the kernel behind it waits for that."""
    if order.job.plan.overlap is not False or rows[0].phase == "backward":
        return
    for number, move in enumerate(rows):
        kernels = [row for row in rows[:number] if row.operators][-1:] if move.moves else []
        yield from (
            f"{move.name} begins before {row.name} has ended" for row in kernels if not order.follows(move, row)
        )
        kernels = [row for row in rows[number:] if row.operators][:1] if move.moves else []
        yield from (
            f"{row.name} begins before {move.name} has ended" for row in kernels if not order.follows(row, move)
        )


#: Streams on which what has been computed leaves; nobody multiplies by it here.
OUTWARD = ("gradients", "weight gradients", "weight gradients by rail", "context gradients", "context back")


def named(order: Order, visit: Visit) -> Broken:
    """A transfer names kernels that make it or free its buffer, or transfers of what it passes on or adds to; a product
    names nothing that leaves."""
    rows = {row.place: row for row in visit.rows}
    for row in visit.rows:
        for other in (rows[place] for place in order.named[row.place] if place in rows):
            mine, its = row.instruction.stream, other.instruction.stream
            alike = mine.removesuffix(" by rail") == its.removesuffix(" by rail") or mine == "gradients"
            if order.job.plan.overlap is False:
                continue
            if row.moves and other.moves and not alike:
                yield f"{row.name} waits for {other.name}"
            if (row.products or row.attends or row.runs(Role.NORM)) and other.on(*OUTWARD):
                yield f"{row.name} waits for {other.name}"


def hidden(order: Order, rows: Sequence[Row]) -> Broken:
    """What a schedule hides is beside what hides it: a block that travels and the one that is attended or multiplied, a
    sum of one part of the tokens and the products of the next, experts' pieces and their ways."""
    plan = order.job.plan
    if plan.overlap is False:
        return
    attended = attends(rows)
    dense = [row for row in rows if row.runs(Role.GATE_UP)]
    context_ = [row for row in rows if row.on("context") and not row.sums]
    routed = [row for row in rows if row.runs(*ROUTED)]
    weights_ = [row for row in rows if row.on("weights") and row.part == "mlp"]
    pairs: list[tuple[Row, Row]] = []
    added = [row for row in rows if row.on("context") and row.sums]
    if len(attended) > 1 and len(attended) - len(context_) == 1 and not added:
        pairs += zip(context_, attended, strict=False)
    if len(dense) > 1 and len(dense) - len(weights_) == 1:
        pairs += zip(weights_, dense, strict=False)
    if len(dense) == len(weights_) > 1:
        pairs += zip(weights_[1:], dense, strict=False)
    if len(added) > 1:
        back_ = [row for row in rows if row.runs(*INWARD) and not row.attends and not row.runs(Role.NORM)]
        pairs += zip(added[1:], back_[:-1] if len(back_) == len(added) and order.job.scheme.folds else (), strict=False)
    if len(attended) == len(added) > 1 and not context_:  # else a sum is behind the gather of the next
        pairs += zip(added, attended[1:], strict=False)
    if len(attended) == len(context_) > 1 and not added:
        pairs += zip(context_[1:], attended, strict=False)
    for part, roles in (("attention", (Role.OUTPUT,)), ("mlp", (Role.DOWN,))):
        made = [row for row in rows if row.part == part and row.runs(*roles)]
        moved = [row for row in rows if row.part == part and row.on("communication")]
        if len(made) == len(moved) > 1:
            pairs += zip(moved, made[1:], strict=False)
    out = [row for row in rows if row.on("experts") and "dispatch" in row.instruction.name]
    back = [row for row in rows if row.on("experts") and row not in out]
    if len(routed) == len(out) > 1:
        pairs += [*zip(out[1:], routed, strict=False), *zip(back, routed[1:], strict=False)]
    gathered = [row for row in rows if row.on("gathered experts") and not row.sums]
    pairs += [
        (move, row)
        for move in gathered
        for row in rows
        if row.runs(Role.OUTPUT, Role.ROUTER) and rows[0].phase == "forward"
    ]
    travel = [row for row in rows if row.on("weights") and row.part == "attention"]
    inward = [row for row in rows if row.runs(*INWARD) and row.products and rows[0].phase != "backward"]
    if travel and rows[0].phase != "backward":
        pairs += [(move, row) for move in weights_[:1] for row in attended[-1:]]
        if len(travel) == len(inward):
            norms = [row for row in rows if row.part == "attention" and row.runs(Role.NORM) and not row.products]
            pairs += [(travel[0], row) for row in norms]
            pairs += zip(travel[1:], inward, strict=False)
    if plan.expert_overlap == "shared_experts":
        pairs += [(out[0], row) for row in dense[:1] if out]
    yield from (f"{use.name} is not beside {move.name}" for move, use in pairs if not order.beside(move, use))


def broken(job: Job, program: Program, forward: Program | None = None) -> list[str]:
    """Every law of order that a program breaks, in words; of a training step also that its forward is ``forward``."""
    order = Order(job, program)
    found: list[str] = []
    for visit in order.visits:
        found += named(order, visit)
        for phase in ("forward", "again", "backward"):
            rows = visit.phase(phase)
            if rows:
                for law in (weights, context, sums, experts, steps, hidden, in_turn):
                    found += law(order, rows)
    for whole in (back, state, room, brought, mirrored):
        found += whole(order)
    if forward is not None:
        layers = [[item.body for item in each.items if isinstance(item, Repeat)][:1] for each in (program, forward)]
        found += ["a training step's forward is not the forward"] if layers[0] != layers[1] else []
    return [*found, *blocks(order, "forward"), *blocks(order, "again")]
