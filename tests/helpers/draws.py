"""How many of a law's cases are looked at: few in every run, all with ``-m slow``, or all over a few runs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from zlib import crc32

import pytest


def draws(few: int, every: int) -> pytest.MarkDecorator:
    """A test's ``count``: the first few draws, and as a slow test all of them."""
    return pytest.mark.parametrize("count", [few, pytest.param(every, marks=pytest.mark.slow)])


#: What all workers of a run on several processors share, and no other run does; TURN names a run of one process so.
RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or os.environ.get("TURN", "")


def left_out(number: int, runs: int) -> bool:
    """Whether a run on several processors leaves out a case, that comes every so many runs."""
    return bool(RUN) and number % runs != crc32(RUN.encode()) % runs


def in_turn(cases: Iterable[object], runs: int = 2) -> list[object]:
    """Cases of a sweep: another part of them in each run on several processors, all of them in so many runs.

    A tuple is a case of several arguments. What a run leaves out is a slow test there. One process (``-n 0``) asks all,
    so that a case that failed is asked again by its name. A whole test whose cases come so is marked ``in_turn(runs)``.
    """
    asked = []
    for number, case in enumerate(cases):
        marks = [*case.marks] if isinstance(case, type(pytest.param())) else []
        values = case.values if isinstance(case, type(pytest.param())) else case if isinstance(case, tuple) else (case,)
        if left_out(number, runs):
            marks.append(pytest.mark.slow)
        asked.append(pytest.param(*values, marks=marks))
    return asked


def mark_left_out(items: Sequence[pytest.Item]) -> None:
    """The same for tests that are marked ``in_turn(runs)``, in the order of their cases; slow ones are none of them.

    Tests that name the same ``group`` are cases of one sweep, in whatever file.
    """
    marked = [item for item in items if not item.get_closest_marker("slow")]
    marks = [(item, mark) for item in marked if (mark := item.get_closest_marker("in_turn")) is not None]
    sweeps = [mark.kwargs.get("group", item.nodeid.partition("[")[0]) for item, mark in marks]
    cases, number = Counter(sweeps), Counter[str]()
    for (item, mark), sweep in zip(marks, sweeps, strict=True):
        if left_out(number[sweep], min(mark.args[0], cases[sweep])):
            item.add_marker(pytest.mark.slow)
        number[sweep] += 1
