"""Processes of their own for tests."""

from __future__ import annotations

import signal


def heed_interrupts() -> None:
    """For ``preexec_fn``: Ctrl-C reaches the child whatever pytest was started with.

    A shell without job control starts what it puts in the background with SIGINT ignored, ``nohup`` scripts and much CI
    do, and every child inherits that: Python then installs no handler, and a signal sent to it does nothing.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
