"""Small pictures for these pages as SVG text: panels below each other on one axis, lines, steps, bars and marks.

No dependencies; the same numbers give the same bytes. Colours follow the reader's light or dark theme.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

WIDTH, LEFT, RIGHT, TOP, GAP = 760, 64, 14, 30, 26
COLOURS = {
    "blue": "#0072b2", "orange": "#e69f00", "green": "#009e73", "red": "#d55e00", "pink": "#cc79a7", "grey": "#8a94a6",
}  # fmt: skip
STYLE = """<style>
text{font:12px system-ui,"DejaVu Sans",sans-serif;fill:#17212b}.soft{fill:#566472}.grid{stroke:#d9dfe5}
.axis{stroke:#8a94a6}.ground{fill:#fff}
@media(prefers-color-scheme:dark){text{fill:#e8edf2}.soft{fill:#a3b0bd}.grid{stroke:#33404c}.ground{fill:#12171d}}
</style>"""

Points = Sequence[tuple[float, float]]


@dataclass
class Panel:
    """One plot: y from zero (or from the least power of ten) to what its marks need.

    Attributes
    ----------
    title
        Of the y axis, above it.
    names
        Of rows of bars instead of a scale.
    """

    title: str
    height: int = 120
    names: Sequence[str] = ()
    log: bool = False
    top: float = 0.0
    marks: list[tuple[str, str, Points]] = field(default_factory=list)
    spans: list[tuple[int, float, float, str]] = field(default_factory=list)
    notes: list[tuple[float, float, str]] = field(default_factory=list)

    def line(self, points: Points, colour: str, *, steps: bool = False, dashed: bool = False) -> None:
        """A line through points, or steps that hold until the next."""
        if steps:
            later = [*points[1:], points[-1]]
            points = [each for a, b in zip(points, later, strict=True) for each in (a, (b[0], a[1]))]
        self.marks.append(("dashed" if dashed else "line", colour, points))

    def dots(self, points: Points, colour: str) -> None:
        self.marks.append(("dots", colour, points))

    def bar(self, row: int, begin: float, end: float, colour: str) -> None:
        """A bar in a row of :attr:`names`."""
        self.spans.append((row, begin, end, colour))

    def note(self, x: float, y: float, text: str) -> None:
        """A text at a point."""
        self.notes.append((x, y, text))


@dataclass
class Picture:
    """Panels over one another on the same x axis.

    Attributes
    ----------
    legend
        ``(colour, words)``.
    ticks
        Where the x axis has its marks; even ones when empty.
    """

    title: str
    x_title: str
    x: tuple[float, float]
    panels: list[Panel]
    legend: Sequence[tuple[str, str]] = ()
    log_x: bool = False
    ticks: Sequence[float] = ()

    def across(self, value: float) -> float:
        low, high = self.x
        if self.log_x:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - low) / (high - low)

    def svg(self) -> str:
        """The whole picture."""
        body: list[str] = []
        top = TOP + 8.0
        for panel in self.panels:
            top += 14
            body += self._panel(panel, top)
            top += panel.height + GAP
        bottom = top - GAP
        body += [
            text(self.across(tick), bottom + 16, number(tick), anchor="middle", soft=True)
            for tick in self.ticks or even(*self.x)
        ]
        body.append(text(LEFT + (WIDTH - LEFT - RIGHT) / 2, bottom + 34, self.x_title, anchor="middle"))
        height = bottom + 42
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">'
        named = f"<title>{html.escape(self.title)}</title>"
        ground = f'<rect class="ground" width="{WIDTH}" height="{height:.0f}"/>'
        return "\n".join([head, named, STYLE, ground, *self._legend(), *body, "</svg>"]) + "\n"

    def _legend(self) -> list[str]:
        drawn, left = [], float(LEFT)
        for colour, words in self.legend:
            drawn.append(f'<rect x="{left:.0f}" y="12" width="16" height="10" fill="{COLOURS[colour]}"/>')
            drawn.append(text(left + 21, 21, words))
            left += 40 + 6.6 * len(words)
        return drawn

    def _panel(self, panel: Panel, top: float) -> list[str]:
        drawn = [text(LEFT, top - 4, panel.title, soft=True)]
        right, bottom = WIDTH - RIGHT, top + panel.height
        if panel.names:
            each = panel.height / len(panel.names)
            for row, name in enumerate(panel.names):
                drawn.append(text(LEFT - 6, top + each * (row + 0.5) + 4, name, anchor="end", soft=True))
            for row, begin, end, colour in panel.spans:
                x0, x1 = self.across(max(begin, self.x[0])), self.across(min(end, self.x[1]))
                if x1 > x0:
                    y = top + each * row + 0.1 * each
                    size = f'width="{x1 - x0:.2f}" height="{0.8 * each:.1f}"'
                    drawn.append(f'<rect x="{x0:.2f}" y="{y:.1f}" {size} fill="{COLOURS[colour]}"/>')
        else:
            low, high = self._scale(panel)

            def up(value: float) -> float:
                share = math.log(max(value, low) / low) / math.log(high / low) if panel.log else value / high
                return bottom - panel.height * share

            for tick in decades(low, high) if panel.log else even(0.0, high, 4):
                drawn.append(f'<path class="grid" d="M{LEFT} {up(tick):.1f}H{right}"/>')
                drawn.append(text(LEFT - 6, up(tick) + 4, number(tick), anchor="end", soft=True))
            for kind, colour, points in panel.marks:
                drawn.append(self._mark(kind, COLOURS[colour], points, up))
            drawn += [text(self.across(x), up(y) - 5, words) for x, y, words in panel.notes]
        drawn.append(f'<path class="axis" fill="none" d="M{LEFT} {top:.1f}V{bottom:.1f}H{right}"/>')
        return drawn

    def _scale(self, panel: Panel) -> tuple[float, float]:
        values = [y for _, _, points in panel.marks for x, y in points if self.x[0] <= x <= self.x[1]]
        if panel.log:
            positive = [y for y in values if y > 0]
            return 10 ** math.floor(math.log10(min(positive))), 10 ** math.ceil(math.log10(max(positive) * 1.001))
        return 0.0, panel.top or 1.08 * max([*values, 1e-30])

    def _mark(self, kind: str, colour: str, points: Points, up: object) -> str:
        assert callable(up)
        low, high = self.x
        shown = [(min(max(x, low), high), y) for x, y in points]
        placed = [(self.across(x), up(y)) for x, y in shown]
        if kind == "dots":
            return "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in placed)
        dash = ' stroke-dasharray="5 4"' if kind == "dashed" else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in thin(placed))
        return f'<polyline fill="none" stroke="{colour}" stroke-width="2"{dash} points="{path}"/>'


def thin(points: Points) -> Points:
    """Without points that are drawn where the one before is, to a tenth."""
    kept: list[tuple[float, float]] = []
    for x, y in points:
        here = (round(x, 1), round(y, 1))
        if not kept or here != kept[-1]:
            kept.append(here)
    return kept


def text(x: float, y: float, words: str, *, anchor: str = "start", soft: bool = False) -> str:
    tone = ' class="soft"' if soft else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{tone}>{html.escape(words)}</text>'


def even(low: float, high: float, count: int = 6) -> list[float]:
    """About ``count`` round numbers from ``low`` to ``high``."""
    each = (high - low) / count
    power = 10.0 ** math.floor(math.log10(each))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= each * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [place * step for place in range(first, math.floor(high / step + 1e-9) + 1)]


def decades(low: float, high: float) -> list[float]:
    return [10.0**power for power in range(round(math.log10(low)), round(math.log10(high)) + 1)]


def number(value: float) -> str:
    """A tick's text."""
    for limit, unit in ((1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):g} {unit}"
    return f"{value:,.6g}"
