"""A training step: forwards and backwards of all micro-batches in a pipeline's order, then the optimizer."""

from __future__ import annotations

from collections.abc import Sequence

from ..model import Architecture
from .load import Batch
from .step import BACKWARD, FORWARD, STEPS, WEIGHTS, Order, StageWriter, Step, Task


class TrainingStep(Step):
    """One sequence per micro-batch unless a plan states more; every byte moved forward has a gradient or is reread."""

    name = "training"
    title = "training"
    trains = True
    bytes_over_forward = 2.0
    recomputation = "full"

    def model_of(self, model: Architecture) -> Architecture:
        return model.for_full_sequences

    def micro_batch(self, sequences: int) -> int:
        return 1

    def kinds(self, order: Order) -> tuple[str, ...]:
        return (FORWARD, BACKWARD, WEIGHTS) if order.splits_backward else (FORWARD, BACKWARD)

    def tasks(self, order: Order, stages: int, stage: int, micro_batches: int, chunks: int) -> list[Task]:
        return order.tasks(stages, stage, micro_batches, chunks)

    def write(self, stage: StageWriter, tasks: Sequence[Task]) -> None:
        stage.do(tasks)
        stage.update()

    def flops_per_token(self, model: Architecture, batch: Batch, *, kept: float, frozen: bool) -> float:
        """The backward has two products for each of the forward.

        Frozen weights have no gradients of their own, attention does; adapters are not counted.
        """
        forward = batch.forward_flops_per_token(model, self.outputs(batch), kept)
        alone = model.forward_flops_per_token(0, batch.causal, kept) if frozen else 0.0
        return 3.0 * forward - alone


TRAINING_STEP = STEPS.register(TrainingStep())
