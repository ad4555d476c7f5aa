"""Fitting kernel models to tables: what comes back, what is refused, and what is written."""

from __future__ import annotations

import builtins
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from tspsim.base import catalog, dialect
from tspsim.base.errors import InputError
from tspsim.calibration import kernels as fit
from tspsim.calibration.residuals import kernel_spread
from tspsim.calibration.run import document
from tspsim.hardware import load_device, measure
from tspsim.hardware.families import FAMILIES
from tspsim.hardware.kernels import limits_of
from tspsim.hardware.specification import DeviceSpec
from tspsim.validation.kernel_tables import calls


@pytest.fixture(scope="module")
def spec() -> DeviceSpec:
    return catalog.load("devices", "h200", DeviceSpec)


def gemm_table(spec: DeviceSpec, scatter: float, rows: int = 400) -> tuple[pd.DataFrame, dict[str, float]]:
    """Rows of a made-up library whose parameters are known, with some scatter and a few wild outliers."""
    random = np.random.default_rng(3)
    truth = {name: parameter.default for name, parameter in FAMILIES["gemm"].parameters.items()}
    truth |= {"efficiency": 0.62, "launch_us": 4.0, "hbm_efficiency": 0.71}
    m, n, k = (2.0 ** random.integers(low, 14, rows) for low in (0, 7, 7))
    shape = {"m": m, "n": n, "k": k, "batch": np.ones(rows)}
    switches = {"tiles": "all", "splits": 16}
    seconds = FAMILIES["gemm"].seconds(limits_of(spec, "bf16"), truth, switches, shape, "bf16", "bf16")
    seconds = seconds * np.exp(random.normal(0.0, scatter, rows))
    seconds[::40] *= 5.0
    table = pd.DataFrame({"gpu": "H200", "dtype": "bf16", "m": m, "n": n, "k": k, "time_us": seconds * 1e6})
    return table, truth


@pytest.mark.in_turn(5, group="fits")
def test_a_fit_finds_the_parameters_that_made_the_table_in_spite_of_outliers(spec: DeviceSpec) -> None:
    table, truth = gemm_table(spec, scatter=0.01)
    rows = calls("gemm.csv", table.assign(library="made up"))
    report = fit.fit_device(spec, rows, date="2026-11", source="a made-up table", starts=1)
    (found,) = report.fits
    assert found.rows_used <= 0.75 * len(table)
    assert found.held_out is not None
    assert found.held_out.median < 0.02
    for name in ("efficiency", "launch_us", "hbm_efficiency"):
        assert found.parameters[name] == pytest.approx(truth[name], rel=0.06)


@pytest.mark.in_turn(5, group="fits")
def test_a_written_fit_is_read_back_and_used(spec: DeviceSpec, tmp_path: Path) -> None:
    table, _ = gemm_table(spec, scatter=0.02, rows=120)
    rows = calls("gemm.csv", table.assign(library="mine"))
    report = fit.fit_device(spec, rows, date="2026-11", source="a made-up table", starts=1)
    original = dialect.read_yaml(catalog.locate("devices", "h200"))
    path = tmp_path / "my-h200.yaml"
    path.write_text(yaml.safe_dump(document(original, spec, report.fits)))
    device = load_device(path)
    predicted = device.gemm(*(rows[name].to_numpy(float) for name in ("m", "n", "k")), library="mine")
    assert np.median(np.abs(predicted.seconds * 1e6 / rows["time_us"] - 1.0)) < 0.05
    assert device.provenance()[-1].source == "a made-up table"
    assert "fitted on" in device.provenance()[-1].basis


def test_new_fits_replace_those_of_the_same_library_and_leave_the_rest_of_the_file(spec: DeviceSpec) -> None:
    original = dialect.read_yaml(catalog.locate("devices", "h200"))
    old = spec.kernels[0]
    changed = document(original, spec, (old.model_copy(update={"date": "2027-01"}),))
    assert changed["kernels"][0]["date"] == "2027-01"
    assert changed["kernels"][1:] == original["kernels"][1:]
    assert {name: part for name, part in changed.items() if name not in ("kernels", "defaults")} == {
        name: part for name, part in original.items() if name not in ("kernels", "defaults")
    }
    added = document(original, spec, (old.model_copy(update={"library": "mine"}),))
    assert len(added["kernels"]) == len(spec.kernels) + 1
    assert added["defaults"][old.family] == "mine"


def test_the_split_depends_on_the_shape_alone() -> None:
    frame = pd.DataFrame({"m": np.arange(1, 2001), "n": 128, "gpu": "a", "library": "x"})
    used = fit.used_in_fit(frame, ("m", "n"))
    assert 0.62 < used.mean() < 0.70
    other = frame.sample(frac=1.0, random_state=1).assign(gpu="b", library="y")
    assert (fit.used_in_fit(other, ("m", "n")) == used[other.index]).all()


def test_a_group_too_small_to_fit_is_reported_not_dropped(spec: DeviceSpec) -> None:
    table, _ = gemm_table(spec, scatter=0.01, rows=1)
    rows = calls("gemm.csv", table.assign(library="tiny"))
    report = fit.fit_device(spec, rows, date="2026-11", source="made up")
    assert report.fits == ()
    assert [name for name, _ in report.skipped] == ["gemm bf16 bf16 tiny"]
    few, _ = gemm_table(spec, scatter=0.01, rows=4)
    alone = spec.model_copy(update={"kernels": ()})
    report = fit.fit_device(alone, calls("gemm.csv", few.assign(library="tiny")), date="2026-11", source="x")
    assert [why for _, why in report.skipped] == ["4 rows to fit, 5 are needed"]


def test_a_few_rows_move_the_kernel_that_would_be_borrowed_and_keep_a_wide_range(spec: DeviceSpec) -> None:
    own = next(f for f in spec.kernels if f.family == "gemm" and f.dtype == "bf16" and "PyTorch" in f.library)
    slower = own.parameters | {"efficiency": own.parameters["efficiency"] * 0.6, "launch_us": 20.0}
    shape = {"m": [1024.0, 2048, 4096, 8192], "n": [4096.0] * 4, "k": [4096.0] * 4, "batch": [1.0] * 4}
    columns = {name: np.array(values) for name, values in shape.items()}
    seconds = FAMILIES["gemm"].seconds(limits_of(spec, "bf16"), slower, own.switches, columns, "bf16", "bf16")
    table = pd.DataFrame({"gpu": "H200", "dtype": "bf16", **shape, "time_us": seconds * 1e6})
    rows = calls("gemm.csv", table.assign(library="slow"))
    (found,) = fit.fit_device(spec, rows, date="2026-11", source="made up").fits
    assert fit.FEWEST_ROWS <= found.rows_used < fit.SUFFICIENT_ROWS
    assert found.parameters["efficiency"] < 0.85 * own.parameters["efficiency"]
    assert found.switches == own.switches
    assert min(found.spread.high) >= fit.POOR_FACTOR


def test_rows_of_other_devices_and_unknown_types_are_left_alone(spec: DeviceSpec) -> None:
    table, _ = gemm_table(spec, scatter=0.01, rows=30)
    rows = calls("gemm.csv", table.assign(gpu="B200", library="x"))
    assert fit.fit_device(spec, rows, date="2026-11", source="made up").fits == ()
    odd = calls("gemm.csv", table.assign(dtype="fp6_mx", library="x"))
    assert odd["reason"].str.contains("fp6_mx").all()


def test_ranges_are_wider_for_few_rows_and_for_scattered_ones() -> None:
    random = np.random.default_rng(0)
    time = random.uniform(1e-6, 1e-3, 600)
    noise = random.normal(0.0, 0.05, 600)

    def width(rows: int, scale: float) -> float:
        found = kernel_spread(time[:rows], noise[:rows] * scale, 12)
        return float(np.mean(np.log(found.high)) - np.mean(np.log(found.low)))

    assert width(40, 1.0) > width(600, 1.0)
    assert width(600, 2.0) > 1.9 * width(600, 1.0)
    assert width(600, 1.0) == pytest.approx(2 * 1.70 * 0.05, rel=0.15)


def test_a_table_that_is_not_of_kernels_is_refused() -> None:
    with pytest.raises(KeyError, match="kernel table"):
        calls("all.csv", pd.DataFrame({"gpu": []}))


def test_measured_tables_have_the_layout_that_fits_read(tmp_path: Path) -> None:
    path = tmp_path / "kernels" / "attention_prefill.csv"
    row: dict[str, Any] = {
        "dtype": "bf16", "kv_dtype": "bf16", "direction": "bwd", "causal": 1, "batch": 1, "q_len": 128,
        "kv_len": 128, "heads": 8, "kv_heads": 8, "head_dim": 64, "time_us": 10.0,
    }  # fmt: skip
    assert measure.write_table(path, "h200", "PyTorch", [row]) == 1
    rows = calls("attention_prefill.csv", pd.read_csv(path))
    assert rows.loc[0, "reason"] == ""
    assert rows.loc[0, "family"] == "attention_backward"
    assert measure.write_table(tmp_path / "none.csv", "h200", "PyTorch", []) == 0
    assert not (tmp_path / "none.csv").exists()


def test_measuring_without_pytorch_says_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def no_torch(name: str, *rest: Any, **named: Any) -> Any:
        if name == "torch":
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", no_torch)
    assert measure.main(["--gpu", "h200", "--out", str(tmp_path)]) == 2
    assert "PyTorch" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_buffers_rotate_through_more_than_any_cache() -> None:
    for size in (1e3, 1e6, 1e8, 1e10):
        assert measure.copies(size) * size >= min(2**30, 64 * size)
        assert 2 <= measure.copies(size) <= 64


def test_importing_the_room_does_not_import_heavy_packages() -> None:
    heavy = "('pandas', 'scipy', 'pydantic', 'torch')"
    code = f"import sys, tspsim.hardware; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_type_nobody_has_measured_is_refused_with_the_known_ones(spec: DeviceSpec) -> None:
    from tspsim.hardware.device import Device

    bare = Device(spec.model_copy(update={"kernels": ()}))
    with pytest.raises(InputError, match="no gemm model"):
        bare.gemm(128, 128, 128)
