"""Files appear whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import reports as fixtures

from tspsim.base.errors import InputError
from tspsim.base.files import atomic_write
from tspsim.report import write_report, write_trace


def test_the_folder_is_made_and_an_older_file_replaced(tmp_path: Path) -> None:
    target = tmp_path / "new" / "report.html"
    atomic_write(target, "old")
    atomic_write(target, iter(["ne", "w µ\n"]))
    assert target.read_text(encoding="utf-8") == "new µ\n"
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]


def test_a_finished_file_is_readable_like_any_other(tmp_path: Path) -> None:
    atomic_write(tmp_path / "a", "x")
    (tmp_path / "b").write_text("x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def full_disk(after: int) -> Iterator[str]:
    """Some pieces, and then no room."""
    for _ in range(after):
        yield "x" * 100_000
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("older", [None, "older"])
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, older: str | None) -> None:
    target = tmp_path / "report.html"
    if older is not None:
        target.write_text(older)
    with pytest.raises(InputError) as caught:
        atomic_write(target, full_disk(3))
    assert "No space left" in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ([] if older is None else ["report.html"])
    assert older is None or target.read_text() == older


def test_a_real_full_device_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(InputError, match="No space left"):
        write_report(fixtures.result(layers=1), tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> Iterator[str]:
        yield "half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic_write(tmp_path / "trace.json", interrupted())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file" / "report.html", tmp_path):
        with pytest.raises(InputError) as caught:
            write_trace(fixtures.result(layers=1), target)
        assert "cannot write" in str(caught.value) and "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
