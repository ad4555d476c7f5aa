"""A small sweep for tests: a model of a few layers, so that an answer takes milliseconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tspsim

MODEL = """\
name: tiny
layers: {layers}
hidden: 1024
attention: {{heads: 8, kv_heads: 8, head_dim: 128}}
mlp: {{width: 4096, gated: true}}
max_context: 128Ki
source: made up for tests
"""
SCENARIO = """\
name: tiny
cluster: mi300x-8
workload: {model: tiny, pass: forward, sequence: 8Ki}
plans:
  - {name: TP8, tp: 8}
  - {name: TP2, tp: 2}
"""


def write_catalog(folder: Path, layers: int = 2) -> Path:
    """Put the model and the scenario where names find them; returns the folder, for TSPSIM_CATALOG."""
    (folder / "workloads/models").mkdir(parents=True, exist_ok=True)
    (folder / "scenarios").mkdir(exist_ok=True)
    (folder / "workloads/models/tiny.yaml").write_text(MODEL.format(layers=layers))
    (folder / "scenarios/tiny.yaml").write_text(SCENARIO)
    return folder


def environment(catalog: Path) -> dict[str, str]:
    """For subprocesses: the same package as here, which is compiled, whatever lies in the current folder; and the
    catalog."""
    package = Path(tspsim.__file__).parents[1]
    paths = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
    same = {"PYTHONPATH": paths, "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**os.environ, **same, "TSPSIM_CATALOG": str(catalog)}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tspsim", "sweep", "tiny", *map(str, arguments)]


def run_sweep(catalog: Path, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        command(*arguments), env=environment(catalog), capture_output=True, text=True, timeout=120, **options
    )
