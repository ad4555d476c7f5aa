"""Numbers as people read them: three digits, a unit, one spelling everywhere in the report."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from tspsim.units import format_time

GIB = 2.0**30
_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def digits(value: float) -> str:
    """Three significant digits without an exponent below a million.

    >>> digits(1.2345), digits(45.678), digits(1234.5), digits(0.004567)
    ('1.23', '45.7', '1,234', '0.00457')
    """
    size = abs(value)
    if size >= 100 or value == 0:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3g}"


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


def gib(size_bytes: float) -> str:
    """Bytes in GiB.

    >>> gib(38.8 * 2**30)
    '38.8 GiB'
    """
    return f"{size_bytes / GIB:.1f} GiB"


def percent(share: float) -> str:
    """A share of one; small ones keep a digit.

    >>> percent(0.417), percent(0.0042), percent(0)
    ('41.7 %', '0.42 %', '0 %')
    """
    if share == 0:
        return "0 %"
    return f"{100 * share:.1f} %" if abs(share) >= 0.01 else f"{100 * share:.2g} %"


def seconds(time_s: float) -> str:
    """A time with the unit that fits.

    >>> seconds(0.00123), seconds(5e-6)
    ('1.23 ms', '5.00 µs')
    """
    return format_time(time_s).replace(" us", " µs")


def words(name: str) -> str:
    """An identifier as words: ``send_recv`` becomes ``send recv``."""
    return name.replace("_", " ")


def plain(value: Any) -> str:
    """Any value of a settings or cost table on one line."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, float):
        return compact(value) if abs(value) >= 1e6 else f"{value:,.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {plain(item)}" for key, item in value.items()) or "–"
    if isinstance(value, list | tuple):
        return ", ".join(plain(item) for item in value) or "–"
    return str(value)


def label(text: object, limit: int = 40) -> str:
    """Text for a plotly figure, which reads a small HTML: escaped, one line, at most ``limit`` characters.

    >>> label("<b>bold</b>")
    '&lt;b&gt;bold&lt;/b&gt;'
    """
    line = " ".join(str(text).split())
    line = line if len(line) <= limit else line[: limit - 1] + "…"
    return html.escape(line, quote=False)
