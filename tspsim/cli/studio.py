"""``tspsim studio``: questions in a browser on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ..base.errors import InputError, printable
from .completion import scenarios

#: Where a token may stand; as an option other users of the machine would read it in the list of processes.
TOKEN = "TSPSIM_STUDIO_TOKEN"


@click.command()
@click.argument("start", required=False, metavar="[SCENARIO | FOLDER]", shell_complete=scenarios)
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="Listen there; 0: any that is free.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Listen there; elsewhere than here with a token.")
@click.option("--no-open", is_flag=True, help="Print the address and open no browser.")
def studio(start: str | None, port: int | None, host: str, no_open: bool) -> None:
    """Put a question together in a browser, answered as it changes; Ctrl-C ends it.

    It listens on this machine alone, reads and writes below one folder (the current one, or FOLDER), and begins with
    SCENARIO if one is named. Needs the extra `studio`. A token in TSPSIM_STUDIO_TOKEN is asked of every page; with
    another --host one is made.
    """
    from ..studio.server import opened, show

    folder, asked = _folder(start)
    opened_studio = opened(folder, asked, host=host, port=port, token=os.environ.get(TOKEN, ""))
    click.echo(f"studio: {opened_studio.url} (folder {printable(str(folder))}; Ctrl-C ends it)")
    if not no_open:
        show(opened_studio)
    opened_studio.run()


def _folder(start: str | None) -> tuple[Path, str | None]:
    """The folder to work in, and the scenario to begin with; raises InputError where that is none."""
    from ..base import catalog

    here = Path.cwd()
    if start is None:
        return here, None
    if Path(start).is_dir():
        return Path(start).resolve(), None
    path = catalog.locate("scenarios", start)
    if not catalog.is_path(start):
        return here, start
    kind = catalog.kind_of(path, catalog.read_yaml(path))
    if kind not in (None, "scenarios"):
        raise InputError("is no scenario; name one, or a folder", file=start)
    path = path.resolve()
    folder = here if path.is_relative_to(here) else path.parent
    return folder, path.relative_to(folder).as_posix()
