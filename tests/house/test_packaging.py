"""The wheel: built once from the checkout, it holds the catalogs and works in an empty folder."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tspsim import __version__
from tspsim.base import catalog

ROOT = Path(__file__).parents[2]
BUILD_LIMIT_S = 60


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel: the one that WHEEL names, else built here; skipped where pip or its backend is out of reach."""
    if os.environ.get("WHEEL"):
        return Path(os.environ["WHEEL"])
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    if importlib.util.find_spec("hatchling"):
        command.insert(-1, "--no-build-isolation")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"pip built no wheel within {BUILD_LIMIT_S} s; no network?")
    if done.returncode:
        reachable = "No module named pip", "Could not find a version", "connection", "Temporary failure"
        if any(reason in done.stderr for reason in reachable):
            pytest.skip("pip or its build backend is out of reach")
        pytest.fail(done.stderr)
    (built,) = folder.glob("*.whl")
    assert built.name.startswith(f"tspsim-{__version__}-")
    return built


def test_every_catalog_entry_is_in_the_wheel(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    for folder in catalog.FOLDERS.values():
        shipped = {f"tspsim/_catalog/{folder}/{path.name}" for path in (ROOT / folder).glob("*.yaml")}
        assert shipped and shipped <= inside
    pages = {f"tspsim/_docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert pages and pages == {name for name in inside if name.startswith("tspsim/_docs/")}
    assert any(name.endswith("licenses/LICENSE") for name in inside)
    assert {"tspsim/report/templates/page.html", "tspsim/cli/templates/first.yaml", "tspsim/py.typed"} <= inside
    assert not [name for name in inside if name.startswith("tests") or name.endswith((".pyc", ".sqlite"))]


@pytest.mark.slow  # .ci/run asks it of a wheel that pip has installed, in every run
def test_the_wheel_answers_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    installed, empty = tmp_path / "installed", tmp_path / "empty"
    empty.mkdir()
    zipfile.ZipFile(wheel).extractall(installed)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TSPSIM_")}
    done = subprocess.run(
        [sys.executable, "-m", "tspsim", "run", "tsp-vs-tpsp-1024-mi300x"],
        cwd=empty,
        env={**environment, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0 and done.stderr == ""
    assert [path.as_posix() for path in (file.relative_to(empty) for file in empty.rglob("*.*"))] == [
        "reports/tsp-vs-tpsp-1024-mi300x.html"
    ]
    told = {words[0] for line in done.stdout.splitlines() if (words := line.split())}
    assert {"TSP8", "TP8", "TP4-SP2", "TP2-SP4", "SP8", "TSP8-published"} <= told
