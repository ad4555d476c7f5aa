"""The tables of training runs in the documentation: their generator on rows whose errors are known."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from helpers import documents


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return documents.script("generate_training_validation")


def run(**cells: object) -> dict[str, object]:
    """A row of training.csv with its prediction: 10 % slow, in range."""
    row: dict[str, object] = {
        "source_url": "github.com/NVIDIA/dgxc-benchmarking", "model": "Llama 3.1 8B", "moe": None, "seq_len": 8192,
        "gpu": "H100", "n_gpus": 8, "tp": 1, "cp": 1, "pp": 1, "vpp": None, "ep": 1, "dp": 8, "sp": "off",
        "zero_stage": "zero1", "mbs": 1, "gbs": 8, "precision": "BF16", "recompute": "none", "metric": "step_time_s",
        "value": 10.0, "predicted": 11.0, "low": 9.0, "high": 12.0, "predicted_taken": None,
    }  # fmt: skip
    return row | cells


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    folder = tmp_path / "published"
    folder.mkdir()
    pd.DataFrame(
        [
            run(),
            run(metric="MFU", value=0.5, predicted=0.4, low=0.1, high=0.9),  # of the same configuration
            run(gbs=16, predicted=8.0, low=7.0, high=9.0),
            run(gbs=32, predicted=None),
            run(model="Qwen3_30B_a3B (tokendrop)", moe="128", source_url="NVIDIA-NeMo/Megatron-Bridge", value=5.0),
            run(gpu="MI355X", model="Llama 2 70B [LoRA]", predicted_taken="tp 1"),
        ]
    ).to_csv(folder / "training.csv", index=False)
    frame = {"note": ["", "no compile"], "group": ["torchtitan A100", "KempnerForge MoE"], "source": ["t", "x"]}
    given = {"unit": ["tokens/s/gpu", "s"], "gpu": ["a100-80gb", "h200"], "model": "m", "published": [100.0, 2.0]}
    told = {"predicted": [120.0, 1.0], "low": [90.0, 0.9], "high": [130.0, 1.1]}
    pd.DataFrame({**frame, **given, **told}).to_csv(folder / "training_frameworks.csv", index=False)
    measured = [10.0, 20.0, 30.0, 40.0, 5.0]
    sweep = {"hidden_size": 2048, "num_layers": 16, "nodes": 1, "after_pp_fix": True, "status": "Success"}
    sweep |= {"tokens_per_s_per_gpu": measured, "predicted": [11.0, 21.0, 29.0, 41.0, 50.0], "low": 0.0, "high": 45.0}
    sweep |= {"seq_len": 4096, "gbs": 8, "mbs": 1, "batch_accum": 4, "tp": 2, "pp": 2, "dp": [1, 2, 3, 4, 4]}
    pd.DataFrame({**sweep, "predicted_status": ["Success"] * 4 + ["OOM"]}).to_csv(
        folder / "training_nanotron_h100.csv", index=False
    )
    for name, column, *_ in documents.script("generate_training_validation").OTHERS:
        pd.DataFrame({column: [1.0], "predicted": [1.1], "low": [1.0], "high": [1.2]}).to_csv(
            folder / f"{name}.csv", index=False
        )
    return tmp_path


def test_a_configuration_counts_once_and_rates_are_biased_where_times_are_short(script: ModuleType, rows: Path) -> None:
    runs = script.read(rows)
    found = script.errors(runs["training"][runs["training"]["kind"] == "dense"])
    assert (found.runs, found.median, found.mean) == (2, pytest.approx(0.15), pytest.approx(0.15))
    assert found.bias == pytest.approx((10 / 11 + 10 / 8) / 2 - 1)
    assert found.inside == 0.5
    assert "| `megatron-core` | dense | none; `kernel`" in script.by_software(runs)
    assert "| 2 | 15.0 / 15.0 |" in script.by_software(runs)
    assert "| … with experts | 1 | **120.0** / **120.0** | -54.5 | 0 | 8 / 12 |" in script.by_source(runs)
    assert "| MI355X | none | 1 |" in script.by_gpu(runs) and "MI355X" not in script.by_source(runs)


def test_frameworks_are_read_as_they_are_validated(script: ModuleType, rows: Path) -> None:
    told = script.by_framework(script.read(rows))
    assert "| KempnerForge MoE | `torchtitan-eager` | 1 | 50.0 / 50.0 | +100.0 | 0 | 2.00 |" in told
    assert "| torchtitan A100 | `torchtitan` | 1 | 20.0 / 20.0 | +20.0 | 100 | 1.20 |" in told


def test_the_order_of_plans_with_labels_put_right(script: ModuleType, rows: Path) -> None:
    table = script.of_nanotron(script.read(rows)).splitlines()
    assert "of these 1 asked as before it" in table[2] and table[2].endswith("| 0.000; 0.000; 0.000 |")
    assert table[3].startswith("| … without those | 4 |") and table[3].endswith("| 1.000; 1.000; 1.000 |")
    assert "| 80.0 right |" in table[-1]


def test_runs_of_one_plan_differ_by_no_less_than_the_laws_of_a_turn_leave(script: ModuleType) -> None:
    """Two sequences take as long as one, up to twice as long: nothing; half as long: the logarithm is shared."""
    lawful = script.lawful(np.log([1.0, 1.0, 2.0]), np.array([1.0, 2.0, 4.0]))
    assert np.exp(lawful) == pytest.approx([1.0, 1.0, 2.0])
    shared = script.lawful(np.log([1.0, 0.5]), np.array([1.0, 2.0]))
    assert np.exp(shared) == pytest.approx([0.5**0.5] * 2)
    over = script.lawful(np.log([1.0, 8.0]), np.array([1.0, 2.0]))
    assert np.exp(over) == pytest.approx([2.0, 4.0])


def test_noise_alone_takes_order_away(script: ModuleType) -> None:
    plan = {"hidden_size": 2048, "num_layers": 16, "nodes": 1}
    table = pd.DataFrame({**plan, "measured": np.geomspace(1.0, 2.0, 20)})
    assert script.order_with_noise(table, 0.0, draws=1) == pytest.approx(1.0)
    assert 0.5 < script.order_with_noise(table, 0.2, draws=10) < script.order_with_noise(table, 0.05, draws=10) < 1.0


def test_every_table_stands_in_the_page_once(script: ModuleType) -> None:
    for name in script.TABLES:
        text = script.page_of(name).read_text(encoding="utf-8")
        assert text.count(f"<!-- begin {name} -->") == text.count(f"<!-- end {name} -->") == 1
