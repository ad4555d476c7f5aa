"""The command line: parse the arguments, call the simulator, print the answer.

:func:`main` owns the exit codes. 0: answered. 2: the input is wrong. 3: no plan fits or can run. 1: a bug.
130: Ctrl-C. An error is one line on stderr. A command is one module, listed in :mod:`.commands`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

import click

from ..base.errors import TspsimError, is_ctrl_c, printable, shorten
from ..base.quick import collect_for_a_command
from ..base.registry import whose
from .commands import cli
from .completion import asked_by_shell

__all__ = ["main"]

INTERRUPTED = 130
#: The exit code that a shell reports for a writer whose reader has closed the pipe (128 + SIGPIPE).
BROKEN_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default with this process's arguments; returns the exit code."""
    if arguments is None:
        collect_for_a_command()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character is no reason to fail
    try:
        completed = asked_by_shell(cli)
        if completed is not None:
            return completed
        code = _invoke(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except TspsimError as error:
        return _fail(str(error), error.exit_code)
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        command = context.command_path if context else "tspsim"
        return _fail(f"{error.format_message().rstrip('.')}; see {command} --help", 2)
    except BrokenPipeError:
        _silence_stdout()
        return BROKEN_PIPE
    except OSError as error:
        _silence_stdout()
        return _fail(f"{error.filename or 'standard output'}: {error.strerror or type(error).__name__}", 2)
    except Exception as error:
        if is_ctrl_c(error):
            return _fail("interrupted", INTERRUPTED)
        if os.environ.get("TSPSIM_TRACEBACK"):
            raise
        where = whose(error)
        what = f"bug{where and f' {where}'}: {type(error).__name__}: {shorten(error, 200)}"
        return _fail(f"{what}; please report; set TSPSIM_TRACEBACK=1 for the trace", 1)


def _invoke(arguments: list[str]) -> int:
    """Let click parse and run; unlike its own ``main`` this leaves Ctrl-C and broken pipes to the caller."""
    try:
        with cli.make_context("tspsim", arguments) as context:
            cli.invoke(context)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    return 0


def _fail(message: str, code: int) -> int:
    """Print one line, without characters that could steer the terminal."""
    with contextlib.suppress(OSError):
        print(f"tspsim: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)
    return code


def _silence_stdout() -> None:
    """The reader has gone: redirect standard output, so that the interpreter's last flush does not fail once more."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
