"""``tspsim studio``: questions in a browser on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ..base.errors import InputError, printable
from .completion import scenarios

#: Environment variable with a token; as an option, other users would read it in the list of processes.
TOKEN = "TSPSIM_STUDIO_TOKEN"


@click.command()
@click.argument("start", required=False, metavar="[SCENARIO | FOLDER]", shell_complete=scenarios)
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="Port to listen on; 0: any free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; others need a token.")
@click.option("--no-open", is_flag=True, help="Print the address and open no browser.")
def studio(start: str | None, port: int | None, host: str, no_open: bool) -> None:
    """Edit a question in a browser; the answer follows every change. Ctrl-C ends it.

    It listens on this machine alone, reads and writes below one folder (the current one, or FOLDER), and begins with
    SCENARIO if one is named. Needs the extra `studio`. With a token in TSPSIM_STUDIO_TOKEN every page asks for it; with
    another --host one is generated.
    """
    from ..studio.server import opened, show

    folder, scenario = _folder(start)
    opened_studio = opened(folder, scenario, host=host, port=port, token=os.environ.get(TOKEN, ""))
    click.echo(f"studio: {opened_studio.url} (folder {printable(str(folder))}; Ctrl-C ends it)")
    if not no_open:
        show(opened_studio)
    opened_studio.run()


def _folder(start: str | None) -> tuple[Path, str | None]:
    """The folder to work in, and the first scenario; raises InputError where there is no such file."""
    from ..base import catalog, dialect

    here = Path.cwd()
    if start is None:
        return here, None
    if Path(start).is_dir():
        return Path(start).resolve(), None
    path = catalog.locate("scenarios", start)
    if not catalog.is_path(start):
        return here, start
    kind = catalog.kind_of(path, dialect.read_yaml(path))
    if kind not in (None, "scenarios"):
        raise InputError("is no scenario; name one, or a folder", file=start)
    path = path.resolve()
    folder = here if path.is_relative_to(here) else path.parent
    return folder, path.relative_to(folder).as_posix()
