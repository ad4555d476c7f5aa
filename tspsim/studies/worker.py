"""A worker: it answers questions one after another, in a process that imports and looks up once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ..answer.kinds import run_plan
from ..base.errors import InputError, shorten
from ..base.quick import seldom_collecting
from ..scenario import Scenario
from ..step import simulation
from .query import Library, Query

_library = Library()


@dataclass(frozen=True)
class Answer:
    """The answer to one question.

    ``text`` is JSON: ``{"cluster", "device", "gpus", "plan": the plan's entry of the contract}``. It is the same in any
    process; ``wall_s``, its time, is not. ``bug`` is an unexpected error; such an answer is not stored.
    """

    key: str
    text: str
    wall_s: float
    bug: str = ""


class StrangerError(InputError):
    """A worker's catalog or package differs from the sweep's."""


def answer(questions: Sequence[Query[Scenario]]) -> list[Answer]:
    """Answer some questions in their order.

    Raises
    ------
    StrangerError
        The content of a question differs here.
    """
    with seldom_collecting():
        return [_answer(question) for question in questions]


@contextmanager
def looking_up_in(library: Library) -> Iterator[None]:
    """Answers within this context, in this process, use the caches of ``library``."""
    global _library
    before = _library
    _library = library
    try:
        yield
    finally:
        _library = before


def _answer(question: Query[Scenario]) -> Answer:
    begin_s = time.perf_counter()
    resolved = _familiar(question)
    try:
        result = run_plan(resolved, resolved.plans[0])
        entry = result.to_json()
        _library.take(question.key, result)
    except InputError as error:
        entry = {"name": resolved.plans[0].name, "error": str(error)}
    except Exception as error:  # one question's bug must not end a sweep
        return Answer(question.key, "", time.perf_counter() - begin_s, f"{type(error).__name__}: {shorten(error, 200)}")
    document = {
        "cluster": resolved.cluster.name,
        "device": resolved.device.name,
        "gpus": resolved.cluster.gpus,
        "plan": entry,
    }
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    _library.tidy()
    return Answer(question.key, text, time.perf_counter() - begin_s)


def _familiar(question: Query[Scenario]) -> simulation.Question:
    """The question, resolved here, if its content is the same here."""
    try:
        resolved = _library.look_up(question.question)
        same = _library.key(resolved) == question.key
    except InputError as error:
        raise StrangerError(
            f"a worker, which begins afresh, cannot look up what this process can: {error}; what is registered by hand "
            "has to be where a program is imported, not under its main guard, or in a package's entry points"
        ) from None
    if not same:
        raise StrangerError(
            "a worker reads another catalog, or runs another version of tspsim, than this process; "
            "give all workers the same files and version"
        )
    return resolved
