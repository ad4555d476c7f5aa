"""A question as text and as values: edits of the text that keep its comments, and the line of a key.

A place in a question is a path of parts, as ``plans/0/tp``; ``~1`` stands for a slash in a key, ``~0`` for a tilde.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from ..api import parse_yaml
from ..base.errors import InputError

#: In place of a value: the key is removed.
GONE = object()
Parts = Sequence[str]


def parts(path: str) -> list[str]:
    """A path's parts; none for the question itself."""
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")] if path else []


def path(of: Parts) -> str:
    """The path of some parts.

    >>> path(["engine", "a/b"]), parts("engine/a~1b")
    ('engine/a~1b', ['engine', 'a/b'])
    """
    return "/".join(part.replace("~", "~0").replace("/", "~1") for part in of)


def get(data: Any, of: Parts) -> Any:
    """The value at a place; None where there is none."""
    for part in of:
        if isinstance(data, Mapping):
            data = data.get(part)
        elif isinstance(data, list) and part.isdecimal() and int(part) < len(data):
            data = data[int(part)]
        else:
            return None
    return data


def stated(data: Any, of: Parts) -> bool:
    """Whether there is a value at a place."""
    above = get(data, of[:-1])
    if not of or isinstance(above, list):
        return get(data, of) is not None
    return isinstance(above, Mapping) and of[-1] in above


def put(data: Any, of: Parts, value: Any) -> Any:
    """A copy with a value at a place (:data:`GONE`: without it); missing sections on the way are made."""
    if not of:
        return None if value is GONE else value
    part, rest = of[0], of[1:]
    if isinstance(data, list) or (data is None and part.isdecimal()):
        entries = list(data or [])
        index = min(int(part), len(entries)) if part.isdecimal() else len(entries)
        if not rest and value is GONE:
            return entries[:index] + entries[index + 1 :]
        below = entries[index] if index < len(entries) else None
        entries[index : index + 1] = [put(below, rest, value)]
        return entries
    present = dict(data) if isinstance(data, Mapping) else {}
    if not rest and value is GONE:
        present.pop(part, None)
        return present
    if value is GONE and part not in present:
        return present
    present[part] = put(present.get(part), rest, value)
    return present


def scalar(text: str, *, plain: bool = False) -> Any:
    """The text of a field as YAML reads it; ``plain``: always as text.

    >>> scalar("32Ki"), scalar("8"), scalar("true"), scalar("8", plain=True), scalar("{kind: fixed, of: 3}")
    ('32Ki', 8, True, '8', {'kind': 'fixed', 'of': 3})
    """
    if plain:
        return text
    try:
        return parse_yaml(text)
    except InputError:
        return text


def shown(value: Any) -> str:
    """A value as a field shows it, in a form that may be typed.

    >>> shown("32Ki"), shown(8), shown(True), shown({"kind": "fixed", "of": 3})
    ('32Ki', '8', 'true', '{kind: fixed, of: 3}')
    """
    return value if isinstance(value, str) else "" if value is None else _flow(value)


def dumped(data: Any) -> str:
    """A question as text, without comments."""
    text = str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100))
    return text if _reads_as(text, data) else json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def edited(text: str, of: Parts, value: Any) -> str:
    """A text with a value at a place (:data:`GONE`: without it); all other lines stay as they are where possible.

    >>> print(edited("a: 1  # one\\nb: {c: 2}\\n", ["b", "d"], "32Ki"), end="")
    a: 1  # one
    b: {c: 2, d: 32Ki}
    """
    data = parse_yaml(text)
    meant = put(data, of, value)
    try:
        spliced = _spliced(text, of, value)
    except (yaml.YAMLError, IndexError, ValueError, AttributeError):
        spliced = None
    return spliced if spliced is not None and _reads_as(spliced, meant) else dumped(meant)


def _reads_as(text: str, data: Any) -> bool:
    try:
        return bool(parse_yaml(text) == data)
    except InputError:
        return False


def _flow(value: Any) -> str:
    """A value in one line."""
    text = str(yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6))
    text = text.removesuffix("\n").removesuffix("\n...")
    return text if "\n" not in text and _reads_as(text, value) else json.dumps(value, ensure_ascii=False)


def _composed(text: str) -> Any:
    return yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _spliced(text: str, of: Parts, value: Any) -> str | None:
    """The edit in the text itself; None where it is not one of the usual kinds."""
    node = _composed(text)
    if node is None or not of:
        return None
    above, key = None, None
    for depth, part in enumerate(of):
        below, below_key = _child(node, part)
        if below is None:
            return None if value is GONE else _added(text, node, part, _nested(of[depth + 1 :], value))
        above, node, key = node, below, below_key
    if value is GONE:
        return _taken(text, above, node, key)
    start, end = node.start_mark.index, _end(node)
    return text[:start] + _flow(value) + text[end:]


def _child(node: Any, part: str) -> tuple[Any, Any]:
    """The node below another, and the node of its key."""
    if isinstance(node, yaml.MappingNode):
        pairs = [(value, key) for key, value in node.value if key.value == part]
        return pairs[-1] if pairs else (None, None)
    if isinstance(node, yaml.SequenceNode) and part.isdecimal() and int(part) < len(node.value):
        return node.value[int(part)], None
    return None, None


def _nested(of: Parts, value: Any) -> Any:
    for part in reversed(of):
        value = [value] if part.isdecimal() else {part: value}
    return value


def _added(text: str, node: Any, part: str, value: Any) -> str | None:
    """The text with a new entry at the end of a mapping or a list; None where that is not possible."""
    listed = isinstance(node, yaml.SequenceNode)
    if not listed and not isinstance(node, yaml.MappingNode):
        return None
    entry = _flow(value) if listed else f"{_flow(part)}: {_flow(value)}"
    if node.flow_style:
        closing = node.end_mark.index - 1
        inside = text[:closing].rstrip()
        return inside + (", " if node.value else "") + entry + text[closing:]
    at = text.find("\n", _end(node))
    at = len(text) if at < 0 else at
    first = node.value[0] if listed else node.value[0][0]
    column = node.start_mark.column if listed else first.start_mark.column
    return f"{text[:at]}\n{' ' * column}{'- ' if listed else ''}{entry}{text[at:]}"


def _taken(text: str, above: Any, node: Any, key: Any) -> str | None:
    """The text without an entry of a mapping or a list; None where that is not possible."""
    start, end = (key or node).start_mark.index, _end(node)
    if above.flow_style:
        after = re.match(r"\s*,\s*", text[end:])
        if after:
            return text[:start] + text[end + after.end() :]
        before = text[:start].rstrip()
        return before.removesuffix(",") + text[end:]
    line = text.rfind("\n", 0, start) + 1
    if text[line:start].strip(" -"):
        return None
    following = text.find("\n", end)
    return text[:line] + ("" if following < 0 else text[following + 1 :])


def _end(node: Any) -> int:
    """The index of a node's last character; a block's end mark comes after blanks and comments that follow it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def place_of(text: str, key: str | None) -> tuple[int, list[str]] | None:
    """The line (from 1) of a dotted key from a message, and its path; None where the text lacks it.

    >>> place_of("name: a\\nplans:\\n- name: TP8\\n  tp: 3\\n", "plans.TP8.tp")
    (4, ['plans', '0', 'tp'])
    """
    try:
        node = _composed(text)
    except yaml.YAMLError:
        return None
    if not key or node is None:
        return None
    line, named_parts, rest = 1, list[str](), key
    while rest:
        step = _step(node, rest)
        if step is None:
            break
        part, taken, node, line = step
        named_parts.append(part)
        rest = rest[taken:].removeprefix(".")
    return (line, named_parts) if named_parts else None


def _step(node: Any, rest: str) -> tuple[str, int, Any, int] | None:
    """The entry at the start of a dotted key: its part, the number of characters of its name, its node and line."""
    candidates: list[tuple[str, str, Any, int]] = []
    if isinstance(node, yaml.MappingNode):
        candidates = [(key.value, key.value, value, key.start_mark.line + 1) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        for index, entry in enumerate(node.value):
            name, _ = _child(entry, "name")
            line = entry.start_mark.line + 1
            candidates.append((str(index), str(index), entry, line))
            if isinstance(name, yaml.ScalarNode):
                candidates.append((str(index), name.value, entry, line))
    fitting = [candidate for candidate in candidates if candidate[1] and f"{rest}.".startswith(f"{candidate[1]}.")]
    if not fitting:
        return None
    part, name, below, line = max(fitting, key=lambda candidate: len(candidate[1]))
    return part, len(name), below, line


#: The position in messages of the YAML parser.
_LINE = re.compile(r"\(line (\d+)(?:, column (\d+))?\)")


def line_in(message: str) -> int | None:
    """The line number in a message; None where it has none."""
    match = _LINE.search(message)
    return int(match[1]) if match else None
