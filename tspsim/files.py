"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from .errors import InputError


def atomic_write(path: Path, text: str | Iterable[str]) -> None:
    """Write ``text`` (or its pieces, as they come) to a temporary file beside ``path``, then rename it.

    Parameters
    ----------
    path
        The target; its folder is made when missing, an older file is replaced.
    text
        The content, encoded as UTF-8.

    Raises
    ------
    InputError The folder or file cannot be written or the disk is full. Whatever ends the write (Ctrl-C as
    well), the temporary file is removed and an older file at ``path`` stays as it was.
    """
    pieces = (text,) if isinstance(text, str) else text
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:60]}.", suffix=".part", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        temporary = None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        remedy = (
            "name another file with enough room" if error.errno == 28 else "name a file in a folder you own"
        )
        raise InputError(f"cannot write: {reason}; {remedy}", file=str(path)) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()


def zipped(folder: Path, path: Path) -> None:
    """All files below ``folder`` as one ZIP at ``path``, whole or not at all; the same files give the same bytes.

    Raises
    ------
    InputError
        The folder of ``path`` or the file cannot be written.
    """
    temporary = path.with_name(f".{path.name[:60]}.part")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(each for each in folder.rglob("*") if each.is_file()):
                entry = zipfile.ZipInfo(file.relative_to(folder).as_posix())
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(entry, file.read_bytes())
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror or type(error).__name__}", file=str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _umask() -> int:
    """The process's file mask: temporary files are private, the finished file is like any other."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
