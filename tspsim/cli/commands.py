"""The command ``tspsim`` and its subcommands."""

from __future__ import annotations

import click

from .._version import __version__
from .bound import bound
from .calibrate import calibrate
from .catalog import catalog
from .check import check
from .check_plugin import check_plugin
from .compare import compare
from .completion import completion
from .docs import docs
from .grammar import Commands
from .init import init
from .plan import plan
from .run import run
from .size import size
from .studio import studio
from .sweep import sweep
from .trace import trace
from .validate import validate

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(cls=Commands, context_settings=_SETTINGS)
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Will this model train or serve on those GPUs, how fast, at what cost, and where does the time go?

    SCENARIO is a name from `tspsim catalog list scenarios` or a YAML file.
    """


COMMANDS = (
    *(init, check, run, compare, plan, size, bound, sweep, catalog, studio, validate, calibrate, trace),
    *(check_plugin, docs, completion),
)
for command in COMMANDS:
    cli.add_command(command)
