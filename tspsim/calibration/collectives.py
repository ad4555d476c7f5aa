"""Which rows move which numbers of a node or fabric, and whether they should."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..network.calibration import UNMEASURED, CollectivesSpec, Curve, FabricFactors
from ..network.cluster import Cluster
from ..network.collectives.algorithm import AlgorithmCandidate, CollectiveCost
from ..network.collectives.between import Across
from ..network.specs import NodeSpec
from .forms import Entry, FittedForm, Floats, TransferFit, entry_of, fabric_form, forms_of, name_of
from .least_squares import minimise, used_rows
from .measurements import MeasuredCollective, MeasuredTransfer
from .residuals import of_one_size, rounded, transfer_errors, transfer_spread

#: From this number of different rows on, rows carry the numbers of a curve or an engine; fewer move only factors.
CARRYING_ROWS = 40
#: Fewer rows carry no information.
FEWEST_ROWS = 3
#: In a step all rows of an entry may have one size: then one row says how much slower the entry is.
ONE_OF_STEPS = 1
#: A richer form is taken if its crossed error is at most this share of the simpler one's.
WORTH = 0.97
#: Sizes at which a curve is made that has the times of protocol lines: from 4 KiB to 4 GiB.
_SIZES = tuple(float(1 << power) for power in range(12, 33))
#: Largest difference of such a curve from the lines, in logarithms.
AS_LINES = 0.1
#: One size must be off by this much, in logarithms, to move anything.
ONE_WORTH = 0.02


@dataclass(frozen=True)
class TransferFits:
    """The fits, the rows left out with the reason, the entries that rows did not change, and the new files of nodes and
    fabrics as plain data, by kind and name."""

    fits: tuple[TransferFit, ...]
    left_out: tuple[str, ...]
    kept: tuple[str, ...]
    documents: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)


def fit_node(
    rows: Sequence[MeasuredTransfer], source: str, *, held_out: bool = True
) -> tuple[CollectivesSpec, TransferFits]:
    """TransferFit the curves, engines and expert exchanges of one node's file.

    Parameters
    ----------
    rows
        Collectives inside one such node; expert exchanges inside one node or across several.
    source
        Origin and date of the rows, written beside every number that moves.
    held_out
        Whether some shapes are held out to judge the fit; otherwise all are fitted, and crossed folds judge.

    Returns
    -------
    (CollectivesSpec, TransferFits)
        The version with most rows is the default library.
    """
    file = rows[0].cluster.node.collectives
    used = _used(rows, held_out)
    before = _Predicted.of(rows, _on_node(file))
    start = file.model_copy(update={"curves": (*file.curves, *_new_curves(rows, before, used, held_out))})
    ways = before if len(start.curves) == len(file.curves) else _Predicted.of(rows, _on_node(start))
    tasks, left_out = [], _without_curve(rows, ways)
    entries: tuple[Entry, ...] = (*start.curves, *start.custom_all_reduce, *start.experts)
    for entry in entries:
        where, few = _enough(rows, ways, entry, used, FEWEST_ROWS if held_out else ONE_OF_STEPS)
        left_out += few
        if where:
            carrying = _different(rows, [i for i in where if used[i]]) >= CARRYING_ROWS
            tasks.append((where, forms_of(entry, [rows[i] for i in where], [ways.cost[i] for i in where], carrying)))
    new_entries, fits, kept = _fitted(
        tasks, rows, used, before, lambda new: _on_node(_with(start, new)), source, held_out=held_out
    )
    now = _with(start, new_entries)
    if not held_out:
        now = now.model_copy(
            update={"curves": tuple(curve for curve in now.curves if curve.libraries or curve in file.curves)}
        )
        now = _other_ways(now, rows, ways)
    versions = Counter(row.library for row in rows if row.library in now.versions)
    default = max(sorted(versions), key=lambda name: versions[name], default=now.default_library)
    return now.model_copy(update={"default_library": default}), TransferFits(fits, tuple(left_out), kept)


def fit_fabric(
    rows: Sequence[MeasuredTransfer], source: str, *, held_out: bool = True
) -> tuple[FabricFactors | None, TransferFits]:
    """TransferFit the factors of one fabric to collectives of two nodes and more.

    Parameters as of :func:`fit_node`. The factors are None where the fabric's own stay.
    """
    fabric = rows[0].cluster.fabric
    assert fabric is not None
    used = _used(rows, held_out)
    before = _Predicted.of(rows, lambda cluster: cluster)
    where = [i for i, ways in enumerate(before.choices) if all(isinstance(way.cost, Across) for way in ways)]
    left_out = []
    if len(where) < len(rows):
        left_out.append(f"{fabric.name}: {len(rows) - len(where)} rows of a node that states no regimes between nodes")
    fewest = FEWEST_ROWS if held_out else ONE_OF_STEPS
    if (to_fit := int(used[where].sum())) < fewest:
        left_out.append(f"{fabric.name}: {to_fit} of {len(where)} rows to fit, {fewest} are needed")
        return None, TransferFits((), tuple(left_out), ())
    entry = fabric.collectives or FabricFactors(source="factors of one")
    form = fabric_form(fabric.name, entry, [rows[i] for i in where], [before.choices[i] for i in where])
    entries, fits, kept = _fitted(
        [(where, [form])], rows, used, before, lambda new: _on_fabric(new[id(entry)]), source, held_out=held_out
    )
    return entries.get(id(entry)), TransferFits(fits, tuple(left_out), kept)


def _used(rows: Sequence[MeasuredTransfer], held_out: bool) -> NDArray[np.bool_]:
    return used_rows(row.shape for row in rows) if held_out else np.ones(len(rows), dtype=bool)


@dataclass(frozen=True)
class _Predicted:
    """Per row: the tuner's candidates, the cheapest one, its seconds, and the fluid share of them."""

    choices: list[tuple[AlgorithmCandidate, ...]]
    cost: list[CollectiveCost]
    seconds: Floats
    share: Floats

    @classmethod
    def of(cls, rows: Sequence[MeasuredTransfer], changed: Callable[[Cluster], Cluster]) -> _Predicted:
        candidates: dict[Any, tuple[AlgorithmCandidate, ...]] = {}
        choices, costs, parts = [], [], []
        for row in rows:
            key = (id(row.cluster), row.question)
            if key not in candidates:
                candidates[key] = row.ways(changed(row.cluster))
            timed = [(choice.cost, choice.cost.alone(row.size_bytes)) for choice in candidates[key]]
            cost, part = min(timed, key=lambda timing: sum(timing[1]))
            choices.append(candidates[key])
            costs.append(cost)
            parts.append(part)
        latency, fluid = np.array(parts).T
        return cls(choices, costs, latency + fluid, fluid / (latency + fluid))


def _fitted(
    tasks: Sequence[tuple[list[int], Sequence[FittedForm]]],
    rows: Sequence[MeasuredTransfer],
    used: NDArray[np.bool_],
    before: _Predicted,
    changed: Callable[[Mapping[int, Any]], Callable[[Cluster], Cluster]],
    source: str,
    *,
    held_out: bool,
) -> tuple[dict[int, Any], tuple[TransferFit, ...], tuple[str, ...]]:
    """The best form of each entry: new entries by the identity of the old one, the fits, and the entries that stay.

    Errors and ranges are those of the whole prediction, with every new entry in place. Rows of one size, as a step may
    have them, cannot separate the start from the rate: they move the entry by one factor, with a wide range.
    """
    entries: dict[int, Any] = {}
    chosen, kept = [], []
    single: set[int] = set()
    measured = np.log([row.seconds for row in rows])
    for where, forms in tasks:
        mine = np.flatnonzero(used[where]).tolist()
        if not held_out and len({forms[0].rows[i].shape for i in mine}) == 1:
            first = forms[0]
            was = first.start(mine)
            if abs(float(np.median(was))) < ONE_WORTH:
                kept.append(f"{first.what}: its {len(where)} rows of one size are as they were")
                continue
            entries[id(first.entry)] = first.build(first.one_factor(mine))
            single.add(id(first.entry))
            chosen.append((where, first, was))
            continue
        form, unseen = _best(forms, mine)
        if form is None:
            error = transfer_errors(measured[where] - np.log(before.seconds[where]))
            kept.append(
                f"{forms[0].what}: no fit to part of its {len(where)} rows predicted the others better ({error})"
            )
        else:
            entries[id(form.entry)] = form.build(form.solved(mine))
            chosen.append((where, form, unseen))
    after = _Predicted.of(rows, changed(entries)) if chosen else before
    fits = []
    for where, form, unseen in chosen:
        seen = used[where]
        was, now = (measured[where] - np.log(predicted.seconds[where]) for predicted in (before, after))
        libraries = tuple(sorted({row.library for row in form.rows})) if isinstance(form.entry, Curve) else ()
        errors = (transfer_errors(residual[~seen]) for residual in (was, now))
        fit = TransferFit(form.what, form.moved, libraries, int(seen.sum()), *errors)
        if id(form.entry) not in single:
            now[seen] = unseen
        spread = transfer_spread(now, after.share[where])
        if id(form.entry) in single:
            spread = of_one_size(spread)
        entries[id(form.entry)] = form.stated(entries[id(form.entry)], fit, spread, source)
        fits.append(fit)
    return entries, tuple(fits), tuple(kept)


def _best(forms: Sequence[FittedForm], where: Sequence[int]) -> tuple[FittedForm | None, Floats]:
    """The form that predicts held-out rows best, with its residuals; None where none beats the file.

    Richer forms come later in the list and must improve by :data:`WORTH`.
    """
    best: FittedForm | None = None
    unseen = forms[0].start(where)
    for form in forms:
        crossed = form.crossed(where)
        if (form.new and best is None) or np.abs(crossed).mean() < WORTH * np.abs(unseen).mean():
            best, unseen = form, crossed
    return best, unseen


def _enough(
    rows: Sequence[MeasuredTransfer], ways: _Predicted, entry: Entry, used: NDArray[np.bool_], fewest: int
) -> tuple[list[int], list[str]]:
    """Positions of the rows that use an entry, of libraries with enough rows, and the libraries with too few."""
    mine = [i for i, cost in enumerate(ways.cost) if entry_of(cost) is entry]
    to_fit = Counter(rows[i].library for i in mine if used[i])
    few = sorted({rows[i].library for i in mine if to_fit[rows[i].library] < fewest})
    names = {name: f"{name_of(entry)}, {name}" if isinstance(entry, Curve) else name_of(entry) for name in few}
    count = Counter(rows[i].library for i in mine)
    reasons = [f"{names[name]}: {to_fit[name]} of {count[name]} rows to fit, {fewest} are needed" for name in few]
    return [i for i in mine if rows[i].library not in few], reasons


def _different(rows: Sequence[MeasuredTransfer], where: Sequence[int]) -> int:
    """Number of distinct questions among some rows: repeated measurements add nothing to a curve."""
    return len({(rows[i].question, rows[i].size_bytes) for i in where})


def _new_curves(
    rows: Sequence[MeasuredTransfer], ways: _Predicted, used: NDArray[np.bool_], held_out: bool
) -> list[Curve]:
    """A curve for each kind that has none and rows to carry one. It starts as a copy of another curve of the node, with
    a hop.

    A node without curves has nothing to copy: its first curves start as its library's protocol lines, and a few rows
    move the factors of the measured library. So do the few sizes that steps have: the curve starts as the times of the
    protocol lines.
    """
    node = rows[0].cluster.node
    template = next((curve for curve in node.collectives.curves if not curve.in_switch), None)
    like, needed = (template, CARRYING_ROWS) if template else (_lines_as_curve(node), FEWEST_ROWS)
    bare: dict[str, list[int]] = {}
    for i, (row, cost) in enumerate(zip(rows, ways.cost, strict=True)):
        if isinstance(row, MeasuredCollective) and entry_of(cost) is None:
            bare.setdefault(row.kind, []).append(i)
    new_curves: list[Curve] = []
    for kind, mine in sorted(bare.items()):
        enough = _different(rows, [i for i in mine if used[i]]) >= needed
        if held_out and not enough:
            continue
        algorithms = [way.algorithm for i in mine for way in ways.choices[i] if entry_of(way.cost) is None]
        ranks = [rows[i].ranks for i in mine]
        hop = node.link.latency.value if min(ranks) < max(ranks) else 0.0
        start = {
            "algorithms": tuple(dict.fromkeys(algorithms)), "kinds": (kind,), "ranks": (min(ranks), max(ranks)),
            "hop": tuple(value or hop for value in like.hop), "libraries": {}, "spread": UNMEASURED,
        }  # fmt: skip
        if enough:
            new_curves.append(like.model_copy(update=start))
        elif curve := _as_lines(_lines_as_curve(node).model_copy(update=start), rows[mine[0]].cluster, max(ranks)):
            new_curves.append(curve)
    return new_curves


def _lines_as_curve(node: NodeSpec) -> Curve:
    """The protocols of a node's library in the form of a curve: latencies, and shares of the links' bandwidth."""
    collectives = node.collectives
    protocols = collectives.protocols
    regimes = (protocols[0], protocols[len(protocols) // 2], protocols[-1])
    reached, hop = collectives.efficiency["default"].value, node.link.latency.value
    kind, considered = next(iter(collectives.inside_node.items()))
    stated: dict[str, Any] = {
        "algorithms": tuple(considered), "kinds": (kind,), "ranks": (2, node.gpus),
        "base": [f"{protocol.ring.base * 1e6:.6g} us" for protocol in regimes],
        "hop": [f"{(protocol.ring.hop or hop) * 1e6:.6g} us" for protocol in regimes],
        "efficiency": [reached * protocol.bandwidth_ratio for protocol in regimes], "growth": f"{hop * 1e6:.6g} us",
        "source": "as its protocols", "basis": "library",
    }  # fmt: skip
    return Curve.model_validate(stated)


def _as_lines(curve: Curve, cluster: Cluster, ranks: int) -> Curve | None:
    """A curve of one kind with the times that the protocol lines of its node give that kind; None where no curve of
    this form has them."""
    (kind,) = curve.kinds
    rows = [MeasuredCollective(cluster, kind, ranks, size, "lines", 1.0) for size in _SIZES]
    rows = [replace(row, seconds=min(sum(way.cost.alone(row.size_bytes)) for way in row.ways(cluster))) for row in rows]
    node = cluster.node.collectives
    costs = _Predicted.of(rows, _on_node(node.model_copy(update={"curves": (*node.curves, curve)}))).cost
    form = forms_of(curve, rows, costs, carrying=True)[-1]
    # The lines have no noise: nothing pulls the numbers back.
    values, _ = minimise(form.bounds, frozenset(), lambda moved: -form.residual(moved, range(len(rows))), pull=0.0)
    fitted = form.build({name: rounded(value) for name, value in values.items()})
    assert isinstance(fitted, Curve)
    near = np.abs(form.residual(values, range(len(rows)))).max() < AS_LINES
    return fitted.model_copy(update={"libraries": {}}) if near else None


def _without_curve(rows: Sequence[MeasuredTransfer], ways: _Predicted) -> list[str]:
    bare = [row for row, cost in zip(rows, ways.cost, strict=True) if entry_of(cost) is None]
    kinds = Counter(row.kind for row in bare if isinstance(row, MeasuredCollective))
    node = rows[0].cluster.node
    needed = CARRYING_ROWS if any(not curve.in_switch for curve in node.collectives.curves) else FEWEST_ROWS
    return [
        f"{kind}: {count} rows where {node.name} has no measured curve; {needed} to fit make one"
        for kind, count in sorted(kinds.items())
    ]


def _with(collectives: CollectivesSpec, new: Mapping[int, Any]) -> CollectivesSpec:
    """The collectives with new entries in place of those with the given identities."""
    parts = ("curves", "custom_all_reduce", "experts")
    return collectives.model_copy(
        update={part: tuple(new.get(id(entry), entry) for entry in getattr(collectives, part)) for part in parts}
    )


def _other_ways(now: CollectivesSpec, rows: Sequence[MeasuredTransfer], ways: _Predicted) -> CollectivesSpec:
    """A library that steps measured, with the factors of its way to run a kind on the other ways to run that kind.

    A step shows one algorithm, that which its tuner took. The others have the same links and launches: left as they
    were, they would be the cheaper ones where the library is slower than the file, and it would stay as quick.
    """
    taken: dict[tuple[str, str], Counter[tuple[str, ...]]] = {}
    for row, cost in zip(rows, ways.cost, strict=True):
        if isinstance(row, MeasuredCollective) and isinstance(entry := entry_of(cost), Curve):
            taken.setdefault((row.library, row.kind), Counter())[entry.algorithms] += 1
    curves = list(now.curves)
    for (library, kind), algorithms in taken.items():
        serving = [curve for curve in curves if kind in curve.kinds]
        most = max(algorithms, key=lambda name: algorithms[name])
        measured = next((way for way in serving if way.algorithms == most and library in way.libraries), None)
        if measured is None:
            continue
        for curve in serving:
            # Numbers for this kind and library alone: they are no measurement of the curve's other kinds and versions.
            if curve.algorithms in algorithms or (library in curve.libraries and len(curve.kinds) > 1):
                continue
            if library in curve.libraries:
                curves.remove(curve)
            elif any(way.algorithms == curve.algorithms and library in way.libraries for way in serving):
                continue
            own = {"kinds": (kind,), "libraries": {library: measured.libraries[library]}, "spread": measured.spread}
            curves.append(curve.model_copy(update=own))
    return now.model_copy(update={"curves": tuple(curves)})


def _on_node(collectives: CollectivesSpec) -> Callable[[Cluster], Cluster]:
    return lambda cluster: replace(cluster, node=cluster.node.model_copy(update={"collectives": collectives}))


def _on_fabric(factors: FabricFactors) -> Callable[[Cluster], Cluster]:
    def changed(cluster: Cluster) -> Cluster:
        assert cluster.fabric is not None
        return replace(cluster, fabric=cluster.fabric.model_copy(update={"collectives": factors}))

    return changed
