"""The small dialect of YAML that descriptions are written in, for files come from strangers.

No tags, no repeated keys, bounded size, depth and alias expansion; dates stay text, and a number is what a person would
call a number. An error is one line (:class:`~tspsim.errors.InputError`): file, line, what is wrong.
"""

from __future__ import annotations

import pickle
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from .errors import InputError, describe, shorten
from .memo import remembered

#: Parsed files in the cache: more than the catalog has.
KEPT_FILES = 512
LARGEST_FILE_BYTES = 2**20
DEEPEST_NESTING = 64
MOST_VALUES = 50_000
TOO_LARGE = "is larger than 1 MiB, the most a description may have"
TOO_DEEP = f"is nested deeper than {DEEPEST_NESTING} levels through its aliases"


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML (or JSON) file.

    Raises
    ------
    InputError
        The file cannot be read, is too large, is not YAML of the dialect above, or is not a mapping.
    """
    return mapping_in(text_of(path), path)


def mapping_of(text: str, path: Path) -> dict[str, Any]:
    """The mapping in a text that would stand at ``path``; raises as :func:`read_yaml`. It is not cached: a text that
    is being written differs with every key stroke."""
    try:
        if len(text.encode("utf-8", "replace")) > LARGEST_FILE_BYTES:
            raise InputError(TOO_LARGE)
        return _as_mapping(_parse_json(text) if path.suffix == ".json" else parse_yaml(text))
    except RecursionError:
        raise InputError(TOO_DEEP, file=shorten(path, 200)) from None
    except InputError as error:
        raise error.at(file=shorten(path, 200)) from None


def stated(path: Path, key: str) -> Any:
    """The value of one key of a file, without validation; None where the file lacks it. Raises as
    :func:`read_yaml`."""
    return _stated(text_of(path), path, key)


@remembered(KEPT_FILES)
def _stated(text: str, path: Path, key: str) -> Any:
    return mapping_in(text, path).get(key)


def mapping_in(text: str, path: Path) -> dict[str, Any]:
    """The mapping in a file's text, a copy of its own for each caller."""
    try:
        return _as_mapping(_parse_json(text) if path.suffix == ".json" else pickle.loads(_pickled_yaml(text)))
    except InputError as error:
        raise error.at(file=shorten(path, 200)) from None


def _as_mapping(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        what = "is empty" if data is None else f"holds {describe(data)}"
        raise InputError(f"{what}, but a mapping of keys to values is needed")
    return data


@remembered(KEPT_FILES)
def _pickled_yaml(text: str) -> bytes:
    """A text's value, pickled: each reader unpacks a copy of its own, in a hundredth of the parser's time.

    The key is the text and not the file's time, so that a file that changes is read anew. Errors are not cached.
    """
    try:
        return pickle.dumps(parse_yaml(text), pickle.HIGHEST_PROTOCOL)
    except RecursionError:  # aliases of aliases, each nested no deeper than allowed
        raise InputError(TOO_DEEP) from None


def text_of(path: Path) -> str:
    """What a file says; raises as :func:`read_yaml`."""
    try:
        return _text_of(path)
    except InputError as error:
        raise error.at(file=shorten(path, 200)) from None


def _text_of(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise InputError("is a folder; name a YAML file")
        if not stat.S_ISREG(mode):  # reading a pipe or a device might never end
            raise InputError("is not a regular file")
        with path.open("rb") as stream:
            raw = stream.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise InputError("no such file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > LARGEST_FILE_BYTES:
        raise InputError(TOO_LARGE)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text") from None


def _parse_json(text: str) -> Any:
    """JSON is YAML but for tabs, long numbers and half of a surrogate pair."""
    import json

    try:
        data = json.loads(text)
        json.dumps(data, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not valid JSON: {shorten(error, 160)}") from None
    return data


def parse_yaml(text: str, *, file: str | None = None) -> Any:
    """Any value written in the YAML dialect above (``--set`` values are read with it too)."""
    import yaml

    loader = _loader()
    try:
        _check_events(yaml.parse(text, Loader=loader))
        return yaml.load(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        problem = ", ".join(filter(None, (error.context, error.problem)))
        raise InputError(f"is not valid YAML: {shorten(problem, 160)}{where}", file=file) from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise InputError(f"is not valid YAML: {shorten(error, 160)}", file=file) from None
    except InputError as error:
        raise error.at(file=file) from None


def _check_events(events: Iterator[Any]) -> None:
    """Refuse tags, deep nesting and alias bombs before anything is built.

    One pass over the parser's events: ``open_`` holds the number of values so far in every collection that is
    still open, and an alias adds the number of values its anchor stood for.
    """
    import yaml

    open_: list[tuple[str | None, int]] = []
    anchored: dict[str, int] = {}
    total = 0

    def close(anchor: str | None, values: int) -> None:
        nonlocal total
        if anchor:
            anchored[anchor] = values
        if open_:
            outer, so_far = open_[-1]
            open_[-1] = (outer, so_far + values)
            total = max(total, so_far + values)

    for event in events:
        line = event.start_mark.line + 1
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise InputError(f"tag '{shorten(tag)}' is not allowed (line {line}); write plain values")
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor, 1))
            if len(open_) > DEEPEST_NESTING:
                raise InputError(f"is nested deeper than {DEEPEST_NESTING} levels (line {line})")
        elif isinstance(event, yaml.CollectionEndEvent):
            close(*open_.pop())
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in anchored:
                close(None, anchored[event.anchor])
            elif any(anchor == event.anchor for anchor, _ in open_):
                raise InputError(f"alias '*{shorten(event.anchor)}' contains itself (line {line})")
        elif isinstance(event, yaml.ScalarEvent):
            close(event.anchor, 1)
        if total > MOST_VALUES:
            raise InputError(f"stands for more than {MOST_VALUES} values (line {line}); use fewer aliases")


@remembered(1)
def _loader() -> type[Any]:
    """A safe YAML loader with a person's idea of numbers, and without repeated keys.

    YAML 1.1 reads ``1e6`` as text, ``010`` as eight, ``1:30`` as ninety and ``2026-08-21`` as a date; here
    they are a number and three texts. ``yes``, ``no``, ``on`` and ``off`` stay booleans, as in YAML 1.1.
    """
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        """The dialect described at the top of this module."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[object] = set()
            for key_node, _ in node.value:
                if key_node.tag == "tag:yaml.org,2002:merge":
                    continue
                line = key_node.start_mark.line + 1
                key = self.construct_object(key_node, deep=True)
                if isinstance(key, bool):
                    word = key_node.value
                    raise InputError(f"YAML reads key '{word}' as {describe(key)} (line {line}); quote it")
                if not isinstance(key, str | int | float):
                    raise InputError(f"{describe(key)} cannot be a key (line {line}); use text")
                if key in seen:
                    raise InputError(f"key '{shorten(key)}' stands twice in one mapping (line {line})")
                seen.add(key)
            return cast("dict[Any, Any]", super().construct_mapping(node, deep=True))

    booleans = ("yes", "no", "true", "false", "on", "off")
    integer = r"[-+]?(?:0|[1-9][0-9_]{0,17})"
    digits, exponent = "[0-9]{1,30}", "[eE][-+]?[0-9]{1,2}"
    kinds = (
        ("null", r"~|null|Null|NULL|", "~nN\0"),
        ("bool", "|".join(f"{word}|{word.capitalize()}|{word.upper()}" for word in booleans), "yYnNtTfFoO"),
        ("int", integer, "-+0123456789"),
        ("float", rf"[-+]?{digits}(?:\.(?:{digits})?(?:{exponent})?|{exponent})", "-+0123456789"),
        ("merge", "<<", "<"),
    )
    Loader.yaml_implicit_resolvers = {}
    for kind, pattern, first in kinds:
        characters = ["" if character == "\0" else character for character in first]
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(rf"(?:{pattern})\Z"), characters)
    return Loader
