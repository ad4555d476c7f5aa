"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from .errors import InputError

#: The remedy in a message where a file cannot be written: of a full disk, and otherwise.
REMEDIES = {errno.ENOSPC: "name another file with enough room"}
USUAL_REMEDY = "name a file in a folder you own"


@contextlib.contextmanager
def replacing(path: Path, remedy: str | None = None) -> Iterator[Path]:
    """A temporary file beside ``path`` to write to. At the end it replaces ``path``.

    The folder is made when missing. If the writing ends early (by Ctrl-C as well), the temporary file is removed and
    an older file at ``path`` stays as it was.

    Raises
    ------
    InputError
        The folder or file cannot be written or the disk is full; says ``remedy``, None: the usual one.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:60]}.", suffix=".part", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        temporary = None
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        advice = remedy or REMEDIES.get(error.errno or 0, USUAL_REMEDY)
        raise InputError(f"cannot write: {reason}; {advice}", file=str(path)) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()


def atomic_write(path: Path, text: str | Iterable[str], remedy: str | None = None) -> None:
    """Write ``text`` (or its pieces, as they come) in UTF-8, :func:`replacing` an older file."""
    with replacing(path, remedy) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines((text,) if isinstance(text, str) else text)


def zipped(folder: Path, path: Path) -> None:
    """All files below ``folder`` as one ZIP at ``path``, :func:`replacing` an older file; the same files give the same
    bytes."""
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = zipfile.ZipInfo(file.relative_to(folder).as_posix())
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, file.read_bytes())


def _umask() -> int:
    """The process's file mask: temporary files are private, the finished file is like any other."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
