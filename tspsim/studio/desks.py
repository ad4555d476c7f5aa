"""A tab's processes: one that answers the question, one that lists files, one that writes them, one that draws
curves, one that searches.

A :class:`WorkerTask` is a job of a process, a :class:`Worker` the process, a :class:`TabProcesses` those of a tab, and
:class:`Desks` all tabs. A new job of a tab replaces the one before it: a job that is still under way a moment later is
killed with its process, and the next starts in a new one. A process is forked from one that has everything imported,
which takes milliseconds.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..base.errors import InputError
from . import confine, work
from .processes import context

#: Seconds that a replaced job may take to end by itself.
GRACE_S = 0.15
#: Seconds without a request from its tab after which a tab's processes end; an open page sends requests more often.
IDLE_S = 900.0
#: Tabs with processes, at most; the one that was silent longest loses them.
MOST_DESKS = 12
#: Purposes of a tab's processes, and their niceness.
LANES = {"front": 0, "list": 0, "file": 0, "curve": 3, "back": 3}


@dataclass
class WorkerTask:
    """A job of a worker; it is over once ``value`` or ``line`` is set."""

    number: int
    words: str = ""
    share: float = 0.0
    #: Pieces of the answer so far.
    parts: list[Any] = field(default_factory=list)
    value: Any = None
    #: Why there is no answer, in one line; and the key that is wrong.
    line: str = ""
    key: str | None = None
    code: int = 0
    over: bool = False
    cancelled: bool = False
    _news: threading.Condition = field(default_factory=threading.Condition)

    def wait(self, seconds: float) -> bool:
        """Wait until it is over, for at most ``seconds``; returns whether it is over."""
        with self._news:
            self._news.wait_for(lambda: self.over, seconds)
        return self.over

    def tell(self, words: str, share: float, part: Any) -> None:
        with self._news:
            self.words, self.share = words, share
            if part is not None:
                self.parts.append(part)

    def end(self, value: Any = None, line: str = "", key: str | None = None, code: int = 0) -> None:
        """Set the answer, or why there is none; a second call has no effect."""
        with self._news:
            if not self.over:
                self.value, self.line, self.key, self.code, self.over = value, line, key, code, True
            self._news.notify_all()


#: Kind of catalog → its entries: name, description.
Entries = dict[str, list[tuple[str, str]]]
_numbers = itertools.count(1)


class Worker:
    """A process that answers one job after another, until it is killed."""

    def __init__(self, folder: Path, nice: int) -> None:
        processes = context()
        self.connection: Connection
        self.connection, there = processes.Pipe()
        self.process = processes.Process(target=work.main, args=(there, str(folder), nice), daemon=True)
        self.process.start()
        there.close()
        self.job: WorkerTask | None = None
        self._lock = threading.Lock()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int | None:
        number: int | None = self.process.pid
        return number

    @property
    def alive(self) -> bool:
        return bool(self.process.is_alive())

    @property
    def busy(self) -> bool:
        return self.job is not None and not self.job.over

    def ask(self, name: str, arguments: tuple[Any, ...]) -> WorkerTask:
        """Start a job; the process must have none."""
        job = self.job = WorkerTask(next(_numbers))
        try:
            with self._lock:
                self.connection.send((job.number, name, arguments))
        except (OSError, ValueError):
            job.end(line=self._died(), code=1)
        return job

    def kill(self, line: str = "cancelled") -> None:
        """End the process now; its job is over without an answer."""
        if self.job is not None and not self.job.over:
            self.job.cancelled = True
            self.job.end(line=line, code=1)
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self.process.kill()
        with contextlib.suppress(OSError):
            self.connection.close()

    def _listen(self) -> None:
        while True:
            try:
                kind, number, *rest = self.connection.recv()
            except (EOFError, OSError, TypeError):
                break
            job = self.job
            if job is None or job.number != number:
                continue
            if kind == "progress":
                job.tell(*rest)
            elif kind == "done":
                job.end(rest[0])
            else:
                job.end(line=rest[0], key=rest[1], code=rest[2])
        if self.job is not None and not self.job.over:
            self.job.end(line=self._died(), code=1)

    def _died(self) -> str:
        """Why the process is gone."""
        self.process.join(2.0)
        code = self.process.exitcode
        if code == -getattr(signal, "SIGXCPU", 24):
            most = f"{confine.PROCESSOR_S} s of a processor"
            return f"took more than {most}, the most that the studio gives; ask the command line"
        how = f" (signal {-code})" if code is not None and code < 0 else ""
        return f"the process that answered was ended from outside{how}; ask again"


class TabProcesses:
    """The processes of one tab; ``catalogs`` gives the entries of all catalogs, as :meth:`Desks.catalogs` does."""

    def __init__(self, folder: Path, catalogs: Callable[[bool], Entries]) -> None:
        self.folder, self.catalogs = folder, catalogs
        self.lanes: dict[str, Worker] = {}
        self.heard_s = time.monotonic()
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        #: Number of the latest question, the job that answers it, and the latest answer: its JSON, and all of it.
        self.number = 0
        self._question = ("", "")
        self.answering: WorkerTask | None = None
        #: A job that was started before its question: text and file, and the job.
        self._begun: tuple[tuple[str, str], WorkerTask] | None = None
        self.document: dict[str, Any] | None = None
        self.value: dict[str, Any] | None = None
        #: Key of the latest curve, and its job; jobs beside the answer.
        self.drawn = ""
        self.drawing: WorkerTask | None = None
        self.aside: dict[str, WorkerTask] = {}
        self.writing: WorkerTask | None = None
        #: Files of the folder that can be named, by kind; None: not listed yet.
        self.own: Entries | None = None
        self.listing = threading.Lock()

    def ask(self, lane: str, name: str, *arguments: Any) -> WorkerTask:
        """Start a job in place of the lane's present one."""
        with self._lock:
            self.heard_s = time.monotonic()
            worker = self.lanes.get(lane)
            if worker is not None and worker.busy and not (worker.job and worker.job.wait(GRACE_S)):
                worker.kill("another question was asked")
            if worker is None or worker.busy or not worker.alive or (worker.job is not None and worker.job.cancelled):
                worker = self.lanes[lane] = Worker(self.folder, LANES[lane])
            return worker.ask(name, arguments)

    def answer(self, number: int, text: str, file: str, again: bool = False) -> WorkerTask | None:
        """The job that answers the question of a number, started on the first call, or ``again``; None where there is
        a later question."""
        with self._asking:
            if number < self.number:
                return None
            if self.answering is None or (number, text, file) != (self.number, *self._question) or again:
                begun, self._begun = self._begun, None
                if begun is not None and begun[0] == (text, file) and not begun[1].cancelled and not again:
                    self.answering = begun[1]
                else:
                    self.answering = self.ask("front", "answer", text, file)
                self.number, self._question = number, (text, file)
            return self.answering

    def begin(self, text: str, file: str) -> None:
        """Start the answer of a question that will follow, where nothing else is under way."""
        with self._asking:
            if self.answering is None or self.answering.over:
                self._begun = (text, file), self.ask("front", "answer", text, file)

    def done(self, lane: str, name: str, *arguments: Any, seconds: float = 60.0) -> Any:
        """The result of a short job.

        Raises
        ------
        InputError
            The job was refused.
        """
        job = self.ask(lane, name, *arguments)
        if not job.wait(seconds):
            self.cancel(lane)
        if job.line:
            raise InputError(job.line)
        return job.value

    def cancel(self, lane: str) -> None:
        """Stop the job of a lane."""
        with self._lock:
            worker = self.lanes.get(lane)
            if worker is not None and worker.busy:
                worker.kill()

    def clear(self) -> None:
        """End all processes."""
        with self._lock:
            for worker in self.lanes.values():
                worker.kill()
            self.lanes.clear()


class Desks:
    """The processes of all tabs, by the name that each tab gave itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._desks: dict[str, TabProcesses] = {}
        self._lock = threading.Lock()
        self._first = TabProcesses(folder, lambda _: {})
        self._listing, self._describing = threading.Lock(), threading.Lock()
        self._entries: Entries | None = None
        self._described = False

    def catalogs(self, described: bool = False) -> Entries:
        """Kind → its entries: name and title, and once they were read the description; ``described`` waits for that.
        They are listed once, before a page asks where there is time (raises InputError)."""
        with self._listing:
            if self._entries is None:
                self._entries = self._first.done("list", "catalogs")
        if described:
            with self._describing:
                if not self._described:
                    self._entries = self._first.done("list", "described")
                    self._described = True
                    self._first.clear()
        return self._entries

    def of(self, tab: str) -> TabProcesses:
        """The processes of a tab, made on the first call; those of silent tabs are ended."""
        cleared: list[TabProcesses] = []
        with self._lock:
            now = time.monotonic()
            desk = self._desks.get(tab)
            if desk is None:
                silent = [name for name, other in self._desks.items() if now - other.heard_s > IDLE_S]
                by_silence = sorted(self._desks, key=lambda name: self._desks[name].heard_s)
                silent += by_silence[: max(0, len(self._desks) - MOST_DESKS + 1)]
                cleared = [self._desks.pop(name) for name in dict.fromkeys(silent)]
                desk = self._desks[tab] = TabProcesses(self.folder, self.catalogs)
            desk.heard_s = now
        for silent_desk in cleared:
            silent_desk.clear()
        return desk

    def leave(self, tab: str) -> None:
        """A tab was closed."""
        with self._lock:
            desk = self._desks.pop(tab, None)
        if desk is not None:
            desk.clear()

    def close(self) -> None:
        """Every process ends."""
        with self._lock:
            desks, self._desks = list(self._desks.values()), {}
        for desk in [self._first, *desks]:
            desk.clear()

    def processes(self) -> dict[str, dict[str, int | None]]:
        """Tab → lane → number of its process."""
        with self._lock:
            return {tab: {lane: worker.pid for lane, worker in desk.lanes.items()} for tab, desk in self._desks.items()}
