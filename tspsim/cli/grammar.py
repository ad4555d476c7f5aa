"""What commands share: groups that help, and options that mean the same everywhere."""

from __future__ import annotations

import click

from ..errors import UnknownNameError


class Commands(click.Group):
    """A group that shows its help when nothing is asked, and the nearest command for one it doesn't know."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise UnknownNameError("command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="PATH=VALUE",
    help="Change a key, such as workload.sequence=64Ki or plans.TSP8.overlap=false; repeatable.",
)
json_option = click.option("--json", "json_file", metavar="FILE", help="Write the numbers as JSON; - prints them.")
jobs_option = click.option(
    "--jobs", type=click.IntRange(1, 1024), help="Processes; as many as this machine lends when left out."
)
