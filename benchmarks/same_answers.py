"""Whether two states of the code give the same answers: every shipped scenario, number by number.

    python benchmarks/same_answers.py OLD NEW [SCENARIO...]        two checkouts, each asked in processes of its own

Prints where they differ by more than one part in 10⁹ and ends with exit code 1 if anything does. Columns of wall time
are left out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TOLERANCE = 1e-9


def answer(checkout: Path, scenario: Path, folder: Path) -> Any:
    """The JSON of a scenario: of ``compare`` where it has offers, else of ``run``."""
    command = "compare" if "\noffers:" in scenario.read_text() else "run"
    target = folder / "answer.json"
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    arguments = [sys.executable, "-m", "tspsim", command, scenario.stem, "--json", str(target)]
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return json.loads(target.read_text()) if target.exists() else {"exit": done.returncode, "said": done.stderr}


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Where two pieces of JSON are not the same."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            if key.startswith("wall_"):
                continue
            if key in old and key in new:
                yield from differences(old[key], new[key], f"{path}/{key}")
            else:
                yield f"{path}/{key}: only in the {'old' if key in old else 'new'} answer"
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from differences(before, after, f"{path}[{index}]")
    elif isinstance(old, float) or isinstance(new, float):
        numbers = isinstance(old, int | float) and isinstance(new, int | float)
        if not numbers or not math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=1e-15):
            yield f"{path}: {old!r} is now {new!r}"
    elif old != new:
        yield f"{path}: {str(old)[:100]!r} is now {str(new)[:100]!r}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=checkout, metavar="OLD", help="a checkout")
    parser.add_argument("new", type=checkout, metavar="NEW", help="another, asked the same")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="names of shipped ones; default: all of OLD's")
    asked = parser.parse_args()
    shipped = {path.stem: path for path in sorted((asked.old / "scenarios").glob("*.yaml"))}
    if strange := [name for name in asked.scenarios if name not in shipped]:
        parser.error(f"{asked.old} ships no scenario '{strange[0]}'")
    return compare(asked.old, asked.new, [shipped[name] for name in asked.scenarios or shipped])


def checkout(stated: str) -> Path:
    """The folder of a state of the code."""
    folder = Path(stated).resolve()
    if not (folder / "scenarios").is_dir():
        raise argparse.ArgumentTypeError(f"{stated} is no checkout: it has no folder scenarios")
    return folder


def compare(old: Path, new: Path, scenarios: Sequence[Path]) -> int:
    """Ask both, print where they differ; 1 where anything does."""
    found = 0
    for scenario in scenarios:
        with tempfile.TemporaryDirectory() as before, tempfile.TemporaryDirectory() as after:
            pair = answer(old, scenario, Path(before)), answer(new, scenario, Path(after))
        lines = list(differences(*pair))
        found += len(lines)
        print(f"{scenario.stem}: {len(lines) or 'no'} difference{'s' * (len(lines) != 1)}")
        for line in lines[:10]:
            print(f"  {line}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
