"""Where answers go: files, checked before the work starts and written whole; the terminal."""

from __future__ import annotations

import contextlib
import html
import json
import os
import re
import stat
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import InputError, printable, shorten

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..scenario import Scenario

STANDARD_OUTPUT = "-"
WIDTH_OF_FILES = 160
LONGEST_SENTENCE = 10_000
#: Bytes of a report's name: file systems take 255 bytes, endings included.
LONGEST_NAME_BYTES = 100
#: Characters of a page in which its ``meta`` elements stand.
HEAD_OF_A_PAGE = 4096

_TITLES = {
    "html": "report",
    "json": "JSON",
    "csv": "CSV",
    "pdf": "memo",
    "write": "scenario",
    "trace": "trace (open it in ui.perfetto.dev)",
}
#: Outputs that may be printed instead of written.
_PRINTABLE_OUTPUTS = ("json", "csv")


def report_file(name: str, source: str = "") -> Path:
    """``reports/NAME.html`` in the current folder, with NAME as a valid file name.

    Where that is the report of another file, the result is ``reports/NAME-FILE.html``.

    Parameters
    ----------
    source
        Name of the file with the question, without its folders; empty where there is none.

    >>> report_file("../what if?").as_posix(), report_file("где купить?").as_posix()
    ('reports/what-if.html', 'reports/где-купить.html')
    """
    plain = Path("reports") / f"{_slug(name)}.html"
    if not source or _written_for(plain) in ("", source):
        return plain
    return plain.with_name(f"{_slug(name)}-{_slug(Path(source).stem)}.html")


def _slug(name: str) -> str:
    """Letters and digits of any script, joined by dashes; short enough for a file system that counts bytes."""
    slug = re.sub(r"[^\w.-]+", "-", unicodedata.normalize("NFC", name)).strip(".-")
    while len(slug.encode()) > LONGEST_NAME_BYTES:
        slug = slug[:-1]
    return slug or "report"


def _written_for(page: Path) -> str:
    """The file with the question of a report, from its ``meta`` element; empty where there is none."""
    try:
        with page.open(encoding="utf-8", errors="replace") as file:
            match = re.search(r'<meta name="tspsim-question" content="([^"]*)">', file.read(HEAD_OF_A_PAGE))
    except OSError:
        return ""
    return html.unescape(match[1]) if match else ""


class Outputs:
    """The files that one command writes, checked when it starts and written when it is done.

    Parameters
    ----------
    files
        Option → file, ``-`` for standard output (JSON and CSV), or None where the option is not given.
    default_report
        The report when no option names a file; its folder is made.
    source
        Name of the file with the question, which the default report keeps (:func:`report_file`).
    inputs
        Files that the command reads (:func:`files_of`), which no output may replace.

    Raises
    ------
    InputError
        A file could not be written: its folder is missing, it is a folder itself, no permission; two outputs are
        one file; or one is an input.
    """

    def __init__(
        self,
        default_report: Path | None = None,
        *,
        source: str = "",
        inputs: Iterable[Path] = (),
        **files: str | None,
    ) -> None:
        self._targets: dict[str, Path | None] = {}
        self._beside: dict[str, str] = {}
        for option, file in files.items():
            if file is None:
                continue
            if option == "pdf":
                check_pdf(file)
            printed = file == STANDARD_OUTPUT and option in _PRINTABLE_OUTPUTS
            target = None if printed else writable(file, inputs=inputs)
            if target in self._targets.values():
                raise InputError("is the place of another output too; name two", file=shorten(file))
            self._targets[option] = target
        self._source = ""
        if not self._targets and default_report is not None:
            self._source = source
            self._targets["html"] = writable(str(default_report), make_folder=True)

    @property
    def quiet(self) -> bool:
        """Standard output belongs to one of the outputs, so that nothing else may be printed there."""
        return None in self._targets.values()

    def write(
        self, writers: Mapping[str, Callable[[Path], object] | Callable[[], str]], show: Callable[[], None]
    ) -> None:
        """Write the files, then show the answer and where the files are.

        Files come first: a reader of the terminal may leave early (``| head``), which must not cost a file.

        Parameters
        ----------
        writers
            Option → a function that returns the text (JSON, CSV), or that writes the file it is given; a text that the
            latter returns is printed after the file's name.
        show
            Prints the answer; not called where standard output belongs to one of the outputs.

        Raises
        ------
        InputError
            A file cannot be written; the answer is shown nevertheless.
        """
        try:
            self._write_files(writers)
        except InputError:
            if not self.quiet:
                show()
            raise
        if not self.quiet:
            show()
        for option, target in self._targets.items():
            if target is None:
                text: Any = writers[option]
                sys.stdout.write(text())
            elif not self.quiet:
                sys.stdout.write(f"{_TITLES[option]}: {printable(str(short(target)) + self._beside.get(option, ''))}\n")

    def _write_files(self, writers: Mapping[str, Callable[[Path], object] | Callable[[], str]]) -> None:
        from ..base.files import atomic_write

        with _asked_by(self._source):
            for option, target in self._targets.items():
                writer: Any = writers[option]
                if target is None:
                    continue
                if option in _PRINTABLE_OUTPUTS:
                    atomic_write(target, writer())
                elif isinstance(beside := writer(target), str):
                    self._beside[option] = beside


@contextlib.contextmanager
def _asked_by(source: str) -> Iterator[None]:
    """Pages written in this context name the file with their question; no effect where there is none."""
    if not source:
        yield
        return
    from ..report.page import QUESTION

    before = QUESTION.set(source)
    try:
        yield
    finally:
        QUESTION.reset(before)


def short(path: Path) -> Path:
    """A path below the current folder as a relative one; any other as it is."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def check_pdf(file: str) -> None:
    """Refuse a memo that cannot be printed, before the work starts; raises InputError."""
    from ..report.printing import browser

    if not file.lower().endswith(".pdf"):
        raise InputError("a memo is printed as .pdf; end the name with that", file=shorten(file) or "--pdf")
    browser()


def files_of(*read: Scenario | Path | str | None) -> tuple[Path, ...]:
    """Files that a command reads: of scenarios their own and those they name, of folders all below them."""
    from ..scenario import Scenario

    files: dict[Path, None] = {}
    for source in read:
        if isinstance(source, Scenario):
            files |= dict.fromkeys(source.files())
        elif source is not None and Path(source).is_dir():
            files |= dict.fromkeys(path for path in Path(source).rglob("*") if path.is_file())
        elif source is not None:
            files[Path(source)] = None
    return tuple(files)


def _same(path: Path, other: Path) -> bool:
    """Whether two names are one file, by links of either kind too."""
    try:
        return path.samefile(other)
    except OSError:
        return False


def writable(file: str, *, make_folder: bool = False, inputs: Iterable[Path] = ()) -> Path:
    """The file's path with links followed; raises InputError where it cannot be made or replaced, or is one of
    ``inputs``."""
    shown = shorten(file, 200)

    def refuse(reason: str) -> InputError:
        return InputError(f"cannot write: {reason}", file=shown or "''")

    if not file:
        raise refuse("a file needs a name")
    try:
        path = Path(os.path.realpath(file))
        mode = path.stat().st_mode if path.exists() else None
        folder = path.parent
        if make_folder and not folder.exists():
            folder = folder.parent
        if not folder.exists():
            raise refuse(f"folder '{shorten(folder)}' does not exist; make it first")
    except (OSError, ValueError) as error:
        raise refuse(getattr(error, "strerror", None) or str(error)) from None
    if not folder.is_dir():
        raise refuse(f"'{shorten(folder)}' is not a folder")
    if mode is not None and stat.S_ISDIR(mode):
        raise refuse("it is a folder; name a file in it")
    if mode is not None and not stat.S_ISREG(mode):
        # Replacing a device or a pipe by a file would harm more than the answer is worth.
        raise refuse("it is not a regular file; name one, or - for standard output")
    if mode is not None and any(_same(path, other) for other in inputs):
        raise refuse("it is an input of this command; name another file")
    if not os.access(folder, os.W_OK | os.X_OK) or (mode is not None and not os.access(path, os.W_OK)):
        raise refuse("permission denied; name a file in a folder you own")
    return path


def json_text(document: object) -> str:
    """A document as in the JSON files: one key per line, no NaN."""
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def print_rich(*parts: RenderableType) -> None:
    """Print with rich, but in one write of our own, so that a broken pipe is met here and not in rich."""
    from rich.console import Console
    from rich.table import Table

    text = ""
    for part in parts:
        # Sentences are wrapped for people, not for files and pipes.
        wrapped = sys.stdout.isatty() or isinstance(part, Table)
        console = Console(highlight=False, width=terminal_width() if wrapped else LONGEST_SENTENCE)
        with console.capture() as captured:
            console.print(part)
        text += captured.get()
    # Blanks at the ends of lines only make copied tables wide.
    sys.stdout.write(re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE))


def terminal_width() -> int:
    """Columns of the terminal; those of a wide one when the output is a file."""
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH_OF_FILES
