"""A question in forms that others can run: a command, a script."""

from __future__ import annotations

import pprint
import shlex
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from . import values


def command(text: str, file: str) -> str:
    """Lines for a shell that write the file and run it."""
    end = "YAML"
    while end in text.splitlines():
        end += "_"
    quoted = shlex.quote(file)
    document = shlex.quote(str(PurePosixPath(file).with_suffix(".json")))
    return f"cat > {quoted} <<'{end}'\n{text.rstrip()}\n{end}\ntspsim run {quoted} --json {document}\n"


def overrides(base: Mapping[str, Any], now: Mapping[str, Any]) -> list[str] | None:
    """The ``--set`` arguments that turn one question into another; None where none do.

    >>> overrides({"a": {"b": 1}, "p": [{"name": "T", "tp": 8}]}, {"a": {"b": "2Ki"}, "p": [{"name": "T", "tp": 4}]})
    ['a.b=2Ki', 'p.T.tp=4']
    """
    arguments = list(_differing(base, now, ""))
    return None if None in arguments else [argument for argument in arguments if argument is not None]


def _differing(base: Any, now: Any, path: str) -> Iterator[str | None]:
    if base == now:
        return
    if isinstance(base, Mapping) and isinstance(now, Mapping):
        if set(base) - set(now) or any("." in str(key) for key in now):
            yield None
            return
        for key in now:
            yield from _differing(base.get(key), now[key], f"{path}.{key}" if path else str(key))
    elif isinstance(base, list) and isinstance(now, list) and path and len(base) == len(now):
        for index, (before, after) in enumerate(zip(base, now, strict=True)):
            named = after.get("name") if isinstance(after, Mapping) else None
            same = named is not None and isinstance(before, Mapping) and before.get("name") == named
            yield from _differing(before, after, f"{path}.{named if same else index}")
    elif not path:
        yield None
    else:
        yield f"{path}={values.shown(now)}"


def line(start: str, base: Mapping[str, Any] | None, now: Mapping[str, Any]) -> str:
    """One command line for the same question, from its starting point; empty where there is none."""
    arguments = overrides(base, now) if base is not None else None
    if arguments is None or not start:
        return ""
    return " ".join(["tspsim run", shlex.quote(start), *(f"--set {shlex.quote(argument)}" for argument in arguments)])


def script(data: Any, file: str) -> str:
    """A Python program for the same question that writes the bytes of ``tspsim run --json``."""
    document = PurePosixPath(file).with_suffix(".json").name
    return (
        "from pathlib import Path\n\n"
        "from tspsim.api import answered\n\n"
        f"question = {pprint.pformat(data, sort_dicts=False, width=100)}\n"
        "result, searched = answered(question)\n"
        "print(result)\n"
        f'Path({document!r}).write_text(result.dumps() + "\\n", encoding="utf-8")\n'
    )
