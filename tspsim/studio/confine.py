"""What a process that answers pages may use: memory, time of a processor, and files.

A page may name any path: a model, a trace, a file to save. What the process then opens is looked at when it is opened,
whoever asks for it and through whichever link: only what lies below the folder that the studio was started in, what
Python and this package are made of, and the catalogs that the user named himself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

#: Memory beyond what the process has when it starts.
MEMORY_BYTES = 6 * 2**30
#: Seconds of a processor for one answer.
PROCESSOR_S = 900
OUTSIDE = "lies outside the folder that the studio was started in"
#: What programs read of a machine that is none of its users'; of processes only how large this one is.
_SYSTEM = (
    *(f"/proc/{name}" for name in ("self/statm", "self/stat", "self/status", "cpuinfo", "meminfo", "stat")),
    *("/sys/devices/system", "/sys/fs/cgroup", "/dev/null", "/dev/urandom"),
    *("/usr/lib", "/usr/local/lib", "/usr/share/zoneinfo", "/etc/localtime", "/lib"),
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def limit_memory(more_bytes: int = MEMORY_BYTES) -> None:
    """No more memory than ``more_bytes`` beyond what this process has now; a system without limits keeps none."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + more_bytes
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))


def limit_time(seconds: float = PROCESSOR_S) -> None:
    """From now on so many seconds of a processor, then the system ends this process."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        most = int(used.ru_utime + used.ru_stime + seconds) + 1
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (most if hard < 0 else min(most, hard), hard))


def keep_to(folder: Path) -> None:
    """Files that are opened from now on lie below ``folder``; what Python is made of may be read, and no more written.

    A file elsewhere cannot be opened (an ``OSError``), as if its owner had said so. This holds until the process ends.
    """
    mine = os.path.realpath(folder)
    given = [part for part in os.environ.get("TSPSIM_CATALOG", "").split(os.pathsep) if part]
    package = Path(__file__).resolve().parents[1]
    shipped = [str(package), *(str(package.parent / each) for each in ("topologies", "workloads", "scenarios"))]
    python = [sys.prefix, sys.base_prefix, *(path for path in sys.path if path)]
    read = _real([*given, *shipped, *python, *_SYSTEM])
    write = _real([mine, "/dev/null", "/dev/shm"])

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open":
            return
        path, _, flags = arguments
        if isinstance(path, int) or path is None:  # a descriptor that is open already
            return
        real = os.path.realpath(os.fsdecode(path))
        writes = isinstance(flags, int) and flags & _WRITES
        if not _below(real, write) and (writes or not _below(real, read)):
            raise OSError(errno.EACCES, OUTSIDE, os.fsdecode(path))

    sys.addaudithook(look)


def _real(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(os.path.realpath(path) for path in paths))


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders)
