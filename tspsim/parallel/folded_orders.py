"""Zero-bubble orders of a pipeline folded to a V: a stage holds chunks s and 2·p − 1 − s of 2·p, and weight gradients
are tasks of their own.

``zbv`` (Qi et al. 2023, arXiv:2401.10241, §6) keeps the activations of 1F1B and has no bubble if forward, input
gradients and weight gradients take as long. ``v-half`` and ``v-min`` (Qi et al. 2024, arXiv:2405.15362, §4) repeat a
block of six slots per micro-batch, in which forwards and backwards stand so that a stage keeps about a half and a third
of them. Task times that differ open bubbles, in ``v-min`` most.

Orders are laid out in slots of one task. In a block the four passes of a micro-batch have fixed slots; weight gradients
take the slots that stay free, first come first served. Then tasks move to earlier free slots, as far as what they wait
for and the peak of kept activations allow, and in the end, once no forward is left, weight gradients give way to
backwards (Primus does the same: AMD-AGI/Primus, primus/core/pipeline_parallel/scheduler/algorithms/zbv_greedy.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..base.memo import remembered
from ..steps import BACKWARD, FORWARD, WEIGHTS, Task
from .dualpipe import BothEnds
from .pipeline import ORDERS, Chunk, Pipeline, PipelineOrder, Refusal, chunk_of, most_in_flight

#: Slots of a micro-batch in a repeated block: two forwards, two backwards, two weight gradients.
PERIOD = 6
#: ``(stages, stage) →`` slots of the first micro-batch's forward in both chunks, then of its backward in both.
Block = Callable[[int, int], tuple[tuple[int, int], tuple[int, int]]]


class Folded(BothEnds):
    """A V of 2·p chunks: stage s holds chunks s and 2·p − 1 − s, so that the first stage has embedding and head, and a
    micro-batch turns round on the last (Qi et al. 2023, §6)."""

    both_ways = False

    def chunks(self, sizes: tuple[int, ...], stages: int, stage: int) -> tuple[Chunk, ...]:
        down, up = chunk_of(sizes, stage), chunk_of(sizes, len(sizes) - 1 - stage, -1)
        turns = stage == stages - 1
        return (
            Chunk(down.first_layer, down.layers, down.has_embedding, down.has_head, 1, left_here=turns),
            Chunk(up.first_layer, up.layers, up.has_embedding, up.has_head, -1, entered_here=turns),
        )

    def met(self, place: int, stages: int, chunks: int) -> range:
        return range(2 * stages)


FOLDED = Folded()


def v_half(stages: int, stage: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """A half: forwards descend at half pace and climb at full pace, backwards the same."""
    gap = 3 if stages % 2 == 0 else 0
    forward = 2 * stage, 3 * stages - stage - 2
    return forward, (6 * stages + gap - stage - 2, 3 * stages + gap + 2 * stage - 1)


def v_min(stages: int, stage: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """A third: each of the four passes goes along the stages at full pace."""
    gap = 2 if stages % 3 == 0 else 0
    forward = stage, 2 * stages - stage - 1
    return forward, (4 * stages + gap - stage - 1, 2 * stages + gap + stage)


@dataclass
class StageSlots:
    """The slots of one stage: which task each has, and when each task was."""

    tasks: dict[int, Task] = field(default_factory=dict)
    slot_of: dict[Task, int] = field(default_factory=dict)

    def put(self, task: Task, slot: int) -> None:
        self.tasks.pop(self.slot_of.get(task, -1), None)
        self.tasks[slot], self.slot_of[task] = task, slot

    def kept(self, slots: int) -> list[int]:
        """Chunks of micro-batches kept after each of ``slots`` slots: from a forward to its weight gradients."""
        changes, now = [0] * slots, 0
        for slot, task in self.tasks.items():
            changes[slot] += (task.kind == FORWARD) - (task.kind == WEIGHTS)
        return [now := now + change for change in changes]


@remembered(64)
def blocks_in_turn(block: Block, stages: int, micro_batches: int) -> tuple[tuple[Task, ...], ...]:
    """The tasks of all stages, in order, of a block that repeats for every micro-batch."""
    grid = [StageSlots() for _ in range(stages)]
    for stage, column in enumerate(grid):
        for kind, of_chunks in zip((FORWARD, BACKWARD), block(stages, stage), strict=True):
            for chunk, slot in enumerate(of_chunks):
                for micro_batch in range(micro_batches):
                    column.put(Task(kind, micro_batch, chunk), slot + PERIOD * micro_batch)
        _fill(column)
    slots = 1 + max(max(column.tasks) for column in grid)
    most = max(max(column.kept(slots)) for column in grid)
    _advance(grid, slots, [column.kept(slots) for column in grid], most)
    _drain(grid, micro_batches)
    return tuple(tuple(column.tasks[slot] for slot in sorted(column.tasks)) for column in grid)


def _fill(column: StageSlots, begin: int = 0) -> None:
    """Put weight gradients that have no slot yet into free slots from ``begin`` on, after their backward."""
    waiting = deque(
        Task(WEIGHTS, task.micro_batch, task.chunk)
        for slot, task in sorted(column.tasks.items())
        if task.kind == BACKWARD and slot < begin and Task(WEIGHTS, task.micro_batch, task.chunk) not in column.slot_of
    )
    slot, last = begin, max(column.tasks)
    while slot <= last or waiting:
        task = column.tasks.get(slot)
        if task is None:
            if waiting:
                column.put(waiting.popleft(), slot)
        elif task.kind == BACKWARD:
            waiting.append(Task(WEIGHTS, task.micro_batch, task.chunk))
        slot += 1


def _earliest(grid: Sequence[StageSlots], stage: int, task: Task) -> int:
    """The first slot after what a task waits for: the same task of the micro-batch before, its input, and of a weight
    gradient the backward."""
    kind, stages, micro_batch = task.kind, len(grid), task.micro_batch
    own = grid[stage].slot_of
    after = [own[task._replace(micro_batch=micro_batch - 1)]] if micro_batch else []
    place = FOLDED.place_of(task.chunk, stage, stages)
    source = {FORWARD: place - 1, BACKWARD: place + 1, WEIGHTS: place}[kind]
    if kind == WEIGHTS:
        after.append(own[task._replace(kind=BACKWARD)])
    elif source in FOLDED.met(place, stages, 2):
        column = grid[FOLDED.stage_of(source, stages)]
        after.append(column.slot_of[Task(kind, micro_batch, int(source >= stages))])
    elif kind == BACKWARD:
        after.append(own[task._replace(kind=FORWARD)])
    return 1 + max(after, default=-1)


def _advance(grid: Sequence[StageSlots], slots: int, kept: list[list[int]], most: int) -> None:
    """Move every task to the earliest free slot with which no stage ever keeps more than ``most``."""
    for slot in range(slots):
        for stage, column in enumerate(grid):
            task = column.tasks.get(slot)
            if task is None:
                continue
            change = (task.kind == FORWARD) - (task.kind == WEIGHTS)
            for earlier in range(_earliest(grid, stage, task), slot):
                if earlier in column.tasks:
                    continue
                if max(kept[stage][earlier:slot]) + change > most:
                    continue
                column.put(task, earlier)
                for between in range(earlier, slot):
                    kept[stage][between] += change
                break


def _drain(grid: Sequence[StageSlots], micro_batches: int) -> None:
    """After a stage's last forward: backwards as early as they can be, weight gradients in what stays free."""
    begins = [column.slot_of[Task(FORWARD, micro_batches - 1, 1)] + 1 for column in grid]
    left: list[tuple[int, int, Task]] = []
    for stage, (column, begin) in enumerate(zip(grid, begins, strict=True)):
        for slot in [slot for slot in column.tasks if slot >= begin]:
            task = column.tasks[slot]
            if task.kind == WEIGHTS:
                del column.tasks[slot], column.slot_of[task]
            else:
                left.append((slot, stage, task))
    for slot, stage, task in sorted(left):
        free = range(max(begins[stage], _earliest(grid, stage, task)), slot)
        grid[stage].put(task, next((earlier for earlier in free if earlier not in grid[stage].tasks), slot))
    for column, begin in zip(grid, begins, strict=True):
        _fill(column, begin)


def half_kept(stages: int, stage: int, micro_batches: int, chunks: int) -> list[Task]:
    """``v-half``: about half of the activations of 1F1B."""
    return list(blocks_in_turn(v_half, stages, micro_batches)[stage])


def third_kept(stages: int, stage: int, micro_batches: int, chunks: int) -> list[Task]:
    """``v-min``: about a third of the activations of 1F1B."""
    return list(blocks_in_turn(v_min, stages, micro_batches)[stage])


def zbv(stages: int, stage: int, micro_batches: int, chunks: int) -> list[Task]:
    """``zbv`` in closed form: fill, one pass of each kind in turn through both chunks, then backwards with what is left
    of the weight gradients behind (PyTorch's ``ScheduleZBVZeroBubble`` and Primus' ``zbv-formatted``).

    >>> "".join(f"{task.kind[0]}{task.chunk}" for task in zbv(2, 1, 3, 2))
    'f0f1f0f1b1w1f0b0w0f1b1w1b0b1b0w0w1w0'
    """
    done = {(kind, chunk): 0 for kind in (FORWARD, BACKWARD, WEIGHTS) for chunk in (0, 1)}
    order: list[Task] = []

    def do(chunk: int, *kinds: str) -> None:
        for kind in kinds:
            order.append(Task(kind, done[kind, chunk], chunk))
            done[kind, chunk] += 1

    for _ in range(2 * (stages - stage) - 1):
        do(0, FORWARD)
    for _ in range(stage):
        do(1, FORWARD)
        do(0, FORWARD)
    for _ in range(stages - stage):
        do(1, FORWARD, BACKWARD, WEIGHTS)
    while done[FORWARD, 1] < done[FORWARD, 0] or done[FORWARD, 0] < micro_batches:
        if done[FORWARD, 0] < micro_batches:
            do(0, FORWARD)
        do(0, BACKWARD, WEIGHTS)
        do(1, FORWARD, BACKWARD, WEIGHTS)
    for _ in range(stage):
        do(0, BACKWARD)
        do(1, BACKWARD)
    for _ in range(stages - stage):
        do(0, BACKWARD, WEIGHTS)
    for chunk in (1, 0):
        while done[WEIGHTS, chunk] < micro_batches:
            do(chunk, WEIGHTS)
    return order


def check(pipeline: Pipeline) -> Refusal:
    """Two chunks on each of several stages, a backward that can leave weight gradients out, a pipeline that fills."""
    if pipeline.stages < 2 or pipeline.chunks != 2 or not pipeline.splits:
        return "schedule", "zbv, v-half and v-min run with pp above 1, vpp 2, tensor or sequence parallelism; use 1f1b"
    least = 2 * pipeline.stages - 1
    if pipeline.micro_batches < least:
        problem = f"{pipeline.micro_batches} micro-batches do not fill {pipeline.stages} stages"
        return "schedule", f"{problem}; use {least} and more"
    return None


def kept_by(
    tasks: Callable[[int, int, int, int], list[Task]],
) -> Callable[[int, int, int, Sequence[float]], tuple[int, ...]]:
    """Micro-batches in flight, from the tasks of the first rounds; weight gradients free what they read."""

    def kept(stages: int, stage: int, micro_batches: int, sizes: Sequence[float]) -> tuple[int, ...]:
        return most_in_flight(tasks(stages, stage, min(micro_batches, 4 * stages), len(sizes)), sizes, WEIGHTS)

    return kept


for _name, _tasks, _word in (("zbv", zbv, "zbv"), ("v-half", half_kept, "vhalf"), ("v-min", third_kept, "vmin")):
    ORDERS.register(
        PipelineOrder(
            _name, _tasks, check, splits_backward=True, kept=kept_by(_tasks), placement=FOLDED, word=_word,
            why_not="a search tries zb-h1, which fills the same bubble with half of the messages",
        )
    )  # fmt: skip
