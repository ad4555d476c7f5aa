"""Rewrite the tables of schemes-worth.md: what each scheme is worth on four machines, and as published on its hardware.

    python docs/generate_schemes.py

Every cell is two ratios of rates: over the naive rival that its paper compares with, and over the fastest of the
plans named beside it, which tspsim could run without the scheme. The rows stand in ``worth/``, one module a subject.
About three minutes of one core. The gallery's page of it is written as well (``reports/pages/schemes-worth.html``).
``tests/house/test_schemes_page.py`` holds rows of it against what the package says now.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pages
from worth import ENTRIES, published, systems
from worth.entry import DEVICES, Entry

from tspsim.report.worth import write

PAGE = Path(__file__).parent / "schemes-worth.md"


@cache
def rate(device: str, entry: str, plan: str) -> float | None:
    """Tokens/s of the machine; None where the plan does not fit or run."""
    (asked,) = (each for each in ENTRIES if each.name == entry)
    return asked.rate(device, plan)


def cell(entry: Entry, device: str) -> str:
    """Gain over the naive rival, and over the fastest of all."""
    own = rate(device, entry.name, entry.name) if device in entry.devices else None
    if own is None:
        return "–"
    naive, *_ = rates = [rate(device, entry.name, rival) for rival in entry.rivals]
    known = {rival: each for rival, each in zip(entry.rivals, rates, strict=True) if each is not None}
    if not known:
        return "no rival fits"
    best = max(known, key=lambda rival: known[rival])
    over = f"{own / naive:.2f}" if naive is not None else "does not fit"
    return f"{over} · {own / known[best]:.2f} ({best})"


def row(entry: Entry) -> str:
    gains = " | ".join(cell(entry, device) for device in DEVICES)
    rival = next(iter(entry.rivals))
    return (
        f"| {entry.name} | {entry.question}; against {rival} | {gains} | {entry.published} | {entry.explained} "
        f"| {entry.needs} |"
    )


def worth() -> str:
    titles = ["MI300X", "MI355X", "H100", "B200"]
    header = f"| scheme | question | {' | '.join(titles)} | published | what of it physics explains | needs |"
    rule = "| --- | --- | " + " | ".join("---:" for _ in titles) + " | --- | --- | --- |"
    return "\n".join([header, rule, *(row(entry) for entry in ENTRIES)])


def main() -> None:
    pages.rewrite(PAGE, {"worth": worth(), "published": published.table(), "systems": systems.table()})
    show()


def tables() -> tuple[str, dict[str, str]]:
    """The table of what schemes are worth, and those that follow it, as they stand."""
    text = PAGE.read_text(encoding="utf-8")
    found = {name: pages.block(name).findall(text)[0] for name in ("worth", "published", "systems")}
    return found["worth"], {
        "As published, on its hardware": found["published"],
        "Every system: how far this package has it, what asks it, what holds it": found["systems"],
    }


def show() -> None:
    """The gallery's page from the table as it stands; ``python -m tspsim.report.gallery reports`` lists it."""
    worth_, further = tables()
    write(worth_, PAGE.parent.parent / "reports", further)


if __name__ == "__main__":
    pages.asked(__doc__)
    main()
