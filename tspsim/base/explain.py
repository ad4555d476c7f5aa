"""pydantic's findings as one line for the person who wrote the file.

Of all that is wrong with an input the most telling finding is picked: an unknown key before the missing one
it was meant to be, and the deepest finding where a value could have been one of several types.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from .errors import InputError, describe, did_you_mean, either, shorten, together

_QUOTED = re.compile(r"'([^']*)'")
#: What pydantic calls a key that a section does not have: of a model, and of a dataclass.
_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
_LIMITS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def explain(error: ValidationError, data: object, type_: type[BaseModel], *, file: str | None) -> InputError:
    """One :class:`~tspsim.errors.InputError` for all findings of ``error`` in ``data``."""
    findings = error.errors(include_url=False)
    first = min(enumerate(findings), key=lambda pair: (_rank(pair[1]), pair[0]))[1]
    place = _place(data, first["loc"], first["type"])
    if first["type"] == "missing":
        return _missing(findings, data, place, file)
    return InputError(_sentence(first, type_, place), file=file, key=_key_path(data, place) or None)


def _missing(findings: Sequence[Any], data: object, place: tuple[int | str, ...], file: str | None) -> InputError:
    """All keys that are missing beside the one at ``place``, in one message."""
    places = [_place(data, finding["loc"], "missing") for finding in findings if finding["type"] == "missing"]
    names = list(dict.fromkeys(str(missing[-1]) for missing in places if missing[:-1] == place[:-1]))
    if len(names) < 2:
        return InputError("is required", file=file, key=_key_path(data, place) or None)
    sentence = f"{together(names)} are required"
    return InputError(sentence, file=file, key=_key_path(data, place[:-1]) or None)


def _rank(finding: Any) -> tuple[int, int]:
    order = {**dict.fromkeys(_UNKNOWN_KEY, 0), "missing": 2, "too_short": 3}  # a wrong entry of a list is not counted
    return order.get(finding["type"], 1), -len(finding["loc"])


def _place(data: object, location: Sequence[int | str], kind: str) -> tuple[int | str, ...]:
    """``location`` without what pydantic adds to it (names of union members), which is not in the data."""
    place: list[int | str] = []
    for index, step in enumerate(location):
        if isinstance(data, Mapping) and step in data:
            data = data[step]
        elif isinstance(data, Sequence) and not isinstance(data, str) and isinstance(step, int):
            data = data[step] if step < len(data) else None
        elif kind == "missing" and index == len(location) - 1:
            data = None
        else:
            continue
        place.append(step)
    return tuple(place)


def _key_path(data: object, place: Iterable[int | str]) -> str:
    """``plans.TSP8.exchange``: steps joined by dots, list entries by their name where they have one."""
    words = []
    for step in place:
        data = data[step] if isinstance(data, Mapping | list | tuple) and _has(data, step) else None  # type: ignore[index]
        named = isinstance(step, int) and isinstance(data, Mapping) and _is_name(data.get("name"))
        words.append(shorten(data["name"] if named else step, 60))  # type: ignore[index]
    return ".".join(words)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _has(data: Mapping[Any, Any] | Sequence[Any], step: int | str) -> bool:
    return step in data if isinstance(data, Mapping) else isinstance(step, int) and step < len(data)


def _sentence(finding: Any, type_: type[BaseModel], place: Sequence[int | str]) -> str:
    kind, value, context = finding["type"], finding["input"], finding.get("ctx", {})
    shown = describe(value)
    if kind in _UNKNOWN_KEY:
        return f"unknown key{_nearest_key(type_, place)}"
    if kind in ("literal_error", "enum"):
        allowed = _QUOTED.findall(context["expected"])
        near = did_you_mean(value, allowed) if isinstance(value, str) else ""
        near = near if near.startswith(" (did") else ""
        return f"{shown} is not allowed; use {either(allowed)}{near}"
    if kind == "union_tag_invalid":
        return f"unknown kind '{shorten(context['tag'])}'{did_you_mean(context['tag'], _tags(context))}"
    if kind in _LIMITS:
        name, words = _LIMITS[kind]
        return f"{shown} is not allowed; it must be {words} {context[name]}"
    if kind.startswith("bool"):
        return f"{shown} is neither true nor false"
    if kind == "string_type":
        if isinstance(value, bool | int | float):
            what = "boolean" if isinstance(value, bool) else "number"
            return f"{shown} is read by YAML as a {what}, but text is needed; quote it"
        return f"{shown} is not text"
    if kind == "string_too_long":
        return f"{shown} is longer than {context['max_length']} characters"
    if kind == "string_too_short":
        short = f"{shown} is shorter than {context['min_length']} characters"
        return short if value else "an empty text is not allowed"
    if kind.startswith("int"):
        return f"{shown} is not a whole number"
    if kind.startswith(("float", "finite_number")):
        return f"{shown} is not a number"
    if kind in ("model_type", "dataclass_type", "dict_type", "model_attributes_type", "mapping_type"):
        return f"{shown} is not a mapping of keys to values"
    if kind in ("list_type", "tuple_type"):
        return f"{shown} is not a list"
    if kind in ("too_short", "too_long"):
        limit = context.get("min_length", context.get("max_length"))
        bound = "at least" if kind == "too_short" else "at most"
        return f"needs {bound} {limit} {'entry' if limit == 1 else 'entries'}"
    return shorten(finding["msg"].removeprefix("Value error, "), 300)


def _tags(context: Mapping[str, Any]) -> list[str]:
    return _QUOTED.findall(str(context["expected_tags"]))


def _known_keys(type_: type[BaseModel], place: Sequence[int | str]) -> list[str]:
    """Keys of the sections that may stand at ``place`` below ``type_``."""
    candidates: list[Any] = [type_]
    for step in place:
        deeper = []
        for candidate in (section for annotation in candidates for section in _members(annotation)):
            if _is_section(candidate):
                deeper += [type_ for key, type_ in section_keys(candidate).items() if key == step]
            else:
                deeper += [argument for argument in get_args(candidate) if argument is not Ellipsis][-1:]
        candidates = deeper
    sections = [member for annotation in candidates for member in _members(annotation) if _is_section(member)]
    names = {key for section in sections for key in section_keys(section)}
    return sorted(names | {key for part in sections if hasattr(part, "further_keys") for key in part.further_keys()})


def section_keys(section: Any) -> dict[str, Any]:
    """A section's keys as files spell them, and the types of their values."""
    if issubclass(section, BaseModel):
        declared = section.model_fields
    else:
        hints = get_type_hints(section, include_extras=True)
        declared = {field.name: FieldInfo.from_annotation(hints[field.name]) for field in fields(section)}
    return {field.alias or name: field.annotation for name, field in declared.items()}


def _nearest_key(type_: type[BaseModel], place: Sequence[int | str]) -> str:
    """The key nearest to an unknown one: a key of exactly this name one section deeper, else the nearest here."""
    key, keys = str(place[-1]), _known_keys(type_, place[:-1])
    near = did_you_mean(key, keys)
    above = ".".join(map(str, place[:-1]))
    if len(place) > 1 or (near.startswith(" (did") and difflib.get_close_matches(key, keys, n=1, cutoff=0.8)):
        return near
    for section in keys:
        for entry in ("", "NAME"):  # a section, or a list of named ones
            steps: list[int | str] = [section, 0] if entry else [section]
            deeper = difflib.get_close_matches(key, _known_keys(type_, steps), n=1, cutoff=0.8)
            if deeper:
                return f" (did you mean '{'.'.join(filter(None, (above, section, entry, deeper[0])))}'?)"
    return near


def _members(annotation: Any) -> list[Any]:
    """The sections and containers inside unions and annotations."""
    containers = (list, dict, tuple, Mapping, Sequence)
    if _is_section(annotation) or getattr(annotation, "__origin__", None) in containers:
        return [annotation]
    if hasattr(annotation, "__metadata__"):
        return _members(annotation.__origin__)
    return [member for argument in get_args(annotation) for member in _members(argument)]


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation))
