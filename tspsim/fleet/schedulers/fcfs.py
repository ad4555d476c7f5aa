"""First come, first served."""

from __future__ import annotations

from collections.abc import Callable

from ..dispatcher import JobDispatcher
from .base import JobScheduler, start_in_order


class FirstCome(JobScheduler):
    """Jobs start in order of submission; one that does not fit holds up all behind it."""

    name = "fcfs"
    starvation_free = True

    def open(self) -> Callable[[JobDispatcher], None]:
        return start_in_order

    def in_words(self) -> str:
        return "first come, first served"


JobScheduler.registry.register(FirstCome)
