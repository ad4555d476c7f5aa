"""``tspsim check-plugin``: whether an object of somebody's package keeps its contract."""

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
    "--with", "keys", multiple=True, metavar="KEY=VALUE", help="A key beside its name, in plan or traffic; repeatable."
)
@click.option("--scenario", metavar="FILE", help="Hold it by this scenario's first plan, which names it.")
@json_option
def check_plugin(name: str, keys: tuple[str, ...], scenario: str | None, json_file: str | None) -> None:
    """Hold the registered object NAME against its contract: a scheme, a context method, an expert dispatch, a
    collective algorithm, a scheduler, a router or any other kind of entry point.

    Bytes in closed form are those of its program, ranks receive what they need, all work is done, no bound lies above
    the answer, memory names its parts, folded ranks are what every rank is; requests are all answered. It exits with 2
    where a law is broken. GROUP/NAME tells two of one name apart.
    """
    from ..base import catalog
    from ..scenario.loading import assignment
    from ..studies.contract import check

    stated: dict[str, Any] = {}
    for text in keys:
        path, value, place = assignment(text, "--with", "key=value, such as short=40")
        try:
            stated[path] = catalog.parse_yaml(value)
        except InputError as error:
            raise error.at(file=place) from None
    asked = catalog.read_yaml(catalog.locate("scenarios", scenario)) if scenario is not None else None
    outputs = Outputs(inputs=files_of(scenario), json=json_file)
    found = check(name, stated, asked)
    outputs.write({"json": lambda: json_text(found.to_json())}, show=lambda: _print(found))
    if found.broken:
        first = found.broken[0]
        raise InputError(
            f"breaks {len(found.broken)} of {found.held} laws; {first.law} ({first.where}): {first.why}",
            file=f"{found.group.removeprefix('tspsim.')}/{found.name}",
        )


def _print(found: Checked) -> None:
    """A line a law, with the questions that it was held by; then what was broken or left out, and why."""
    laws: dict[tuple[str, str], list[str]] = {}
    for each in found.findings:
        laws.setdefault((each.law, each.outcome), []).append(each.where)
    click.echo(printable(f"{found.group.removeprefix('tspsim.')}/{found.name}: {found.held} laws held against it"))
    width = max(len(outcome) for _, outcome in laws)
    for (law, outcome), where in laws.items():
        click.echo(printable(f"  {outcome:<{width}}  {law} ({len(where)} times)" if len(where) > 1 else
                             f"  {outcome:<{width}}  {law}, {where[0]}"))  # fmt: skip
    for each in found.findings:
        if each.why:
            click.echo(printable(f"{each.outcome}: {each.law}, {each.where}: {each.why}"))
