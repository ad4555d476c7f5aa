"""Values for the templates of a comparison: scaling, uncertainty, the project and its terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tspsim.base.units import chance, compact, digits, percent
from tspsim.steps import STEPS
from tspsim.studies.purchase.costs import BASES
from tspsim.studies.purchase.row import OBJECTIVES
from tspsim.studies.purchase.verdict import likely_changes

from .numbers import plain, seconds
from .sections.assumptions import matters
from .tables import add_row, empty_table

if TYPE_CHECKING:
    from rich.table import Table as RenderableTable

    from tspsim.scenario.project import Project
    from tspsim.step.result import Result
    from tspsim.studies.purchase.decision import Decision
    from tspsim.studies.purchase.likely import Likely
    from tspsim.studies.purchase.row import OfferRow

#: One row per offer; the braces of the template are doubled.
TABLE = """
<div class="scroll"><table class="plans left"><caption class="hidden">{}</caption>
<thead><tr><th scope="col">Offer</th>{{% for column in columns %}}<th scope="col">{{{{ column }}}}</th>
{{% endfor %}}</tr></thead>
<tbody>{{% for name, cells in table %}}<tr><th scope="row">{{{{ name }}}}</th>{{% for cell in cells %}}
<td data-label="{{{{ columns[loop.index0] }}}}">{{{{ cell }}}}</td>{{% endfor %}}</tr>{{% endfor %}}</tbody>
</table></div>
"""

UNCERTAINTY = (
    """
<p>{{ lead }}</p>
"""
    + TABLE.format("The winner against every other offer")
    + """
{{ figure("tornado", caption, "Rival") }}
"""
)

SIDES = """
<div class="scroll"><table class="sides"><caption class="hidden">Assumptions side by side</caption>
<thead><tr><th scope="col"></th>{% for name in names %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for what, cells in table %}<tr><th scope="row">{{ what }}</th>{% for cell in cells %}<td>{{ cell }}</td>
{% endfor %}</tr>{% endfor %}</tbody></table></div>
{% if defaults %}<h3>The same for all</h3>
<ul>{% for text in defaults %}<li>{{ text|prose }}</li>{% endfor %}</ul>{% endif %}
"""


def scaling(decision: Decision) -> dict[str, Any]:
    """The caption, and the weak efficiencies as a table."""
    sizes = sorted({point.nodes for row in decision.rows for point in row.weak})
    table = []
    for row in decision.rows:
        by_nodes = {point.nodes: point for point in row.weak}
        plan = row.best.name if row.best else "–"
        cells = [percent(by_nodes[size].efficiency) if size in by_nodes else "–" for size in sizes]
        table.append((f"{row.name}, {plan}", cells))
    return {
        "caption": "Tokens/s/GPU over that of the smallest machine of the curve; open marks: a group other than dp "
        "spans nodes. Ideal is 100 %. The table has the weak curve.",
        "columns": [f"{size} node{'s' * (size > 1)}" for size in sizes],
        "table": table,
    }


def uncertainty(decision: Decision) -> dict[str, Any]:
    """The winner against the other offers."""
    assert decision.winner is not None
    what = OBJECTIVES[decision.measure].words
    table = []
    for verdict in decision.verdicts:
        even = f"{verdict.break_even_low:.2f} – {verdict.break_even_high:.2f}"
        turn = next(iter(likely_changes(verdict)), None)
        change = (
            "nothing alone"
            if turn is None
            else f"{turn.factor} at {turn.value:.2f} times ({percent(turn.probability)})"
        )
        table.append(
            (
                verdict.b,
                [
                    f"{verdict.ratio:.2f}",
                    f"{verdict.low:.2f} – {verdict.high:.2f}",
                    chance(verdict.probability),
                    f"{verdict.break_even_price_ratio:.2f} ({even})",
                    "–" if (today := decision.today_s_ratio(verdict)) is None else f"{today:.2f}",
                    change,
                ],
            )
        )
    return {
        "lead": f"How certain is it that {decision.winner.name} gives more {what}? Kernel families err by the "
        "residuals of their fits, transfers by those of the network's anchors, prices within the range of their bases; "
        "each is one factor, common to all plans on a device.",
        "columns": [
            f"ratio, {what}",
            "nine times of ten",
            "probability",
            "break-even price ratio",
            "price ratio today",
            "single factor that changes it",
        ],
        "table": table,
        "caption": "Effect of each uncertain factor alone on the ratio, from the low to the high end of its range; at "
        "the dotted line the offers tie. Tables: the common error of measurements of one generation of GPUs. Software: "
        "the spread of one vendor's stacks. Price: the range of its bases. The rest are kernels and transfers.",
    }


def project(decision: Decision) -> dict[str, Any]:
    """Days, dollars, energy, and the machine for a rate or deadline."""
    terms = decision.project
    assert terms is not None
    wanted = [f"{compact(terms.rate)} tokens/s" if terms.rate else "", _deadline(terms)]
    need = " and ".join(filter(None, wanted))
    need += f", with a probability of {chance(terms.confidence)}" if need and terms.confidence is not None else ""
    bases = list(dict.fromkeys(basis for row in decision.rows for basis in row.rates.usd_per_gpu_hour))
    columns = ["days", *(f"$, {basis}" for basis in bases), *kept_columns(terms)]
    columns += ["kWh", "failures", "goodput", "checkpoint every"]
    table = []
    for row in decision.rows:
        done = row.outcome
        cells = ["–"] * len(columns)
        if done is not None:
            usd = [
                compact(done.usd[basis]) + (f" ({likely_usd(row.likely)})" if basis == row.rates.basis else "")
                if basis in done.usd
                else "–"
                for basis in bases
            ]
            cells = [f"{digits(done.days)} ({likely_days(row.likely)})", *usd]
            cells += kept_cells(terms, row.likely)
            cells += [compact(done.kwh) if done.kwh is not None else "–", digits(done.run.failures)]
            cells += [percent(done.run.goodput), seconds(done.run.interval_s)]
        table.append((row.name, cells))
    failures = terms.failures
    days = failures.node_mtbf / 86_400.0
    before = failures.outage_s - failures.restart
    outage = f" after {seconds(before)} of detection and diagnosis" if before else ""
    checkpointed = [row for row in decision.rows if row.best is not None and row.best.checkpoint]
    sentences = []
    if terms.tokens is not None:
        sentences.append(
            f"{compact(terms.tokens)} tokens on each offer as it stands. A node fails every {digits(days)} days, a "
            f"restart takes {seconds(failures.restart)}{outage}, a checkpoint delays a step by "
            f"{seconds(failures.checkpoint)}{' where a plan does not state its own' if checkpointed else ''}."
        )
        stalls = [
            (row.name, row.best.name, row.best.checkpoint["stall_s"]) for row in checkpointed if row.best is not None
        ]
        for name, plan, stall in stalls:
            held = f"delays a step by {seconds(stall)}" if stall > 1e-6 else "is hidden beside the step"
            sentences.append(f"{name}: a checkpoint of plan {plan} {held}.")
    return {
        "sentences": sentences,
        "columns": columns,
        "table": table if terms.tokens is not None else [],
        "need": need,
        "need_columns": need_columns(terms.tokens is not None, bases),
        "needs": [(row.name, needed(row, terms.tokens is not None, bases)) for row in decision.rows] if need else [],
        "hints": hints(decision),
        "predicted": enough_in_words(terms),
        "note": "Checkpoints at Daly's interval (2006); expected time with failures by his complete model. "
        f"{failures.source}. Prices: {'; '.join(f'{basis}, {BASES[basis]}' for basis in bases)}.",
    }


def enough_in_words(terms: Project) -> str:
    """The criterion of a large enough machine; empty where the project has no deadline or rate."""
    if terms.deadline is None and terms.rate is None:
        return ""
    if terms.confidence is None:
        return (
            "Large enough means: the prediction keeps them, wherever the range ends; `project.confidence` asks for "
            "more."
        )
    return f"Large enough means: they are kept with a probability of {chance(terms.confidence)}."


def likely_days(likely: Likely | None) -> str:
    """The range of the days."""
    return "–" if likely is None else f"{digits(likely.days[0])} – {digits(likely.days[1])}"


def likely_usd(likely: Likely | None) -> str:
    """The range of the dollars, on the basis that ranks."""
    return "–" if likely is None or likely.usd is None else f"{compact(likely.usd[0])} – {compact(likely.usd[1])}"


def kept_columns(terms: Project) -> list[str]:
    """Headings for the project's deadline and budget."""
    return [*(["in time"] if terms.deadline is not None else []), *(["in budget"] if terms.budget is not None else [])]


def kept_cells(terms: Project, likely: Likely | None) -> list[str]:
    """The probabilities under :func:`kept_columns`."""
    if likely is None:
        return ["–"] * len(kept_columns(terms))
    shares = {"in time": likely.in_time, "in budget": likely.in_budget}
    return ["–" if (share := shares[name]) is None else chance(share) for name in kept_columns(terms)]


def money_table(decision: Decision) -> RenderableTable | None:
    """Days and dollars of every offer on the terminal, as it stands and large enough; None without tokens."""
    terms = decision.project
    if terms is None or terms.tokens is None:
        return None
    bases = list(dict.fromkeys(row.rates.basis for row in decision.rows if row.rates.basis))
    usd = f"$ {bases[0]}" if len(bases) == 1 else "$"
    table = empty_table(("offer",), ("nodes", "GPUs", "days", "likely", usd, "likely", *kept_columns(terms), "MWh"))
    for row in decision.rows:
        nodes = int(row.result.cluster["nodes"])
        shown = [(row.name, nodes, row.gpus, row.outcome, row.likely)]
        if row.need is not None and row.need.nodes != nodes:
            shown.append(("  large enough", row.need.nodes, row.need.gpus, row.need.outcome, row.need.likely))
        for name, count, gpus, done, likely in shown:
            if done is None:
                continue
            paid = done.usd.get(row.rates.basis or "")
            cells = [name, f"{count:,}", f"{gpus:,}", digits(done.days), likely_days(likely)]
            cells += ["–" if paid is None else compact(paid), likely_usd(likely), *kept_cells(terms, likely)]
            add_row(table, [*cells, "–" if done.kwh is None else digits(done.kwh / 1000.0)])
    return table


def need_columns(budget: bool, bases: list[str]) -> list[str]:
    """Headings of the table of large enough machines: for the budget of tokens where there is one, else per day."""
    per = "" if budget else " a day"
    return ["nodes", "GPUs", "tokens/s", *(["days"] if budget else []), *(f"${per}, {b}" for b in bases), f"kWh{per}"]


def hints(decision: Decision) -> list[str]:
    """Sentences where fewer nodes would be enough if they shared a step's sequences evenly, one per offer."""
    said = [(row.name, row.need.hint) for row in decision.rows if row.need is not None]
    return [f"{name}: {hint}." for name, hint in said if hint]


def needed(row: OfferRow, budget: bool, bases: list[str]) -> list[str]:
    """The large enough machine of an offer, and its cost."""
    need = row.need
    if need is None:
        reason = f"– ({row.too_small})" if row.too_small else "–"
        return [reason, *["–"] * (len(need_columns(budget, bases)) - 1)]
    done = need.outcome if budget else need.day
    cells = [f"{need.nodes:,}", f"{need.gpus:,}", compact(need.tokens_per_s)]
    if done is None:
        return [*cells, *["–"] * (len(need_columns(budget, bases)) - 3)]
    cells += [digits(done.days)] if budget else []
    cells += [compact(done.usd[basis]) if basis in done.usd else "–" for basis in bases]
    return [*cells, compact(done.kwh) if done.kwh is not None else "–"]


def _deadline(terms: Project) -> str:
    """``15.0 T tokens in 120 days``; empty without a deadline."""
    if not terms.deadline:
        return ""
    return f"{compact(float(terms.tokens or 0), 'tokens')} in {digits(terms.deadline / 86_400.0)} days"


def sides(results: Sequence[Result], offers: Mapping[int, OfferRow]) -> dict[str, Any]:
    """The assumptions that differ between scenarios, a column each; the common ones once."""
    shown = list(results)[:12]
    table: list[tuple[str, list[str]]] = []

    def line(what: str, value: Any) -> None:
        cells = [str(value(index, result)) for index, result in enumerate(shown)]
        if any(cell not in ("", "–") for cell in cells):
            table.append((what, cells))

    line("GPUs", lambda _, result: f"{result.cluster['gpus']:,} {result.cluster['device']['name']}")
    for what, key in (("nodes", "nodes"), ("fabric", "fabric"), ("oversubscription", "oversubscription")):
        line(what, partial(_of_cluster, key))
    further = dict.fromkeys(key for step in STEPS.values() if step.serves for key in (*step.needs, *step.takes))
    common = ("model", "pass", "sequence", "sequences_per_replica", "global_batch")
    for key in (*common, *(key for key in further if key not in common)):
        line(key.replace("_", " "), partial(_of_workload, key))
    line("stack", partial(_of_workload, "stack"))
    line("best plan", lambda index, _: _best(offers, index, "name"))
    line("limit", lambda index, _: _best(offers, index, "bottleneck"))
    line("$ per GPU hour", lambda index, _: _hour(offers[index]) if index in offers else "")
    line("bought, $ per GPU hour", lambda index, _: _bought(offers[index]) if index in offers else "")
    line("prices of", lambda index, _: offers[index].rates.date if index in offers else "")
    line("power per GPU", lambda index, _: _power(offers[index]) if index in offers else "")
    line("parts of the fabric", lambda index, _: _fabric(offers[index]) if index in offers else "")
    line("their prices", lambda index, _: offers[index].rates.fabric_source if index in offers else "")
    alike = [text for text in (shown[0].defaults if shown else ()) if all(text in result.defaults for result in shown)]
    own = [[text for text in result.defaults if text not in alike] for result in shown]
    line("only here", lambda index, _: " ".join(own[index]).replace("`", ""))
    return {"names": [str(result.scenario["name"]) for result in shown], "table": table, "defaults": alike}


def _of_cluster(key: str, _index: int, result: Result) -> str:
    return plain(result.cluster.get(key))


def _of_workload(key: str, _index: int, result: Result) -> str:
    workload = result.scenario.get("workload", {})
    step = STEPS.get(str(workload["pass"])) if workload.get("pass") in STEPS else None
    return plain(workload.get(key) if step is None or matters(step, key) else None)


def _best(offers: Mapping[int, OfferRow], index: int, what: str) -> str:
    best = offers[index].best if index in offers else None
    return str(getattr(best, what)) if best is not None else "–"


def _hour(offer: OfferRow) -> str:
    """Price of a GPU hour on every known basis."""
    return ", ".join(f"{basis}: {digits(usd)}" for basis, usd in offer.rates.usd_per_gpu_hour.items()) or "–"


def _bought(offer: OfferRow) -> str:
    """Parts of the hour of an owned GPU."""
    own = offer.rates.owned
    if own is None:
        return "–"
    return f"{own.purchase:.2f} purchase + {own.hosting:.2f} hosting + {own.electricity:.2f} power"


def _power(offer: OfferRow) -> str:
    watts = offer.rates.watts_per_gpu
    return f"{watts:,.0f} W, {offer.rates.watts_in_words}" if watts is not None else "–"


def _fabric(offer: OfferRow) -> str:
    bill, rates = offer.rates.bill, offer.rates
    if not bill.nics:
        return "–"
    pieces = f"{bill.nics:,} NICs, {bill.switches:,} switches, {bill.optics:,} optics"
    if not rates.fabric_usd_per_gpu_hour:
        return pieces
    return f"{pieces}: {rates.fabric_usd_per_gpu_hour:.3f} $ per GPU hour, {rates.fabric_watts_per_gpu:.0f} W per GPU"
