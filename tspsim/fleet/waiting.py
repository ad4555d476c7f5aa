"""Waiting jobs in a scheduler's order, as columns, for thousands at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .jobs import FleetJob

#: A scheduler's sort key; smaller comes first.
Rank = Callable[[FleetJob], tuple[Any, ...]]


class Waiting:
    """A sorted queue.

    Attributes
    ----------
    jobs
        Jobs in order.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._keys: list[tuple[Any, ...]] = []
        self.jobs: list[FleetJob] = []
        self._columns = np.zeros((3, 64))

    def __len__(self) -> int:
        return len(self.jobs)

    def __iter__(self) -> Iterator[FleetJob]:
        return iter(self.jobs)

    def __getitem__(self, position: int) -> FleetJob:
        return self.jobs[position]

    @property
    def nodes(self) -> NDArray[np.float64]:
        """Nodes of every job at its preferred size; 1 for part of a node."""
        return self._columns[0, : len(self.jobs)]

    @property
    def limit_s(self) -> NDArray[np.float64]:
        """Expected seconds of every job."""
        return self._columns[1, : len(self.jobs)]

    @property
    def gpus(self) -> NDArray[np.float64]:
        """GPUs of every job on part of a node, 0 of the others."""
        return self._columns[2, : len(self.jobs)]

    def add(self, job: FleetJob) -> None:
        """Inserts a job by its rank."""
        key = (*self._rank(job), job.number)
        position, count = bisect_left(self._keys, key), len(self.jobs)
        if count == self._columns.shape[1]:
            self._columns = np.concatenate((self._columns, np.zeros_like(self._columns)), axis=1)
        self._keys.insert(position, key)
        self.jobs.insert(position, job)
        if position < count:
            self._columns[:, position + 1 : count + 1] = self._columns[:, position:count]
        self._columns[:, position] = (job.nodes, job.limit_s, job.gpus)

    def remove(self, job: FleetJob) -> None:
        """Removes a job. Raises KeyError where it does not wait."""
        key, count = (*self._rank(job), job.number), len(self.jobs)
        position = bisect_left(self._keys, key)
        if position == count or self._keys[position] != key:
            raise KeyError(job.name)
        del self._keys[position], self.jobs[position]
        self._columns[:, position : count - 1] = self._columns[:, position + 1 : count]
