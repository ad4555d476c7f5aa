"""A page as PDF, printed by a browser of this machine, without network and window."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from tspsim.base.errors import InputError
from tspsim.base.files import replacing

#: Programs that print a page without a window, by their names on the path; CHROMIUM names another one.
BROWSERS = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge",
)  # fmt: skip
#: Seconds after which a browser is taken to hang.
LONGEST_S = 120.0

NONE = (
    f"needs a browser that prints, and neither CHROMIUM nor the path names one ({', '.join(BROWSERS[:3])}, …); "
    "install one, or write --html: its print CSS makes the memo one sheet of any browser's own print"
)


def browser() -> str:
    """The path of the browser.

    Raises
    ------
    InputError
        There is none; the message names the alternatives.
    """
    named = os.environ.get("CHROMIUM")
    program = next(filter(None, map(shutil.which, [named] if named else BROWSERS)), None)
    if program is None:
        raise InputError(NONE, file="--pdf")
    return program


def write_pdf(html: str, path: Path) -> None:
    """Print a page to ``path``, whole or not at all.

    Raises
    ------
    InputError
        There is no browser, it fails, or the file cannot be written.
    """
    program = browser()
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder, replacing(Path(path)) as temporary:
        page, printed = Path(folder) / "page.html", Path(folder) / "page.pdf"
        page.write_text(html, encoding="utf-8")
        command = [
            program, "--headless", "--disable-gpu", "--no-first-run", "--disable-extensions",
            "--disable-background-networking", "--no-pdf-header-footer", f"--user-data-dir={folder}/profile",
            f"--print-to-pdf={printed}", page.as_uri(),
        ]  # fmt: skip
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command.insert(1, "--no-sandbox")  # as root, which containers are, a browser refuses to start without it
        try:
            done = subprocess.run(command, capture_output=True, timeout=LONGEST_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InputError(f"{program} did not print: {error}", file="--pdf") from None
        if not printed.is_file() or not printed.read_bytes().startswith(b"%PDF"):
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise InputError(f"{program} did not print: {last[0]}", file="--pdf")
        temporary.write_bytes(printed.read_bytes())
