"""GPUs of a fleet that jobs hold, and GPU-seconds without a job by cause."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .jobs import FleetJob
from .life import OF_NODES, Series
from .nodes import Nodes
from .waiting import Waiting


class Occupancy:
    """Who holds a fleet's GPUs, now and over time.

    Attributes
    ----------
    series
        One row per instant of change.
    idle_gpu_s
        GPU-seconds without a job, by cause.
    gpus_held
        GPUs that jobs hold.
    held_by
        Entry → GPUs of its jobs, if any.
    spares
        Nodes that are up and kept as spares.
    watts
        Current power of the machines; 0 where no power is asked for.
    """

    def __init__(self, nodes: Nodes, queue: Waiting) -> None:
        self.nodes, self.queue = nodes, queue
        self.series = Series()
        self.idle_gpu_s = dict.fromkeys(OF_NODES, 0.0)
        self.gpus_held = 0
        self.held_by: dict[int, int] = {}
        self.spares: Callable[[], int] = lambda: 0
        self.watts: Callable[[], float] = lambda: 0.0
        self._idle = "empty"
        self._since_s = 0.0

    def hold(self, job: FleetJob, gpus: int) -> None:
        """Counts the GPUs that a job takes, or gives back (negative)."""
        self.gpus_held += gpus
        held = self.held_by.pop(job.entry, 0) + gpus
        if held:
            self.held_by[job.entry] = held

    def account(self, now: float) -> None:
        """Adds GPU-seconds without a job since the last change."""
        for_s = now - self._since_s
        if for_s <= 0.0:
            return
        self._since_s = now
        nodes = self.nodes
        # Whole GPUs, so that rounding leaves nothing over where no node is down.
        free = nodes.empty_count * nodes.gpus + sum(nodes.parts.values())
        spare = self.spares() * nodes.gpus
        down = max(0, nodes.count * nodes.gpus - free - spare - self.gpus_held)
        for part, gpus in ((self._idle, free), ("spare", spare), ("failed", down)):
            self.idle_gpu_s[part] += for_s * gpus

    def _why_idle(self) -> str:
        """The cause of idle GPUs until the next change: nobody waits, no waiting job fits, or a job that fits is held
        back."""
        queue, nodes = self.queue, self.nodes
        if not queue:
            return "empty"
        room = nodes.gpus if nodes.empty_count else max(nodes.parts.values(), default=0)
        fits = np.where(queue.gpus > 0, queue.gpus <= room, queue.nodes <= nodes.empty_count)
        return "queue_blocked" if fits.any() else "fragmented"

    def record(self, now: float) -> None:
        """Adds a row and the cause of idle GPUs, valid from now on."""
        series = self.series
        self._idle = self._why_idle()
        if series.at_s and series.at_s[-1] == now:
            for column in (series.at_s, series.allocated, series.waiting, series.down, series.watts):
                column.pop()
        series.at_s.append(now)
        series.allocated.append(self.gpus_held)
        series.waiting.append(len(self.queue))
        series.down.append(len(self.nodes.down))
        series.watts.append(self.watts())
