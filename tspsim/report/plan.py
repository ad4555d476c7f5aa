"""The planner's answer on the terminal, and as one HTML page (:mod:`.plan_page`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tspsim.base.units import GIB, compact, gib, percent

from .numbers import seconds
from .plan_names import legend
from .tables import add_row, empty_table
from .view import price_range

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from tspsim.step.result import PlanResult
    from tspsim.studies.planner import Planned
    from tspsim.studies.planner.limits import LeanPlan
    from tspsim.studies.planner.scheme_map import Cell
    from tspsim.studies.planner.simulated_plan import SimulatedPlan

#: Least difference of a part of a step that is reported, as a share of the step.
WORTH_TELLING = 0.002


def summary(planned: Planned, width: int = 160) -> list[RenderableType]:
    """The best plans, the stated plans, and the notes on them."""
    from rich.padding import Padding
    from rich.text import Text

    first = [Text(planned.opening, style="bold yellow")] if planned.opening else []
    parts: list[RenderableType] = [*first, Text(kicker(planned), style="bold"), "", best_table(planned, width), ""]
    for title, sentences in chapters(planned):
        if sentences:
            indented = (Padding(Text(sentence), (0, 0, 0, 2)) for sentence in sentences)
            parts += [Text(title, style="bold"), *indented, ""]
    return parts


def kicker(planned: Planned) -> str:
    """The machine and the step of the plans."""
    cluster, work = planned.question.cluster, planned.scenario.workload
    nodes = f" in {counted(cluster.nodes)}" if cluster.nodes > 1 else ""
    work_in_words = f"{planned.question.model.name} · {work.pass_} · {work.sequence:,} tokens a sequence"
    return f"Plans for {cluster.gpus:,} {planned.question.device.name.upper()}{nodes} · {work_in_words}"


def best_table(planned: Planned, width: int) -> Table:
    """The best plans, then the scenario's stated plans, at the same batch."""
    wide = width >= 120
    table = empty_table(("plan",), ("tokens/s", "step", "MFU", "free, GiB", "$/M tokens"))
    if wide:
        table.add_column("what limits it", overflow="fold")
    for number, option in enumerate(planned.best):
        add_row(table, cells(labelled(option), option.result, wide), "bold" if number == 0 else "")
    table.add_section()
    shown = [option.candidate.name for option in planned.best if option.candidate.stated is not None]
    for stated in planned.stated:
        if stated.name in shown:
            continue
        if stated.result is not None and stated.result.ran:
            add_row(table, cells(f"{stated.name} (stated)", stated.result, wide))
        else:
            add_row(table, (f"{stated.name} (stated)", "refused"), "yellow")
    return table


def labelled(option: SimulatedPlan) -> str:
    """A plan's name, and whether the scenario states it."""
    return option.candidate.name + (" (stated)" if option.candidate.stated is not None else "")


def cells(name: str, result: PlanResult, wide: bool) -> list[str]:
    free = (result.memory.capacity_bytes - result.memory.peak_bytes) / GIB
    likely = ""
    if wide and result.range is not None:
        likely = f" ({compact(result.range.low)} – {compact(result.range.high)})"
    row = [
        name,
        compact(result.tokens_per_s) + likely,
        seconds(result.step_time_s),
        percent(result.mfu),
        f"{free:.1f}",
        price_range(result) or "–",
    ]
    return [*row, result.bottleneck] if wide else row


def chapters(planned: Planned) -> list[tuple[str, list[str]]]:
    """The notes, by heading."""
    return [
        ("Words in the names", named_words(planned)),
        ("How sure", sure(planned)),
        ("Why the best wins", why(planned)),
        ("The Pareto front of the searched plans, in rate, cost and free memory", front(planned)),
        ("Other lengths and sizes", sensitivity(planned)),
        ("What fits", what_fits(planned)),
        ("Where TSP wins", scheme_map(planned)),
        ("The best plan as scenario keys", [yaml_of(planned)] if planned.best else []),
        ("Stated plans that did not run", [f"{e.name}: {e.error}" for e in planned.stated if e.error]),
    ]


def named_words(planned: Planned) -> list[str]:
    """The legend of the searched plans' names."""
    plans = [option.candidate.plan for option in planned.best if option.candidate.stated is None]
    entries = [f"{words}: {meaning}" for words, meaning in legend(plans)]
    return ["; ".join(entries) + "."] if entries else []


def sure(planned: Planned) -> list[str]:
    """The extent of the search, and what it leaves open."""
    counted = (
        f"{planned.batch:,} sequences a step in every plan ({compact(planned.tokens)} tokens); "
        f"{planned.bounded:,} layouts bounded, {planned.simulated} plans simulated."
    )
    if planned.gap > 0.0:
        left = f"Searched plans that were not simulated are at most {percent(planned.gap)} better than the best."
    else:
        left = "No searched plan that was not simulated can be better."
    if planned.interrupted:
        left = f"Interrupted: the best so far. {left}"
    elif not planned.complete:
        left = f"The budget of work ran out (--budget). {left}"
    counted += divides(planned.batch, planned.question.cluster.gpus)
    kept = [f"Limits: {'; '.join(planned.kept.words)}."] if planned.kept.words else []
    needs = dict.fromkeys(option.candidate.plan.dispatch.assumption for option in planned.best)
    assumed = [f"Assumed for some of the best: {words}." for words in needs if words]
    return [counted, left, searched(planned), *kept, *assumed, *planned.ceiling]


def divides(batch: int, gpus: int) -> str:
    """A hint where the batch and the number of GPUs have few common divisors, which limits the number of replicas.

    >>> divides(512, 576)
    ' 512 sequences do not divide over 576 GPUs: replicas are 64 at most; 576 or 1,152 leave more plans.'
    >>> divides(512, 64), divides(512, 1024)
    ('', '')
    """
    most = math.gcd(batch, gpus)
    if most == min(batch, gpus):
        return ""
    return (
        f" {batch:,} sequences do not divide over {gpus:,} GPUs: replicas are {most:,} at most; {gpus:,} or "
        f"{2 * gpus:,} leave more plans."
    )


def searched(planned: Planned) -> str:
    """Searched keys, and the others with the reasons for their defaults."""
    keys_searched = [f"{key} ({', '.join(values)})" if values else key for key, values in planned.searched.items()]
    left = "; ".join(f"{', '.join(keys)} ({reason})" for reason, keys in planned.left.items())
    return f"Searched: degrees, {', '.join(keys_searched)}. As in a plan that does not state it: {left}."


def why(planned: Planned) -> list[str]:
    """Differences between the best and the runner-up, the largest first."""
    if not planned.why or not planned.rival:
        return []
    step_s = planned.best[0].step_s
    parts = [part for part in planned.why if abs(part.saved_s) >= WORTH_TELLING * step_s]
    best, other = planned.best[0], planned.best[1]
    sentences = [
        f"{best.candidate.name} takes {seconds(best.step_s)}, {other.candidate.name} {seconds(other.step_s)}: "
        f"{percent(other.step_s / best.step_s - 1.0)} more."
    ]
    if planned.ahead is not None:
        ahead = planned.ahead
        close = "; too close to call" if ahead.close else ""
        sentences.append(
            f"Its rate is {ahead.ratio:.3f} times the runner-up's, nine times of ten {ahead.low:.3f} to "
            f"{ahead.high:.3f}{close}."
        )
    for part in parts:
        word = "less" if part.saved_s > 0.0 else "more"
        sentences.append(
            f"{part.name}: {seconds(part.best_s)} against {seconds(part.other_s)}, {seconds(abs(part.saved_s))} {word}."
        )
    return sentences if parts else [*sentences, "No part of the step differs by more than 0.2 %."]


def front(planned: Planned) -> list[str]:
    sentences = []
    for option in planned.front:
        free = option.headroom_bytes / GIB
        gpus = f" on {option.result.gpus:,} GPUs" if option.result.gpus != planned.question.cluster.gpus else ""
        sentences.append(
            f"{option.candidate.name}{gpus}: {compact(option.result.tokens_per_s)} tokens/s, {free:.1f} GiB free."
        )
    return sentences


def sensitivity(planned: Planned) -> list[str]:
    """The fastest plan of the front at other lengths and sizes."""
    sentences = []
    best = planned.best[0].candidate.name if planned.best else ""
    for point in planned.sensitivity:
        what = f"At {point.what} ({counted(point.nodes)}, {point.batch:,} sequences of {point.sequence:,} tokens)"
        if not point.ranking:
            sentences.append(f"{what} no plan runs.")
            continue
        name = point.ranking[0][0]
        verdict = f"{best} is the fastest" if same_way(name, best) else f"{name} is faster than {best}"
        sentences.append(f"{what}, of these plans, {verdict}: {compact(point.tokens_per_s)} tokens/s.")
    return sentences


def counted(nodes: int) -> str:
    """A number of nodes in words.

    >>> counted(1), counted(1024)
    ('1 node', '1,024 nodes')
    """
    return f"{nodes:,} node" + "s" * (nodes != 1)


def same_way(one: str, other: str) -> bool:
    """Whether two names differ in replicas and micro-batch only.

    >>> same_way("TP2-DP512 Z1 mb1 keep", "TP2-DP256 Z1 mb2 keep")
    True
    """

    def kept(name: str) -> list[str]:
        words = name.replace("-", " ").split()
        return [word for word in words if not word.startswith(("DP", "mb"))]

    return kept(one) == kept(other)


def what_fits(planned: Planned) -> list[str]:
    limits = planned.limits
    if limits is None:
        return []

    def said(limit: tuple[int, LeanPlan] | None, words: str) -> str:
        if limit is None:
            return f"{words}: none fits."
        value, lean = limit
        return f"{words}: {value:,}, with {lean.name} ({gib(lean.bytes)} per GPU)."

    return [
        "By memory alone, however slow a step would be:",
        said(limits.longest_sequence, f"longest context with {planned.batch:,} sequences a step, in tokens"),
        said(limits.largest_batch, "largest batch without accumulating gradients, in sequences"),
        said(limits.fewest_nodes, f"fewest nodes of {planned.question.cluster.gpus_per_node} GPUs"),
    ]


def scheme_map(planned: Planned) -> list[str]:
    """One sentence per point of the map."""
    return [
        f"{counted(cell.nodes)}, {cell.batch:,} × {cell.sequence:,} tokens: {verdict(cell)}"
        for cell in planned.scheme_map
    ]


def verdict(cell: Cell) -> str:
    """The winner at a point, its lead, and its certainty."""
    if cell.ratio is None:
        return "nothing fits." if cell.sure else "time ran out before both were known."
    if cell.folded is None:
        return "only plans without TSP fit."
    if cell.other is None:
        return "only TSP fits."
    verb = "wins" if cell.ratio > 1.0 else "loses"
    rate = f"TSP {verb}, {cell.ratio:.3f} of the rate ({cell.folded.plan} against {cell.other.plan})"
    if not cell.sure:
        return f"{rate}; time ran out."
    return f"{rate}." if cell.proven else f"{rate}; too close to be sure."


def yaml_of(planned: Planned) -> str:
    """The best plan as the ``plans`` of a scenario, after a line with its batch where the scenario states another."""
    from tspsim.studies.planner.written import keys_text

    keys = keys_text(planned.best[0].candidate.keys)
    if planned.scenario.workload.global_batch == planned.batch:
        return keys
    return f"# workload: global_batch: {planned.batch}, in the place of sequences_per_replica\n{keys}"


def rows_of(planned: Planned) -> Sequence[tuple[str, PlanResult]]:
    """Every plan with a result: best plans, then those of the front, then the stated ones."""
    options = [*planned.best, *(option for option in planned.front if option not in planned.best)]
    names = [option.candidate.name for option in options if option.candidate.stated is not None]
    stated = [plan for plan in planned.stated if plan.name not in names]
    rows = [(labelled(option), option.result) for option in options]
    return [*rows, *((f"{e.name} (stated)", e.result) for e in stated if e.result and e.result.ran)]
