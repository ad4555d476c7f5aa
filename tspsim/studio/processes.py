"""Start of a tab's processes: forked from one process that has everything imported, which takes milliseconds."""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing import forkserver
from typing import Any


def context() -> Any:
    """The multiprocessing context: a warm fork server, where the system has one."""
    if sys.platform == "win32":
        return multiprocessing.get_context("spawn")
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["__main__", "tspsim.studio.warm"])
    return server


def begin() -> None:
    """Start the fork server, which takes a second or two, in parallel with the caller's work.

    This module imports nothing of the package, so that the start comes before the caller's imports.
    """
    if sys.platform != "win32":
        context()
        forkserver.ensure_running()
