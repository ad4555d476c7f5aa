"""Which rows move what of a node or fabric, and whether they should."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..network.calibration import UNMEASURED, Curve, FabricFactors
from ..network.cluster import Cluster
from ..network.collectives.between import Across
from ..network.collectives.choices import AlgorithmCandidate, CollectiveCost
from ..network.specs import CollectivesSpec, NodeSpec
from .forms import Entry, FittedForm, Floats, TransferFit, entry_of, fabric_form, forms_of, name_of
from .least_squares import used_rows
from .measurements import MeasuredCollective, MeasuredTransfer
from .residuals import of_one_size, transfer_errors, transfer_spread

#: From so many different rows used on they carry the numbers of a curve or an engine; fewer move factors alone.
CARRYING_ROWS = 40
#: Fewer rows than this say nothing.
FEWEST_ROWS = 3
#: Of steps, whose rows may be of one size, one says how much slower everything is.
ONE_OF_STEPS = 1
#: By fits to others, rows must be predicted with this share of the error for a richer form to be taken.
WORTH = 0.97
#: One size must be off by this much, in logarithms, to move anything.
ONE_WORTH = 0.02


@dataclass(frozen=True)
class TransferFits:
    """What was fitted, which rows could not be used and why, and what the rows were asked for and stays as it was."""

    fits: tuple[TransferFit, ...]
    left_out: tuple[str, ...]
    kept: tuple[str, ...]


def fit_node(
    rows: Sequence[MeasuredTransfer], source: str, *, held_out: bool = True
) -> tuple[CollectivesSpec, TransferFits]:
    """TransferFit the curves, engines and expert exchanges of one node's file.

    Parameters
    ----------
    rows
        Collectives inside such a node, and expert exchanges inside or across several.
    source
        Where they are from, and when: written beside every number that moves.
    held_out
        Some shapes are kept back to judge by; else all are fitted, and judged in crossed folds alone.

    Returns
    -------
    (CollectivesSpec, TransferFits)
        The version with most rows is the default library.
    """
    file = rows[0].cluster.node.collectives
    used = _used(rows, held_out)
    before = _Predicted.of(rows, _on_node(file))
    start = file.model_copy(update={"curves": (*file.curves, *_new_curves(rows, before, used))})
    ways = before if len(start.curves) == len(file.curves) else _Predicted.of(rows, _on_node(start))
    asked, left_out = [], _without_curve(rows, ways)
    entries: tuple[Entry, ...] = (*start.curves, *start.custom_all_reduce, *start.experts)
    for entry in entries:
        where, few = _enough(rows, ways, entry, used, FEWEST_ROWS if held_out else ONE_OF_STEPS)
        left_out += few
        if where:
            carrying = _different(rows, [i for i in where if used[i]]) >= CARRYING_ROWS
            asked.append((where, forms_of(entry, [rows[i] for i in where], [ways.cost[i] for i in where], carrying)))
    found, fits, kept = _fitted(
        asked, rows, used, before, lambda new: _on_node(_with(start, new)), source, held_out=held_out
    )
    now = _with(start, found)
    versions = Counter(row.library for row in rows if row.library in now.versions)
    default = max(sorted(versions), key=lambda name: versions[name], default=now.default_library)
    return now.model_copy(update={"default_library": default}), TransferFits(fits, tuple(left_out), kept)


def fit_fabric(
    rows: Sequence[MeasuredTransfer], source: str, *, held_out: bool = True
) -> tuple[FabricFactors | None, TransferFits]:
    """TransferFit the factors of one fabric to collectives of two nodes and more.

    Parameters as of :func:`fit_node`; the factors are None where the fabric's own stay.
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
    """What the tuner could take for each row, what it takes, its seconds, and the share of them that is fluid."""

    choices: list[tuple[AlgorithmCandidate, ...]]
    cost: list[CollectiveCost]
    seconds: Floats
    share: Floats

    @classmethod
    def of(cls, rows: Sequence[MeasuredTransfer], changed: Callable[[Cluster], Cluster]) -> _Predicted:
        known: dict[Any, tuple[AlgorithmCandidate, ...]] = {}
        choices, costs, parts = [], [], []
        for row in rows:
            key = (id(row.cluster), row.question)
            if key not in known:
                known[key] = row.ways(changed(row.cluster))
            timed = [(choice.cost, choice.cost.alone(row.size_bytes)) for choice in known[key]]
            cost, part = min(timed, key=lambda each: sum(each[1]))
            choices.append(known[key])
            costs.append(cost)
            parts.append(part)
        latency, fluid = np.array(parts).T
        return cls(choices, costs, latency + fluid, fluid / (latency + fluid))


def _fitted(
    asked: Sequence[tuple[list[int], Sequence[FittedForm]]],
    rows: Sequence[MeasuredTransfer],
    used: NDArray[np.bool_],
    before: _Predicted,
    changed: Callable[[Mapping[int, Any]], Callable[[Cluster], Cluster]],
    source: str,
    *,
    held_out: bool,
) -> tuple[dict[int, Any], tuple[TransferFit, ...], tuple[str, ...]]:
    """The best of each entry's forms: new entries by the identity of the old, what was fitted, and what stays.

    Errors and ranges are of the whole prediction, with all that moved in place. Rows of one size, as a step may have
    them, tell no start from a rate: they move everything by one factor, with a wide range.
    """
    entries: dict[int, Any] = {}
    chosen, kept = [], []
    single: set[int] = set()
    measured = np.log([row.seconds for row in rows])
    for where, forms in asked:
        mine = np.flatnonzero(used[where]).tolist()
        if not held_out and len({forms[0].rows[i].shape for i in mine}) == 1:
            form = forms[0]
            was = form.start(mine)
            if abs(float(np.median(was))) < ONE_WORTH:
                kept.append(f"{form.what}: its {len(where)} rows of one size are as they were")
                continue
            entries[id(form.entry)] = form.build(form.one_factor(mine))
            single.add(id(form.entry))
            chosen.append((where, form, was))
            continue
        form, unseen = _best(forms, mine)
        if form is None:
            error = transfer_errors(measured[where] - np.log(before.seconds[where]))
            kept.append(f"{forms[0].what}: no fit to part of its {len(where)} rows told the others better ({error})")
        else:
            entries[id(form.entry)] = form.build(form.solved(mine))
            chosen.append((where, form, unseen))
    after = _Predicted.of(rows, changed(entries)) if chosen else before
    fits = []
    for where, form, unseen in chosen:
        seen = used[where]
        was, now = (measured[where] - np.log(each.seconds[where]) for each in (before, after))
        libraries = tuple(sorted({row.library for row in form.rows})) if isinstance(form.entry, Curve) else ()
        errors = (transfer_errors(each[~seen]) for each in (was, now))
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
    """The form by which rows tell others best, with their residuals; None where none does so better than the file.

    Richer forms come later, and must be worth it.
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
    """Positions of the rows that rest on an entry, of libraries with enough of them, and what had too few."""
    mine = [i for i, cost in enumerate(ways.cost) if entry_of(cost) is entry]
    to_fit = Counter(rows[i].library for i in mine if used[i])
    few = sorted({rows[i].library for i in mine if to_fit[rows[i].library] < fewest})
    names = {name: f"{name_of(entry)}, {name}" if isinstance(entry, Curve) else name_of(entry) for name in few}
    count = Counter(rows[i].library for i in mine)
    reasons = [f"{names[name]}: {to_fit[name]} of {count[name]} rows to fit, {fewest} are needed" for name in few]
    return [i for i in mine if rows[i].library not in few], reasons


def _different(rows: Sequence[MeasuredTransfer], where: Sequence[int]) -> int:
    """How many of some rows ask for something else than the others: measuring again tells no more of a curve."""
    return len({(rows[i].question, rows[i].size_bytes) for i in where})


def _new_curves(rows: Sequence[MeasuredTransfer], ways: _Predicted, used: NDArray[np.bool_]) -> list[Curve]:
    """A curve for each kind that has none and rows to carry one: it starts as another of the node, with a hop.

    A node without any has nothing to copy: its first curves start as the lines of its library's protocols, and a few
    rows move the factors of the library measured.
    """
    node = rows[0].cluster.node
    known = next((curve for curve in node.collectives.curves if not curve.in_switch), None)
    like, needed = (known, CARRYING_ROWS) if known else (_lines_as_curve(node), FEWEST_ROWS)
    bare: dict[str, list[int]] = {}
    for i, (row, cost) in enumerate(zip(rows, ways.cost, strict=True)):
        if isinstance(row, MeasuredCollective) and entry_of(cost) is None:
            bare.setdefault(row.kind, []).append(i)
    found: list[Curve] = []
    for kind, mine in sorted(bare.items()):
        if _different(rows, [i for i in mine if used[i]]) < needed:
            continue
        algorithms = [way.algorithm for i in mine for way in ways.choices[i] if entry_of(way.cost) is None]
        ranks = [rows[i].ranks for i in mine]
        hop = node.link.latency.value if min(ranks) < max(ranks) else 0.0
        start = {
            "algorithms": tuple(dict.fromkeys(algorithms)), "kinds": (kind,), "ranks": (min(ranks), max(ranks)),
            "hop": tuple(value or hop for value in like.hop), "libraries": {}, "spread": UNMEASURED,
        }  # fmt: skip
        found.append(like.model_copy(update=start))
    return found


def _lines_as_curve(node: NodeSpec) -> Curve:
    """The protocols of a node's library in the form of a curve: their latencies, and shares of the links' bandwidth."""
    collectives = node.collectives
    protocols = collectives.protocols
    regimes = (protocols[0], protocols[len(protocols) // 2], protocols[-1])
    reached, hop = collectives.efficiency["default"].value, node.link.latency.value
    kind, considered = next(iter(collectives.inside_node.items()))
    stated: dict[str, Any] = {
        "algorithms": tuple(considered), "kinds": (kind,), "ranks": (2, node.gpus),
        "base": [f"{each.ring.base * 1e6:.6g} us" for each in regimes],
        "hop": [f"{(each.ring.hop or hop) * 1e6:.6g} us" for each in regimes],
        "efficiency": [reached * each.bandwidth_ratio for each in regimes], "growth": f"{hop * 1e6:.6g} us",
        "source": "as its protocols", "basis": "library",
    }  # fmt: skip
    return Curve.model_validate(stated)


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
    """With some entries in the place of those of these identities."""
    parts = ("curves", "custom_all_reduce", "experts")
    return collectives.model_copy(
        update={part: tuple(new.get(id(entry), entry) for entry in getattr(collectives, part)) for part in parts}
    )


def _on_node(collectives: CollectivesSpec) -> Callable[[Cluster], Cluster]:
    return lambda cluster: replace(cluster, node=cluster.node.model_copy(update={"collectives": collectives}))


def _on_fabric(factors: FabricFactors) -> Callable[[Cluster], Cluster]:
    def changed(cluster: Cluster) -> Cluster:
        assert cluster.fabric is not None
        return replace(cluster, fabric=cluster.fabric.model_copy(update={"collectives": factors}))

    return changed
