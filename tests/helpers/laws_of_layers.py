"""What the order of a layer must keep, whatever spreads it: what moves has been made, and has come before it is used.

What moves is made by kernels and used by kernels, one after the other: the i-th of m moves needs its share of what
makes it, the j-th use its share of what moves. A law yields what breaks it, in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil

from helpers.order import Broken, Order, Row, flow

from tspsim.operators import Computes, Gemm, Role

#: Products whose weights come first of a layer's.
INWARD = (Role.QKV, Role.LATENT_DOWN, Role.LATENT_QUERIES, Role.LATENT_KEYS_VALUES)

#: What a layer multiplies first, so that it is made from what the layer before left.
ENTRY = (*INWARD, Role.GATE_UP, Role.ROUTER)

ROUTED = tuple(role for role in Role if role.routed)

#: Steps of the two blocks of a layer, forward.
STEPS = {
    "attention": ((Role.NORM,), INWARD, (), (Role.OUTPUT,)),
    "mlp": ((Role.NORM,), (Role.GATE_UP, Role.ROUTER), (Role.ACTIVATION,), (Role.DOWN,)),
}


def besides(order: Order) -> bool:
    """Whether something comes that heads and columns do not divide: projections to latents, halves of adapters."""
    return order.job.model.latent is not None or order.job.work.adapters is not None


def weights(order: Order, rows: Sequence[Row]) -> Broken:
    """Each part of the weights has come before what multiplies by it, backward as forward."""
    phase = rows[0].phase
    first = [row for row in rows if row.part == "attention" and row.products and not row.attends]
    inward = [row for row in first if row.runs(*INWARD, Role.ADAPTER) and not row.runs(Role.OUTPUT)]
    outward = [row for row in rows if row.part == "attention" and row.runs(Role.OUTPUT)]
    dense = [row for row in rows if row.part == "mlp" and row.runs(Role.GATE_UP)]
    for part, used in (("attention", outward if phase == "backward" else inward), ("mlp", dense)):
        moved = [row for row in rows if row.on("weights", "weights by rail") and row.part == part]
        if moved and besides(order) and (part == "attention" or order.job.work.adapters is not None):
            whole = moved.pop(-1 if phase == "backward" and order.job.model.latent is not None else 0)
            needs = [row for row in rows if row.part == part and row.runs(Role.LATENT_DOWN, Role.ADAPTER)]
            early = [row for row in needs if not order.follows(row, whole)]
            yield from (f"{row.name} begins before {whole.name} has come" for row in early)
            used = [row for row in used if not row.runs(Role.NORM) or part == "mlp"]
        ring = part == "mlp" and len(used) - len(moved) == 1 and phase != "again"
        if ring and not any(row.on("weights by rail") for row in moved):
            late = [(move, use) for move, use in zip(moved[1:], used, strict=False) if not order.follows(move, use)]
            yield from (f"{move.name} comes where {use.name} still reads" for move, use in late)
        yield from flow(order, [], moved, used)


def context(order: Order, rows: Sequence[Row]) -> Broken:
    """K and V (or heads, or queries) have been made before they leave, and have come before they are attended; what is
    attended goes back before it is multiplied on, and gradients that others add to before they are used."""
    backward = rows[0].phase == "backward"
    moved = [row for row in rows if row.on("context", "context by rail")]
    attended = attends(rows)
    if not attended:
        return
    roles = (Role.OUTPUT,) if backward else (Role.QKV, Role.LATENT_KEYS_VALUES)
    made = [row for row in rows if row.runs(*roles) and not row.attends and not (backward and order.job.scheme.folds)]
    inward = [row for row in moved if row.place < attended[-1].place and not row.sums]
    outward = [row for row in moved if row not in inward]
    back = [row for row in rows if row.on("context back")]
    home = [row for row in rows if row.on("context gradients", "context gradients by rail")]
    merges = [row for row in rows if row.runs(Role.MERGE) and not row.attends]
    onward = [row for row in rows if row.runs(*INWARD if backward else (Role.OUTPUT,)) and not row.attends]
    yield from flow(order, made if len(made) <= len(inward) else [], inward, attended)
    yield from flow(order, others(attended, len(outward)) if backward else attended, outward, onward)
    yield from flow(order, attended[1:], back, merges)
    hops = [row for row in home if row.on("context gradients")]
    if hops and len(hops) != len(attended):
        yield f"{hops[0].name}: {len(hops)} hops do not bring the gradients of {len(attended)} blocks home"
    for move, row in zip(home, attended, strict=False):
        if not order.follows(move, row):
            yield f"{move.name} leaves before {row.name} has ended"
    for row in onward[-1:]:
        yield from (
            f"{row.name} begins before {move.name} is home" for move in (*back, *home) if not order.follows(row, move)
        )
    for number, move in enumerate(back, 1):
        if (move.instruction.to, move.instruction.source) != (-number, number):
            yield f"{move.name} goes elsewhere than home"


def attends(rows: Sequence[Row]) -> list[Row]:
    """Kernels that attend, and blocks of which a rank attends nothing; what only waits at the end is none."""
    last = max((row.place for row in rows if row.on("context", "context gradients", "context back")), default=0)
    backward = rows[0].phase == "backward"
    return [row for row in rows if row.attends or (row.empty and not (backward and row.place > last))]


def others(attended: Sequence[Row], count: int) -> list[Row]:
    """Of runs of kernels that each end with a rank's own block, those of others' blocks."""
    runs = len(attended) - count
    a_run = len(attended) // runs if count and runs > 0 else len(attended) + 1
    return [row for number, row in enumerate(attended, 1) if number % a_run]


def sums(order: Order, rows: Sequence[Row]) -> Broken:
    """What ranks add up is multiplied first; what they gather is made first, and multiplied on once it is here."""
    backward = rows[0].phase == "backward"
    for part, inward, last in (("attention", INWARD, (Role.OUTPUT,)), ("mlp", ENTRY, (Role.DOWN, Role.EXPERTS_DOWN))):
        here = [row for row in rows if row.part == part]
        end = inward if backward else last
        made = [row for row in here if any(each.role in end and input_or_output(each) for each in row.products)]
        made = [row for row in made if not (backward and row.runs(Role.NORM))]
        if any(row.on("experts", "gathered experts") for row in here):  # what is shared is summed, and nothing else
            made = [row for row in made if not row.runs(Role.ROUTER, Role.EXPERTS_DOWN)]
        moved = [row for row in here if row.on("communication")]
        added = [row for row in here if row.instruction.stream == "sums"]
        norms = [row for row in here if backward and row.runs(Role.NORM) and not ladder(order)]
        yield from flow(order, made, moved, added or norms)
        gathered = [row for row in here if row.on("gather rows")]
        if added:
            yield from flow(order, added, gathered, [])
        for row in gathered if not added else ():
            before = [each for each in rows if each.operators and each.place < row.place][-1:]
            after = [each for each in here if each.products and each.place > row.place]
            # A backward gathers the gradient of an output, and then the input again, for its weights' gradient alone.
            again = backward and row is not gathered[0]
            used = [each for each in after if not any(map(input_or_output, each.products))] if again else after
            yield from flow(order, before, [row], used[:1])
            if again and after and order.follows(after[0], row):
                yield f"{after[0].name} waits for {row.name}"


def input_or_output(product: Gemm) -> bool:
    return product.computes != Computes.WEIGHT_GRADIENT


def ladder(order: Order) -> bool:
    return order.job.plan.options.get("residual") == "ladder"


def blocks(order: Order, name: str) -> Broken:
    """A block begins with what the one before it left: with the ladder, the one before that (Zhang et al. 2025)."""
    left: list[list[Row]] = [[], []]
    for visit in order.visits:
        rows = visit.phase(name)
        if name == "again":
            left = [[], []]  # it begins with what was kept
        for part, roles in (("attention", INWARD), ("mlp", (Role.GATE_UP, Role.ROUTER))):
            here = [row for row in rows if row.part == part]
            entries = [row for row in here if row.runs(*roles)]
            if [row.runs(Role.ROUTER) for row in entries].count(True) == 1:
                entries = entries[:1]
            if order.job.plan.options.get("residual") == "parallel" and part == "mlp":
                entries = []
            yield from flow(order, [], left[-2 if ladder(order) else -1], entries)
            parts = zip(entries, left[-1][1:], strict=False) if len(left[-1]) == len(entries) else ()
            yield from (f"{row.name} waits for {move.name}" for row, move in parts if order.follows(row, move))
            if ladder(order) and entries and left[-1] and not order.beside(entries[0], left[-1][-1]):
                yield f"{entries[0].name} waits for {left[-1][-1].name}"
            moved = [row for row in here if row.on("communication")]
            if any(row.instruction.stream == "sums" for row in here):
                moved = [row for row in here if row.on("gather rows")]
            left.append(moved or [row for row in here if row.operators and row.instruction.stream == "compute"][-1:])


def back(order: Order) -> Broken:
    """With the ladder a gradient of a block's input is summed while the block before it goes back: the one before that
    begins with it."""
    left: list[list[Row]] = [[], []]
    for visit in order.visits if ladder(order) else ():
        rows = visit.phase("backward")
        for part in ("mlp", "attention"):
            norms = [row for row in rows if row.part == part and row.runs(Role.NORM)]
            yield from flow(order, [], left[-2], norms)
            if norms and left[-1] and not order.beside(norms[0], left[-1][-1]):
                yield f"{norms[0].name} waits for {left[-1][-1].name}"
            left.append([row for row in rows if row.part == part and row.on("communication")])


def steps(order: Order, rows: Sequence[Row]) -> Broken:
    """A block's steps follow each other, and backward in the other order."""
    backward = rows[0].phase == "backward"
    for part, roles in STEPS.items():
        here = [row for row in rows if row.part == part]
        taken = [[row for row in here if (row.runs(*role) if role else row.attends)] for role in roles]
        taken = [[row for row in each if not row.runs(Role.ROUTER) or not backward] for each in taken]
        lost = [
            role for role, each in zip(roles, taken, strict=True) if not each and role in ((Role.NORM,), INWARD, ())
        ]
        if here and lost and rows[0].phase != "again" and part == "attention":
            yield f"{here[0].name}: its {part} lacks {lost}"
        if ladder(order) and backward:
            taken = [[row for row in each if not row.runs(Role.NORM)] for each in taken[1:]]  # its norm comes first
        for first, then in pairwise(taken[::-1] if backward else taken):
            for number, row in enumerate(then, 1):
                other = first[ceil(len(first) * number / len(then)) - 1] if first else row
                if other.place != row.place and not order.follows(row, other):
                    yield f"{row.name} begins before {other.name} has ended"


def experts(order: Order, rows: Sequence[Row]) -> Broken:
    """Rows are routed, packed, dispatched, multiplied, combined and summed; where experts are gathered, multiplied
    once they have come."""
    routed = [row for row in rows if any(each.role.routed for each in row.products)]
    backward = rows[0].phase == "backward"
    router = [row for row in rows if row.runs(Role.ROUTER)]
    moved = [row for row in rows if row.on("experts")]
    out, back = moved[: len(moved) // 2], moved[len(moved) // 2 :]
    if len(routed) == len(out) > 1:  # in pieces, a piece goes back before the next is multiplied
        out = [row for row in moved if "dispatch" in row.instruction.name]
        back = [row for row in moved if row not in out]
    packed = [row for row in rows if moved and row.operators and not row.products and row.place < moved[0].place][-1:]
    summed = router if backward else [row for row in rows if row.runs(Role.EXPERT_SUM) and not row.products][-1:]
    if len(out) != len(back) or (packed and not router):
        yield f"{moved[0].name}: {len(out)} go out and {len(back)} come back, of rows routed {len(router)} times"
    if moved:
        yield from flow(order, packed, out, routed)
        yield from flow(order, routed, back, [])
        yield from flow(order, [], back, summed * len(back) if len(back) == 1 else [])
        for row in summed:
            yield from (f"{row.name} begins before {move.name}" for move in back if not order.follows(row, move))
        shared = [row for row in rows if row.part == "mlp" and row.on("communication") and row.place < moved[0].place]
        for row in packed:
            late = [move for move in shared if not order.follows(row, move)]
            yield from (f"{row.name} begins before {move.name} has ended" for move in late)
            if not backward and router and not order.follows(row, router[0]):
                yield f"{row.name} begins before rows are routed"
    gathered = [row for row in rows if row.on("gathered experts")]
    yield from flow(order, [], [row for row in gathered if not row.sums], routed[:1])
    yield from flow(order, routed, [row for row in gathered if row.sums], [])


def state(order: Order) -> Broken:
    """Gradients leave once all of them are multiplied; weights that are divided have come before a layer multiplies,
    while the one before it does, into one of two buffers."""
    for visit in order.visits:
        products = [row for row in visit.rows if row.products]
        made = [row for row in products if any(each.computes == Computes.WEIGHT_GRADIENT for each in row.products)]
        dense = [row for row in made if not row.runs(Role.ROUTER, *ROUTED)]
        sent = [row for row in visit.rows if row.on("weight gradients", "weight gradients by rail")]
        for part in ("attention", "mlp"):
            moved = [row for row in sent if row.part == part]
            yield from flow(order, [row for row in dense if row.part == part], moved, [])
        for move in (row for row in visit.rows if row.on("gradients")):
            added = [row for row in visit.rows if row.on("gathered experts") and row.sums]
            kernels = [row for row in visit.rows if row.operators]
            late = [row for row in (*kernels, *sent, *added) if not order.follows(move, row)]
            yield from (f"{move.name} leaves before {row.name} has ended" for row in late)
        for move in (row for row in visit.rows if row.on("parameters")):
            early = [row for row in products if not order.follows(row, move)]
            yield from (f"{row.name} begins before {move.name} has come" for row in early)
    for visit, later in pairwise(order.visits):
        used = [row for row in visit.rows if row.runs(*ROUTED) and row.products]
        for move in later.rows:
            if move.on("gathered experts") and visit.backward == later.backward and used and not move.sums:
                yield from flow(order, used[-1:], [move], [])
    gathers = [(number, row) for number, visit in enumerate(order.visits) for row in visit.rows if row.on("parameters")]
    for number, row in gathers:
        kernels = [
            [each for each in visit.rows if each.products] for visit in order.visits[max(0, number - 2) : number]
        ]
        alike = number > 1 and order.visits[number - 2].backward == order.visits[number].backward
        if alike and kernels[0] and not order.follows(row, kernels[0][-1]):
            yield f"{row.name} comes where {kernels[0][-1].name} still reads"
        if number and kernels[-1] and not order.beside(row, kernels[-1][-1]):
            yield f"{row.name} does not come while the layer before is multiplied"
