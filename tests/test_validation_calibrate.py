"""Calibration: what is fitted to measurements is written, found first, and used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tspsim.cli import main
from tspsim.errors import InputError, UnknownNameError
from tspsim.hardware import load_device
from tspsim.validation.calibrate import calibrate
from tspsim.validation.devices import forget

TABLE = "kernels/memory_bound_h200_own.csv"


def write_copies(folder: Path, bandwidth_bytes_per_s: float, *, outliers: int = 0) -> None:
    """Copies of a device that starts a kernel in 3 us and then moves bytes at one rate."""
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    sizes = np.geomspace(1e5, 1e9, 40).astype(int) // 16384 * 16384 + 16384
    lines = ["op,rows,cols,bytes,time_us,gpu"]
    for index, size in enumerate(sizes):
        time_us = 3.0 + size / bandwidth_bytes_per_s * 1e6
        slow = 5.0 if index % 7 == 3 and index // 7 < outliers else 1.0
        lines.append(f"copy,{size // 16384},4096,{size},{time_us * slow:.4f},H200")
    (folder / TABLE).write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    forget()
    yield tmp_path
    forget()


def test_the_written_device_is_found_first_and_used(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = load_device("h200")
    write_copies(here / "data", 2.0e12)
    assert main(["calibrate", "h200", "--data", "data"]) == 0
    after = load_device("h200")
    assert after.memory_bound(2e8).seconds == pytest.approx(3e-6 + 2e8 / 2.0e12, rel=0.05)
    assert after.memory_bound(2e8).seconds > 1.3 * before.memory_bound(2e8).seconds
    assert after.gemm(4096, 4096, 4096) == before.gemm(4096, 4096, 4096)
    shown = capsys.readouterr().out
    assert "rows used" in shown and "As it was" in shown and "gemm bf16" in shown


def test_the_file_tells_rows_used_error_on_others_date_and_library(here: Path) -> None:
    write_copies(here / "data", 2.0e12)
    fit = calibrate("H200", here / "data", today="2026-01-02").fits[0]
    assert fit.held_out is not None and fit.held_out.median < 0.05
    assert 0 < fit.rows_used <= 0.8 * 40 and fit.rows_used + fit.held_out.rows == 40
    assert (fit.date, fit.library) == ("2026-01-02", "copy")


def test_outliers_hardly_move_the_fit(here: Path) -> None:
    write_copies(here / "clean", 2.0e12)
    write_copies(here / "dirty", 2.0e12, outliers=4)
    for name in ("clean", "dirty"):
        (here / name / "h200.yaml").write_text(calibrate("h200", here / name).yaml(), encoding="utf-8")
    clean, dirty = (load_device(here / name / "h200.yaml").memory_bound(2e8).seconds for name in ("clean", "dirty"))
    assert dirty == pytest.approx(clean, rel=0.06)


def test_a_file_that_is_there_is_not_replaced_unasked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_copies(here / "data", 2.0e12)
    assert main(["calibrate", "h200", "--data", "data"]) == 0
    assert main(["calibrate", "h200", "--data", "data"]) == 2
    assert "--out" in capsys.readouterr().err
    assert main(["calibrate", "h200", "--data", "data", "--out", "topologies/devices/h200.yaml"]) == 0


def test_an_unknown_device_offers_the_nearest(here: Path) -> None:
    with pytest.raises(UnknownNameError, match="h200"):
        calibrate("h2000", here)


def test_a_folder_without_kernels_or_without_the_device_is_refused(here: Path) -> None:
    with pytest.raises(InputError, match="no kernel table"):
        calibrate("h200", here)
    write_copies(here / "data", 2.0e12)
    with pytest.raises(InputError, match="no table has rows of b200"):
        calibrate("b200", here / "data")
