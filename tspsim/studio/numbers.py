"""What-if: the numbers of a question that can slide, and the values that they slide over."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from . import values
from .fields import Form

#: Times the value as it stands.
FACTORS = tuple(Fraction(each) for each in ("1/8", "1/4", "1/2", "3/4", "1", "3/2", "2", "4", "8"))
#: Sections within sections that are looked into.
DEEPEST = 5
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*(.*?)\s*")


def split(text: str) -> tuple[Fraction, str] | None:
    """A number and its unit; None where the text is no number.

    >>> split("32Ki"), split("400 Gb/s"), split("zigzag")
    ((Fraction(32, 1), 'Ki'), (Fraction(400, 1), ' Gb/s'), None)
    """
    found = _NUMBER.fullmatch(text)
    if found is None or (found[2] and not re.fullmatch(r"[A-Za-z/$]{1,12}", found[2].strip())):
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


@dataclass(frozen=True)
class Number:
    """A number that may slide: its place, and what people call it."""

    path: str
    title: str
    #: As it is stated; empty where it is not.
    now: str
    #: What holds then; empty where that is nothing.
    default: str
    #: What its values lie around.
    around: str

    def points(self) -> list[str]:
        """Values that it slides over, in order; the empty one is that it is not stated."""
        told = points(self.around)
        if self.now:
            return told
        if self.default == self.around:
            return ["" if each == self.default else each for each in told]
        return ["", *told]

    def over(self, stated: str) -> list[str]:
        """The values of a list that somebody wrote, and as it stands; :meth:`points` where nothing is written."""
        written = [each.strip() for each in stated.split(",") if each.strip()]
        return (
            list(dict.fromkeys(written if self.now in written else [self.now, *written])) if written else self.points()
        )

    def shown(self, point: str) -> str:
        """A value in words."""
        return point or (f"{self.default} (default)" if self.default else "not stated")


def sliding(form: Form, data: Any) -> dict[str, Number]:
    """Numbers of a question by what people call them: those that are stated, and all that may be where a section
    stands, or has a default."""
    found: dict[str, Number] = {}
    for each in _numbers(form, data, "", 0):
        if points(each.around):
            found.setdefault(each.title, each)
    return found


def _numbers(form: Form, data: Any, path: str, depth: int) -> Iterator[Number]:
    if depth > DEEPEST:
        return
    level = form.level(data, path)
    if level.path != path:
        return
    for field in level.fields:
        if field.opened or (not field.stated and field.sections and field.default and not field.choices):
            yield from _numbers(form, data, field.path, depth + 1)
        elif field.number:
            now = values.shown(field.value) if field.stated else ""
            around = next((each for each in (now, field.default, field.around, field.usual) if points(each)), "")
            yield Number(field.path, titled(field.path, data), now, field.default, around)


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
