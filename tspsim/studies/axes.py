"""The values of ``--over path=values``: one swept path, and the points that several paths make.

An axis is a path of the scenario (as ``--set`` takes it) and a list of values, separated by commas. Brackets and
quotes hold commas together (``cluster={device: h100, nodes: 2, fabric: rails-400g},mi300x-8``). A value may be a range:

========================  ==========================================================================
``1..9``                  whole steps: 1, 2, …, 9
``0.5..2+0.25``           equal steps, up to and including the end where it is hit
``32Ki..1Mi*2``           equal factors: 32Ki, 64Ki, …, 1Mi
``1..4*2 USD/h``          a unit behind a range is the unit of all of its values
========================  ==========================================================================

Ranges are exact (fractions, not floats). A quoted value is never a range. The path ``plans`` chooses plans by name;
every other path sets a value.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, get_args

from ..base import dialect
from ..base.errors import InputError, UnitError, UnknownNameError, shorten
from ..base.units import Dimension, parse, si_unit
from ..scenario import Scenario
from ..scenario.loading import assignment
from ..step.cells import Cell

#: The largest sweep; a larger one is taken for a typing error.
MOST_POINTS = 1_000_000

_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?(?:[kKMGTPE]i?)?"
_RANGE = re.compile(
    rf"(?P<first>{_NUMBER})\.\.(?P<last>{_NUMBER})(?:(?P<sign>[*+])(?P<step>{_NUMBER}))?\s*(?P<unit>[A-Za-z$][\w$/]*)?"
)
_PAIRS = {"[": "]", "{": "}"}


@dataclass(frozen=True)
class Axis:
    """A path and its values: as YAML text, and as the table's column shows them."""

    #: Key path, and name of the column.
    path: str
    #: The assigned texts, one per step.
    texts: tuple[str, ...]
    #: Numbers in SI where every value is one (counts and quantities with a unit), booleans where every value is one,
    #: else the texts.
    cells: tuple[Cell, ...]

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def unit(self) -> str:
        """The SI unit of quantities; empty for counts, plain numbers and other values."""
        values = [value for text in self.texts if (value := dialect.parse_yaml(text)) is not None]
        if not values or not all(isinstance(cell, int | float) for cell in self.cells if cell is not None):
            return ""
        dimensions = (dimension for dimension in ("number", "count", *get_args(Dimension)))
        fits = next(
            (dimension for dimension in dimensions if all(_number(value, dimension) is not None for value in values)),
            "",
        )
        return si_unit(fits) if fits not in ("", "number") else ""  # type: ignore[arg-type]

    def chosen_plans(self, step: int) -> tuple[str, ...] | None:
        """Names of plans, where this axis chooses plans; None where the step is a list of whole plans."""
        if self.path != "plans":
            return None
        text = self.texts[step]
        value = dialect.parse_yaml(text)
        if isinstance(value, list):
            names = [str(entry) for entry in value if not isinstance(entry, dict | list)]
            return tuple(names) if len(names) == len(value) > 0 else None
        return (value if isinstance(value, str) else text,)


@dataclass(frozen=True)
class Point:
    """One question of a sweep: overrides of the scenario, names of its plans (None: all), and its table cells."""

    number: int
    overrides: tuple[str, ...]
    plans: tuple[str, ...] | None
    cells: tuple[Cell, ...]


def read_axis(text: str) -> Axis:
    """Read one ``path=values``.

    Raises
    ------
    InputError
        No path, no value, an unclosed bracket, or a range that is empty, endless or beyond :data:`MOST_POINTS`.

    Examples
    --------
    >>> read_axis("workload.sequence=32Ki..128Ki*2,1Mi").cells
    (32768, 65536, 131072, 1048576)
    >>> read_axis("prices.gpu_hour=1..2+0.5 USD/h").texts
    ('1 USD/h', '1.5 USD/h', '2 USD/h')
    >>> read_axis("cluster=mi300x-8,hgx-h100-8").cells
    ('mi300x-8', 'hgx-h100-8')
    """
    path, values, place = assignment(text, "--over", "path=values, such as workload.sequence=32Ki..1Mi*2")
    try:
        texts = [text for item in split(values) for text in expand(item)]
        if len(texts) > MOST_POINTS:
            raise InputError(f"stands for more than {MOST_POINTS:,} values")
        return Axis(path, tuple(texts), column(texts))
    except InputError as error:
        raise error.at(file=place) from None


def split(values: str) -> list[str]:
    """The items between commas that no bracket or quote holds together.

    >>> split("a, [b, c],'d,e'")
    ['a', '[b, c]', "'d,e'"]
    """
    items: list[str] = []
    closers: list[str] = []
    start, quote = 0, ""
    for position, character in enumerate(values):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"" and (closers or not values[start:position].strip()):
            quote = character
        elif character in _PAIRS:
            closers.append(_PAIRS[character])
        elif closers and character == closers[-1]:
            closers.pop()
        elif character == "," and not closers:
            items.append(values[start:position])
            start = position + 1
    if quote or closers:
        raise InputError(f"ends before its closing {quote or closers[-1]}")
    items = [item.strip() for item in (*items, values[start:])]
    if not all(items):
        raise InputError("has an empty value; write values between commas, null for none, '' for an empty text")
    return items


def expand(item: str) -> list[str]:
    """The values of a range, or the item itself.

    >>> expand("1..5"), expand("1..10*3"), expand("../model.yaml")
    (['1', '2', '3', '4', '5'], ['1', '3', '9'], ['../model.yaml'])
    """
    match = _RANGE.fullmatch(item)
    if match is None:
        return [item]
    first, last, sign = _exact(match["first"]), _exact(match["last"]), match["sign"]
    step = _exact(match["step"]) if sign else Fraction(1)
    if last < first:
        raise InputError(f"range '{shorten(item)}' ends before it begins; write the smaller number first")
    if sign == "*" and (step <= 1 or first <= 0):
        raise InputError(f"range '{shorten(item)}' never ends; begin above zero and multiply by more than one")
    if sign != "*" and step <= 0:
        raise InputError(f"range '{shorten(item)}' never ends; add more than zero")
    steps = math.log(last / first) / math.log(step) if sign == "*" else (last - first) / step
    if steps > MOST_POINTS:
        raise InputError(f"range '{shorten(item)}' stands for more than {MOST_POINTS:,} values")
    values, value = [], first
    while value <= last:
        values.append(value)
        value = value * step if sign == "*" else value + step
    unit = f" {match['unit']}" if match["unit"] else ""
    return [_written(value) + unit for value in values]


def _exact(number: str) -> Fraction:
    """A number with an optional count prefix, exactly."""
    digits = number.rstrip("kKMGTPEi")
    one = parse(f"1{number[len(digits) :]}", "count")
    return Fraction(digits) * int(one)


def _written(value: Fraction) -> str:
    """Digits of the value: exact for integers and short decimals, else as precise as a float."""
    if value.denominator == 1:
        return str(value.numerator)
    text = repr(float(value))
    return text if "e" not in text else f"{float(value):.12f}".rstrip("0")


def column(texts: Sequence[str]) -> tuple[Cell, ...]:
    """The values as cells of one type: booleans, whole numbers, numbers in SI, or the texts.

    >>> column(["8", "128Ki"]), column(["1.5 ms", "20 us"]), column(["true", "false"]), column(["8", "many"])
    ((8, 131072), (0.0015, 2e-05), (True, False), ('8', 'many'))
    """
    values = [dialect.parse_yaml(text) for text in texts]
    present = [value for value in values if value is not None]
    if any(isinstance(value, dict | list) for value in values):
        return tuple(texts)
    if all(isinstance(value, bool) for value in present):
        return tuple(values)
    for dimension in ("number", "count", *get_args(Dimension)):
        cells = [None if value is None else _number(value, dimension) for value in values]
        if sum(cell is not None for cell in cells) == len(present):
            whole = all(isinstance(cell, int) for cell in cells if cell is not None)
            return tuple(cell if cell is None or whole else float(cell) for cell in cells)
    return tuple(text if value is not None else None for text, value in zip(texts, values, strict=True))


def _number(value: Any, dimension: str) -> int | float | None:
    """``value`` as a number of this dimension; None where it is not one."""
    if isinstance(value, bool):
        return None
    if dimension == "number":
        return value if isinstance(value, int | float) and abs(value) < 2**63 else None
    try:
        return parse(value, dimension, minimum=None)  # type: ignore[arg-type]
    except UnitError:
        return None


def points(axes: Sequence[Axis], *, zipped: bool) -> list[Point]:
    """All points in order: of a product the first axis is the slowest; zipped axes step together.

    Raises
    ------
    InputError
        A path is swept twice or would undo an earlier one, zipped axes differ in length, or there are too many points.
    """
    _check_paths(axes)
    lengths = [len(axis) for axis in axes]
    if zipped and len(set(lengths)) > 1:
        sizes = ", ".join(f"{axis.path} {len(axis)}" for axis in axes)
        raise InputError(f"zipped axes need as many values each, not {sizes}", file="--zip")
    size = lengths[0] if zipped else math.prod(lengths)
    if size > MOST_POINTS:
        raise InputError(f"{size:,} points are more than {MOST_POINTS:,}", file="--over")
    every = zip(*map(range, lengths), strict=True) if zipped else itertools.product(*map(range, lengths))
    return [_point(number, axes, steps) for number, steps in enumerate(every)]


def _point(number: int, axes: Sequence[Axis], steps: Sequence[int]) -> Point:
    overrides, plans = [], None
    for axis, step in zip(axes, steps, strict=True):
        chosen = axis.chosen_plans(step)
        if chosen is None:
            overrides.append(f"{axis.path}={axis.texts[step]}")
        else:
            plans = chosen
    cells = tuple(axis.cells[step] for axis, step in zip(axes, steps, strict=True))
    return Point(number, tuple(overrides), plans, cells)


def _check_paths(axes: Sequence[Axis]) -> None:
    for index, axis in enumerate(axes):
        for earlier in axes[:index]:
            if axis.path == earlier.path:
                raise InputError(f"'{axis.path}' is swept twice; give all its values at once", file="--over")
            chooses = axis.path == "plans" and axis.chosen_plans(0) is not None
            if earlier.path.startswith(f"{axis.path}.") and not chooses:
                raise InputError(f"'{axis.path}' would undo '{earlier.path}'; name '{axis.path}' first", file="--over")


def choose(scenario: Scenario, names: Sequence[str] | None) -> Scenario:
    """The scenario with the named plans only, in the order of the names; raises UnknownNameError."""
    if names is None:
        return scenario
    by_name = {plan.name: plan for plan in scenario.plans}
    for name in names:
        if name not in by_name:
            raise UnknownNameError("plan", name, by_name, key="plans")
    return scenario.model_copy(update={"plans": tuple(by_name[name] for name in dict.fromkeys(names))})
