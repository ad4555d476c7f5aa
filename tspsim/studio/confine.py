"""Limits of a worker: memory, processor time, and files.

A page may name any path: a model, a trace, a file to save. Every path is checked when the process opens it, whoever
asks for it and through whichever link. Allowed are paths below the folder of the studio, the files of Python and this
package, and the catalogs in the user's ``TSPSIM_CATALOG``.
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
#: System files that programs read and that belong to no user; of processes only this one's size.
_SYSTEM = (
    *(f"/proc/{name}" for name in ("self/statm", "self/stat", "self/status", "cpuinfo", "meminfo", "stat")),
    *("/sys/devices/system", "/sys/fs/cgroup", "/dev/null", "/dev/urandom"),
    *("/usr/lib", "/usr/local/lib", "/usr/share/zoneinfo", "/etc/localtime", "/lib"),
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def limit_memory(more_bytes: int = MEMORY_BYTES) -> None:
    """Limit memory to ``more_bytes`` beyond the present use; without effect on a system without limits."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + more_bytes
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))


def limit_time(seconds: float = PROCESSOR_S) -> None:
    """End this process after ``seconds`` more of processor time."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        most = int(used.ru_utime + used.ru_stime + seconds) + 1
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (most if hard < 0 else min(most, hard), hard))


def keep_to(folder: Path) -> None:
    """From now on, files can be opened only below ``folder``; the files of Python may be read, and not written.

    Any other file raises an ``OSError``, as if permission were denied. This holds until the process ends.
    """
    mine = os.path.realpath(folder)
    given = [part for part in os.environ.get("TSPSIM_CATALOG", "").split(os.pathsep) if part]
    package = Path(__file__).resolve().parents[1]
    shipped = [str(package), *(str(package.parent / part) for part in ("topologies", "workloads", "scenarios"))]
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
