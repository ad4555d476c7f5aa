"""Kinds of step: the base class, and what forward passes and the steps of inference engines share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol

from ..base.registry import Registry
from ..model import Architecture
from .load import Batch, Load

FORWARD, BACKWARD, WEIGHTS = "forward", "backward", "weights"


class Task(NamedTuple):
    """One visit of a stage to a micro-batch: ``kind`` of task, index of the micro-batch, model chunk of the stage.

    ``beside``: the task is interleaved with the next one.
    """

    kind: str
    micro_batch: int
    chunk: int
    beside: bool = False


class Order(Protocol):
    """A pipeline schedule: the order of the tasks of a stage that has backwards."""

    @property
    def splits_backward(self) -> bool:
        """Whether the gradients of weights are tasks apart from those of activations."""

    @property
    def tasks(self) -> Callable[[int, int, int, int], list[Task]]:
        """``(stages, stage, micro_batches, chunks per stage) → tasks``."""


class StageWriter(Protocol):
    """Writes the program of one stage's ranks."""

    def do(self, tasks: Sequence[Task]) -> None:
        """Write tasks in order."""

    def update(self) -> None:
        """Write what follows the last gradient: outstanding reductions and the optimizer."""


class Step(ABC):
    """One pass of a model over a batch.

    Attributes
    ----------
    title
        Name in reports.
    trains
        Whether a backward and the optimizer follow the forward: activations are kept, gradients computed and reduced.
    bytes_over_forward
        Lower bound of the bytes that a step moves over those of its forward.
    recomputation
        Default ``recomputation`` of plans.
    serves
        Whether it is a step of an inference engine, whose work is its :meth:`passes`.
    shards_tokens
        Whether sequence shards divide the tokens of a pass; otherwise they divide the cache, and all have every token.
    needs, takes
        Keys of the workload that are required, and optional ones.
    spellings
        Alternative key of the workload → the key that it means in this step, if that one is not stated.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    trains: ClassVar[bool]
    bytes_over_forward: ClassVar[float]
    recomputation: ClassVar[str]
    serves: ClassVar[bool] = False
    shards_tokens: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("sequence",)
    takes: ClassVar[tuple[str, ...]] = ("sequences_per_replica", "global_batch", "lengths")
    spellings: ClassVar[Mapping[str, str]] = {}

    def model_of(self, model: Architecture) -> Architecture:
        """The model as this step runs it; raises InputError if it cannot."""
        return model

    @abstractmethod
    def micro_batch(self, sequences: int) -> int:
        """Sequences of a micro-batch if a plan states none, of a replica's ``sequences``."""

    @abstractmethod
    def kinds(self, order: Order) -> tuple[str, ...]:
        """Kinds of tasks, in the order in which a micro-batch passes through them."""

    @abstractmethod
    def tasks(self, order: Order, stages: int, stage: int, micro_batches: int, chunks: int) -> list[Task]:
        """The tasks of stage number ``stage``, in order.

        They have every kind of task of each micro-batch (0 to ``micro_batches`` − 1), once per chunk.
        """

    @abstractmethod
    def write(self, stage: StageWriter, tasks: Sequence[Task]) -> None:
        """Write the program of a stage: its tasks and what follows them."""

    def outputs(self, batch: Batch) -> int:
        """Tokens of a pass that go through the LM head."""
        return batch.head_tokens

    def passes(self, load: Load, stages: int) -> tuple[Batch, ...]:
        """Forward passes of a serving step, in order, on a pipeline of ``stages`` stages."""
        return ()

    @abstractmethod
    def flops_per_token(self, model: Architecture, batch: Batch, *, kept: float, frozen: bool) -> float:
        """Model FLOPs per token; ``kept``: share of its visits to experts; ``frozen``: weights have no gradients."""


STEPS: Registry[Step] = Registry("pass", "tspsim.steps", Step)


# --- steps without a backward -----------------------------------------------------------------------------------


class Forwards(Step):
    """Forward passes alone; no activations are kept."""

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


# --- steps of an inference engine -------------------------------------------------------------------------------


class ServingStep(Forwards):
    """A step of an inference engine; only sampled tokens go through the LM head."""

    serves = True

    @abstractmethod
    def passes(self, load: Load, stages: int) -> tuple[Batch, ...]:
        """Forward passes of the step, in order."""

    @abstractmethod
    def counted(self, load: Load) -> float:
        """Tokens that the step's rate counts: prompt tokens read and tokens output."""

    @abstractmethod
    def in_flight(self, load: Load, stages: int) -> int:
        """Passes that the stages of a pipeline work on at the same time."""
