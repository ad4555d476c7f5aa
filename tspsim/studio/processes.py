"""How a tab's processes are made: of one process that has everything imported, which takes milliseconds."""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing import forkserver
from typing import Any


def context() -> Any:
    """How processes are made: of one that is warm, where the system can."""
    if sys.platform == "win32":
        return multiprocessing.get_context("spawn")
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["__main__", "tspsim.studio.warm"])
    return made


def begin() -> None:
    """Start the process that others are made of, which takes a second or two, beside what the caller does meanwhile.

    This module imports nothing of the package, so that it begins before the caller has imported the rest.
    """
    if sys.platform != "win32":
        context()
        forkserver.ensure_running()
