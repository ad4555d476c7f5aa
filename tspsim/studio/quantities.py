"""Numbers in SI as people write them: in the unit of a key's examples."""

from __future__ import annotations

import re
from typing import Any

#: Units of one dimension with their size, the largest first.
_FAMILIES = (
    {"days": 86_400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6},
    {"GiB": 2.0**30, "MiB": 2.0**20, "GB": 1e9, "MB": 1e6, "KiB": 2.0**10, "B": 1.0},
    {"GB/s": 1e9, "MB/s": 1e6, "B/s": 1.0, "Gb/s": 0.125e9},
    {"W": 1.0, "kW": 1e3, "MW": 1e6},
    {"USD": 1.0, "kUSD": 1e3},
)
#: Largest number before the next larger unit.
MOST = 10_000


def written(value: Any, example: str) -> Any:
    """A number as text for a key with this example; any other value as it is.

    >>> written(600.0, "5 us"), written(2147483648.0, "192 GB"), written(60.0, "30 days"), written(4, "128Ki")
    ('10 min', '2 GiB', '1 min', 4)
    >>> written(0.0, "5 us"), written(22804651.07, "30 days"), written(0.3, "")
    ('0 s', '263.943 days', 0.3)
    """
    unit = re.sub(r"^[0-9.eE+-]+ *", "", example)
    if isinstance(value, bool) or not isinstance(value, int | float) or not unit or unit == "Ki":
        return value
    family = next((units for units in _FAMILIES if unit in units), {unit: 1.0})
    for name, size in family.items():
        if 1 <= value / size < MOST and (value / size) % 1 == 0:
            return f"{value / size:g} {name}"
    smallest = next((name for name, size in family.items() if size == 1.0), unit)
    fitting = next((name for name, size in family.items() if value / size >= 1.0), smallest)
    return f"{value / family[fitting]:.6g} {fitting}"
