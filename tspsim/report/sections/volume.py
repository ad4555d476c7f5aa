"""What a rank receives in one layer."""

from __future__ import annotations

from typing import Any

from tspsim.report.figures import bars, bars_layout, totals
from tspsim.report.numbers import label, words
from tspsim.report.view import View
from tspsim.units import digits

from .section import Section

TEMPLATE = """
{{ figure("volume", "Payload a rank receives and did not hold, in one layer's forward, mean over ranks; read
from the simulated transfers.") }}
"""

_COLOURS = {"attention": "#56b4e9", "mlp": "#e69f00"}
MIB = 2.0**20


def build(view: View) -> dict[str, Any] | None:
    """Stacked bars of attention and MLP volume, a plan each."""
    if not view.ran:
        return None
    names = [plan.name for plan in view.ran]
    keys = [
        key
        for key in dict.fromkeys(key for plan in view.ran for key in plan.communication_bytes_per_layer)
        if key != "total"
    ]
    if not keys:
        return None
    data: list[dict[str, Any]] = []
    for key in keys:
        values = [plan.communication_bytes_per_layer.get(key, 0.0) / MIB for plan in view.ran]
        title = "MLP" if key == "mlp" else words(key)
        texts = [
            f"<b>{label(name)}</b><br>{label(title)}<br>{digits(value)} MiB a layer"
            for name, value in zip(names, values, strict=True)
        ]
        data.append(bars(label(title), values, _COLOURS.get(key, "#8a94a6"), texts))
    sums = [sum(plan.communication_bytes_per_layer.get(key, 0.0) for key in keys) / MIB for plan in view.ran]
    data.append(totals(sums, [f"{total:,.0f} MiB" if total >= 10 else f"{digits(total)} MiB" for total in sums]))
    layout = bars_layout(names, "received a layer and rank (MiB)", places=[view.place(plan) for plan in view.ran])
    return {"figures": {"volume": {"data": data, "layout": layout}}}


SECTION = Section("volume", "Communication volume", build, TEMPLATE, short="Volume")
