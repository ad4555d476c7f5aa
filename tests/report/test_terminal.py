"""The table on the terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from helpers import reports as fixtures

from tspsim.report import table
from tspsim.step.result import Result


def printed(result: Result, width: int) -> list[str]:
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(table(result, width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_every_figure_is_whole_at_any_usual_width(width: int) -> None:
    lines = printed(fixtures.result(), width)
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    row = next(line for line in lines if line.startswith("TSP8"))
    for figure in ("8.78 M", "8.58 k", "287 M", "1.91 s", "33.8 %", "4.2 %", "8.7", "0.0231"):
        assert figure in row


def test_plans_keep_the_scenarios_order_and_refused_ones_say_why() -> None:
    lines = printed(fixtures.result(), 80)
    names = ("TSP8", "TP8", "TP4-SP2", "TP2-SP4", "SP8")
    rows = [next(i for i, line in enumerate(lines) if line.startswith(f"{name} ")) for name in names]
    assert rows == sorted(rows)
    assert "refused" in lines[rows[-1]] and "206.0" in lines[rows[-1]]
    assert "SP8 is refused: needs 206.0 GiB" in " ".join(lines)


def test_a_wide_terminal_shows_ranges_and_capacity() -> None:
    row = next(line for line in printed(fixtures.result(), 160) if line.startswith("TSP8"))
    assert "(7.55 M – 9.93 M)" in row
    assert "8.7 of 192.0" in row


def test_names_are_text_not_console_markup() -> None:
    plan = replace(fixtures.plan(0), name="[red]x[/red]")
    assert any(line.startswith("[red]x[/red]") for line in printed(fixtures.result(plans=(plan,)), 160))


def test_without_prices_there_is_no_price_column() -> None:
    plan = replace(fixtures.plan(0), cost={})
    assert "$" not in "".join(printed(fixtures.result(plans=(plan,)), 160))
