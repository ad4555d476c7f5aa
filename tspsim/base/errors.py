"""The exceptions, and their exit codes.

    TspsimError
    ├── InputError            the question is wrong: exit code 2
    │   ├── UnknownNameError  an unknown name; carries the nearest known ones
    │   └── UnitError         a quantity that cannot be read
    └── InfeasibleError       the question is right, but no plan fits or can run: exit code 3
        └── UnreachableError  dead links cut two GPUs off from each other

    KeyboardInterrupt
    └── Interrupted           Ctrl-C; ``found`` is the answer so far: exit code 130

Every message is one line: where (file and key path), what was found, what is allowed, and the remedy.
Anything else that leaves the program is a bug (exit code 1).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


class TspsimError(Exception):
    """Base of every error this package raises on purpose; ``exit_code`` is what the command line returns."""

    exit_code = 1


class Interrupted(KeyboardInterrupt):
    """Ctrl-C before all was answered; ``found`` is the answer so far."""

    def __init__(self, answer: Any) -> None:
        super().__init__("interrupted; the answer so far is in .found")
        self.found = answer


class InputError(TspsimError):
    """The input is wrong.

    Parameters
    ----------
    message
        What is wrong and what is allowed, without the place.
    file
        File or catalog entry the value came from, if any.
    key
        Dotted path inside the file, such as ``plans.TSP8.tsp``.
    """

    exit_code = 2

    def __init__(self, message: str, *, file: str | None = None, key: str | None = None) -> None:
        self.message = " ".join(message.split())
        self.file = file
        self.key = key
        super().__init__(": ".join(part for part in (file, key, self.message) if part))

    def at(self, *, file: str | None = None, key: str | None = None) -> InputError:
        """The same error, placed: outer code knows the file, inner code knew only the value."""
        self.file = self.file or file
        self.key = self.key or key
        self.args = (": ".join(part for part in (self.file, self.key, self.message) if part),)
        return self


class UnknownNameError(InputError):
    """A name that is not in a list; the message offers the nearest valid names."""

    def __init__(
        self, what: str, name: object, allowed: Iterable[str], *, file: str | None = None, key: str | None = None
    ) -> None:
        self.name = name
        self.known = sorted(allowed)
        super().__init__(f"unknown {what} '{shorten(name)}'{did_you_mean(name, self.known)}", file=file, key=key)


class UnitError(InputError):
    """A quantity whose number or unit cannot be read, or whose unit measures something else."""


class InfeasibleError(TspsimError):
    """No plan fits in memory or can run on the cluster; the message says what is too large and by how much."""

    exit_code = 3


class UnreachableError(InfeasibleError):
    """Dead links leave no route between two GPUs that have to exchange data."""


def is_ctrl_c(error: BaseException) -> bool:
    """Whether Ctrl-C is the cause of a library's own error: pydantic raises one where it builds a class or writes a
    part."""
    return isinstance(error.__cause__, KeyboardInterrupt) or "KeyboardInterrupt:" in str(error)


def did_you_mean(name: object, allowed: Iterable[str], limit: int = 12) -> str:
    """`` (did you mean 'x'?)`` when a name is near, otherwise the list of what is allowed."""
    names = list(allowed)
    near = nearest(name, names)
    if near is not None:
        return f" (did you mean '{near}'?)"
    if not names or limit == 0:
        return ""
    shown = ", ".join(names[:limit])
    return f" (known: {shown}{', …' if len(names) > limit else ''})"


def nearest(name: object, candidates: Iterable[str]) -> str | None:
    """The name that is most like another, whatever its case; None where none is near."""
    names = {name.lower(): name for name in reversed(list(candidates))}
    near = difflib.get_close_matches(str(name).lower(), list(names)[::-1], n=1, cutoff=0.5)
    return names[near[0]] if near else None


def either(names: Sequence[str]) -> str:
    """``a, b or c``."""
    return _joined(names, " or ")


def together(names: Sequence[str]) -> str:
    """``a, b and c``."""
    return _joined(names, " and ")


def _joined(names: Sequence[str], last: str) -> str:
    return last.join(filter(None, (", ".join(names[:-1]), names[-1])))


def shorten(value: object, limit: int = 80) -> str:
    """A value as one short line, so that no message grows with the input."""
    text = " ".join(str(value).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def printable(text: str) -> str:
    """Text that cannot steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def describe(value: object) -> str:
    """A value as messages show it: short, and in YAML's reading where that may surprise."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple | set | frozenset):
        return "a list"
    if isinstance(value, int) and abs(value) > 10**18:
        return "a very large number"
    return f"'{shorten(value)}'"
