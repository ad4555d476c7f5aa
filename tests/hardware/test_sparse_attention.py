"""Sparse attention: what no shape may break, where it stops growing, and errors on modules that no fit has seen."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim.base import catalog
from tspsim.base.errors import InputError
from tspsim.calibration.sparse_modules import fit_sparse_modules, used
from tspsim.hardware import Device, load_device
from tspsim.hardware.specification import DeviceSpec
from tspsim.operators import AbsorbProduct, Gemm, Indexer, SparseAttention
from tspsim.operators.sparse import seen, seen_at_most
from tspsim.validation.run import predict, read, whole_rows
from tspsim.validation.sparse_modules import Module, total
from tspsim.validation.tables import TABLES

DATA = Path(os.environ.get("TSPSIM_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
TABLE = "kernels/sparse_attention.csv"
#: Measured ones, one that borrows within its vendor's generation, and AMD's, which borrow from another vendor.
DEVICES = ("h200", "b200", "gb300", "mi300x", "mi355x")
EXACT = 1.0 - 1e-12
fast = settings(max_examples=50, deadline=None)

devices = st.sampled_from(DEVICES)
rows = st.lists(
    st.tuples(st.integers(1, 4096), st.integers(0, 200_000), st.integers(1, 256)), min_size=1, max_size=3
).map(tuple)
compressions = st.sampled_from((1, 4, 128))


@cache
def device(name: str) -> Device:
    return load_device(name)


@given(st.integers(1, 60), st.integers(0, 100), st.integers(0, 120))
def test_what_a_query_sees_is_counted_query_by_query(queries: int, context: int, most: int) -> None:
    tokens = [context + i + 1 for i in range(queries)]
    assert seen(queries, context) == pytest.approx(np.mean(tokens))
    assert seen_at_most(queries, context, most) == pytest.approx(np.mean([min(each, most) for each in tokens]))


def attention(rows: tuple[tuple[int, int, int], ...], heads: int = 16, compression: int = 1) -> SparseAttention:
    if compression == 1:
        return SparseAttention(rows, heads, 576, 512, 2048, entry_bytes=656.0, kv_dtype="fp8")
    topk = 512 if compression == 4 else 0
    return SparseAttention(rows, heads, 512, 512, topk, compression, 128, 584.0, kv_dtype="fp8")


def indexer(rows: tuple[tuple[int, int, int], ...], compression: int = 1) -> Indexer:
    return Indexer(rows, 64, 128, 2048 if compression == 1 else 512, compression)


@fast
@given(devices, rows, st.sampled_from((8, 16, 64, 128)), compressions)
def test_neither_scores_nor_attention_beat_the_roofline(
    name: str, rows: tuple[tuple[int, int, int], ...], heads: int, compression: int
) -> None:
    on = device(name)
    for operator in (attention(rows, heads, compression), indexer(rows, compression)):
        estimate = on.time(operator)
        assert estimate.seconds >= operator.flops / on.peak_of(operator.dtype) * EXACT
        assert estimate.seconds >= operator.hbm_bytes / on.hbm_bytes_per_s * EXACT
        assert 0.0 < estimate.low < estimate.seconds < estimate.high


@fast
@given(
    devices, rows, compressions, st.sampled_from(("queries", "context", "sequences", "row", "heads")),
    st.integers(1, 50_000),
)  # fmt: skip
def test_more_queries_context_sequences_or_heads_are_never_faster(
    name: str, rows: tuple[tuple[int, int, int], ...], compression: int, grown: str, by: int
) -> None:
    on, (queries, context, sequences) = device(name), rows[0]
    larger = {
        "queries": ((queries + by % 4096, context, sequences), *rows[1:]),
        "context": ((queries, context + by, sequences), *rows[1:]),
        "sequences": ((queries, context, sequences + by % 512), *rows[1:]),
        "row": (*rows, (by % 4096 + 1, by, 1)),
    }.get(grown, rows)
    heads = 32 if grown == "heads" else 16
    assert (
        on.time(attention(larger, heads, compression)).seconds
        >= on.time(attention(rows, 16, compression)).seconds * EXACT
    )
    assert on.time(indexer(larger, compression)).seconds >= on.time(indexer(rows, compression)).seconds * EXACT


@pytest.mark.parametrize("name", DEVICES)
def test_beyond_what_is_chosen_attention_stops_growing_and_the_indexer_goes_on(name: str) -> None:
    on = device(name)
    short, longer = ((1, 8192, 64),), ((1, 131_072, 64),)
    assert on.time(attention(longer)).seconds == on.time(attention(short)).seconds
    assert on.time(indexer(longer)).seconds > 2.0 * on.time(indexer(short)).seconds


def test_a_prompt_attends_less_than_its_best_tokens_while_it_has_fewer() -> None:
    """4,096 tokens, of which a query attends 2,048: three quarters of them in the mean."""
    assert attention(((4096, 0, 1),)).pairs / 4096 == pytest.approx(1536.25)


@pytest.mark.parametrize("sequences", [1, 16, 64])
def test_a_layer_on_the_mi355x_costs_what_served_ones_do(sequences: int) -> None:
    """30 to 130 us a layer beside its projections (DeepSeek-V3.2 and GLM-5, 8 GPUs, some thousand tokens each)."""
    rows = ((1, 8192, sequences),)
    took = device("mi355x").time(indexer(rows)).seconds + device("mi355x").time(attention(rows)).seconds
    assert 30e-6 <= took <= 130e-6


def test_a_device_without_fp8_says_so() -> None:
    with pytest.raises(InputError, match="a100-80gb has no matrix units for fp8"):
        device("a100-80gb").time(indexer(((1, 8192, 4),)))


def module(kind: str = "dsa", **sizes: int) -> Module:
    size = {"batch": 4, "q_len": 1, "context": 20_000, "heads": 16} | sizes
    return Module(
        kind, "fp8_block", "fp8", **size, hidden=7168, q_lora=1536, kv_lora=512, nope=128 if kind == "dsa" else 448,
        rope=64, v=128, index_heads=64, index_dim=128, topk=2048, down_projected=True, indexed=kind != "hca",
    )  # fmt: skip


def test_a_module_multiplies_the_weights_of_its_layer() -> None:
    """DeepSeek-V3.2, all 128 heads: projections of 187 M parameters, and 14 M of the indexer."""
    products = [op for op in module(heads=128).operators() if isinstance(op, Gemm | AbsorbProduct)]
    weights = sum(op.flops for op in products) / 2.0 / 4
    latent = 7168 * (1536 + 576) + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
    assert weights == latent + 1536 * 64 * 128 + 7168 * (128 + 64)


def test_modules_of_a_known_device_give_its_parameters_prices_back() -> None:
    """Times of a device's own prices, fitted again, are met."""
    spec = catalog.load("devices", "h200", DeviceSpec)
    relatives = tuple(catalog.load("devices", name, DeviceSpec) for name in spec.relatives)
    sizes = [
        (batch, context, heads) for batch in (1, 4, 16, 64, 200) for context in (500, 3000, 9000, 30_000, 60_000)
        for heads in (8, 32)
    ]  # fmt: skip
    modules = [module(batch=b, context=c, heads=h) for b, c, h in sizes]
    on = Device(spec, relatives)
    frame = pd.DataFrame([
        {
            "kind": "dsa", "variant": "full", "phase": "decode", "gemm_dtype": "fp8_block", "kv_dtype": "fp8",
            "batch": m.batch, "q_len": 1, "context": m.context, "heads": m.heads, "hidden": 7168, "q_lora": 1536,
            "kv_lora": 512, "nope": 128, "rope": 64, "v": 128, "index_heads": 64, "index_dim": 128,
            "index_topk": 2048, "down_proj": 1, "launch": "graph", "library": "vLLM 9.9 any",
            "time_us": total(on, m.operators(), "vLLM 0.24.0").seconds * 1e6,
        }
        for m in modules
    ])  # fmt: skip
    fits, skipped = fit_sparse_modules(spec, relatives, frame, date="2026-11", source="a test")
    assert not skipped
    assert {fit.family for fit in fits} == {"indexer", "sparse_attention"}
    fitted = Device(spec.model_copy(update={"kernels": (*fits, *spec.kernels)}), relatives)
    again = [total(fitted, m.operators(), "vLLM 9.9").seconds * 1e6 for m in modules]
    assert np.median(np.abs(np.array(again) / frame["time_us"] - 1.0)) < 0.03
    assert not used(modules).all()


needs_tables = pytest.mark.skipif(
    not (DATA / TABLE).is_file(), reason=f"measured tables not found at {DATA}; set TSPSIM_SHARED_DATA"
)


@pytest.fixture(scope="module")
def left_out() -> pd.DataFrame:
    """Modules under graphs that no fit used, with ``error`` = predicted/measured − 1."""
    rows, _ = whole_rows(TABLES[TABLE], read(DATA / TABLE))
    rows = rows[rows["kind"].isin(("dsa", "csa", "hca"))]
    outcome = predict(TABLES[TABLE], rows[~used([Module.of(row) for row in rows.to_dict("records")])])
    frame, answers = outcome.rows, outcome.answers
    return frame.assign(
        error=answers.predicted / outcome.measured - 1.0,
        inside=(answers.low <= outcome.measured) & (outcome.measured <= answers.high),
    )[answers.reason == ""]


@needs_tables
@pytest.mark.parametrize(
    ("kind", "phase", "count", "median", "mean"),
    [
        ("dsa", "decode", 900, 0.07, 0.12),
        ("dsa", "prefill", 200, 0.09, 0.12),
        ("csa", "decode", 150, 0.07, 0.10),
        ("csa", "prefill", 150, 0.14, 0.18),
        ("hca", "decode", 150, 0.06, 0.08),
        ("hca", "prefill", 150, 0.10, 0.14),
    ],
)
@pytest.mark.in_turn(5)
def test_modules_left_out_are_predicted_within_the_bar(
    left_out: pd.DataFrame, kind: str, phase: str, count: int, median: float, mean: float
) -> None:
    error = left_out.loc[(left_out["kind"] == kind) & (left_out["phase"] == phase), "error"].abs()
    assert len(error) >= count
    assert error.median() <= median
    assert error.mean() <= mean


@needs_tables
def test_ranges_hold_85_to_97_percent_of_the_modules_left_out(left_out: pd.DataFrame) -> None:
    assert 0.85 <= left_out["inside"].mean() <= 0.97
