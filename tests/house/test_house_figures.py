"""How much of the house one question walks through: counted by ``benchmarks/house.py``, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
#: Files of the package that one decode step of an 8B model may enter.
MOST_FILES = 90
COUNTED = "import house; print(house.files_of(house.decode_step()[0]))"


@pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="no benchmarks beside the tests")
def test_one_decode_step_enters_few_files() -> None:
    path = os.pathsep.join([str(BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])])
    counted = subprocess.run(
        [sys.executable, "-c", COUNTED],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    files = int(counted.stdout)
    assert files <= MOST_FILES, (
        f"a decode step enters {files} files, at most {MOST_FILES} (benchmarks/house.py): ask later what a question "
        "may not need, or join what a reader opens together"
    )
