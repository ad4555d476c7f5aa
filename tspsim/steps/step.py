"""What a kind of step is, and what steps of forward passes and of engines have in common.

What a step is, and the tasks that a pipeline stage does in one.

What steps without a backward have in common.

What steps of an inference engine have in common: forwards over rows of queries behind a cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol

from ..base.registry import Registry
from ..model import Architecture
from .load import Batch, Load

FORWARD, BACKWARD, WEIGHTS = "forward", "backward", "weights"


class Task(NamedTuple):
    """One visit of a stage to a micro-batch: ``kind``, which micro-batch, which of its chunks; ``beside``: interleaved
    with the task that follows."""

    kind: str
    micro_batch: int
    chunk: int
    beside: bool = False


class Order(Protocol):
    """In which order stages that have backwards do their tasks."""

    @property
    def splits_backward(self) -> bool:
        """Whether the gradients of weights are tasks of their own."""

    @property
    def tasks(self) -> Callable[[int, int, int, int], list[Task]]:
        """``(stages, stage, micro-batches, chunks a stage) → tasks``."""


class StageWriter(Protocol):
    """Who writes the program of one stage's ranks."""

    def do(self, tasks: Sequence[Task]) -> None:
        """Write tasks, one after the other."""

    def update(self) -> None:
        """Write what follows the last gradient: sums that waited, and the optimizer."""


class Step(ABC):
    """One pass of a model over a batch.

    Attributes
    ----------
    title
        What it is called in a report.
    trains
        A backward follows the forward, and the optimizer that: activations are kept, gradients made and summed.
    bytes_over_forward
        Bytes of a step over its forward's, at least.
    recomputation
        What a plan recomputes that states nothing.
    serves
        A step of an inference engine: what it does is its :meth:`passes`.
    shards_tokens
        Sequence shards divide the tokens of a pass; otherwise they divide the cache, and all have every token.
    needs, takes
        Keys of the workload that it cannot do without, and others that say how much it is.
    spellings
        Other keys of the workload that say the same here, where the key itself is not stated.
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
        """The model as this step runs it; raises InputError where it cannot."""
        return model

    @abstractmethod
    def micro_batch(self, sequences: int) -> int:
        """Sequences of one micro-batch, of a replica's ``sequences``, where a plan states none."""

    @abstractmethod
    def kinds(self, order: Order) -> tuple[str, ...]:
        """Kinds of tasks, in the order in which a micro-batch meets them."""

    @abstractmethod
    def tasks(self, order: Order, stages: int, stage: int, micro_batches: int, chunks: int) -> list[Task]:
        """What number ``stage`` of ``stages`` does, in order: every kind of task of each micro-batch, 0 to
        ``micro_batches`` − 1, once in each of its ``chunks``."""

    @abstractmethod
    def write(self, stage: StageWriter, tasks: Sequence[Task]) -> None:
        """The program of a stage: its tasks and what follows them."""

    def outputs(self, batch: Batch) -> int:
        """Tokens that go through the language-model head."""
        return batch.head_tokens

    def passes(self, load: Load, stages: int) -> tuple[Batch, ...]:
        """Forwards of a serving step, one after the other, where a pipeline has so many stages."""
        return ()

    @abstractmethod
    def flops_per_token(self, model: Architecture, batch: Batch, *, kept: float, frozen: bool) -> float:
        """Model FLOPs of a token; ``kept``: share of its visits to experts, ``frozen``: the model's weights are."""


STEPS: Registry[Step] = Registry("pass", "tspsim.steps", Step)


# --- what steps without a backward have in common -------------------------------------------------------------


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


# --- what steps of an inference engine have in common ---------------------------------------------------------


class ServingStep(Forwards):
    """Only tokens that are sampled go through the head."""

    serves = True

    @abstractmethod
    def passes(self, load: Load, stages: int) -> tuple[Batch, ...]:
        """Forwards of the step, one after the other."""

    @abstractmethod
    def counted(self, load: Load) -> float:
        """Tokens that the step's rate counts: prompt tokens read and tokens put out."""

    @abstractmethod
    def in_flight(self, load: Load, stages: int) -> int:
        """Passes like its own that the stages of a pipeline work on at the same time."""
