"""Kinds of kernels of a public eager forward (Qwen1.5-0.5B of Hugging Face), on which nothing is fitted but by how much
kernels that index take longer than copies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import tspsim
from tspsim import traces
from tspsim.cli import main
from tspsim.step.question import look_up
from tspsim.traces.lay import lay

SHARED = Path(os.environ.get("TSPSIM_SHARED_DATA", Path(__file__).parents[3] / "shared/data")) / "traces_measured"


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("device", ["h100", "mi300x"])
def test_activations_and_norms_take_what_they_are_seen_to_take(device: str, tmp_path: Path) -> None:
    path = SHARED / "hf-qwen1.5-0.5b" / f"{device}.json.gz"
    if not path.exists():
        pytest.skip("the measured traces are not here")
    assert main(["trace", "scenario", str(path), "--out", str(tmp_path / "mine.yaml")]) == 0
    laid = lay(traces.read([path]), look_up(tspsim.load(tmp_path / "mine.yaml")))
    kinds = {row.kind: row for row in laid.kinds}
    for kind in ("activation", "norm"):
        assert kinds[kind].simulated_s == pytest.approx(kinds[kind].measured_s, rel=0.15), kind
