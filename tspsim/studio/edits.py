"""Edits of a question's text by its form: a typed key, a section that a button adds, a searched plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..api import mapping_of
from . import values
from .fields import Forms
from .part import Said


def _data(text: str) -> dict[str, Any]:
    return mapping_of(text, Path("question.yaml"))


def typed(forms: Forms, text: str, said: dict[str, Any]) -> tuple[str, bool]:
    """The text with the typed values of fields, and whether the form changes with them."""
    whole = False
    for path, value_said in said.items():
        of = values.parts(path)
        data = _data(text)
        level = forms.of(data).level(data, values.path(of[:-1]))
        field = next((candidate for candidate in level.fields if candidate.path == path), None)
        if field is None or field.opened:
            continue
        empty = value_said is None or value_said == ""
        if empty and not field.stated:
            continue
        value = values.GONE if empty else values.scalar(str(value_said), plain=field.plain and not field.choices)
        if not empty and field.stated and value == field.value:
            continue
        whole = whole or field.choices != () or field.catalogs != () or empty or isinstance(value, dict | list)
        text = edited(forms, text, path, value)
    return text, whole


def edited(forms: Forms, text: str, path: str, value: Any) -> str:
    """The text with a value at a place; a section with a kind starts with that kind."""
    of = values.parts(path)
    data = _data(text)
    for depth in range(1, len(of)):
        above = of[:depth]
        if value is values.GONE or isinstance(values.get(data, above), dict | list):
            continue
        level = forms.of(data).level(data, values.path(above))
        begun = next((begin for called, begin in level.kinds if called == level.kind), None)
        if begun and level.path == values.path(above):
            text = values.edited(text, above, begun)
            data = _data(text)
    return values.edited(text, of, value)


def put(forms: Forms, text: str, path: str, what: str, at: str) -> tuple[str, str]:
    """The text after a button added or removed a section or an entry, and the new place of the form."""
    word, _, argument = what.partition(" ")
    of = values.parts(path)
    data = _data(text)
    if word == "remove":
        return values.edited(text, of, values.GONE), at
    begun = json.loads(argument)
    if word == "add":
        count = len(values.get(data, of) or [])
        below = values.path([*of, str(count)])
        return edited(forms, text, below, begun), below if isinstance(begun, dict | list) else path
    return values.edited(text, of, begun), path


def place(forms: Forms, text: str, find: str, at: str) -> str:
    """The level with the key that a search text matches."""
    sought = find.strip().lower()
    data = _data(text)
    keys = [path for path, _ in forms.of(data).keys(data)]
    dotted = {path: path.replace("/", ".").lower() for path in keys}
    ranked = sorted(
        (path for path in keys if sought and sought in dotted[path]),
        key=lambda path: (dotted[path] != sought, not dotted[path].endswith(f".{sought}"), len(dotted[path])),
    )
    return values.path(values.parts(ranked[0])[:-1]) if ranked else at


def joined(text: str, row: Said) -> str:
    """The question with a searched plan added, at the batch of its search."""
    data = _data(text)
    plan = dict(row["plan"])
    plans = data.get("plans")
    taken = {other.get("name") for other in plans if isinstance(other, dict)} if isinstance(plans, list) else set()
    name, number = str(plan["name"]), 2
    while plan["name"] in taken:
        plan["name"], number = f"{name} {number}", number + 1
    count = len(plans) if isinstance(plans, list) else 0
    text = values.edited(text, ["plans", str(count)] if count else ["plans"], plan if count else [plan])
    workload = data.get("workload", {})
    if row["batch"] is not None and "global_batch" not in workload:
        text = values.edited(text, ["workload", "sequences_per_replica"], values.GONE)
        text = values.edited(text, ["workload", "global_batch"], row["batch"])
    return text
