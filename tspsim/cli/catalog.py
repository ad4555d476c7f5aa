"""``tspsim catalog``: names of devices, models, scenarios and other entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import click

from ..base.errors import InputError, UnknownNameError, printable
from .completion import entries, kinds
from .grammar import Commands
from .outputs import Outputs, json_text, print_rich

if TYPE_CHECKING:
    from ..base.catalog import Kind


@click.group(cls=Commands)
def catalog() -> None:
    """Names for scenarios: devices, nodes, fabrics, transports, clusters, models, stacks and scenarios."""


@catalog.command("list")
@click.argument(
    "kind",
    required=False,
    metavar="[devices|nodes|fabrics|transports|clusters|models|stacks|scenarios]",
    shell_complete=kinds,
)
@click.option(
    "--json",
    "json_file",
    metavar="[FILE]",
    is_flag=False,
    flag_value="-",
    help="Write it as JSON; without FILE print it.",
)
def list_(kind: str | None, json_file: str | None) -> None:
    """Every entry with a line of description."""
    if kind is None and json_file in _kinds():  # list --json models
        kind, json_file = json_file, "-"
    kinds = _kinds() if kind is None else [_known(kind)]
    outputs = Outputs(json=json_file)
    outputs.write({"json": lambda: json_text(_listed(kinds))}, show=lambda: _print_table(kinds))


def _listed(kinds: Sequence[Kind]) -> list[dict[str, str]]:
    """Kind, name, file and description of every entry."""
    from ..base.catalog import describe_entry, locate, names

    return [
        {"kind": kind, "name": name, "file": str(locate(kind, name)), "description": describe_entry(kind, name)}
        for kind in kinds
        for name in names(kind)
    ]


def _print_table(kinds: Sequence[Kind]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from ..base.catalog import describe_entry, names

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("kind", style="dim")
    table.add_column("name", no_wrap=True)
    table.add_column("what it is")
    for kind in kinds:
        for name in names(kind):
            table.add_row(Text(kind), Text(printable(name)), Text(describe_entry(kind, name)))
        table.add_section()
    print_rich(table)


@catalog.command()
@click.argument("name", shell_complete=entries)
def show(name: str) -> None:
    """An entry's YAML and its file; KIND/NAME where a cluster and a node share a name."""
    from ..base.catalog import locate, names
    from ..base.dialect import read_yaml

    kind, slash, rest = name.partition("/")
    if slash:
        path = locate(_known(kind), rest)
    else:
        kinds = [other for other in _kinds() if name in names(other)]
        if not kinds:
            every = {entry for other in _kinds() for entry in names(other)}
            raise UnknownNameError("catalog entry", name, every)
        if len(kinds) > 1:
            forms = " or ".join(f"{other}/{name}" for other in kinds)
            raise InputError(f"'{name}' is the name of {len(kinds)} entries; write {forms}")
        path = locate(kinds[0], name)
    read_yaml(path)  # a file that is no catalog entry is refused before it reaches the terminal
    text = path.read_text(encoding="utf-8-sig").rstrip()
    click.echo(f"# {path}\n" + "\n".join(printable(line) for line in text.splitlines()))


def _kinds() -> list[Kind]:
    from ..base.catalog import FOLDERS

    return [cast("Kind", kind) for kind in FOLDERS]


def _known(kind: str) -> Kind:
    kinds = _kinds()
    if kind not in kinds:
        raise UnknownNameError("kind of entry", kind, kinds)
    return kind
