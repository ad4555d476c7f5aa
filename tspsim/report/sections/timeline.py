"""The activity of every rank over time: the Gantt chart, and for runs of every rank their shares."""

from __future__ import annotations

from typing import Any

import numpy as np

from tspsim.base.units import percent
from tspsim.report.figures import LEGEND, colours, in_order
from tspsim.report.gantt import MOST_COLUMNS, MOST_RANKS, pack_all, shares
from tspsim.report.view import View
from tspsim.step.result import PlanResult

from .section import PageSection

TEMPLATE = """
<div class="gantt" id="gantt">
  <div class="controls" role="group" aria-label="Timeline">
    <label>Plan <select id="gantt-plan"></select></label>
    <label>Ranks <select id="gantt-ranks"></select></label>
    <span class="buttons">
      <button type="button" data-view="step">Whole step</button>
      <button type="button" data-view="two">Two layers</button>
      <button type="button" data-view="layer">One layer</button>
      <button type="button" data-view="previous" aria-label="Earlier">◀</button>
      <button type="button" data-view="next" aria-label="Later">▶</button>
      <button type="button" data-view="in" aria-label="Zoom in">+</button>
      <button type="button" data-view="out" aria-label="Zoom out">−</button>
    </span>
  </div>
  <figure><div class="plot" id="gantt-plot" tabindex="0" role="img"
    aria-label="Timeline of ranks and streams; arrow keys move, plus and minus zoom"></div>
  <figcaption>Rows are ranks and their streams. Drag to zoom, double-click for the whole step; with the
  keyboard: arrows,
  + and −. A gap before a collective is a wait for other ranks. <span id="gantt-note"></span></figcaption>
  </figure>
</div>
{% if shares %}{{ figure("shares", "Share of the step that every simulated rank computed, only communicated,
or did neither.", "Plan") }}{% endif %}
"""


def build(view: View) -> dict[str, Any] | None:
    """The packed timelines for the page's script, and a strip of all ranks where the chart cannot show all."""
    timelines = pack_all(view)
    if not timelines:
        return None
    kinds = in_order(kind for packed in timelines for kind in _kinds(packed))
    drawn = [_strip(plan) for plan in view.ran if plan.timeline is not None and len(plan.timeline)]
    strips = [strip for strip in drawn if strip is not None]
    return {
        "payload": {"timelines": timelines, "kinds": kinds, "colours": colours(kinds)},
        "figures": {"shares": {"choices": strips}} if strips else {},
        "shares": bool(strips),
    }


def _kinds(packed: dict[str, Any]) -> list[str]:
    texts = packed["labels"]["texts"]
    return [texts[index] for index in packed["labels"]["kind"]]


def _strip(plan: PlanResult) -> dict[str, Any] | None:
    assert plan.timeline is not None
    ranks, parts = shares(plan.timeline, plan.step_time_s)
    if len(ranks) <= MOST_RANKS:
        return None
    pick = np.unique(np.linspace(0, len(ranks) - 1, min(len(ranks), MOST_COLUMNS)).round().astype(int))
    tones = {"compute": "#0072b2", "communication": "#e69f00", "idle": "#c3c9d1"}
    titles = {"compute": "computing", "communication": "exposed communication", "idle": "idle, or waiting for the host"}
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "stackgroup": "all",
            "name": titles[part],
            "x": ranks[pick].tolist(),
            "y": [round(100 * float(value), 3) for value in values[pick]],
            "line": {"width": 0, "shape": "hvh", "color": tones[part]},
            "fillcolor": tones[part],
            "hovertemplate": "%{y:.2f} %",
        }
        for part, values in parts.items()
    ]
    compute = parts["compute"]
    spread = f"{len(ranks):,} ranks; computing between {percent(compute.min())} and {percent(compute.max())}"
    layout = {
        "height": 300,
        "hovermode": "x unified",
        "xaxis": {
            "title": {"text": f"rank ({spread})", "standoff": 8},
            "fixedrange": True,
            "showgrid": False,
            "automargin": True,
        },
        "yaxis": {
            "title": {"text": "share of the step (%)"},
            "range": [0, 100],
            "fixedrange": True,
            "automargin": True,
        },
        "legend": {**LEGEND, "traceorder": "normal"},
    }
    return {"label": plan.name, "data": data, "layout": layout}


SECTION = PageSection("timeline", "Timeline", build, TEMPLATE)
