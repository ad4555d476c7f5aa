"""How many of a law's cases are looked at: few in every run, all with ``-m slow``, or all over a few runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from zlib import crc32

import pytest


def draws(few: int, every: int) -> pytest.MarkDecorator:
    """A test's ``count``: the first few draws, and as a slow test all of them."""
    return pytest.mark.parametrize("count", [few, pytest.param(every, marks=pytest.mark.slow)])


#: What all workers of a run on several processors share, and no other run does.
RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", "")


def in_turn(cases: Iterable[object], runs: int = 2) -> list[object]:
    """Cases of a sweep: another part of them in each run on several processors, all of them in so many runs.

    A tuple is a case of several arguments. What a run leaves out is a slow test there. One process (``-n 0``) asks all,
    so that a case that failed is asked again by its name.
    """
    turn = crc32(RUN.encode()) % runs if RUN else None
    asked = []
    for number, case in enumerate(cases):
        marks = [*case.marks] if isinstance(case, type(pytest.param())) else []
        values = case.values if isinstance(case, type(pytest.param())) else case if isinstance(case, tuple) else (case,)
        if turn is not None and number % runs != turn:
            marks.append(pytest.mark.slow)
        asked.append(pytest.param(*values, marks=marks))
    return asked
