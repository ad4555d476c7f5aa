"""What a worker does: answer questions, one after another, in a process that imports and looks up once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ..answer.kinds import run_plan
from ..base.collector import seldom_collecting
from ..base.errors import InputError, shorten
from ..step import simulation
from .query import Library, Query

_library = Library()


@dataclass(frozen=True)
class Answer:
    """What became of one question.

    ``text`` is JSON: ``{"cluster", "device", "gpus", "plan": the plan's entry of the contract}``. It is the same in any
    process; ``wall_s``, the time it took, is not. ``bug`` says what went wrong inside; such an answer is not kept.
    """

    key: str
    text: str
    wall_s: float
    bug: str = ""


class StrangerError(InputError):
    """A worker does not see what the sweep sees: another version of the package, or other catalog files."""


def answer(questions: Sequence[Query]) -> list[Answer]:
    """Answer some questions in their order.

    Raises
    ------
    StrangerError
        The content of a question is not the same here.
    """
    with seldom_collecting():
        return [_answer(question) for question in questions]


@contextmanager
def looking_up_in(library: Library) -> Iterator[None]:
    """Answers in this process find what somebody else here has looked up."""
    global _library
    before = _library
    _library = library
    try:
        yield
    finally:
        _library = before


def _answer(question: Query) -> Answer:
    begin_s = time.perf_counter()
    asked = _familiar(question)
    try:
        result = run_plan(asked, asked.plans[0])
        entry = result.to_json()
        _library.take(question.key, result)
    except InputError as error:
        entry = {"name": asked.plans[0].name, "error": str(error)}
    except Exception as error:  # a bug that one question meets must not end a sweep
        return Answer(question.key, "", time.perf_counter() - begin_s, f"{type(error).__name__}: {shorten(error, 200)}")
    document = {"cluster": asked.cluster.name, "device": asked.device.name, "gpus": asked.cluster.gpus, "plan": entry}
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    _library.tidy()
    return Answer(question.key, text, time.perf_counter() - begin_s)


def _familiar(question: Query) -> simulation.Question:
    """The question looked up here, if its content is the same here."""
    try:
        asked = _library.look_up(question.scenario)
        same = _library.key(asked) == question.key
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
    return asked
