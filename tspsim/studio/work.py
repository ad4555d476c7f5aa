"""The jobs of the studio's workers: read questions, answer them, draw curves, search plans, save files.

:func:`main` is a worker. It takes ``(number, job, arguments)`` from a pipe. While it works, it sends ``("progress",
number, words, share, part)``; at the end it sends ``("done", number, value)`` or ``("refused", number, line, key,
code)``. It ends with the pipe. Only plain data goes over the pipe.
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

#: Called with the name of the current task, the share that is done, and a piece of the answer (or None).
Tell = Callable[[str, float, Any], None]

SCENARIOS = "scenarios"
#: Most files of the folder that are listed.
MOST_FILES = 400
DEEPEST_FOLDER = 3
_YAML = (".yaml", ".yml")


def main(connection: Connection, folder: str, nice: int) -> None:
    """Answer jobs until the pipe ends; confined to ``folder``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's, which ends this process
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
    """Move jobs from the pipe to the queue; end the process when the server has gone."""
    while True:
        try:
            jobs.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)


def _answered(connection: Connection, number: int, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    def tell(words: str, share: float, part: Any = None) -> None:
        connection.send(("progress", number, words, share, part))

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
    """The text in one line, as the command line prints it."""
    return printable(" ".join(text.split()))


# --- jobs -------------------------------------------------------------------------------------------------------


def answer(text: str, file: str, tell: Tell) -> dict[str, Any]:
    """The answer of a question: the JSON of ``tspsim run`` to the byte, and further facts for the page."""
    question = api.load_text(text, file)
    sort = api.sort_of(question)
    with api.placed(question):
        stated, searched = api.best_stated(question, lambda words, share: tell(words, share, None))
        result, _ = api.answered(stated, lambda words, share: tell(words, share, None))
    facts = SORTS[sort].facts(stated, result)
    return {
        **facts,
        "json": result.dumps() + "\n",
        "sort": sort,
        "searched": searched,
        "refused": one_line(facts["refused"]),
        "entries": _entries(question, sort),
        "offers": bool(question.offers),
    }


def _entries(question: api.Asked, sort: str) -> list[tuple[str, str, str]]:
    """``(key, name, description)`` of the catalog entries that a question names."""
    named = []
    for key, kind, name in SORTS[sort].entries(question):
        if name is not None:
            with contextlib.suppress(TspsimError):
                named.append((key, name, api.entry_in_words(cast("api.Kind", kind), name)))
    return named


def curve(text: str, file: str, path: str, points: Sequence[str], tell: Tell) -> dict[str, Any]:
    """The figures of every plan with a key at each of several values; each point is sent as it is answered."""
    data = api.mapping_of(text, Path(file))
    answered: list[dict[str, Any]] = []
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
                name: {figure.key: figure.value for figure in figures if figure.value is not None}
                for name, figures in named.items()
            }
            answered.append({"at": point, "lines": lines})
        except TspsimError as error:
            answered.append({"at": point, "lines": {}, "error": one_line(str(error))})
        tell(f"{number + 1} of {len(points)} points", (number + 1) / len(points), answered[-1])
    return {"path": path, "points": answered}


def plans(text: str, file: str, budget: str, limits: Sequence[str], tell: Tell) -> dict[str, Any]:
    """The planner's best plans, each with the keys that add it to the question."""
    question = api.of_one_job(api.load_text(text, file))
    with api.placed(question):
        planned = api.plan(
            question, budget=budget, limits=limits, progress=lambda words, share: tell(words, share, None)
        )
    several: Any = planned.answered if hasattr(planned, "answered") else [(question, planned)]
    rows = []
    for scenario, outcome in several:
        for one in outcome.best:
            stated = api.mapping_of(api.scenario_text(one.source_scenario), Path("found.yaml"))
            batch = stated["workload"].get("global_batch")
            machine = scenario.name if len(several) > 1 else ""
            result: Any = getattr(one, "result", one)
            rows.append({"machine": machine, "plan": stated["plans"][0], "batch": batch, "line": result.in_a_line()})
    count = sum(search.simulated for _, search in several)
    whole = all(search.complete for _, search in several)
    words = f"{count:,} plans simulated" + ("" if whole else "; the budget ended before all were searched")
    return {"rows": rows, "words": words}


def purchase(text: str, file: str, tell: Tell) -> dict[str, Any]:
    """The offers of a question side by side, as ``tspsim compare`` decides them."""
    question = api.load_text(text, file)
    sort = SORTS[api.sort_of(question)]
    with api.placed(question):
        return asdict(sort.bought(question, lambda words, share: tell(words, share, None)))


def catalogs(tell: Tell) -> dict[str, list[tuple[str, str]]]:
    """Entries of every catalog with their titles."""
    kinds = [cast("api.Kind", kind) for kind in api.FOLDERS]
    return {kind: [(name, api.describe_entry(kind, name)) for name in api.entries(kind)] for kind in kinds}


def described(tell: Tell) -> dict[str, list[tuple[str, str]]]:
    """The same with descriptions: a device's rates, a model's weights and caches. It reads all entries."""
    return {
        kind: [(name, _what(kind, name, title)) for name, title in entries_of_kind]
        for kind, entries_of_kind in catalogs(tell).items()
    }


def _what(kind: str, name: str, called: str) -> str:
    """An entry in a line: its title, and its main figures."""
    if kind == SCENARIOS:
        return called
    try:
        figures = api.entry_in_words(cast("api.Kind", kind), name).partition("\n")[0]
    except TspsimError:
        return called
    return figures if called in figures else f"{called.rstrip('.')}. {figures}" if called else figures


def folder(tell: Tell) -> dict[str, list[tuple[str, str]]]:
    """Files of this folder that can be named, with descriptions, by the kind that they describe."""
    own: dict[str, list[tuple[str, str]]] = {kind: [] for kind in api.FOLDERS}
    for path in _files(Path()):
        with contextlib.suppress(TspsimError, OSError, UnicodeDecodeError):  # whoever names it sees the error
            data = api.mapping_of(path.read_text(encoding="utf-8-sig"), path)
            kind = api.kind_of(path, data)
            if kind is not None:
                called = shorten(" ".join(str(data.get("description") or "a file of this folder").split()), 160)
                own[kind].append((path.as_posix(), _what(kind, path.as_posix(), printable(called))))
    return own


def _files(root: Path) -> list[Path]:
    """YAML and JSON files below a folder, up to a depth and a number; hidden folders are left out."""
    paths: list[Path] = []
    for place, names, files in os.walk(root):
        here = Path(place)
        names[:] = sorted(name for name in names if not name.startswith((".", "_")) and name != "node_modules")
        if len(here.parts) >= DEEPEST_FOLDER:
            names.clear()
        paths += [here / name for name in sorted(files) if name.endswith((*_YAML, ".json"))]
        if len(paths) > MOST_FILES:
            break
    return [path for path in paths[:MOST_FILES] if path.is_file() and path.stat().st_size <= 2**20]


def opened(name: str, tell: Tell) -> dict[str, str]:
    """The text of a catalog scenario, or of a file of this folder, and the name to save it under."""
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
    """Write a text below this folder, whole or not at all; an existing file only with ``replace``."""
    path = _mine(file, suffixes)
    if path.exists() and not replace:
        return {"exists": path.as_posix()}
    api.atomic_write(path, text)
    return {"saved": path.as_posix()}


def _mine(file: str, suffixes: Sequence[str]) -> Path:
    """A path below this folder with one of the suffixes; raises InputError."""
    path = Path(file.strip())
    if not file.strip() or path.suffix not in suffixes:
        raise InputError(f"is no name for this; end it with {' or '.join(suffixes)}", file=file or "''")
    if not Path(os.path.realpath(path)).is_relative_to(Path(os.path.realpath(Path.cwd()))):
        raise InputError(confine.OUTSIDE, file=file)
    return Path(os.path.relpath(os.path.realpath(path)))


def report(texts: Sequence[tuple[str, str]], file: str, replace: bool, tell: Tell) -> dict[str, Any]:
    """Write the report of one question, or one page for several, below this folder."""
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
    """Wait, for tests of waiting and cancelling."""
    threading.Event().wait(seconds)
    return "rested"


JOBS: dict[str, Callable[..., Any]] = {
    job.__name__: job
    for job in (answer, curve, plans, purchase, catalogs, described, folder, opened, save, report, rest)
}
