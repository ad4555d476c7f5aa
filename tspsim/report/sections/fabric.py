"""The node and its fabric as a graph, each link with its use."""

from __future__ import annotations

import math
from typing import Any

from tspsim.base.units import compact, percent
from tspsim.report.numbers import label
from tspsim.report.view import View
from tspsim.step.result import LinkUse, PlanResult

from .section import PageSection

TEMPLATE = """
{{ figure("fabric", "The node of the first simulated GPU and its rails: colour and width of a link are the share
of its capacity used over the step (the busier direction); dead links are dotted. Hover over a link's half for one
direction, over a mark for its name.",
"Plan") }}
{% if rows %}<div class="scroll"><table>
<thead><tr><th scope="col">Plan</th><th scope="col">Links</th><th scope="col">Number</th>
<th scope="col">Bandwidth</th><th scope="col">Carried a step</th><th scope="col">Mean use</th>
<th scope="col">Busiest</th></tr></thead>
<tbody data-plans>{% for row in rows %}{% for use in row.uses %}
<tr data-place="{{ row.place }}">{% if loop.first %}
<th scope="rowgroup" rowspan="{{ row.uses|length }}">{{ row.plan }}{% if row.unused %}
<span class="small">unused: {{ row.unused }}</span>{% endif %}</th>{% endif %}
{% for cell in use %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}{% endfor %}</tbody>
</table></div>{% endif %}
"""

BINS = 8
#: Visible on white and on black, and outside the colour scale of use.
DEAD = "#7b4fd0"
Point = tuple[float, float]
Link = tuple[str, str, float]


def build(view: View) -> dict[str, Any] | None:
    """One graph per plan, all on one colour scale, and the use of links by kind."""
    drawn = [plan for plan in view.ran if plan.link_shares]
    rows = [_row(plan) | {"place": view.place(plan)} for plan in view.ran if plan.links]
    if not drawn:
        return {"rows": rows, "figures": {}} if rows else None
    busiest = max(share for plan in drawn for _, _, share in plan.link_shares)
    scale = next((mark for mark in (0.05, 0.1, 0.25, 0.5) if busiest <= mark), 1.0)
    wide = view.result.cluster.get("gpus_per_node")
    choices = [
        {"label": plan.name}
        | _graph(first_node(plan.link_shares, wide if isinstance(wide, int) else 0), scale, plan.dead_links)
        for plan in drawn
    ]
    return {"rows": rows, "figures": {"fabric": {"choices": choices}}}


def _row(plan: PlanResult) -> dict[str, Any]:
    """A plan's links with traffic, and the names of those without."""
    uses = [_use(use) for use in plan.links if use.carried_bytes]
    unused = [use.kind for use in plan.links if not use.carried_bytes]
    return {"plan": plan.name, "uses": uses or [["none", *[""] * 5]], "unused": ", ".join(unused)}


def _use(use: LinkUse) -> list[str]:
    """One kind of link as the cells of a row."""
    return [
        use.kind,
        f"{use.links:,}",
        compact(use.bandwidth_bytes_per_s, "B/s"),
        compact(use.carried_bytes, "B"),
        percent(use.mean),
        percent(use.peak),
    ]


def first_node(links: tuple[Link, ...], gpus_per_node: int) -> tuple[Link, ...]:
    """The links of the first GPU's node and of the fabric attached to it.

    A vertex of the fabric is included if it can be reached from the node without passing another node's GPU or
    NIC: a NIC joins one GPU, so it ends the walk unless that GPU is the node's own.
    """
    gpus = {int(vertex) for source, target, _ in links for vertex in (source, target) if vertex.isdigit()}
    if not gpus or gpus_per_node <= 0:
        return links
    node = min(gpus) // gpus_per_node
    near: dict[str, list[str]] = {}
    for source, target, _ in links:
        near.setdefault(source, []).append(target)
        near.setdefault(target, []).append(source)

    def foreign(vertex: str) -> bool:
        owners = [int(n) for n in (vertex, *near[vertex]) if n.isdigit()]
        return bool(owners) and all(owner // gpus_per_node != node for owner in owners)

    kept = {str(gpu) for gpu in gpus if gpu // gpus_per_node == node}
    edge = sorted(kept, key=int)
    while edge:
        edge = [n for vertex in edge for n in near[vertex] if n not in kept and not foreign(n)]
        kept.update(edge)
    return tuple(link for link in links if link[0] in kept and link[1] in kept)


def positions(edges: list[tuple[str, str]]) -> dict[str, Point]:
    """A place for every vertex: GPUs on a circle, switches between them inside, NICs and the fabric outside.

    A vertex that joins three or more GPUs and nothing else is inside; any other is on the ring of its
    distance from the GPUs, in the mean direction of its placed neighbours.
    """
    near: dict[str, set[str]] = {}
    for source, target in edges:
        near.setdefault(source, set()).add(target)
        near.setdefault(target, set()).add(source)
    gpus = sorted((vertex for vertex in near if vertex.isdigit()), key=int)
    place = {gpu: _polar(1.0, index / max(len(gpus), 1)) for index, gpu in enumerate(gpus)}
    rest = sorted((vertex for vertex in near if vertex not in place), key=_natural)
    inside = [vertex for vertex in rest if len(near[vertex]) >= 3 and all(n.isdigit() for n in near[vertex])]
    for index, vertex in enumerate(inside):
        place[vertex] = (0.0, 0.0) if len(inside) == 1 else _polar(0.4, index / len(inside))
    depth = 0
    while len(place) < len(near):
        depth += 1
        ring = [vertex for vertex in rest if vertex not in place and any(n in place for n in near[vertex])]
        # Vertices without a placed neighbour (another component) share the next ring.
        ring = ring or [vertex for vertex in rest if vertex not in place]
        place |= _ring(ring, near, place, 1.0 + 0.42 * depth)
    return place


def _ring(vertices: list[str], near: dict[str, set[str]], place: dict[str, Point], radius: float) -> dict[str, Point]:
    """Places on one ring, moved apart where several vertices have the same direction."""
    wanted: dict[float, list[str]] = {}
    for index, vertex in enumerate(vertices):
        held = [place[n] for n in sorted(near[vertex]) if n in place]
        x, y = sum(p[0] for p in held), sum(p[1] for p in held)
        balanced = math.hypot(x, y) < 1e-6
        turn = index / len(vertices) if balanced else (math.atan2(x, y) / math.tau) % 1.0
        wanted.setdefault(round(turn, 4), []).append(vertex)
    room = 0.8 / max(len(vertices), 8)
    return {
        vertex: _polar(radius, turn + room * (index - (len(group) - 1) / 2))
        for turn, group in wanted.items()
        for index, vertex in enumerate(group)
    }


def _polar(radius: float, turn: float) -> Point:
    """A point at a share of a turn, clockwise from the top."""
    return (radius * math.sin(math.tau * turn), radius * math.cos(math.tau * turn))


def _natural(name: str) -> tuple[str, int, str]:
    """``nic2`` before ``nic10``."""
    stem = name.rstrip("0123456789")
    tail = name[len(stem) :]
    return (stem, int(tail) if tail else -1, name)


def _tone(share: float) -> str:
    """Grey over amber to red; visible on white and on black."""
    grey, amber, red = (150, 162, 175), (230, 159, 0), (190, 30, 20)
    first, second, mix = (grey, amber, 2 * share) if share < 0.5 else (amber, red, 2 * share - 1)
    channels = [round(a + (b - a) * mix) for a, b in zip(first, second, strict=True)]
    return f"rgb({channels[0]},{channels[1]},{channels[2]})"


def _graph(links: tuple[Link, ...], scale: float, dead: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Lines in bins of equal use, half-way markers with the hover texts, and the vertices."""
    shares = {(source, target): share for source, target, share in links}
    place = positions(list(shares))
    lost = {ends for ends in dead if ends in shares}
    bins: list[list[tuple[str, str]]] = [[] for _ in range(BINS)]
    for source, target in shares:
        if {(source, target), (target, source)} <= lost:
            continue
        if source < target or (target, source) not in shares:
            use = max(shares[source, target], shares.get((target, source), 0.0))
            bins[min(BINS - 1, int(use / scale * BINS))].append((source, target))
    data = [
        _lines(members, place, {"color": _tone(index / (BINS - 1)), "width": 1 + 5 * index / (BINS - 1)})
        for index, members in enumerate(bins)
        if members
    ]
    if lost:
        data.append(_lines(sorted(lost), place, {"color": DEAD, "width": 3, "dash": "dot"}))
    return {"data": [*data, _halves(shares, lost, place, scale), _vertices(place)], "layout": _layout(place)}


def _lines(ends: list[tuple[str, str]], place: dict[str, Point], line: dict[str, Any]) -> dict[str, Any]:
    """Links as lines of one style."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [x for a, b in ends for x in (round(place[a][0], 4), round(place[b][0], 4), None)],
        "y": [y for a, b in ends for y in (round(place[a][1], 4), round(place[b][1], 4), None)],
        "line": line,
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _halves(
    shares: dict[tuple[str, str], float], lost: set[tuple[str, str]], place: dict[str, Point], scale: float
) -> dict[str, Any]:
    """An invisible marker in each link's first half; together they draw the colour bar."""
    points = [(place[a], place[b]) for a, b in shares]
    ticks = [0.0, scale / 2, scale]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [round(a[0] + 0.36 * (b[0] - a[0]), 4) for a, b in points],
        "y": [round(a[1] + 0.36 * (b[1] - a[1]), 4) for a, b in points],
        "hovertext": [
            f"{label(a)} → {label(b)}<br>" + ("dead" if (a, b) in lost else f"{percent(share)} of capacity")
            for (a, b), share in shares.items()
        ],
        "hoverinfo": "text",
        "showlegend": False,
        "marker": {
            "size": 14,
            "opacity": 0,
            "color": [min(share, scale) for share in shares.values()],
            "cmin": 0,
            "cmax": scale,
            "colorscale": [[step / 10, _tone(step / 10)] for step in range(11)],
            "colorbar": {
                "title": {"text": "use of a link over the step", "side": "right"},
                "tickvals": ticks,
                "ticktext": [f"{100 * tick:g} %" for tick in ticks],
                "thickness": 12,
                "len": 0.7,
                "outlinewidth": 0,
            },
        },
    }


def _vertices(place: dict[str, Point]) -> dict[str, Any]:
    """GPUs as discs with their number, a central switch as a square with its name, others with the name beside them."""
    names = list(place)
    gpu = [name.isdigit() for name in names]
    middle = [math.hypot(*place[name]) < 1e-6 for name in names]
    crowded = len(names) > 40
    sizes = (16, 30, 8) if crowded else (30, 46, 12)
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": [round(place[name][0], 4) for name in names],
        "y": [round(place[name][1], 4) for name in names],
        "text": [label(short, 12) for short in _short_names(names)],
        "textposition": [
            "middle center" if is_gpu or central else _beside(*place[name])
            for name, is_gpu, central in zip(names, gpu, middle, strict=True)
        ],
        "textfont": {
            "size": 9 if crowded else 12,
            "color": ["#ffffff" if is_gpu or central else "THEME" for is_gpu, central in zip(gpu, middle, strict=True)],
        },
        "hovertext": [f"GPU {name}" if name.isdigit() else label(name) for name in names],
        "hoverinfo": "text",
        "showlegend": False,
        "marker": {
            "opacity": 1,
            "symbol": ["circle" if is_gpu else "square" for is_gpu in gpu],
            "size": [
                sizes[0] if is_gpu else sizes[1] if central else sizes[2]
                for is_gpu, central in zip(gpu, middle, strict=True)
            ],
            "color": [
                "#1f4e79" if is_gpu else "#5b6676" if central else "#8a94a6"
                for is_gpu, central in zip(gpu, middle, strict=True)
            ],
            "line": {"width": 1, "color": "#ffffff"},
        },
    }


def _short_names(names: list[str]) -> list[str]:
    """Names without the node, where all nodes in names are the same: ``nic3`` for ``node0/nic3``."""
    owners = {name.partition("/")[0] for name in names if name.startswith("node") and "/" in name}
    shared = f"{owners.pop()}/" if len(owners) == 1 else ""
    return [name.removeprefix(shared) for name in names]


def _beside(x: float, y: float) -> str:
    """Position of a label beside the line to the next ring: below horizontal lines, right of others."""
    return "bottom center" if abs(x) > 1.01 * abs(y) else "middle right"


def _layout(place: dict[str, Point]) -> dict[str, Any]:
    reach = max(max(abs(x), abs(y)) for x, y in place.values()) + 0.22
    axis = {"visible": False, "range": [-reach, reach], "fixedrange": True}
    return {
        "height": 560,
        "xaxis": axis,
        "yaxis": axis | {"scaleanchor": "x"},
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "hovermode": "closest",
    }


SECTION = PageSection("fabric", "Node and fabric", build, TEMPLATE, short="Fabric")
