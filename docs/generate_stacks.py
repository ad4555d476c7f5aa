"""Rewrite the tables of engine-defaults.md: what engines do by default, from the stacks and the lists of their options.

    python docs/generate_stacks.py [NAME ...]

A table stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``. A second of one core.
``tests/house/test_stacks_page.py`` holds the page against what the package says now, and the schedulers' defaults
against the engines' own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pages

from tspsim.base import catalog
from tspsim.base.units import GIB
from tspsim.parallel import load_stack
from tspsim.serving import POLICIES

PAGE = Path(__file__).parent / "engine-defaults.md"
#: Stacks whose engine has limits by memory, versions that state their own among them.
STACKS = ("vllm", "vllm@0.19", "vllm@0.17", "sglang", "sglang@0.5.6", "trtllm", "atom")
#: Schedulers whose engines' options are listed (``workloads/launch``).
LISTED = ("vllm", "sglang")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows))


def shown(value: Any) -> str:
    """A default as YAML writes it."""
    return "–" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@cache
def listed(engine: str) -> dict[str, Any]:
    """What an engine's command takes."""
    folder = catalog.locate("stacks", engine).parent.parent / "launch"
    found: dict[str, Any] = json.loads((folder / f"{engine}.json").read_text(encoding="utf-8"))
    return found


def limits() -> str:
    """Tokens of a step and sequences by memory, of each stack."""
    rows = []
    for name in STACKS:
        engine = load_stack(name).engine
        assert engine is not None and engine.limits is not None and engine.scheduler is not None
        policy = POLICIES.get(engine.scheduler.name)
        found = policy.options.model_fields[policy.sequence_option].default is None
        for row in sorted(engine.limits.value, key=lambda each: each.memory_bytes):
            memory = f"from {row.memory_bytes / GIB:g} GiB" if row.memory_bytes else "any"
            memory += f", but {', '.join(row.but)}" if row.but else ""
            sequences = f"{row.sequences:,}" + (" a replica" if found else "")
            rows.append([f"`{name}`", memory, f"{row.tokens:,}", sequences, row.source or engine.limits.source])
    return table(["stack", "memory of a GPU", "tokens of a step", "requests at once", "from"], rows)


def own(engine: str, option: str) -> dict[str, Any] | None:
    """An option in the engine's list: by its flag, or by the flag of what it switches off."""
    known: dict[str, Any] = listed(engine)["options"]
    return known.get(f"--{option.replace('_', '-')}")


def options() -> str:
    """Every option of a scheduler, its default here, and the engine's own with version and line."""
    return table(["scheduler", "option", "default here", "the engine's own", "where"], _options())


def _options() -> Iterator[list[str]]:
    for name in LISTED:
        stack = load_stack(name).engine
        assert stack is not None and stack.scheduler is not None
        version = f"{listed(name)['package']} {listed(name)['version']}"
        for option, each in POLICIES.get(name).options.model_fields.items():
            told = own(name, option)
            assert told is not None, f"{name} has no option {option}"
            here = {option: each.default, **stack.scheduler.options}[option]
            if option in (POLICIES.get(name).token_option, POLICIES.get(name).sequence_option):
                here = "by memory, above" if each.default is not None else None
            place = told["at"].removeprefix(f"{name}/")
            yield [f"`{name}`", f"`{option}`", shown(here), shown(told.get("default")), f"{version}, {place}"]


TABLES: dict[str, Callable[[], str]] = {"limits": limits, "options": options}

if __name__ == "__main__":
    pages.rewrite(PAGE, {name: TABLES[name]() for name in pages.asked(__doc__, TABLES) or TABLES})
