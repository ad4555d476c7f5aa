"""Executors of questions: this process, processes on this machine, or a running Dask cluster, behind one interface.

An executor takes chunks of questions and returns ``concurrent.futures.Future`` objects. :func:`answers` keeps it busy
and copes with workers that die: questions under way are asked again, one at a time, to find the one that kills its
worker.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import itertools
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar

from ..base.errors import InputError, TspsimError, shorten
from ..base.quick import collect_seldom
from ..base.registry import by_program
from .query import Library, Query, QuestionType
from .worker import Answer, looking_up_in

Given = TypeVar("Given")
Made = TypeVar("Made")

#: Seconds of work in one chunk: far more than sending it costs, and little enough to lose.
CHUNK_S = 0.25
LARGEST_CHUNK = 32
#: Deaths of a question's worker, while it ran alone, after which the question is given up.
MOST_DEATHS = 3
#: Deaths without an answer between them, after which the workers themselves must be wrong.
MOST_DEATHS_IN_A_ROW = 8


class Executor(Protocol):
    """Workers.

    ``width`` is the number of chunks under way that keeps them all busy. A future raises one of ``deaths`` when its
    worker died; :meth:`submit` then finds or starts another worker.
    """

    deaths: tuple[type[BaseException], ...]

    @property
    def width(self) -> int: ...

    def submit(self, work: Callable[[Sequence[Given]], Made], given: Sequence[Given]) -> Future[Made]: ...

    def close(self, *, now: bool) -> None:
        """Let the workers go; ``now`` does not wait for running chunks."""


class Here:
    """This process answers, one chunk after another.

    Parameters
    ----------
    library
        Resolved questions, with their caches. None: an empty one; it keeps what its own answers look up, but nothing
        from before, for files may have changed since.
    """

    deaths: tuple[type[BaseException], ...] = ()
    width = 1

    def __init__(self, library: Library | None = None) -> None:
        self.library = library or Library()

    def submit(self, work: Callable[[Sequence[Given]], Made], given: Sequence[Given]) -> Future[Made]:
        future: Future[Made] = Future()
        try:
            with looking_up_in(self.library):
                future.set_result(work(given))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self, *, now: bool) -> None:
        """Do nothing: there are no workers."""


class Processes:
    """``jobs`` processes on this machine, started afresh (*spawn*), so that they share nothing with this one.

    They end when this process ends, in whatever way: each waits for the end of a pipe that only this process writes.
    """

    deaths: tuple[type[BaseException], ...] = (BrokenProcessPool,)

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._context = multiprocessing.get_context("spawn")
        self._reader, self._writer = self._context.Pipe(duplex=False)
        self._pool = self._start()

    @property
    def width(self) -> int:
        return 2 * self.jobs

    def _start(self) -> concurrent.futures.ProcessPoolExecutor:
        return concurrent.futures.ProcessPoolExecutor(
            self.jobs, mp_context=self._context, initializer=_begin, initargs=(self._reader,)
        )

    def submit(self, work: Callable[[Sequence[Given]], Made], given: Sequence[Given]) -> Future[Made]:
        with _without_program():
            try:
                return self._pool.submit(work, given)
            except BrokenProcessPool:
                self._pool.shutdown(wait=True)
                self._pool = self._start()
                return self._pool.submit(work, given)

    def close(self, *, now: bool) -> None:
        if now:
            self._writer.close()
        self._pool.shutdown(wait=True, cancel_futures=now)
        self._writer.close()
        self._reader.close()


@contextlib.contextmanager
def _without_program() -> Iterator[None]:
    """Processes that start within this context do not run the main program again, so that a script needs no
    ``if __name__ == "__main__":``. A program that registers objects is run again, for workers need them too."""
    if by_program():
        yield
        return
    program = vars(sys.modules["__main__"])
    with _starting:
        names: tuple[str, ...] = ("__spec__", "__file__")
        kept = {name: program[name] for name in names if name in program}
        try:
            # multiprocessing.spawn.get_preparation_data looks at these alone.
            program.pop("__file__", None)
            program["__spec__"] = None
            yield
        finally:
            program.update(kept)


_starting = threading.RLock()


class Growing:
    """This process, and after :data:`EARNED_S` of work the requested number of processes.

    A new process has to import and look up what this one has already, which costs more than a few quick answers.
    """

    deaths: tuple[type[BaseException], ...] = Processes.deaths

    def __init__(self, jobs: int, library: Library | None = None) -> None:
        self.jobs = jobs
        self.worked_s = 0.0
        self._here = Here(library)
        self._processes: Processes | None = None

    @property
    def width(self) -> int:
        return self._here.width if self._small else 2 * self.jobs

    @property
    def _small(self) -> bool:
        return self.worked_s < EARNED_S

    def submit(self, work: Callable[[Sequence[Given]], Made], given: Sequence[Given]) -> Future[Made]:
        if self._small:
            begin_s = time.process_time()
            future = self._here.submit(work, given)
            self.worked_s += time.process_time() - begin_s
            return future
        if self._processes is None:
            self._processes = Processes(self.jobs)
        return self._processes.submit(work, given)

    def close(self, *, now: bool) -> None:
        if self._processes is not None:
            self._processes.close(now=now)


#: Seconds of processor time after which further processes are worth their start of two seconds each.
EARNED_S = 10.0


def _begin(parent: Connection) -> None:
    """Start of a worker process: it ignores Ctrl-C, which is its parent's, ends with its parent, and seldom looks for
    cycles."""
    collect_seldom()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_go_with, args=(parent,), daemon=True).start()


def _go_with(parent: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        parent.recv_bytes()
    os._exit(0)


class Dask:
    """The workers of a Dask cluster that is running already.

    Parameters
    ----------
    address
        Address of its scheduler, such as ``tcp://10.0.0.1:8786``. Workers need this package in the same version, and
        the same catalog files.

    Raises
    ------
    InputError
        The extra ``dask`` is not installed, or no scheduler answers.
    """

    deaths: tuple[type[BaseException], ...]

    def __init__(self, address: str) -> None:
        try:
            distributed: Any = importlib.import_module("distributed")
        except ImportError:
            raise InputError("needs the extra dask: pip install 'tspsim[dask]'", file="--scheduler") from None
        for name in list(logging.root.manager.loggerDict):
            if name.partition(".")[0] == "distributed":  # errors are reported in one line
                logging.getLogger(name).setLevel(logging.CRITICAL)
        self.address = address
        self.deaths = (distributed.KilledWorker,)
        try:
            self._client: Any = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TimeoutError, ImportError) as error:
            reason = shorten(error, 120) or type(error).__name__
            raise InputError(f"no Dask scheduler answers at {shorten(address)}: {reason}", file="--scheduler") from None
        self._executor = self._client.get_executor(pure=False)

    @property
    def width(self) -> int:
        threads: int = sum(self._client.ncores().values())
        return 2 * max(1, threads)

    def submit(self, work: Callable[[Sequence[Given]], Made], given: Sequence[Given]) -> Future[Made]:
        future: Future[Made] = self._executor.submit(work, given)
        return future

    def close(self, *, now: bool) -> None:
        self._executor.shutdown(wait=not now)  # cancels what it does not wait for
        self._client.close(timeout=CONNECT_S)


CONNECT_S = 10.0


def executor_of(jobs: int | None, scheduler: str | None, plans: int) -> Executor:
    """The requested executor; by default as many processes as this machine lends and ``plans`` can use."""
    if scheduler is not None:
        return Dask(scheduler)
    if jobs is None:
        jobs = min(lent(), plans) if plans > TOO_FEW else 1
    return Here() if jobs == 1 else Processes(jobs)


def growing(jobs: int | None, library: Library) -> Executor:
    """An executor for an unknown number of questions; ``library`` is this process's."""
    jobs = jobs or lent()
    return Here(library) if jobs == 1 else Growing(jobs, library)


def lent() -> int:
    """Processors that this machine lends."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


#: Plans that one process answers before a second one has started.
TOO_FEW = 8


def in_order(jobs: int | None, work: Callable[[Given], Made], given: Sequence[Given]) -> Iterator[Made]:
    """The results of ``work`` for each of ``given``, in order, by ``jobs`` processes (None: as :func:`executor_of`).

    Raises
    ------
    TspsimError
        A process died.
    """
    executor = executor_of(jobs, None, len(given))
    if isinstance(executor, Here):
        yield from map(work, given)
        return
    one_by_one = partial(_each, work)
    flying = [executor.submit(one_by_one, [one]) for one in given]
    over = False
    try:
        for future in flying:
            yield from future.result()
        over = True
    except executor.deaths as death:
        guard = ', or a script that registers its own needs `if __name__ == "__main__":`' if by_program() else ""
        raise TspsimError(f"a worker died; too little memory{guard}? {shorten(death, 120)}") from None
    finally:
        executor.close(now=not over)


def _each(work: Callable[[Given], Made], given: Sequence[Given]) -> list[Made]:
    return [work(one) for one in given]


#: A worker's answers to some questions.
Work = Callable[[Sequence[Query[QuestionType]]], list[Answer]]


def answers(
    questions: Iterable[Query[QuestionType]], executor: Executor, work: Work[QuestionType]
) -> Iterator[list[Answer]]:
    """Every question answered once, in the order the answers come.

    When a worker dies, its questions become suspects and are asked again one by one. A question whose worker dies
    :data:`MOST_DEATHS` times while it runs alone gets an answer that says so.

    Raises
    ------
    TspsimError
        Workers die again and again.
    InputError
        Workers see another catalog or version, or the scheduler went away.
    """
    waiting = iter(questions)
    suspects: deque[Query[QuestionType]] = deque()
    deaths: Counter[str] = Counter()
    flying: dict[Future[list[Answer]], list[Query[QuestionType]]] = {}
    size = 1
    while True:
        alone = bool(suspects)
        while len(flying) < (1 if alone else executor.width):
            chunk = [suspects.popleft()] if alone else list(itertools.islice(waiting, size))
            if not chunk:
                break
            flying[executor.submit(work, chunk)] = chunk
        if not flying:
            return
        done, _ = concurrent.futures.wait(flying, return_when=concurrent.futures.FIRST_COMPLETED)
        for future in done:
            chunk = flying.pop(future)
            try:
                batch = future.result()
            except executor.deaths as death:
                suspects.extend(chunk)
                lonely = alone and len(chunk) == 1
                deaths.update([chunk[0].key, IN_A_ROW] if lonely else ())
                if deaths[IN_A_ROW] > MOST_DEATHS_IN_A_ROW:
                    raise TspsimError(f"workers die again and again: {shorten(death, 120)}") from None
                if deaths[chunk[0].key] >= MOST_DEATHS:
                    given_up = suspects.pop()
                    yield [Answer(given_up.key, "", 0.0, f"its worker died {MOST_DEATHS} times; too little memory?")]
            except concurrent.futures.CancelledError:
                raise InputError(
                    "the scheduler went away; start one and run again with --resume", file="--scheduler"
                ) from None
            else:
                deaths[IN_A_ROW] = 0
                size = chunk_size(batch)
                yield batch


#: Key that counts deaths without an answer between them.
IN_A_ROW = ""


def chunk_size(batch: Sequence[Answer]) -> int:
    """The number of similar questions that makes :data:`CHUNK_S` of work."""
    each_s = sum(answer.wall_s for answer in batch) / len(batch)
    return max(1, min(LARGEST_CHUNK, round(CHUNK_S / max(each_s, 1e-6))))
