"""DualPipe: micro-batches enter a pipeline at both ends (DeepSeek-AI 2024, arXiv:2412.19437, §3.2.1 and figure 5).

Half of a step's micro-batches go from the first stage to the last, the others from the last to the first: a rank holds
the layers of two of p stages, s and p − 1 − s, so all weights exist twice. The forward of one direction runs beside the
backward of the other; the bubble is (p/2 − 1)·(t_FB + t_B − 3·t_W) with deferred weight gradients (ibid., table 2).
Here they are not deferred, so the last term is absent. Tasks follow the published schedule (deepseek-ai/DualPipe,
``dualpipe.py``, steps 1 to 8) with whole backwards.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..steps import BACKWARD, FORWARD, Task
from .pipeline import ORDERS, Pipeline, PipelineOrder, Refusal, most_in_flight
from .placement import BOTH_ENDS


def dualpipe(stages: int, stage: int, micro_batches: int, chunks: int) -> list[Task]:
    """Tasks of one stage; chunk 0 goes up the pipeline, chunk 1 down. Micro-batches of each direction count from 0, the
    last one as the step's last.

    >>> [(task.kind[0], task.chunk, task.beside) for task in dualpipe(2, 0, 4, 1)[:5]]
    [('f', 0, False), ('f', 1, False), ('f', 0, True), ('b', 1, False), ('f', 1, True)]
    """
    half, one_way = stages // 2, micro_batches // 2
    place, turned = min(stage, stages - 1 - stage), stage >= half
    done = {(kind, chunk): 0 for kind in (FORWARD, BACKWARD) for chunk in (0, 1)}
    order: list[Task] = []

    def do(kind: str, way: int, beside: bool = False) -> None:
        chunk = way ^ turned
        number = done[kind, chunk]
        done[kind, chunk] += 1
        order.append(Task(kind, micro_batches - 1 if number == one_way - 1 else number, chunk, beside))

    def both(forward: int, backward: int) -> None:
        do(FORWARD, forward, True)
        do(BACKWARD, backward)

    for _ in range(2 * (half - place - 1)):
        do(FORWARD, 0)
    for _ in range(place + 1):
        do(FORWARD, 0)
        do(FORWARD, 1)
    for _ in range(half - place - 1):
        do(BACKWARD, 1)
        do(FORWARD, 1)
    for _ in range(one_way - stages + place + 1):
        both(0, 1)
        both(1, 0)
    for _ in range(half - place - 1):
        do(BACKWARD, 1)
        both(1, 0)
    for _ in range(place + 1):
        do(BACKWARD, 1)
        do(BACKWARD, 0)
    for _ in range(half - place - 1):
        do(BACKWARD, 0)
    return order


def in_turn(stages: int, stage: int, micro_batches: int, chunks: int) -> list[Task]:
    """:func:`dualpipe` without interleaving."""
    return [task._replace(beside=False) for task in dualpipe(stages, stage, micro_batches, chunks)]


def check(pipeline: Pipeline) -> Refusal:
    """An even number of stages, and enough micro-batches to fill both directions."""
    if pipeline.chunks > 1 or pipeline.stages % 2:
        return "schedule", "dualpipe runs with vpp 1 on an even number of stages; use 1f1b"
    if pipeline.micro_batches % 2 or pipeline.micro_batches < 2 * pipeline.stages:
        least = 2 * pipeline.stages
        problem = f"{pipeline.micro_batches} micro-batches do not fill it"
        return "schedule", f"{problem}: dualpipe needs an even number, {least} and more"
    return None


def kept(stages: int, stage: int, micro_batches: int, sizes: Sequence[float]) -> tuple[int, ...]:
    """Whole micro-batches in flight, as in the paper's table: p + 1."""
    return most_in_flight(in_turn(stages, stage, micro_batches, len(sizes)), sizes)


DUALPIPE_BESIDE = PipelineOrder("dualpipe-beside", dualpipe, check, kept=kept, placement=BOTH_ENDS)
DUALPIPE = ORDERS.register(
    PipelineOrder(
        "dualpipe", in_turn, check, of_micro_batches=DUALPIPE_BESIDE, placement=BOTH_ENDS, for_experts=True, word="dual"
    )
)
