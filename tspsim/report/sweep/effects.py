"""The effect of every axis of a sweep on a measure, in numbers and in sentences.

An axis' effect is measured between rows that differ by it alone. With measure m(v, o) at value v, others at o,

    ends  = geometric mean over o of m(last, o)/m(first, o),      reach = geometric mean over o of max_v m / min_v m,

each over those o at which at least two values ran; ``ends`` is over the outermost values that ran there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from tspsim.base.errors import together
from tspsim.base.units import compact, percent
from tspsim.step.cells import Cell

from .view import PLAN, Measure, SweepAxis, SweepRow, SweepView

#: Two values count as equal where they differ by less than this ratio.
SAME = 1.005


@dataclass(frozen=True)
class Effect:
    """The effect of one axis.

    ``ends`` is the measure at the last value over that at the first. ``reach`` is the largest over the smallest.
    ``monotone`` says whether the measure only rises, or only falls, wherever the other axes stand. ``best`` is the
    value that leads most often, ``leads`` times of ``places``; ``level`` are all values that lead as often.
    """

    axis: SweepAxis
    ends: float
    reach: float
    monotone: bool
    best: Cell
    leads: int
    places: int
    level: tuple[Cell, ...] = ()

    @property
    def often(self) -> str:
        """How often ``best`` leads, in words; empty where it leads everywhere."""
        if self.leads == self.places:
            return ""
        if len(self.level) > 1:  # no value leads alone
            return f" as often ({self.leads:,} of {self.places:,} times each)"
        return f" most often ({self.leads:,} of {self.places:,} times)"


def effects(view: SweepView, measure: Measure) -> list[Effect]:
    """The effects of all axes and of the plans, the largest first."""
    axes = [*view.axes, *([view.plans] if len(view.plans.values) > 1 else [])]
    found_effects = [effect for axis in axes if (effect := effect_of(view, axis, measure)) is not None]
    return sorted(found_effects, key=lambda effect: -effect.reach)


def effect_of(view: SweepView, axis: SweepAxis, measure: Measure) -> Effect | None:
    """The effect of one axis; None where no two of its values ran with the same other coordinates."""
    order = {value: place for place, value in enumerate(axis.values)}
    hidden = {together.path for together in view.together} | {axis.path}
    groups: dict[tuple[tuple[str, Cell], ...], list[tuple[int, float]]] = {}
    for row in view.ran:
        if axis.of_plan not in ("", row.plan):
            continue
        number = row.numbers.get(measure.column)
        if number is not None and number > 0 and row.coordinates[axis.path] in order:
            key = tuple((name, value) for name, value in row.coordinates.items() if name not in hidden)
            groups.setdefault(key, []).append((order[row.coordinates[axis.path]], number))
    several = [sorted(group) for group in groups.values() if len(group) > 1]
    if not several:
        return None
    ends = _mean([group[-1][1] / group[0][1] for group in several])
    reach = _mean([max(number for _, number in group) / min(number for _, number in group) for group in several])
    steps = [[later / sooner for (_, sooner), (_, later) in pairwise(group)] for group in several]
    rising = ends >= 1.0
    monotone = all(step >= 1.0 / SAME if rising else step <= SAME for group in steps for step in group)
    leads = [(max if measure.more else min)(group, key=lambda entry: entry[1])[0] for group in several]
    best = max(set(leads), key=lambda place: (leads.count(place), -place))
    level = tuple(axis.values[place] for place in sorted(set(leads)) if leads.count(place) == leads.count(best))
    return Effect(axis, ends, reach, monotone, axis.values[best], leads.count(best), len(leads), level)


def _mean(ratios: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def headline(view: SweepView, measure: Measure) -> tuple[str, str]:
    """The largest effect on the measure as a clause; and the other effects in a few words.

    Examples: *tokens/s rises 3.1 times from 1 to 8 nodes*, *… peaks at 64Ki tokens of sequence*.
    """
    ordered = effects(view, measure)
    if not ordered:
        best = best_row(view, measure)
        assert best is not None
        return f"{_name(measure)}: {measure.words(best.numbers[measure.column])}", view.point_words(best)
    first = in_words(ordered[0], measure)
    if len(ordered) == 1:
        return first, ""
    others = [f"{_named(effect.axis)} {times(effect.reach)}" for effect in ordered[1:5] if effect.reach >= SAME]
    return first, "; ".join(
        [f"{_named(ordered[0].axis)} has the largest effect", *([together(others)] if others else [])]
    )


def in_words(effect: Effect, measure: Measure) -> str:
    """One effect as a clause."""
    axis, name = effect.axis, _name(measure)
    if effect.reach < SAME:
        return f"{name} does not depend on {_named(axis)}"
    if not axis.numeric:
        what = "highest" if measure.more else "lowest"
        values = [axis.words(value) for value in effect.level or (effect.best,)]
        value = together(values) if axis.path == PLAN else f"{axis.name} {together(values)}"
        return f"{name} is {what}{effect.often} with {value}, {times(effect.reach)} between best and worst"
    first, last = axis.values[0], axis.values[-1]
    if not effect.monotone and effect.best not in (first, last):
        what, worst = ("peaks", "least") if measure.more else ("is lowest", "most")
        ends = f"{axis.words(first)} and {axis.words(last)}"
        *others, leader = effect.level or (effect.best,)
        clause = f"{name} {what}{effect.often} at {together([*map(axis.words, others), axis.counted(leader)])}"
        return f"{clause}, {times(effect.reach)} its {worst} between {ends}"
    verb, ratio = ("rises", effect.ends) if effect.ends >= 1.0 else ("falls", 1.0 / effect.ends)
    clause = f"{name} {verb} {times(ratio)} from {axis.words(first)} to {axis.counted(last)}"
    return clause if effect.monotone else f"{clause}, but not at every step"


def sentences(view: SweepView, measure: Measure) -> Iterator[str]:
    """The other effects, the best point, the leading plans along each axis, and the count of refused rows."""
    for effect in effects(view, measure)[1:]:
        yield _sentence(in_words(effect, measure))
    best = best_row(view, measure)
    if best is not None:
        spread = ""
        if measure.column == "tokens_per_s" and "tokens_per_s_low" in best.numbers:
            low, high = best.numbers["tokens_per_s_low"], best.numbers["tokens_per_s_high"]
            spread = f" (likely {compact(low)} to {compact(high)})"
        number = measure.words(best.numbers[measure.column])
        yield f"Best: {number} {measure.name}{spread} at {view.point_words(best)}."
    yield from leaders(view, measure)
    if view.refused:
        rows = f"{len(view.refused):,} of {len(view.rows):,} rows are refused"
        yield f"{rows}. They are gaps in the figures; the section below gives their reasons."


def best_row(view: SweepView, measure: Measure) -> SweepRow | None:
    """The row with the best value of a measure."""
    ran = [row for row in view.ran if measure.column in row.numbers]
    pick = max if measure.more else min
    return pick(ran, key=lambda row: row.numbers[measure.column]) if ran else None


def leaders(view: SweepView, measure: Measure) -> Iterator[str]:
    """Which plan leads at which values, for each numeric axis along which the leading plan changes."""
    if len(view.plans.values) < 2:
        return
    pick = max if measure.more else min
    for axis in view.axes:
        if not axis.numeric:
            continue
        firsts: list[tuple[Cell, str]] = []
        for value in axis.values:
            there = [row for row in view.ran if row.coordinates[axis.path] == value and measure.column in row.numbers]
            if there:
                firsts.append((value, pick(there, key=lambda row: row.numbers[measure.column]).plan))
        runs = [(name, [value for value, _ in group]) for name, group in groupby(firsts, key=lambda pair: pair[1])]
        if len(runs) > 1 and len(runs) <= 4:
            parts = [
                f"{name} at {axis.words(values[0])}" + (f" to {axis.words(values[-1])}" if len(values) > 1 else "")
                for name, values in runs
            ]
            yield f"Leading plans along {_named(axis)}: {', '.join(parts)}."


@dataclass(frozen=True)
class ScalingLine:
    """Tokens/s/GPU relative to the line's smallest machine: ``points`` are (GPUs, efficiency, tokens/s)."""

    name: str
    points: tuple[tuple[float, float, float], ...]

    @property
    def loss(self) -> float:
        """The share that is lost at the largest machine."""
        return 1.0 - self.points[-1][1]


def scaling(view: SweepView) -> tuple[str, list[ScalingLine]]:
    """The kind of scaling and its lines.

    ``weak``: the work of one GPU stays the same. ``strong``: the work of one step stays the same. Empty where several
    machine sizes kept neither.
    """
    sizes: dict[tuple[tuple[str, Cell], ...], dict[float, SweepRow]] = {}
    grows = [axis.path for axis in view.axes if axis.path.rpartition(".")[2] in ("nodes", "cluster")]
    hidden = {*grows, *(axis.path for axis in view.together)}
    for row in view.ran if grows else ():
        if "gpus" in row.numbers and "tokens_per_s_per_gpu" in row.numbers:
            key = tuple((name, value) for name, value in row.coordinates.items() if name not in hidden)
            sizes.setdefault(key, {}).setdefault(row.numbers["gpus"], row)
    lines, kinds = [], set()
    shown = [axis for axis in view.axes if axis.path not in hidden]
    for key, rows in sizes.items():
        ordered = [rows[gpus] for gpus in sorted(rows)]
        steps = [row.numbers.get("tokens_per_step", 0.0) for row in ordered]
        if len(ordered) < 2:
            continue
        per_gpu = [step / row.numbers["gpus"] for step, row in zip(steps, ordered, strict=True)]
        kinds.add("weak" if _alike(per_gpu) else "strong" if _alike(steps) else "")
        first = ordered[0].numbers["tokens_per_s_per_gpu"]
        coordinates = dict(key)
        name = ", ".join(
            [str(coordinates[PLAN]), *(f"{_named(axis)} {axis.words(coordinates[axis.path])}" for axis in shown)]
        )
        points = tuple(
            (row.numbers["gpus"], row.numbers["tokens_per_s_per_gpu"] / first, row.numbers["tokens_per_s"])
            for row in ordered
        )
        lines.append(ScalingLine(name, points))
    kind = kinds.pop() if len(kinds) == 1 else ""
    return kind, lines if kind else []


def loss_in_words(lines: Sequence[ScalingLine]) -> str:
    """The smallest and the largest loss at the largest machine, in words."""
    ordered = sorted(lines, key=lambda line: line.loss)
    losses = [
        f"{line.name} {_lost(line.loss)} at {line.points[-1][0]:,.0f} GPUs"
        for line in (ordered if len(ordered) <= 2 else (ordered[0], ordered[-1]))
    ]
    first = f"Against {ordered[0].points[0][0]:,.0f} GPUs"
    if max(abs(line.loss) for line in lines) < 0.0005:
        return f"{first} nothing is lost at {ordered[0].points[-1][0]:,.0f} GPUs."
    return f"{first} {', '.join(losses)}."


def _lost(loss: float) -> str:
    return "loses nothing" if abs(loss) < 0.0005 else f"{'loses' if loss > 0 else 'gains'} {percent(abs(loss))}"


def _alike(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) <= 1.001 * min(values)


def times(ratio: float) -> str:
    """A ratio in words.

    >>> times(3.14), times(1.024), times(120.0)
    ('3.1 times', '1.02 times', '120 times')
    """
    return f"{ratio:.2f} times" if ratio < 2 else f"{ratio:.1f} times" if ratio < 20 else f"{ratio:,.0f} times"


def _name(measure: Measure) -> str:
    name = measure.name
    return name[:1].upper() + name[1:]


def _named(axis: SweepAxis) -> str:
    return "the plan" if axis.path == PLAN else axis.name


def _sentence(clause: str) -> str:
    return f"{clause[:1].upper()}{clause[1:]}."
