"""What steps without a backward have in common."""

from __future__ import annotations

from collections.abc import Sequence

from ..model import Architecture
from .batch import Batch
from .step import FORWARD, Order, StageWriter, Step, Task


class Forwards(Step):
    """Forwards alone, one after the other; nothing is kept."""

    trains = False
    bytes_over_forward = 1.0
    recomputation = "none"

    def micro_batch(self, sequences: int) -> int:
        return sequences

    def kinds(self, order: Order) -> tuple[str, ...]:
        return (FORWARD,)

    def tasks(self, order: Order, stages: int, stage: int, micro_batches: int, chunks: int) -> list[Task]:
        return [Task(FORWARD, index, chunk) for index in range(micro_batches) for chunk in range(chunks)]

    def write(self, stage: StageWriter, tasks: Sequence[Task]) -> None:
        stage.do(tasks)

    def flops_per_token(self, model: Architecture, batch: Batch, *, kept: float, frozen: bool) -> float:
        return batch.forward_flops_per_token(model, self.outputs(batch), kept)
