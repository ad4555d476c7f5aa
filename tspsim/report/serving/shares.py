"""The time of a step by part, at the least and the most load."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tspsim.base.units import percent
from tspsim.report.figures import bars, bars_layout, colours, in_order, totals
from tspsim.report.numbers import label, seconds, words

from .folded import folded
from .view import ServingView, StepShare

TEMPLATE = """
{{ figure("step-shares", "Mean over ranks, for one step of each kind; the length of a bar is the time of the step.",
"Plan") }}
""" + folded("Step")

#: Colours of kernels and of the host; collectives have their usual colours.
PARTS = {
    "products": "#0072b2", "experts": "#332288", "attention": "#56b4e9", "other kernels": "#8a94a6", "host": "#b9a7c9",
}  # fmt: skip


def ordered(families: Iterable[str]) -> list[str]:
    """Kernels, then collectives, then waits."""
    names = list(dict.fromkeys(families))
    kernels = [name for name in PARTS if name in names and name != "host"]
    rest = in_order(name for name in names if name not in PARTS and name != "idle")
    return [*kernels, *rest, *(name for name in ("host", "idle") if name in names)]


def build(view: ServingView) -> dict[str, Any] | None:
    """One figure per plan, and all shares as a table."""
    plans_with_shares = [served for served in view.ranked if any(share.seconds > 0 for share in served.shares)]
    if not plans_with_shares:
        return None
    families = ordered(family for served in plans_with_shares for share in served.shares for family in share.parts)
    families = [
        f
        for f in families
        if any(share.parts.get(f, 0.0) > 0 for served in plans_with_shares for share in served.shares)
    ]
    choices = [{"label": served.name, **drawn(served.shares, families)} for served in plans_with_shares]
    rows = [
        (f"{served.name}: {share.label}", [seconds(share.seconds), *(part(share, family) for family in families)])
        for served in plans_with_shares
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
    """One bar per step."""
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
