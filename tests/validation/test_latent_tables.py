"""Tables of latent attention: what is a kernel's call, what a whole block, and how far the product is off on rows that
nothing was fitted to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tspsim.base import catalog
from tspsim.calibration.kernels import used_in_fit
from tspsim.hardware import Device
from tspsim.hardware.families import FAMILIES
from tspsim.hardware.specification import DeviceSpec
from tspsim.operators import AbsorbProduct, Gemm, LatentDecode, LatentPrefill
from tspsim.validation import latent_modules as modules
from tspsim.validation.answers import RowAnswers
from tspsim.validation.devices import device
from tspsim.validation.kernel_tables import GROUP_COLUMNS, MODULE, calls
from tspsim.validation.kernels import ask
from tspsim.validation.run import read, whole_rows
from tspsim.validation.tables import TABLES

DATA = Path(os.environ.get("TSPSIM_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
measured = pytest.mark.skipif(
    not (DATA / "kernels" / "mla_decode.csv").is_file(),
    reason=f"measured tables not found at {DATA}; set TSPSIM_SHARED_DATA",
)
WIDTHS = {"kv_lora": 512, "nope": 128, "rope": 64, "v": 128}
BLOCK: dict[str, Any] = {
    "gpu": "B200", "scope": "module", "dtype": "bf16", "kv_dtype": "bf16", "gemm_dtype": "fp8_block", "batch": 8,
    "heads": 16, "hidden": 7168, "q_lora": 1536, **WIDTHS, "library": "TensorRT-LLM 1.3.0rc20 default",
}  # fmt: skip


def predicted(table: str, frame: pd.DataFrame) -> RowAnswers:
    answers = RowAnswers(len(frame))
    TABLES[table].predict(frame, answers)
    answers.check()
    return answers


def test_calls_take_the_tokens_in_the_cache_and_the_one_decoded() -> None:
    rows = pd.DataFrame([BLOCK | {"scope": "kernel", "context": 1023}, BLOCK | {"context": 1023}])
    out = calls("mla_decode.csv", rows)
    assert list(out["context"]) == [1024.0, 1024.0]
    assert list(out["reason"]) == ["", MODULE]
    assert set(FAMILIES["latent_decode"].shape) <= set(out.columns)


def test_both_absorb_products_are_told_apart() -> None:
    rows = pd.DataFrame(
        [{"gpu": "H200", "op": op, "dtype": "bf16", "tokens": 64, "heads": 16, "kv_lora": 512, "nope_or_v": 128,
          "time_us": 5.0, "library": "any"} for op in ("q_absorb", "v_absorb")]
    )  # fmt: skip
    out = calls("mla_bmm.csv", rows)
    assert list(zip(out["n"], out["k"], strict=True)) == [(512.0, 128.0), (128.0, 512.0)]


def test_a_block_is_the_operators_that_a_serving_step_writes() -> None:
    layer = modules.layer_of(BLOCK)
    assert layer.heads == 16
    decode = modules.rows_of(BLOCK | {"context": 4095}, prefill=False)
    assert decode == ((1, 4095, 8),)
    kind = layer.attention_kind
    operators = [*kind.enter(layer, decode), *kind.project(layer, decode), *kind.attend(layer, decode)]
    operators += kind.leave(layer, decode)
    products = [(op.n, op.k, op.dtype) for op in operators if isinstance(op, Gemm)]
    assert (1536 + 512 + 64, 7168, "fp8_block") in products  # whole on every rank
    assert (16 * 192, 1536, "fp8_block") in products
    assert (7168, 16 * 128, "fp8_block") in products
    assert sum(isinstance(op, AbsorbProduct) for op in operators) == 2
    assert sum(isinstance(op, LatentDecode) for op in operators) == 1
    prompt = modules.rows_of(BLOCK | {"q_len": 512}, prefill=True)
    assert any(isinstance(op, LatentPrefill) for op in kind.attend(layer, prompt))


def test_a_block_costs_at_least_its_parts_rooflines_and_more_of_anything_more() -> None:
    seconds = [
        modules.block(device("b200"), BLOCK | {"context": 4095} | more, prefill=False).seconds
        for more in ({}, {"batch": 64}, {"batch": 64, "context": 65535}, {"batch": 64, "context": 65535, "heads": 64})
    ]
    assert seconds == sorted(seconds)
    layer, rows = modules.layer_of(BLOCK), ((1, 4095, 8),)
    least = sum(op.hbm_bytes for op in layer.attention_kind.attend(layer, rows)) / device("b200").hbm_bytes_per_s
    assert seconds[0] > least


def test_a_gain_never_takes_a_product_below_its_roofline() -> None:
    d = device("b200")
    product = Gemm(1, 7168, 16384, "nvfp4")
    alone = d.gemm(product.m, product.n, product.k, product.dtype)
    further = modules.Further(0.0, 0.0, 0.0, 0.0, {"nvfp4": 1.0})
    gained = modules.gained(d, product, alone, further)
    assert gained.seconds == pytest.approx(product.hbm_bytes / d.hbm_bytes_per_s)
    assert gained.low < gained.seconds < gained.high


def test_rows_without_what_a_block_needs_are_skipped_with_the_column_named() -> None:
    whole = BLOCK | {"context": 100}
    rows = pd.DataFrame([whole, whole | {"hidden": np.nan}, whole | {"gpu": "TPU"}, whole | {"gemm_dtype": "int3"}])
    answers = predicted("kernels/mla_decode.csv", rows)
    assert answers.reason[0] == ""
    assert "hidden" in answers.reason[1]
    assert "TPU" in answers.reason[2]
    assert "int3" in answers.reason[3]


@pytest.fixture(scope="module")
def left_out() -> pd.DataFrame:
    """Rows of shapes that neither kernels nor blocks were fitted to, with their predictions."""
    parts = []
    for name in ("mla_prefill", "mla_decode", "mla_bmm"):
        table = f"kernels/{name}.csv"
        frame, _ = whole_rows(TABLES[table], read(DATA / table))
        frame = frame.reset_index(drop=True)
        normal = calls(table, frame.assign(time_us=frame["time_us"].astype(float)))
        (family,) = normal["family"].unique()
        unseen = ~used_in_fit(normal, FAMILIES[family].shape)
        frame = frame[unseen].reset_index(drop=True)
        answers, took_us = predicted(table, frame), normal.loc[unseen, "time_us"].to_numpy()
        frame["error"] = answers.predicted / took_us - 1.0
        frame["inside"] = (answers.low <= took_us) & (took_us <= answers.high)
        frame["table"] = name
        parts.append(frame)
    return pd.concat(parts, ignore_index=True)


@measured
@pytest.mark.parametrize(
    ("table", "rows", "median", "mean"),
    [
        pytest.param("mla_prefill", 4000, 0.06, 0.09, marks=pytest.mark.slow),
        pytest.param("mla_decode", 3000, 0.07, 0.11, marks=pytest.mark.slow),
        ("mla_bmm", 500, 0.08, 0.11),
    ],
)
@pytest.mark.in_turn(2, group="published")
def test_rows_left_out_are_predicted_within_the_bar(
    left_out: pd.DataFrame, table: str, rows: int, median: float, mean: float
) -> None:
    chosen = left_out[left_out["table"] == table]
    assert len(chosen) >= rows
    assert chosen["error"].notna().all()
    assert chosen["error"].abs().median() <= median
    assert chosen["error"].abs().mean() <= mean


@measured
@pytest.mark.parametrize("gpu", ["B200", "B300", "GB200", "GB300", "H100", "H200"])
@pytest.mark.parametrize("scope", ["kernel", "module"])
def test_every_device_is_within_the_bar_of_all(left_out: pd.DataFrame, gpu: str, scope: str) -> None:
    for table, median, mean in (("mla_prefill", 0.10, 0.16), ("mla_decode", 0.08, 0.14)):
        chosen = left_out[(left_out["table"] == table) & (left_out["gpu"] == gpu) & (left_out["scope"] == scope)]
        assert chosen["error"].abs().median() <= median
        assert chosen["error"].abs().mean() <= mean


@measured
@pytest.mark.parametrize("table", ["mla_prefill", "mla_decode", "mla_bmm"])
def test_ranges_hold_85_to_97_percent_of_the_rows_left_out(left_out: pd.DataFrame, table: str) -> None:
    inside = left_out.loc[left_out["table"] == table, "inside"]
    assert 0.85 <= inside.mean() <= 0.97


@measured
@pytest.mark.parametrize(
    ("name", "lender", "median"),
    [("gb300", "b300", 0.12), ("h200", "h100", 0.10), ("b200", "h200", 0.25), ("h200", "b200", 0.25)],
)
def test_decoding_of_a_device_left_out_lies_in_the_range_that_is_borrowed(
    name: str, lender: str, median: float
) -> None:
    spec = catalog.load("devices", name, DeviceSpec).model_copy(update={"kernels": ()})
    unmeasured = Device(spec, (catalog.load("devices", lender, DeviceSpec),))
    rows = calls("mla_decode.csv", pd.read_csv(DATA / "kernels" / "mla_decode.csv"))
    rows = rows[(rows["gpu"] == name) & (rows["reason"] == "")]
    errors, inside = [], []
    for key, group in rows.groupby(list(GROUP_COLUMNS)):
        family, dtype, second, library = (str(part) for part in key)
        estimate = ask(unmeasured, family, dtype, second, library, group)
        seconds, low, high = (np.asarray(value) * 1e6 for value in estimate)
        errors.append(np.abs(seconds / group["time_us"] - 1.0))
        inside.append((low <= group["time_us"]) & (group["time_us"] <= high))
    assert np.median(np.concatenate(errors)) <= median
    assert 0.85 <= np.concatenate(inside).mean() <= 1.0
