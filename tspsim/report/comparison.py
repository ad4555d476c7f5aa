"""Several results side by side: on the terminal, as CSV, and as one HTML page (:mod:`.comparison_page`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tspsim.base.errors import printable
from tspsim.base.units import GIB, compact, percent
from tspsim.step.cells import flat

from . import requests, served
from .numbers import seconds
from .tables import add_refused, add_row, empty_table
from .view import dollars_per_million_tokens, in_dollars

if TYPE_CHECKING:
    from rich.table import Table

    from tspsim.step.result import PlanResult, Result
    from tspsim.studies.purchase.row import OfferRow


@dataclass(frozen=True)
class ComparisonRow:
    """One plan of scenario ``number``; ``ratio`` is its rate over the first plan's that ran (None: refused)."""

    number: int
    scenario: str
    gpus: int
    device: str
    plan: PlanResult
    ratio: float | None

    @property
    def hardware(self) -> str:
        return f"{self.gpus:,} {self.device}"


def rows(results: Iterable[Result]) -> list[ComparisonRow]:
    """Every plan in order of scenarios, then of plans."""
    every = [(number, result, plan) for number, result in enumerate(results) for plan in result.plans]
    first = next((plan.tokens_per_s for _, _, plan in every if plan.ran), None)
    return [
        ComparisonRow(
            number,
            _one_line(result.scenario["name"]),
            result.cluster["gpus"],
            _one_line(result.cluster["device"]["name"]),
            plan,
            plan.tokens_per_s / first if first and plan.ran else None,
        )
        for number, result, plan in every
    ]


def dollars(row: ComparisonRow, offer: OfferRow | None) -> dict[str, float]:
    """USD per million tokens by price basis: on the offer's terms, else on the result's."""
    if offer is None or not row.plan.tokens_per_s_per_gpu:
        return dollars_per_million_tokens(row.plan)
    tokens_per_hour = row.plan.tokens_per_s_per_gpu * 3600.0
    return {basis: 1e6 * usd / tokens_per_hour for basis, usd in offer.rates.usd_per_gpu_hour.items()}


def table(results: Sequence[Result], offers: Sequence[OfferRow] = ()) -> Table:
    """The comparison on the terminal, with dollars on the terms of ``offers``; a refused plan has its reason."""
    if requests.serves(results):
        return requests.table(results)
    shown = empty_table(("scenario",))
    shown.add_column("GPUs")
    shown.add_column("plan", no_wrap=True)
    every = rows(results)
    waits = {key: words for key, words in SEEN.items() if any(key in row.plan.inference for row in every)}
    for heading in ("tokens/s", "ratio", "step", *(waits.values() or ["MFU"]), "memory, GiB", "$/M tokens"):
        shown.add_column(heading, justify="right")
    best = max((row.ratio for row in every if row.ratio is not None), default=None)
    refused = []
    previous = -1
    for row in every:
        if row.number != previous:
            shown.add_section()
        start = ("", "") if row.number == previous else (row.scenario, row.hardware)
        previous = row.number
        usd = in_dollars(dollars(row, offers[row.number] if offers else None).values())
        style = "yellow" if row.ratio is None else "bold" if row.ratio == best else ""
        add_row(shown, (*start, row.plan.name, *_cells(row, waits, usd)), style)
        if not row.plan.ran:
            refused.append(f"{row.scenario}, {row.plan.name}: refused, {row.plan.error}")
    add_refused(shown, refused)
    return shown


#: Latencies of a serving step for its users, with the headings of their columns.
SEEN = {"time_to_first_token_s": "first token", "time_per_output_token_s": "output token"}


def _cells(row: ComparisonRow, waits: Mapping[str, str], usd: str) -> list[str]:
    plan = row.plan
    memory = f"{plan.memory.peak_bytes / GIB:.1f}"
    if row.ratio is None:
        return ["refused", "", "", *([""] * (len(waits) or 1)), memory, ""]
    return [
        compact(plan.tokens_per_s),
        f"{row.ratio:.3f}",
        seconds(plan.step_time_s),
        *([served.timed(plan, key) for key in waits] or [percent(plan.mfu)]),
        memory,
        usd or "–",
    ]


_CSV = (
    "scenario",
    "gpus",
    "device",
    "plan",
    "tokens_per_s",
    "tokens_per_s_low",
    "tokens_per_s_high",
    "ratio_to_first",
    "tokens_per_s_per_gpu",
    "block_forward_tokens_per_s",
    "step_time_s",
    "mfu",
    "memory_peak_bytes",
    "memory_capacity_bytes",
    "usd_per_million_tokens_low",
    "usd_per_million_tokens_high",
    "error",
)
#: Further columns where plans serve a step.
_CSV_SERVED = ("time_to_first_token_s", "time_per_output_token_s", "tokens_per_s_per_user", "sessions")
#: Further columns where requests are served, at the reported point of a curve.
_CSV_REQUESTS = (
    "ttft_s_mean",
    "ttft_s_p99",
    "tpot_s_mean",
    "requests_per_s",
    "goodput_requests_per_s",
    "tokens_per_s_per_user",
)


def csv(results: Sequence[Result]) -> str:
    """The rows of :func:`table` with full digits and a header; rates of a refused plan are empty."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    every = rows(results)
    further: tuple[str, ...] = _CSV_SERVED if any(row.plan.inference for row in every) else ()
    further = _CSV_REQUESTS if requests.serves(results) else further
    writer.writerow([*_CSV, *further])
    for row in every:
        plan = row.plan
        prices = list(dollars_per_million_tokens(plan).values())
        rates: list[object] = [""] * 8
        if plan.ran:
            low, high = (plan.range.low, plan.range.high) if plan.range else ("", "")
            rates = [plan.tokens_per_s, low, high, row.ratio, plan.tokens_per_s_per_gpu]
            of_step = (plan.block_forward_tokens_per_s, plan.step_time_s, plan.mfu)
            rates += ["", "", ""] if plan.serving else of_step
        memory = [plan.memory.peak_bytes, plan.memory.capacity_bytes]
        cost = [prices[0], prices[-1]] if prices else ["", ""]
        start = [row.scenario, row.gpus, row.device, plan.name]
        seen = {**plan.inference, **plan.inference.get("capacity", {})}
        seen |= flat(plan.to_json()) if plan.serving else {}
        last = [_cell(plan.error or ""), *(seen.get(key, "") for key in further)]
        writer.writerow([*map(_cell, start), *rates, *memory, *cost, *last])
    return text.getvalue()


def _cell(value: object) -> object:
    """A value; text that a spreadsheet would take for a formula is quoted."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t")) else value


def _one_line(text: object) -> str:
    """Text on one line, without characters that could steer a terminal."""
    return printable(" ".join(str(text).split()))


def slug(name: str) -> str:
    """A name as a valid part of a file name and an address.

    >>> slug("../what if?")
    'what-if'
    """
    import re

    return re.sub(r"[^0-9A-Za-z._-]+", "-", name).strip(".-")[:60] or "report"
