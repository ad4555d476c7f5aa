"""Steps that were asked about, a few of them kept to look at again: tabulated costs against whole programs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .work import StepWork

#: Steps that are kept.
KEPT = 200
#: Of whole programs nothing tabulated is off by more.
BAR = 0.005


@dataclass(frozen=True)
class Deviation:
    """How far tabulated seconds are off those of whole programs on the cluster, relative to these."""

    #: That were compared.
    steps: int
    #: Of their deviations' sizes.
    mean: float = 0.0
    most: float = 0.0
    #: The step with the largest; None where none was compared.
    worst: StepWork | None = None

    def __str__(self) -> str:
        if not self.steps:
            return "no step was asked about, so none was compared to its program"
        return (
            f"{self.steps} sampled steps against every kernel of their programs on the cluster: off by {self.mean:.3%} "
            f"in the mean, {self.most:.3%} at most (bar {BAR:.1%})"
        )


class Seen:
    """A fair sample of the steps asked about, of runs of them one each (reservoir sampling, Vitter 1985)."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._count = 0
        self._kept: list[tuple[StepWork, int]] = []

    def add(self, works: Sequence[StepWork], steps: int = 1) -> None:
        """One step of several attention replicas, of which the first that works is looked at, or a run of them."""
        self._count += 1
        place = int(self._random.random() * self._count) if self._count > KEPT else self._count - 1
        if place >= KEPT:
            return
        work = next(each for each in works if each.tokens).kept()
        later = int(self._random.random() * steps)
        if place == len(self._kept):
            self._kept.append((work, later))
        else:
            self._kept[place] = work, later

    def some(self, samples: int, seed: int) -> Iterator[StepWork]:
        """Some of them, in an order drawn with ``seed``."""
        chosen = random.Random(seed).sample(self._kept, min(samples, len(self._kept)))
        for work, later in chosen:
            yield work.later(later) if later else work
