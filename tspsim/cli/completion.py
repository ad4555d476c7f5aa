"""``tspsim completion``: completion of commands, options and names in a shell."""

from __future__ import annotations

import os

import click
from click.shell_completion import CompletionItem, get_completion_class

from .templates import TEMPLATES

#: Set by the shell's own function while it asks for completions.
VARIABLE = "_TSPSIM_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes tspsim in SHELL: eval "$(tspsim completion bash)" in ~/.bashrc."""
    root = click.get_current_context().find_root().command
    chosen = get_completion_class(shell)
    assert chosen is not None
    click.echo(chosen(root, {}, "tspsim", VARIABLE).source())


def asked_by_shell(cli: click.Command) -> int | None:
    """Answer a shell's request for completions; None where it is a user's command."""
    instruction = os.environ.get(VARIABLE)
    if not instruction:
        return None
    from click.shell_completion import shell_complete

    return shell_complete(cli, {}, "tspsim", VARIABLE, instruction)


def scenarios(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of scenarios, and files."""
    from ..base.catalog import names

    named = [CompletionItem(name) for name in names("scenarios") if name.startswith(incomplete)]
    return [*named, CompletionItem(incomplete, type="file")]


def templates(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Templates of ``tspsim init``."""
    return [CompletionItem(name) for name in TEMPLATES if name.startswith(incomplete)]


def entries(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Every entry of every catalog, as ``tspsim catalog show`` takes it."""
    from ..base.catalog import FOLDERS, names

    every = {name for kind in FOLDERS for name in names(kind)}  # type: ignore[arg-type]
    return [CompletionItem(name) for name in sorted(every) if name.startswith(incomplete)]


def devices(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of devices."""
    from ..base.catalog import names

    return [CompletionItem(name) for name in names("devices") if name.startswith(incomplete)]


def kinds(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Kinds of catalog entries."""
    from ..base.catalog import FOLDERS

    return [CompletionItem(kind) for kind in FOLDERS if kind.startswith(incomplete)]
