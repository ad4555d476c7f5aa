"""Quantities with their units, read from text and written for people.

Everything inside the package is SI: bytes, bytes/s, FLOP/s, seconds, hertz, watts. At the border a quantity
is text with its unit (``"400 Gb/s"``, ``"192 GB"``, ``"5 us"``), so that a reader need not guess whether a number
meant bits or bytes, GB (1e9) or GiB (2**30). Only counts may be bare numbers.

The annotated types (:data:`Bytes`, :data:`PositiveCount`, …) are fields for pydantic models; this module
itself does not import pydantic, so that reading a unit stays cheap.

Examples
--------
>>> parse("400 Gb/s", "bytes/s")
50000000000.0
>>> parse("128Ki", "count")
131072
>>> parse("64 GB", "bytes/s")
Traceback (most recent call last):
    ...
tspsim.base.errors.UnitError: '64 GB' measures bytes; bytes/s are needed here, such as '64 GB/s' or '400 Gb/s'
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from .errors import UnitError, shorten
from .memo import remembered

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

Dimension = Literal[
    "bytes", "bytes/s", "FLOP/s", "s", "Hz", "W", "count", "tokens/s", "requests/s", "USD", "USD/h", "USD/kWh"
]

#: What a message offers for each dimension.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "bytes": ("192 GB", "191.98 GiB"),
    "bytes/s": ("64 GB/s", "400 Gb/s"),
    "FLOP/s": ("1307.4 TFLOP/s",),
    "s": ("5 us", "1.2 ms"),
    "Hz": ("2.1 GHz",),
    "W": ("750 W",),
    "count": ("128Ki", "8"),
    "tokens/s": ("173e6 tokens/s", "2.5 Mtokens/s"),
    "requests/s": ("4 requests/s", "90 requests/min"),
    "USD": ("20000 USD", "500 kUSD"),
    "USD/h": ("1.12 USD/h",),
    "USD/kWh": ("0.08 USD/kWh",),
}

#: No quantity the simulator can use is larger; an exact count beyond it would not survive as a float either.
LARGEST_COUNT = 2**53
#: Powers of ten a number may be written with; every quantity within them, in any unit, is a float.
LARGEST_EXPONENT = 99

_NUMBER = re.compile(r"([+-]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:[eE]([+-]?[0-9]+))?)\s*(.*)", re.DOTALL)
_DECIMAL = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_MONEY = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9}
_SMALL = {"m": -3, "u": -6, "µ": -6, "μ": -6, "n": -9, "p": -12}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def _prefixed(unit: str, *prefixes: dict[str, int], scale: Fraction = Fraction(1)) -> dict[str, Fraction]:
    """Every spelling of ``unit`` under the given prefixes, with its factor."""
    table: dict[str, Fraction] = {}
    for family in prefixes:
        base = 2 if family is _BINARY else 10
        table |= {prefix + unit: scale * Fraction(base) ** power for prefix, power in family.items()}
    return table


def _build_units() -> dict[str, dict[str, Fraction]]:
    """``{dimension: {spelling: factor to SI}}``; the first spelling of a factor is the one messages show."""
    eighth = Fraction(1, 8)
    amounts = _prefixed("B", _DECIMAL, _BINARY) | _prefixed("b", _DECIMAL, scale=eighth)
    amounts |= _prefixed("bit", _DECIMAL, scale=eighth)
    rates = {f"{unit}/s": factor for unit, factor in amounts.items()}
    rates |= {f"{unit}ps": factor for unit, factor in amounts.items() if not unit.endswith("bit")}
    flops = {k: v for unit in ("FLOP/s", "FLOPS", "FLOPs") for k, v in _prefixed(unit, _DECIMAL).items()}
    seconds = _prefixed("s", {"": 0}, _SMALL)
    seconds |= {name: Fraction(60) for name in ("min", "m", "minute", "minutes")}
    seconds |= {name: Fraction(3600) for name in ("h", "hour", "hours")}
    seconds |= {name: Fraction(86_400) for name in ("days", "day", "d")}
    seconds |= {name: Fraction(604_800) for name in ("weeks", "week")}
    one = Fraction(1)
    return {
        "bytes": amounts,
        "bytes/s": rates,
        "FLOP/s": flops,
        "s": seconds,
        "Hz": _prefixed("Hz", _DECIMAL),
        "W": _prefixed("W", _DECIMAL),
        "count": _prefixed("", _DECIMAL, _BINARY),
        "tokens/s": _prefixed("tokens/s", _DECIMAL),
        "requests/s": {
            "requests/s": one,
            "/s": one,
            "req/s": one,
            "": one,
            "requests/min": one / 60,
            "/min": one / 60,
            "/h": one / 3600,
            "/day": one / 86_400,
            "requests/h": one / 3600,
            "jobs/h": one / 3600,
            "jobs/day": one / 86_400,
        },
        "USD": {name: factor for unit in ("USD", "$") for name, factor in _prefixed(unit, _MONEY).items()},
        "USD/h": {"USD/h": one, "USD/hour": one, "$/h": one},
        "USD/kWh": {"USD/kWh": one, "$/kWh": one},
    }


_UNITS = _build_units()


def parse(
    value: object,
    dimension: Dimension,
    *,
    minimum: float | None = 0.0,
    positive: bool = False,
    examples: Sequence[str] = (),
) -> float:
    """Read one quantity.

    Parameters
    ----------
    value
        Text such as ``"64 GB/s"``; a bare number only where ``dimension`` is ``"count"``.
    dimension
        What the quantity measures.
    minimum
        Smallest value allowed, in SI; None for no bound.
    positive
        Zero is refused as well.
    examples
        What messages offer; the dimension's own when left out.

    Returns
    -------
    float
        The value in SI (an exact ``int`` for a count).

    Raises
    ------
    UnitError
        The number or unit cannot be read, the unit measures something else, or the value is out of bounds.

    Examples
    --------
    >>> parse("2.1 GHz", "Hz"), parse("1.5 GiB", "bytes"), parse("5 µs", "s"), parse(0, "s")
    (2100000000.0, 1610612736.0, 5e-06, 0.0)
    """
    # Text alone is cached: True and 1 are equal, but True is no quantity.
    read = _known if type(value) is str else _parsed
    return read(value, dimension, minimum, positive, tuple(examples))


def _parsed(
    value: Any, dimension: Dimension, minimum: float | None, positive: bool, examples: tuple[str, ...]
) -> float:
    """The value of :func:`parse`, computed."""
    offer = _examples(examples or EXAMPLES[dimension])
    number, unit = _split(value, offer)
    # A zero needs no unit.
    exact = number * _factor(value, unit, dimension, offer) if number or unit else Fraction(0)
    if positive and exact <= 0:
        raise UnitError(f"'{shorten(value)}' must be more than zero, such as {offer}")
    if minimum is not None and exact < Fraction(minimum):
        floor = "zero" if minimum == 0 else f"{minimum:g} {dimension}"
        raise UnitError(f"'{shorten(value)}' is less than {floor}; write one such as {offer}")
    if dimension != "count":
        return float(exact)
    if exact.denominator != 1:
        raise UnitError(f"'{shorten(value)}' is not a whole number; write one such as {offer}")
    if abs(exact) > LARGEST_COUNT:
        raise UnitError(f"'{shorten(value)}' is larger than any count used here (2^53)")
    return int(exact)


#: Cached by text: each question that names a file reads the file's texts again.
_known = remembered(4096)(_parsed)


def _split(value: object, offer: str) -> tuple[Fraction, str]:
    """The number and the unit in ``value``; bare numbers have the unit ``""``."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UnitError(f"'{shorten(value)}' is not a quantity; write one such as {offer}")
    if isinstance(value, int) and abs(value) > LARGEST_COUNT:
        raise UnitError("a bare number beyond 2^53 is larger than any count used here")
    if isinstance(value, float) and not math.isfinite(value):
        raise UnitError(f"'{value}' is not a finite number; write one such as {offer}")
    if isinstance(value, int | float):
        return Fraction(value), ""
    match = _NUMBER.fullmatch(value.strip()) if len(value) <= 64 else None
    if match is None:
        raise UnitError(f"'{shorten(value)}' does not begin with a number; write one such as {offer}")
    number, exponent, unit = match.groups()
    if exponent is not None and abs(int(exponent)) > LARGEST_EXPONENT:
        reach = f"is beyond what is read here, 1e-{LARGEST_EXPONENT} to 1e{LARGEST_EXPONENT}"
        raise UnitError(f"'{shorten(value)}' {reach}; write one such as {offer}")
    return Fraction(number.replace("_", "")), "".join(unit.split())


def _factor(value: object, unit: str, dimension: str, offer: str) -> Fraction:
    """The factor of ``unit`` to SI, or the most helpful message."""
    factors = _UNITS[dimension]
    if unit in factors:
        return factors[unit]
    text = shorten(value)
    if not unit:
        raise UnitError(f"'{text}' has no unit; write one such as {offer}")
    for other, units in _UNITS.items():
        if unit in units and other != "count":
            what = "a plain count is" if dimension == "count" else f"{dimension} are"
            raise UnitError(f"'{text}' measures {other}; {what} needed here, such as {offer}")
    currency = re.sub(r"^[kMG](?=[A-Z]{3}$)", "", re.split(r"[/ ]", unit)[0])
    if dimension.startswith("USD") and len(currency) <= 3 and not currency.upper().endswith("USD"):
        problem = f"'{text}' is in {currency}; prices are in US dollars alone (USD or $): convert it"
        raise UnitError(f"{problem}, and write one such as {offer}")
    # Case decides between bits and bytes, so every spelling that differs only by case is offered.
    near = [spelling for spelling in factors if spelling.lower() == unit.lower()]
    near = near or difflib.get_close_matches(unit, factors, n=1, cutoff=0.6)
    spellings = " or ".join(f"'{spelling}'" for spelling in near[:2])
    remedy = f"did you mean {spellings}?" if near else f"write {offer}"
    raise UnitError(f"unknown unit '{shorten(unit, 20)}' in '{text}' ({remedy})")


def _examples(examples: Iterable[str]) -> str:
    return " or ".join(f"'{example}'" for example in examples)


#: Key in the context of a model's dump: write quantities as text that reads back, not as plain numbers.
WITH_UNITS = "units"


def si_unit(dimension: Dimension) -> str:
    """The unit of a dimension that is one in SI; empty of counts.

    >>> si_unit("s"), si_unit("USD/h"), si_unit("count")
    ('s', 'USD/h', '')
    """
    return next((unit for unit, factor in _UNITS[dimension].items() if factor == 1 and unit), "")


class InSi(float):
    """A quantity in SI, as scenarios write themselves out in Python; a field reads it without a unit. In JSON it is a
    plain number, which is refused without its unit.

    >>> parse_si(InSi(2.0), "bytes/s"), in_si({"rate": [1.5, 2]})
    ('2.0 B/s', {'rate': [1.5, 2]})
    """


def in_si(data: Any) -> Any:
    """Plain data in which every float says that it is in SI."""
    if isinstance(data, dict):
        return {key: in_si(value) for key, value in data.items()}
    if isinstance(data, list):
        return [in_si(value) for value in data]
    return InSi(data) if isinstance(data, float) else data


def parse_si(value: object, dimension: Dimension) -> object:
    """The text of an :class:`InSi` with its SI unit; any other value as it is."""
    return f"{float(value)!r} {si_unit(dimension)}".rstrip() if isinstance(value, InSi) else value


@dataclass(frozen=True, slots=True)
class Quantity:
    """Marks a pydantic field as a quantity: text with a unit outside, a number in SI inside."""

    #: What the field measures.
    dimension: Dimension
    #: Zero is refused as well as negative values.
    positive: bool = False
    #: What messages and the schema offer; the dimension's own when left out.
    examples: tuple[str, ...] = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        from pydantic_core import PydanticCustomError, core_schema

        def read(value: object) -> float:
            try:
                stated = parse_si(value, self.dimension)
                return parse(stated, self.dimension, positive=self.positive, examples=self.examples)
            except UnitError as error:
                raise PydanticCustomError("quantity", "{reason}", {"reason": error.message}) from None

        def write(value: object, info: Any) -> object:
            if value is None or not (info.context or {}).get(WITH_UNITS):
                return value
            unit = si_unit(self.dimension)
            return f"{value!r} {unit}" if unit else value

        return core_schema.no_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(write, info_arg=True)
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        examples = list(self.examples or EXAMPLES[self.dimension])
        units = sorted(_UNITS[self.dimension], key=len, reverse=True)
        unit = "|".join(re.escape(unit) for unit in units if unit)
        optional = "?" if self.dimension == "count" else ""
        text: dict[str, Any] = {
            "type": "string",
            "pattern": rf"^\s*[+]?[0-9.][0-9_.]*([eE][+-]?[0-9]+)?\s*({unit}){optional}\s*$",
            "examples": examples,
        }
        if self.dimension != "count":
            return text
        return {"anyOf": [{"type": "integer", "minimum": 1 if self.positive else 0}, text]}


Bytes = Annotated[float, Quantity("bytes")]
PositiveBytes = Annotated[float, Quantity("bytes", positive=True)]
BytesPerSecond = Annotated[float, Quantity("bytes/s", positive=True)]
FlopsPerSecond = Annotated[float, Quantity("FLOP/s", positive=True)]
Seconds = Annotated[float, Quantity("s")]
Hertz = Annotated[float, Quantity("Hz", positive=True)]
Watts = Annotated[float, Quantity("W")]
Count = Annotated[int, Quantity("count")]
PositiveCount = Annotated[int, Quantity("count", positive=True)]
#: GPUs, nodes, degrees: counts without a Ki prefix.
PositiveNumber = Annotated[int, Quantity("count", positive=True, examples=("1", "8"))]
Usd = Annotated[float, Quantity("USD")]
UsdPerHour = Annotated[float, Quantity("USD/h")]
UsdPerKilowattHour = Annotated[float, Quantity("USD/kWh")]

assert set(get_args(Dimension)) == set(_UNITS) == set(EXAMPLES)


GIB = 2.0**30
_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def digits(value: float) -> str:
    """Three significant digits without an exponent below a million.

    >>> digits(1.2345), digits(45.678), digits(1234.5), digits(0.004567), digits(0.2)
    ('1.23', '45.7', '1,234', '0.00457', '0.200')
    """
    size = abs(value)
    if size >= 100 or value == 0:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:#.3g}"


def compact(value: float, unit: str = "") -> str:
    """A count or rate with a decimal prefix.

    >>> compact(5_123_456, "tokens/s"), compact(272e12, "FLOP/s"), compact(12)
    ('5.12 M tokens/s', '272 TFLOP/s', '12.0')
    """
    # A prefix belongs to a unit it can be glued to (TFLOP/s); before a word such as tokens it stands alone.
    glued = unit.startswith(("B", "FLOP"))
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor:
            return f"{digits(value / factor)} {prefix}{'' if glued else ' '}{unit}".rstrip()
    return f"{digits(value)} {unit}".rstrip()


def millions(tokens_per_s: float) -> str:
    """``26.0 M``; small rates as they are.

    >>> millions(25.98e6), millions(832e6), millions(1234.5)
    ('26.0 M', '832 M', '1,234')
    """
    if tokens_per_s < 1e5:
        return f"{tokens_per_s:,.0f}"
    value = tokens_per_s / 1e6
    return f"{value:,.0f} M" if value >= 100 else f"{value:.3g} M" if value < 10 else f"{value:.1f} M"


def gib(size_bytes: float) -> str:
    """Bytes in GiB.

    >>> gib(38.8 * 2**30)
    '38.8 GiB'
    """
    return f"{size_bytes / GIB:,.1f} GiB"


def several(count: int, word: str) -> str:
    """A count with its noun, in the plural where it is not one.

    >>> several(1, "job"), several(2000, "job")
    ('1 job', '2,000 jobs')
    """
    return f"{count:,} {word}{'s' if count != 1 else ''}"


def were(count: int) -> str:
    """A count with its verb in the past.

    >>> were(1), were(1200)
    ('1 was', '1,200 were')
    """
    return f"{count:,} {'was' if count == 1 else 'were'}"


def percent(share: float, decimals: int = 1, significant: int = 2) -> str:
    """A share of one with so many decimals; small ones keep so many significant digits.

    >>> percent(0.417), percent(0.0042), percent(0)
    ('41.7 %', '0.42 %', '0 %')
    >>> percent(0.208, decimals=0), percent(0.0031, decimals=0), percent(6.657, decimals=0), percent(1e-6)
    ('21 %', '0.31 %', '666 %', 'under 0.001 %')
    """
    value = 100.0 * share
    if 0.0 < value < 1e-3:
        return "under 0.001 %"
    if abs(value) < 10.0 ** (significant - 1 - decimals):
        return f"{value:.{significant}g} %"
    return f"{value:,.{decimals}f} %"


def share_beside(share: float, bound: float) -> str:
    """A share with as many digits as it takes to show on which side of a bound it lies: 98.996 % is not 99 %.

    >>> share_beside(0.9893, 0.99), share_beside(0.98996, 0.99), share_beside(0.993, 0.99), share_beside(1.0, 0.9)
    ('98.9 %', '98.996 %', '99 %', '100 %')
    >>> share_beside(0.99, 0.9893), share_beside(0.895, 0.9), share_beside(0.0648, 0.9)
    ('99 %', '89.5 %', '6 %')
    """
    for decimals in range(13):
        shown = round(100.0 * share, decimals)
        if (share < bound) == (shown < 100.0 * bound - 1e-9):
            break
    return f"{shown:.{decimals}f} %"


def chance(probability: float) -> str:
    """A probability from a finite number of draws, which never shows as certain.

    >>> chance(0.734), chance(1.0), chance(0.0)
    ('73.4 %', 'over 99.9 %', 'under 0.1 %')
    """
    if probability > 0.9995:
        return "over 99.9 %"
    return "under 0.1 %" if probability < 0.0005 else percent(probability)


def flops(flops_per_s: float, decimals: int | None = None) -> str:
    """FLOP/s with four digits, enough to tell a peak from its neighbours, or with a number of decimals.

    >>> flops(1.3074e15), flops(51.5e9), flops(272e12, decimals=1)
    ('1.307 PFLOP/s', '51.50 GFLOP/s', '272.0 TFLOP/s')
    """
    value, prefixes = flops_per_s, ["", "k", "M", "G", "T", "P", "E", "Z"]
    while abs(value) >= 1000.0 and len(prefixes) > 1:
        value, prefixes = value / 1000.0, prefixes[1:]
    if decimals is None:
        decimals = 3 - int(math.log10(value)) if 1.0 <= value < 1000.0 else 3
    return f"{value:.{decimals}f} {prefixes[0]}FLOP/s"


def duration(time_s: float, micro: str = "u") -> str:
    """Three significant digits with the unit that fits; ``micro`` is the prefix of microseconds.

    >>> duration(0.00123), duration(5e-6), duration(5e-6, micro="µ"), duration(7200), duration(0.0)
    ('1.23 ms', '5.00 us', '5.00 µs', '2.00 h', '0 s')
    """
    if time_s == 0.0:
        return "0 s"
    for limit, factor, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, f"{micro}s"), (1.0, 1e3, "ms"), (600.0, 1.0, "s")):
        if abs(time_s) < limit:
            return _three_digits(time_s * factor) + f" {unit}"
    return _three_digits(time_s / 3600) + " h" if abs(time_s) >= 3600 else _three_digits(time_s / 60) + " min"


def signed_duration(time_s: float) -> str:
    """A difference of times, with its sign.

    >>> signed_duration(0.00123), signed_duration(-5e-6)
    ('+1.23 ms', '−5.00 us')
    """
    return ("−" if time_s < 0 else "+") + duration(abs(time_s))


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 100 else f"{value:.0f}"
