"""What processes of the studio do: read questions, answer them, draw curves, search plans, save files.

:func:`main` is such a process. It takes ``(number, job, arguments)`` from a pipe and sends ``("told", number, words,
share, part)`` while it works and ``("done", number, value)`` or ``("refused", number, line, key, code)`` at the end. It
ends when the pipe does. Only plain data goes over the pipe.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from .. import api
from ..base.errors import InputError, TspsimError, printable, shorten
from . import confine, values
from .answers import SORTS

#: Called with what is under way, the share that is done, and a piece of the answer (or None).
Tell = Callable[[str, float, Any], None]

SCENARIOS = "scenarios"
#: Files of the folder that are looked at for questions of one's own.
MOST_FILES = 400
DEEPEST_FOLDER = 3
_YAML = (".yaml", ".yml")


def main(connection: Connection, folder: str, nice: int) -> None:
    """Answer jobs until the pipe ends; confined to ``folder``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's, which lets this process go
    with contextlib.suppress(OSError, AttributeError):
        os.nice(nice)
    os.chdir(folder)
    confine.keep_to(Path(folder))
    confine.limit_memory()
    jobs: queue.SimpleQueue[tuple[int, str, tuple[Any, ...]]] = queue.SimpleQueue()
    threading.Thread(target=_take, args=(connection, jobs), daemon=True).start()
    while True:
        number, name, arguments = jobs.get()
        confine.limit_time()
        connection.send(_answered(connection, number, name, arguments))


def _take(connection: Connection, jobs: queue.SimpleQueue[Any]) -> None:
    """What comes through the pipe goes to the queue; without a server there is nobody to answer."""
    while True:
        try:
            jobs.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)


def _answered(connection: Connection, number: int, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    def tell(words: str, share: float, part: Any = None) -> None:
        connection.send(("told", number, words, share, part))

    try:
        return ("done", number, JOBS[name](*arguments, tell))
    except InputError as error:
        return ("refused", number, one_line(str(error)), error.key, error.exit_code)
    except TspsimError as error:
        return ("refused", number, one_line(str(error)), None, error.exit_code)
    except MemoryError:
        gib = confine.MEMORY_BYTES / 2**30
        line = f"needs more than {gib:.0f} GiB of memory, the most that the studio gives; ask the command line"
        return ("refused", number, line, None, 1)
    except OSError as error:
        line = f"{error.filename or 'a file'}: {error.strerror or type(error).__name__}"
        return ("refused", number, one_line(line), None, 2)
    except Exception as error:
        line = f"bug: {type(error).__name__}: {shorten(error, 200)}; please report"
        return ("refused", number, one_line(line), None, 1)


def one_line(text: str) -> str:
    """As the command line prints it."""
    return printable(" ".join(text.split()))


# --- jobs -------------------------------------------------------------------------------------------------------


def answer(text: str, file: str, tell: Tell) -> dict[str, Any]:
    """The answer of a question: what ``tspsim run`` says of it, its JSON to the byte, and what else a page shows."""
    question = api.load_text(text, file)
    sort = api.sort_of(question)
    with api.placed(question):
        stated, searched = api.best_stated(question, lambda words, share: tell(words, share, None))
        result, _ = api.answered(stated, lambda words, share: tell(words, share, None))
    told = SORTS[sort].facts(stated, result)
    return {
        **told,
        "json": result.dumps() + "\n",
        "sort": sort,
        "searched": searched,
        "refused": one_line(told["refused"]),
        "entries": _entries(question, sort),
        "offers": bool(question.offers),
    }


def _entries(question: api.Asked, sort: str) -> list[tuple[str, str, str]]:
    """``(key, name, what it is)`` of the catalog's entries that a question names."""
    told = []
    for key, kind, name in SORTS[sort].entries(question):
        if name is not None:
            with contextlib.suppress(TspsimError):
                told.append((key, name, api.entry_in_words(cast("api.Kind", kind), name)))
    return told


def curve(text: str, file: str, path: str, points: Sequence[str], tell: Tell) -> dict[str, Any]:
    """The figures of every plan with a key at each of several values; points come as they are answered."""
    data = api.mapping_of(text, Path(file))
    told: list[dict[str, Any]] = []
    for number, point in enumerate(points):
        value = api.parse_yaml(point) if point else values.GONE
        try:
            question = api.load_text(values.dumped(values.put(data, values.parts(path), value)), file)
            with api.placed(question):
                stated, _ = api.best_stated(question)
                result = api.simulate(stated)
                sort = SORTS[api.sort_of(question)]
                named = sort.lines(result.to_json(), sort.facts(stated, result))
            lines = {
                name: {each.key: each.value for each in figures if each.value is not None}
                for name, figures in named.items()
            }
            told.append({"at": point, "lines": lines})
        except TspsimError as error:
            told.append({"at": point, "lines": {}, "error": one_line(str(error))})
        tell(f"{number + 1} of {len(points)} points", (number + 1) / len(points), told[-1])
    return {"path": path, "points": told}


def plans(text: str, file: str, budget: str, limits: Sequence[str], tell: Tell) -> dict[str, Any]:
    """What the planner finds, each plan with the keys that join it to the question."""
    question = api.of_one_job(api.load_text(text, file))
    with api.placed(question):
        found = api.plan(question, budget=budget, limits=limits, progress=lambda words, share: tell(words, share, None))
    several: Any = found.found if hasattr(found, "found") else [(question, found)]
    rows = []
    for scenario, each in several:
        for one in each.best:
            asked = api.mapping_of(api.scenario_text(one.asked), Path("found.yaml"))
            batch = asked["workload"].get("global_batch")
            machine = scenario.name if len(several) > 1 else ""
            result: Any = getattr(one, "result", one)
            rows.append({"machine": machine, "plan": asked["plans"][0], "batch": batch, "line": result.in_a_line()})
    count, whole = sum(each.simulated for _, each in several), all(each.complete for _, each in several)
    told = f"{count:,} plans simulated" + ("" if whole else "; the work ended before all were looked at")
    return {"rows": rows, "told": told}


def purchase(text: str, file: str, tell: Tell) -> dict[str, Any]:
    """The offers of a question side by side, as ``tspsim compare`` decides them."""
    question = api.load_text(text, file)
    sort = SORTS[api.sort_of(question)]
    with api.placed(question):
        return asdict(sort.bought(question, lambda words, share: tell(words, share, None)))


def catalogs(tell: Tell) -> dict[str, list[tuple[str, str]]]:
    """Entries of every catalog with what they are called."""
    kinds = [cast("api.Kind", kind) for kind in api.FOLDERS]
    return {kind: [(name, api.describe_entry(kind, name)) for name in api.entries(kind)] for kind in kinds}


def described(tell: Tell) -> dict[str, list[tuple[str, str]]]:
    """The same with what they are: a device's rates, a model's weights and caches. It reads all of them."""
    return {kind: [(name, _what(kind, name, told)) for name, told in each] for kind, each in catalogs(tell).items()}


def _what(kind: str, name: str, called: str) -> str:
    """An entry in a line: what it is called, and its main figures."""
    if kind == SCENARIOS:
        return called
    try:
        figures = api.entry_in_words(cast("api.Kind", kind), name).partition("\n")[0]
    except TspsimError:
        return called
    return figures if called in figures else f"{called.rstrip('.')}. {figures}" if called else figures


def folder(tell: Tell) -> dict[str, list[tuple[str, str]]]:
    """Files of this folder that can be named, with what they are, by the kind that they describe."""
    own: dict[str, list[tuple[str, str]]] = {kind: [] for kind in api.FOLDERS}
    for path in _files(Path()):
        with contextlib.suppress(TspsimError, OSError, UnicodeDecodeError):  # who names it is told
            data = api.mapping_of(path.read_text(encoding="utf-8-sig"), path)
            kind = api.kind_of(path, data)
            if kind is not None:
                called = shorten(" ".join(str(data.get("description") or "a file of this folder").split()), 160)
                own[kind].append((path.as_posix(), _what(kind, path.as_posix(), printable(called))))
    return own


def _files(root: Path) -> list[Path]:
    """YAML and JSON below a folder, not too deep and not too many; hidden folders are left out."""
    found: list[Path] = []
    for place, names, files in os.walk(root):
        here = Path(place)
        names[:] = sorted(name for name in names if not name.startswith((".", "_")) and name != "node_modules")
        if len(here.parts) >= DEEPEST_FOLDER:
            names.clear()
        found += [here / name for name in sorted(files) if name.endswith((*_YAML, ".json"))]
        if len(found) > MOST_FILES:
            break
    return [path for path in found[:MOST_FILES] if path.is_file() and path.stat().st_size <= 2**20]


def opened(name: str, tell: Tell) -> dict[str, str]:
    """The text of a scenario of the catalog, or of a file of this folder, and the name that it is saved under."""
    path = api.locate_entry("scenarios", name)
    try:
        with path.open("rb") as stream:
            text = stream.read(2**20 + 1).decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=name) from None
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text", file=name) from None
    api.mapping_of(text, Path(name))
    own = not path.is_absolute() and path.resolve().is_relative_to(Path.cwd())
    return {"text": text, "file": path.as_posix() if own else f"{path.stem}.yaml"}


def save(file: str, text: str, replace: bool, suffixes: Sequence[str], tell: Tell) -> dict[str, Any]:
    """Write a text below this folder, whole or not at all; a file that is there only where ``replace`` says so."""
    path = _mine(file, suffixes)
    if path.exists() and not replace:
        return {"exists": path.as_posix()}
    api.atomic_write(path, text)
    return {"saved": path.as_posix()}


def _mine(file: str, suffixes: Sequence[str]) -> Path:
    """A path below this folder with one of the endings; raises InputError."""
    path = Path(file.strip())
    if not file.strip() or path.suffix not in suffixes:
        raise InputError(f"is no name for this; end it with {' or '.join(suffixes)}", file=file or "''")
    if not Path(os.path.realpath(path)).is_relative_to(Path(os.path.realpath(Path.cwd()))):
        raise InputError(confine.OUTSIDE, file=file)
    return Path(os.path.relpath(os.path.realpath(path)))


def report(texts: Sequence[tuple[str, str]], file: str, replace: bool, tell: Tell) -> dict[str, Any]:
    """The report of one question, or of several the page with all of them, written below this folder."""
    path = _mine(file, (".html",))
    if path.exists() and not replace:
        return {"exists": path.as_posix()}
    questions = [api.load_text(text, name) for text, name in texts]
    answer: Any
    if len(questions) == 1 and SORTS[api.sort_of(questions[0])].alone(questions[0]):
        answer, _ = api.answered(questions[0], lambda words, share: tell(words, share, None))
    else:
        answer = api.compare(
            *map(api.of_one_job, questions), jobs=1, progress=lambda words, share: tell(words, share, None)
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    answer.to_html(path)
    return {"saved": path.as_posix()}


def rest(seconds: float, tell: Tell) -> str:
    """Does nothing for a while, for tests of what waits and is cancelled."""
    threading.Event().wait(seconds)
    return "rested"


JOBS: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (answer, curve, plans, purchase, catalogs, described, folder, opened, save, report, rest)
}
