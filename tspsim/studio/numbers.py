"""What-if: the numbers of a question for the slider, and the values that the slider covers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from . import values
from .fields import Form

#: Multiples of the present value.
FACTORS = tuple(Fraction(text) for text in ("1/8", "1/4", "1/2", "3/4", "1", "3/2", "2", "4", "8"))
#: Depth of nested sections that is searched.
DEEPEST = 5
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*(.*?)\s*")


def split(text: str) -> tuple[Fraction, str] | None:
    """A number and its unit; None where the text is no number.

    >>> split("32Ki"), split("400 Gb/s"), split("zigzag")
    ((Fraction(32, 1), 'Ki'), (Fraction(400, 1), ' Gb/s'), None)
    """
    match = _NUMBER.fullmatch(text)
    if match is None or (match[2] and not re.fullmatch(r"[A-Za-z/$]{1,12}", match[2].strip())):
        return None
    space = " " if text[match.end(1) : match.end(1) + 1] == " " else ""
    return Fraction(match[1]), space + match[2]


def points(text: str) -> list[str]:
    """Values around a given one, in order, as they may be written; whole numbers where it is whole.

    >>> points("32Ki"), points("2")
    (['4Ki', '8Ki', '16Ki', '24Ki', '32Ki', '48Ki', '64Ki', '128Ki', '256Ki'], ['1', '2', '3', '4', '8', '16'])
    """
    parsed = split(text)
    if parsed is None or parsed[0] <= 0:
        return []
    number, unit = parsed
    whole = "." not in text and "e" not in text.lower().replace(unit.lower(), "")
    texts: dict[str, None] = {}
    for factor in FACTORS:
        if factor == 1:
            texts[text.strip()] = None
            continue
        value = number * factor
        if whole and value.denominator != 1:
            if value < 1 or number < 8:
                continue
            value = Fraction(round(value))
        texts[f"{float(value):.6g}{unit}" if value.denominator != 1 else f"{value.numerator}{unit}"] = None
    return list(texts)


@dataclass(frozen=True)
class Number:
    """A number for the slider: its place and its name."""

    path: str
    title: str
    #: Its value; empty where it is not stated.
    now: str
    #: Its default; empty where there is none.
    default: str
    #: The centre of the slider's values.
    around: str

    def points(self) -> list[str]:
        """The slider's values, in order; the empty one means: not stated."""
        values_around = points(self.around)
        if self.now:
            return values_around
        if self.default == self.around:
            return ["" if value == self.default else value for value in values_around]
        return ["", *values_around]

    def over(self, stated: str) -> list[str]:
        """The values of a typed list, and the present one; :meth:`points` where nothing is typed."""
        written = [value.strip() for value in stated.split(",") if value.strip()]
        return (
            list(dict.fromkeys(written if self.now in written else [self.now, *written])) if written else self.points()
        )

    def shown(self, point: str) -> str:
        """The text of a value."""
        return point or (f"{self.default} (default)" if self.default else "not stated")


def sliding(form: Form, data: Any) -> dict[str, Number]:
    """Numbers of a question by name: those that are stated, and those that may be where a section stands or has a
    default."""
    by_title: dict[str, Number] = {}
    for number in _numbers(form, data, "", 0):
        if points(number.around):
            by_title.setdefault(number.title, number)
    return by_title


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
            around = next((text for text in (now, field.default, field.around, field.usual) if points(text)), "")
            yield Number(field.path, titled(field.path, data), now, field.default, around)


def titled(path: str, data: Any) -> str:
    """A path with the names of entries.

    >>> titled("plans/0/tp", {"plans": [{"name": "TP8", "tp": 8}]})
    'plans.TP8.tp'
    """
    words, value = [], data
    for part in values.parts(path):
        value = values.get(value, [part])
        named = value.get("name") if isinstance(value, Mapping) and part.isdecimal() else None
        words.append(str(named or part))
    return ".".join(words)
