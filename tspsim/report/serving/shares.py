"""Where the seconds of a step go when few are served, and when many are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tspsim.base.units import percent
from tspsim.report.figures import bars, bars_layout, colours, in_order, totals
from tspsim.report.numbers import label, seconds, words

from .folded import folded
from .view import ServingView, StepShare

TEMPLATE = """
{{ figure("step-shares", "Mean over ranks, of one step of each kind; a bar is as long as the step.",
"Plan") }}
""" + folded("Step")

#: What kernels and the host are for; collectives have the colours that they have everywhere.
PARTS = {
    "products": "#0072b2", "experts": "#332288", "attention": "#56b4e9", "other kernels": "#8a94a6", "host": "#b9a7c9",
}  # fmt: skip


def ordered(families: Iterable[str]) -> list[str]:
    """Kernels, then collectives, then what waits."""
    found = list(dict.fromkeys(families))
    kernels = [name for name in PARTS if name in found and name != "host"]
    rest = in_order(name for name in found if name not in PARTS and name != "idle")
    return [*kernels, *rest, *(name for name in ("host", "idle") if name in found)]


def build(view: ServingView) -> dict[str, Any] | None:
    """A figure a plan, and all shares as a table."""
    told = [served for served in view.ranked if any(share.seconds > 0 for share in served.shares)]
    if not told:
        return None
    families = ordered(family for served in told for share in served.shares for family in share.parts)
    families = [f for f in families if any(share.parts.get(f, 0.0) > 0 for served in told for share in served.shares)]
    choices = [{"label": served.name, **drawn(served.shares, families)} for served in told]
    rows = [
        (f"{served.name}: {share.label}", [seconds(share.seconds), *(part(share, family) for family in families)])
        for served in told
        for share in served.shares
    ]
    return {
        "figures": {"step-shares": {"choices": choices} if len(choices) > 1 else choices[0]},
        "columns": ["Time", *(words(family) for family in families)],
        "rows": rows,
    }


def part(share: StepShare, family: str) -> str:
    value = share.parts.get(family, 0.0)
    return f"{seconds(value)}, {percent(value / share.seconds)}" if value > 0 else "–"


def drawn(shares: tuple[StepShare, ...], families: list[str]) -> dict[str, Any]:
    """A bar a step."""
    names = [share.label for share in shares]
    tones = colours(families) | {name: tone for name, tone in PARTS.items() if name in families}
    data: list[dict[str, Any]] = [
        bars(
            words(family),
            [1e3 * share.parts.get(family, 0.0) for share in shares],
            tones[family],
            [f"<b>{label(share.label)}</b><br>{words(family)}<br>{part(share, family)}" for share in shares],
        )
        for family in families
    ]
    data.append(totals([1e3 * share.seconds for share in shares], [seconds(share.seconds) for share in shares]))
    return {"data": data, "layout": bars_layout(names, "time of a step (ms)", rows="step")}
