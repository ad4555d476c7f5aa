"""A sample of the priced steps, to compare tabulated costs with whole programs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .work import StepWork

#: Size of the sample.
KEPT = 200
#: Largest accepted deviation from whole programs.
BAR = 0.005


@dataclass(frozen=True)
class Deviation:
    """Relative deviation of tabulated seconds from whole programs on the cluster."""

    #: Compared steps.
    steps: int
    #: Mean and largest size of their deviations.
    mean: float = 0.0
    most: float = 0.0
    #: The step with the largest; None without any.
    worst: StepWork | None = None

    def __str__(self) -> str:
        if not self.steps:
            return "no step was priced, so none was compared with its program"
        return (
            f"{self.steps} sampled steps against every kernel of their programs on the cluster: off by {self.mean:.3%} "
            f"in the mean, {self.most:.3%} at most (bar {BAR:.1%})"
        )


class Seen:
    """A fair sample of priced steps, one per run of steps (reservoir sampling, Vitter 1985)."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._count = 0
        self._kept: list[tuple[StepWork, int]] = []

    def add(self, works: Sequence[StepWork], steps: int = 1) -> None:
        """Adds one step, or a run of steps, of several attention replicas; the first busy one is kept."""
        self._count += 1
        place = int(self._random.random() * self._count) if self._count > KEPT else self._count - 1
        if place >= KEPT:
            return
        work = next(candidate for candidate in works if candidate.tokens).kept()
        later = int(self._random.random() * steps)
        if place == len(self._kept):
            self._kept.append((work, later))
        else:
            self._kept[place] = work, later

    def some(self, samples: int, seed: int) -> Iterator[StepWork]:
        """Some sampled steps, in an order drawn with ``seed``."""
        chosen = random.Random(seed).sample(self._kept, min(samples, len(self._kept)))
        for work, later in chosen:
            yield work.later(later) if later else work
