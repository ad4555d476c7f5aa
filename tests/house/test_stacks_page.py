"""docs/engine-defaults.md: defaults of engines are what the stacks say, and what the engines' packages say."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from helpers import documents

from tspsim.parallel import load_stack
from tspsim.serving import POLICIES

DOCS = Path(__file__).resolve().parents[2] / "docs"
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="no docs beside the tests")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return documents.script("generate_stacks")


@pytest.mark.parametrize("name", ["limits", "options"])
def test_tables_say_what_the_package_says(script: ModuleType, name: str) -> None:
    (text,) = script.pages.block(name).findall(script.PAGE.read_text(encoding="utf-8"))
    assert text.rstrip("\n") == script.TABLES[name](), "python docs/generate_stacks.py"


def test_defaults_are_the_engines_own(script: ModuleType) -> None:
    """Where an engine's package states a default, the scheduler here has the same."""
    stated = 0
    for name in script.LISTED:
        scheduler = load_stack(name).stack().engine.scheduler
        for option, field in POLICIES.get(name).options.model_fields.items():
            told = script.own(name, option)
            assert told is not None, f"{name} has no option {option}"
            if told.get("default") is None:
                continue
            assert {option: field.default, **scheduler.options}[option] == told["default"]
            stated += 1
    assert stated >= 10
