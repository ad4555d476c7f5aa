"""docs/engine.md quotes the process that replays a layer as the code has it."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tspsim.engine import ranks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "engine.md"


@pytest.mark.skipif(not PAGE.is_file(), reason="no docs beside the tests")
def test_the_quoted_process_is_the_codes() -> None:
    assert inspect.getsource(ranks.kernels).strip() in PAGE.read_text(encoding="utf-8")
