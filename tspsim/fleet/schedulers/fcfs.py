"""First come, first served."""

from __future__ import annotations

from collections.abc import Callable

from ..desk import JobDispatcher
from .base import JobScheduler, start_in_order


class FirstCome(JobScheduler):
    """Jobs start in the order in which they were submitted; one that does not fit holds up all behind it."""

    name = "fcfs"
    starvation_free = True

    def open(self) -> Callable[[JobDispatcher], None]:
        return start_in_order

    def in_words(self) -> str:
        return "first come, first served"


JobScheduler.registry.register(FirstCome)
