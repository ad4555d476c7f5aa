"""Parts that commands share: groups with help, and options with one meaning everywhere."""

from __future__ import annotations

import click

from ..base.errors import InputError, UnknownNameError, shorten

#: Names of commands in other programs.
SYNONYMS = {
    "simulate": "run",
    "predict": "run",
    "report": "run",
    "optimize": "plan",
    "optimise": "plan",
    "search": "plan",
    "new": "init",
    "create": "init",
    "template": "init",
    "lint": "check",
    "show": "catalog",
    "list": "catalog",
    "diff": "compare",
    "fit": "calibrate",
    "man": "docs",
    "help": "docs",
}


class Commands(click.Group):
    """A group that prints its help when called alone, and suggests the nearest command for an unknown one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        unknown = self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing  # a shell that completes waits
        if unknown and not args[0].startswith("-"):
            commands = self.list_commands(ctx)
            meant = SYNONYMS.get(args[0].lower())
            if meant in commands:
                raise InputError(f"unknown command '{shorten(args[0])}' (did you mean '{meant}'?)")
            raise UnknownNameError("command", args[0], commands)
        return super().resolve_command(ctx, args)


set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="PATH=VALUE",
    help="Change a key, such as workload.sequence=64Ki or plans.TSP8.overlap=false; repeatable.",
)
json_option = click.option("--json", "json_file", metavar="FILE", help="Write the numbers as JSON; - prints them.")
pdf_option = click.option(
    "--pdf", "pdf_file", metavar="FILE", help="Print the decision memo, one sheet, by a browser of this machine."
)
jobs_option = click.option(
    "--jobs", type=click.IntRange(1, 1024), metavar="N", help="Processes; as many as this machine lends when left out."
)
