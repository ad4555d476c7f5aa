"""``tspsim init``: a first file of one's own, which runs as it is."""

from __future__ import annotations

from pathlib import Path

import click

from ..base.errors import InputError, UnknownNameError, printable
from .completion import templates
from .templates import TEMPLATES, text_of


@click.command()
@click.argument("template", default="first", metavar="[TEMPLATE]", shell_complete=templates)
@click.option("--out", "out_file", metavar="FILE", help="The file to write; - prints it. By default its own name.")
@click.option("--list", "listed", is_flag=True, help="Show the templates.")
def init(template: str, out_file: str | None, listed: bool) -> None:
    """Write a first file that runs as it is: TEMPLATE is first, training, experts, serving,
    purchase, device, announced or node.

    An existing file is never replaced.
    """
    if listed:
        for name, (what, _) in TEMPLATES.items():
            click.echo(f"{name:<11}{what}")
        return
    if template not in TEMPLATES:
        raise UnknownNameError("template", template, TEMPLATES)
    files = TEMPLATES[template][1]
    if out_file is not None and len(files) > 1:
        raise InputError(f"template '{template}' has {len(files)} files with places of their own", file="--out")
    if out_file == "-":
        click.echo("".join(map(text_of, files)), nl=False)
        return
    targets = {part: Path(out_file or place) for part, place in files.items()}
    for path in targets.values():
        _check_free(path, make_folder=out_file is None)
    from ..base.files import atomic_write

    for part, path in targets.items():
        atomic_write(path.absolute(), text_of(part))
        click.echo(f"wrote {printable(str(path))}")
    click.echo(f"next: {_next(template, next(iter(targets.values())))}")


def _check_free(path: Path, make_folder: bool) -> None:
    """Refuse a file that exists, or whose folder is missing unless ``make_folder``."""
    from .outputs import writable

    if path.is_symlink() or path.exists():
        raise InputError("exists already; name another file with --out, or move it away", file=str(path))
    if not make_folder:
        writable(str(path))


def _next(template: str, path: Path) -> str:
    file = printable(str(path))
    if template == "purchase":
        return f"tspsim compare {file} --html purchase.html"
    if path.parts[0] == "topologies":
        return f"tspsim check {file}"
    return f"tspsim run {file}"
