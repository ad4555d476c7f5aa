"""Values of any kind as the report prints them; quantities are printed by :mod:`tspsim.base.units`."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from tspsim.base.units import compact, duration


def seconds(time_s: float) -> str:
    """A time with the unit that fits.

    >>> seconds(0.00123), seconds(5e-6)
    ('1.23 ms', '5.00 µs')
    """
    return duration(time_s, micro="µ")


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
        return ", ".join(f"{key}: {plain(item)}" for key, item in value.items() if item is not None) or "–"
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
