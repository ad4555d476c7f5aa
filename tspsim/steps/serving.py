"""What steps of an inference engine have in common: forwards over rows of queries behind a cache."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from ..model import Architecture
from .batch import Batch
from .load import Load
from .step import FORWARD, Order, StageWriter, Step, Task


class ServingStep(Step):
    """Forwards alone; only tokens that are sampled go through the head."""

    trains = False
    serves = True
    bytes_over_forward = 1.0
    recomputation = "none"

    @abstractmethod
    def passes(self, load: Load, stages: int) -> tuple[Batch, ...]:
        """Forwards of the step, one after the other."""

    @abstractmethod
    def counted(self, load: Load) -> float:
        """Tokens that the step's rate counts: prompt tokens read and tokens put out."""

    @abstractmethod
    def in_flight(self, load: Load, stages: int) -> int:
        """Passes like its own that the stages of a pipeline work on at the same time."""

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
