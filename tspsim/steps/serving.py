"""What steps of an inference engine have in common: forwards over rows of queries behind a cache."""

from __future__ import annotations

from abc import abstractmethod

from .batch import Batch
from .forwards import Forwards
from .load import Load


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
