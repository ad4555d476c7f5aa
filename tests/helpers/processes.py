"""Processes of their own for tests, and what a process meets at its edges, for commands that run in this one."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TextIO
from unittest.mock import patch

import tspsim


def heed_interrupts() -> None:
    """For ``preexec_fn``: Ctrl-C reaches the child whatever pytest was started with.

    A shell without job control starts what it puts in the background with SIGINT ignored, ``nohup`` scripts and much CI
    do, and every child inherits that: Python then installs no handler, and a signal sent to it does nothing.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_until_busy_for(process: subprocess.Popen[str], seconds: float) -> None:
    """Until a process has had so much of the processors: where it then is does not depend on what else runs."""
    ticks = seconds * os.sysconf("SC_CLK_TCK")
    while process.poll() is None:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        if int(fields[11]) + int(fields[12]) >= ticks:  # in user mode and in the kernel
            return
        time.sleep(0.01)


@contextlib.contextmanager
def without_reader() -> Iterator[TextIO]:
    """A pipe whose reader has gone, to be written to."""
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w", encoding="utf-8")
    yield stream
    with contextlib.suppress(BrokenPipeError):
        stream.close()


@contextlib.contextmanager
def files_limited_to(size_bytes: int) -> Iterator[None]:
    """Files may not grow past this, as on a disk that is almost full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


#: A process that has imported the package, and answers each line by what a fork of it prints: nothing that was asked
#: before is known in the fork, and the package is imported once for all.
ANSWERS_IN_FORKS = """
import json, os, sys, traceback
import tspsim.api

for line in sys.stdin:
    script, arguments, folder, variables = json.loads(line)
    reading, writing = os.pipe()
    fork = os.fork()
    if not fork:
        os.close(reading)
        os.dup2(writing, 1)
        sys.argv = ["-c", *arguments]
        try:
            os.chdir(folder)
            os.environ.update(variables)
            exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})
            sys.stdout.flush()
        except BaseException:
            os.write(1, traceback.format_exc().encode())
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        said = stream.read()
    print(json.dumps([os.waitpid(fork, 0)[1], said]), flush=True)
"""


@cache
def other_process() -> subprocess.Popen[str]:
    """With its own hash seed, and the same package as here, whatever lies in the current folder."""
    folders = [str(Path(tspsim.__file__).parents[1]), str(Path(__file__).parents[1])]
    paths = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONHASHSEED": "4242", "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", ANSWERS_IN_FORKS]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said_in_any_process(script: str, *arguments: str) -> str:
    """What a script prints here, after whatever was asked in this process before, and with its own hash seed in another
    process too, where nothing was asked; ``helpers`` can be imported in both."""
    process = other_process()
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps([script, arguments, str(Path.cwd()), dict(os.environ)]) + "\n")
    process.stdin.flush()
    here = io.StringIO()
    try:  # while the other one computes
        with contextlib.redirect_stdout(here), patch.object(sys, "argv", ["-c", *arguments]):
            exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})
    finally:
        status, there = json.loads(process.stdout.readline())
    assert status == 0, there
    assert here.getvalue() == there
    return str(there)
