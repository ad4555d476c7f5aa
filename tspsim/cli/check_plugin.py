"""``tspsim check-plugin``: whether a package's object keeps its contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..base.errors import InputError, printable
from .grammar import json_option
from .outputs import Outputs, files_of, json_text

if TYPE_CHECKING:
    from ..studies.contract import Checked


@click.command("check-plugin")
@click.argument("name")
@click.option(
    "--with", "keys", multiple=True, metavar="KEY=VALUE", help="A further key of the plan or traffic; repeatable."
)
@click.option("--scenario", metavar="FILE", help="Check in this scenario's first plan, which names the object.")
@json_option
def check_plugin(name: str, keys: tuple[str, ...], scenario: str | None, json_file: str | None) -> None:
    """Check the registered object NAME against its contract: a scheme, a context method, an expert dispatch, a
    collective algorithm, a scheduler, a router or any other kind of entry point.

    Bytes in closed form equal those of its program, ranks receive what they need, all work is done, no bound exceeds
    the answer, memory names its parts, folded ranks equal every rank, all requests are answered. Exit code 2: a law is
    broken. Write GROUP/NAME where two objects have one name.
    """
    from ..base import catalog, dialect
    from ..scenario.loading import assignment
    from ..studies.contract import check

    stated: dict[str, Any] = {}
    for text in keys:
        path, value, place = assignment(text, "--with", "key=value, such as short=40")
        try:
            stated[path] = dialect.parse_yaml(value)
        except InputError as error:
            raise error.at(file=place) from None
    source = dialect.read_yaml(catalog.locate("scenarios", scenario)) if scenario is not None else None
    outputs = Outputs(inputs=files_of(scenario), json=json_file)
    report = check(name, stated, source)
    outputs.write({"json": lambda: json_text(report.to_json())}, show=lambda: _print(report))
    if report.broken:
        first = report.broken[0]
        raise InputError(
            f"breaks {len(report.broken)} of {report.held} laws; {first.law} ({first.where}): {first.why}",
            file=f"{report.group.removeprefix('tspsim.')}/{report.name}",
        )


def _print(report: Checked) -> None:
    """A line per law, with the questions that it was checked in; then the broken and skipped checks, with reasons."""
    laws: dict[tuple[str, str], list[str]] = {}
    for finding in report.findings:
        laws.setdefault((finding.law, finding.outcome), []).append(finding.where)
    click.echo(printable(f"{report.group.removeprefix('tspsim.')}/{report.name}: {report.held} laws held against it"))
    width = max(len(outcome) for _, outcome in laws)
    for (law, outcome), where in laws.items():
        click.echo(printable(f"  {outcome:<{width}}  {law} ({len(where)} times)" if len(where) > 1 else
                             f"  {outcome:<{width}}  {law}, {where[0]}"))  # fmt: skip
    for finding in report.findings:
        if finding.why:
            click.echo(printable(f"{finding.outcome}: {finding.law}, {finding.where}: {finding.why}"))
