"""The store of a sweep's answers: one SQLite file, keyed by the content of the question.

The journal is SQLite's rollback journal, not its write-ahead log: committed answers are in the one file, whatever
happens to the process, and a copy of that file is complete. A commit is synced to the disk before the sweep goes on.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..base.errors import InputError, shorten
from .worker import Answer

#: Marks the file as ours ("tsps" in ASCII); ``user_version`` is the version of the layout.
APPLICATION_ID = 0x74737073
LAYOUT = 1
#: Seconds to wait for another program that holds the file.
PATIENCE_S = 30.0


class AnswerStore:
    """Answers by key.

    Parameters
    ----------
    path
        The file; None keeps the answers in memory.
    resume
        Continue a file that exists; else it must not exist.

    Raises
    ------
    InputError
        The file exists and ``resume`` is False, it is not a sweep's store, or it cannot be written.
    """

    def __init__(self, path: Path | None, *, resume: bool = False) -> None:
        self.path = path
        if path is not None and path.exists() and not resume:
            raise InputError(
                "exists already; add --resume to go on with it, name another --out, or remove it", file=str(path)
            )
        with self._explained():
            self._connection = sqlite3.connect(
                ":memory:" if path is None else path, timeout=PATIENCE_S, isolation_level=None
            )
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def _prepare(self) -> None:
        execute = self._connection.execute
        execute("PRAGMA journal_mode = DELETE")
        execute("PRAGMA synchronous = FULL")
        execute("BEGIN IMMEDIATE")
        (identity,) = execute("PRAGMA application_id").fetchone()
        (layout,) = execute("PRAGMA user_version").fetchone()
        (tables,) = execute("SELECT count(*) FROM sqlite_master").fetchone()
        if (identity, layout) != (APPLICATION_ID, LAYOUT):
            if identity or layout or tables:
                execute("ROLLBACK")
                raise InputError("is no store of this version's sweeps; name another --out", file=str(self.path))
            execute(f"PRAGMA application_id = {APPLICATION_ID}")
            execute(f"PRAGMA user_version = {LAYOUT}")
            execute("CREATE TABLE answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL, wall_s REAL NOT NULL)")
        execute("COMMIT")

    def __len__(self) -> int:
        with self._explained():
            (count,) = self._connection.execute("SELECT count(*) FROM answers").fetchone()
            return int(count)

    def keys(self) -> set[str]:
        """Keys of all answers."""
        with self._explained():
            return {key for (key,) in self._connection.execute("SELECT key FROM answers")}

    def add(self, answers: Iterable[Answer]) -> None:
        """Store some answers: all of them or, when this raises InputError, none."""
        rows = [(answer.key, answer.text, answer.wall_s) for answer in answers]
        with self._explained():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._connection.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?, ?)", rows)
                self._connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise

    def get(self, key: str) -> Answer | None:
        """The stored answer to one question; None where there is none."""
        with self._explained():
            query = "SELECT key, answer, wall_s FROM answers WHERE key = ?"
            row = self._connection.execute(query, (key,)).fetchone()
            return Answer(*row) if row else None

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Raises errors of SQLite as one line with a remedy."""
        try:
            yield
        except sqlite3.Error as error:
            code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
            remedy = _REMEDIES.get(code, _DAMAGED)
            # Committed answers survive these failures; after others the content of the file is uncertain.
            intact = self.path is not None and code in _KEEPING
            kept = "; what was kept before is still there, run again with --resume" if intact else ""
            raise InputError(
                f"cannot keep answers: {shorten(error)}; {remedy}{kept}", file=str(self.path or "memory")
            ) from error


_DAMAGED = "the file is damaged or was changed by something else, and may have lost answers; name another --out"
_REMEDIES = {
    sqlite3.SQLITE_FULL: "make room on the disk",
    sqlite3.SQLITE_IOERR: (
        "see that the disk has room and works; --resume then goes on with what the file still holds"
    ),
    sqlite3.SQLITE_READONLY: "make the file writable",
    sqlite3.SQLITE_CANTOPEN: "see that its folder exists and can be written",
    sqlite3.SQLITE_NOTADB: "it is no store, name another --out",
    sqlite3.SQLITE_BUSY: "another program holds it, let that end",
}
_KEEPING = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_BUSY)
