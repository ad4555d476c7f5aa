"""Python's garbage collector, which looks for cycles far more often than simulations leave any."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: Objects made before the collector looks for cycles. A simulation makes millions and leaves few cycles; looking
#: every 700, as Python does, costs a fifth of the time.
COLLECT_AFTER = 200_000


def collect_seldom() -> None:
    """The collector looks for cycles every :data:`COLLECT_AFTER` objects from now on."""
    gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Within this context the collector looks for cycles every :data:`COLLECT_AFTER` objects."""
    before = gc.get_threshold()
    collect_seldom()
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def no_collection() -> Iterator[None]:
    """Within this context the collector is off: millions of small objects leave no cycles to find."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def collect_for_a_command() -> None:
    """For a process that answers one command: it collects seldom, and not at its end, when all memory is freed."""
    collect_seldom()
    atexit.register(gc.freeze)
