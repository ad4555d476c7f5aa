"""Rewrite the tables and the verdict of purchase.md from the shipped scenarios.

    python docs/generate_purchase.py

They stand between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``; everything outside is written by hand and claims
nothing that a new calibration could turn. ``tests/studies/test_purchase_docs.py`` holds what is committed against what
the package says now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import pages

from tspsim.base.units import compact, gib, percent
from tspsim.scenario import load
from tspsim.step.simulation import simulate
from tspsim.studies.planner.query import searched_apart
from tspsim.studies.purchase import Decision, decide, expand
from tspsim.studies.uncertainty import Verdict

PAGE = Path(__file__).parent / "purchase.md"
SCENARIO = "purchase-8b-128k"
#: Three of its seven offers keep the page quick to check.
OFFERS = ("MI300X", "MI355X", "B200")
SOUND = "tsp-vs-tpsp-8x-mi300x"
#: Faults in one node, and on the way between two.
NODE_FAULTS = {
    "a link dead": "{links: [{between: [0, 1], factor: 0}]}",
    "a link at 25 %": "{links: [{between: [0, 1], factor: 0.25}]}",
    "a GPU at 80 %": "{slow_gpus: [{gpu: 3, factor: 1.25}]}",
}
RAIL_FAULTS = {
    "a NIC dead": "{dead: [node0/nic3]}",
    "a rail dead": "{dead: [rail3/leaf0]}",
    "a NIC at 25 %": "{links: [{between: [node0/nic3, rail3/leaf0], factor: 0.25}]}",
}
TWO_NODES = (
    "cluster.nodes=2",
    "cluster.fabric=rails-400g",
    "workload.pass=training",
    "workload.sequence=16Ki",
)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown; the first two columns are words."""
    sides = ["---", "---", *("---:" for _ in header[2:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, sides, *rows))


@cache
def decision() -> Decision:
    """The worked purchase with its stated plans, without the curves: searches take too long to be checked so often."""
    offers = [question for question in expand(load(SCENARIO)) if question.name in OFFERS]
    questions = [searched_apart(question, True)[0] for question in offers]
    return decide(questions, [simulate(question) for question in questions], curves=False)


def offers() -> str:
    """Every offer with its best plan."""
    rows = []
    for row in decision().rows:
        assert row.best is not None and row.headroom_bytes is not None
        measures = [
            compact(row.measure(name) or 0.0)
            for name in ("tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_usd", "tokens_per_joule")
        ]
        limit = row.best.bottleneck.partition(";")[0].removesuffix(" of the step")
        limit = limit.replace(" takes", "").replace(" take", "")
        rows.append([f"{row.gpus} {row.name}", row.best.name, *measures, gib(row.headroom_bytes), limit])
    header = ["offer", "best plan", "tokens/s", "per GPU", "tokens a dollar", "tokens a joule", "memory left", "limit"]
    return table(header, rows)


def project() -> str:
    """The token budget on every offer."""
    rows = []
    for row in decision().rows:
        done = row.outcome
        assert row.best is not None and done is not None and done.kwh is not None
        usd = [compact(done.usd[basis]) for basis in ("hyperscaler", "neocloud", "rental")]
        rows.append([row.name, row.best.name, f"{done.days:.2f}", *usd, compact(done.kwh), percent(done.run.goodput)])
    return table(["offer", "plan", "days", "$ hyperscaler", "$ neocloud", "$ rental", "kWh", "goodput"], rows)


def verdict() -> str:
    """The decision and its doubts in sentences."""
    decided = decision()
    assert decided.winner is not None
    lead, *others = decided.in_words()
    lead = lead.replace(decided.winner.name, f"**{decided.winner.name}**", 1)
    doubts = [f"{said} {doubt(each)}" for said, each in zip(others, decided.verdicts, strict=True)]
    return "\n".join(f"- {sentence}" for sentence in (lead, *doubts))


def doubt(each: Verdict) -> str:
    """The strongest doubt about one rival."""
    strongest = each.tornado[0]
    ends = sorted((strongest.at_low, strongest.at_high))
    told = f"alone it moves the ratio between {ends[0]:.2f} and {ends[1]:.2f}"
    return f"The strongest doubt is {strongest.factor}: {told}."


def faults() -> str:
    """What each scheme loses to a dead link, a bad one, and a slow GPU: a forward pass on one node."""
    return losses((), NODE_FAULTS)


def rail_faults() -> str:
    """What each scheme loses to a NIC that is dead or slow: a training step on two nodes."""
    return losses(TWO_NODES, RAIL_FAULTS)


def losses(asked: Sequence[str], hurts: Mapping[str, str]) -> str:
    """Tokens/s of the sound machine, and what is lost to each fault."""
    sound = simulate(load(SOUND, asked))
    hurt = [simulate(load(SOUND, [*asked, f"cluster.faults={fault}"])) for fault in hurts.values()]
    rows = []
    for plan in sound.plans:
        lost = [1 - result.plan(plan.name).tokens_per_s / plan.tokens_per_s for result in hurt]
        rows.append([plan.name, f"{compact(plan.tokens_per_s)} tokens/s", *(f"−{100 * abs(x):.1f} %" for x in lost)])
    return table(["plan", "sound", *hurts], rows)


TABLES: dict[str, Callable[[], str]] = {
    "offers": offers,
    "project": project,
    "verdict": verdict,
    "faults": faults,
    "rail-faults": rail_faults,
}


def main() -> None:
    """Rewrite every block in place."""
    pages.rewrite(PAGE, {name: build() for name, build in TABLES.items()})


if __name__ == "__main__":
    pages.asked(__doc__)
    main()
