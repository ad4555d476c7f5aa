"""What-if: the numbers of a question that can slide, and the values that they slide over."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from . import values
from .fields import Form
from .levels import Field

#: Times the value as it stands.
FACTORS = tuple(Fraction(each) for each in ("1/8", "1/4", "1/2", "3/4", "1", "3/2", "2", "4", "8"))
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*(.*?)\s*")


def split(text: str) -> tuple[Fraction, str] | None:
    """A number and its unit; None where the text is no number.

    >>> split("32Ki"), split("400 Gb/s"), split("zigzag")
    ((Fraction(32, 1), 'Ki'), (Fraction(400, 1), ' Gb/s'), None)
    """
    found = _NUMBER.fullmatch(text)
    if found is None or (found[2] and not re.fullmatch(r"[A-Za-z/$]{1,12}", found[2])):
        return None
    space = " " if text[found.end(1) : found.end(1) + 1] == " " else ""
    return Fraction(found[1]), space + found[2]


def points(text: str) -> list[str]:
    """Values around one, in order, as they may be written; whole where it is whole.

    >>> points("32Ki"), points("2")
    (['4Ki', '8Ki', '16Ki', '24Ki', '32Ki', '48Ki', '64Ki', '128Ki', '256Ki'], ['1', '2', '3', '4', '8', '16'])
    """
    told = split(text)
    if told is None or told[0] <= 0:
        return []
    number, unit = told
    whole = "." not in text and "e" not in text.lower().replace(unit.lower(), "")
    found: dict[str, None] = {}
    for factor in FACTORS:
        if factor == 1:
            found[text.strip()] = None
            continue
        value = number * factor
        if whole and value.denominator != 1:
            if value < 1 or number < 8:
                continue
            value = Fraction(round(value))
        found[f"{float(value):.6g}{unit}" if value.denominator != 1 else f"{value.numerator}{unit}"] = None
    return list(found)


def sliding(form: Form, data: Any) -> list[tuple[str, str]]:
    """Paths of numbers that are stated, or have a default where a section stands, with what they are now."""
    return [(path, text) for path, text in _numbers(form, data, "", 0) if points(text)]


def _numbers(form: Form, data: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if depth > 5:
        return
    level = form.level(data, path)
    if level.path != path:
        return
    for field in level.fields:
        if field.opened:
            yield from _numbers(form, data, field.path, depth + 1)
        elif field.number and (field.stated or (field.default and not _needs_unit(field))):
            yield field.path, values.shown(field.value) if field.stated else field.default


def _needs_unit(field: Field) -> bool:
    """Whether a number of this key is written with a unit, which its default, in SI, is without."""
    told = split(field.example)
    return told is not None and told[1] not in ("", "Ki")


def titled(path: str, data: Any) -> str:
    """A path as people read it: entries by their names.

    >>> titled("plans/0/tp", {"plans": [{"name": "TP8", "tp": 8}]})
    'plans.TP8.tp'
    """
    words, value = [], data
    for part in values.parts(path):
        value = values.get(value, [part])
        named = value.get("name") if isinstance(value, Mapping) and part.isdecimal() else None
        words.append(str(named or part))
    return ".".join(words)
