"""Linear attention: the roofline, monotone times, states that do not grow, and errors on rows that no fit has seen."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim.base.errors import InputError
from tspsim.calibration.kernels import used_in_fit
from tspsim.hardware import Device, load_device
from tspsim.hardware.families import FAMILIES
from tspsim.operators import DeltaScan, ShortConvolution
from tspsim.validation import kernel_tables
from tspsim.validation.run import predict, read
from tspsim.validation.tables import TABLES

DATA = Path(os.environ.get("TSPSIM_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
TABLE = "kernels/linear_attention.csv"
DEVICES = ("h100", "h200", "b200", "gb300", "mi300x", "mi355x", "a100-80gb")
EXACT = 1.0 - 1e-12
fast = settings(max_examples=50, deadline=None)

devices = st.sampled_from(DEVICES)
variants = st.sampled_from(("gdn", "kda"))
rows = st.lists(st.tuples(st.integers(1, 32_768), st.integers(1, 256)), min_size=1, max_size=3).map(tuple)


@cache
def device(name: str) -> Device:
    return load_device(name)


def scan(rows: tuple[tuple[int, int], ...], variant: str = "gdn", v_heads: int = 32) -> DeltaScan:
    return DeltaScan(rows, variant, 16 if variant == "gdn" else v_heads, 128, v_heads, 128)


@fast
@given(devices, variants, rows, st.sampled_from((4, 16, 32, 64)))
def test_neither_recurrence_nor_convolution_beats_the_roofline(
    name: str, variant: str, rows: tuple[tuple[int, int], ...], heads: int
) -> None:
    on = device(name)
    for operator in (scan(rows, variant, heads), ShortConvolution(rows, variant, heads * 256)):
        estimate = on.time(operator)
        assert estimate.seconds >= operator.hbm_bytes / on.hbm_bytes_per_s * EXACT
        assert estimate.seconds >= operator.flops / on.peak_of("bf16") * EXACT
        assert 0.0 < estimate.low < estimate.seconds < estimate.high


@fast
@given(devices, variants, rows, st.sampled_from(("tokens", "sequences", "row", "heads")), st.integers(1, 20_000))
def test_more_tokens_sequences_or_heads_are_never_faster(
    name: str, variant: str, rows: tuple[tuple[int, int], ...], grown: str, by: int
) -> None:
    on, (tokens, sequences) = device(name), rows[0]
    # Of one kernel: a query that outgrows the kernels of decoding runs another.
    longer = tokens + by if tokens > 16 else min(16, tokens + by)
    larger = {
        "tokens": ((longer, sequences), *rows[1:]),
        "sequences": ((tokens, sequences + by % 512), *rows[1:]),
        "row": (*rows, (by, 1)),
    }.get(grown, rows)
    heads = 64 if grown == "heads" else 32
    assert on.time(scan(larger, variant, heads)).seconds >= on.time(scan(rows, variant)).seconds * EXACT
    more, fewer = (ShortConvolution(r, variant, h * 256) for r, h in ((larger, heads), (rows, 32)))
    assert on.time(more).seconds >= on.time(fewer).seconds * EXACT


@pytest.mark.parametrize("variant", ["gdn", "kda"])
@pytest.mark.parametrize("name", DEVICES)
def test_a_decoding_step_of_a_large_batch_reads_and_writes_its_states(name: str, variant: str) -> None:
    """1,024 states of 2 MiB: at most at HBM's speed, and at a good share of it."""
    on, step = device(name), scan(((1, 1024),), variant)
    states = 2.0 * 1024 * step.state_bytes / on.hbm_bytes_per_s
    assert states <= on.time(step).seconds <= 3.0 * states


def test_verified_drafts_leave_a_state_behind_every_token() -> None:
    """Four queries of 256 sequences read 256 states and write 1,024, as any of them may be the last right one."""
    on, drafts = device("b200"), DeltaScan(((4, 256),), "gdn", 4, 128, 16, 128, verifies=True)
    assert drafts.cold_bytes == (256 + 1024) * drafts.state_bytes
    assert drafts.cold_bytes / on.hbm_bytes_per_s < on.time(drafts).seconds
    quick, plain = (DeltaScan(((queries, 256),), "gdn", 4, 128, 16, 128) for queries in (4, 1))
    assert on.time(plain).seconds < on.time(quick).seconds < on.time(drafts).seconds


def test_the_chunked_form_costs_its_products() -> None:
    """Of 64 tokens, one head of 128 by 128: the state takes 6·128·128 a token, pairs 64·(3·128 + 2·128)."""
    operator = DeltaScan(((64, 1),), "gdn", 1, 128, 1, 128)
    assert operator.flops == 64 * (6 * 128 * 128 + 64 * 5 * 128)


def test_a_recurrence_that_nobody_measured_is_refused() -> None:
    with pytest.raises(InputError, match="no mamba2_step model"):
        device("h200").time(scan(((1, 8),), "mamba2"))


needs_tables = pytest.mark.skipif(
    not (DATA / TABLE).is_file(), reason=f"measured tables not found at {DATA}; set TSPSIM_SHARED_DATA"
)


@pytest.fixture(scope="module")
def left_out() -> pd.DataFrame:
    """Rows that no fit used, with ``error`` = predicted/measured − 1."""
    outcome = predict(TABLES[TABLE], read(DATA / TABLE))
    answers = outcome.answers
    rows = kernel_tables.calls(TABLE, pd.read_csv(DATA / TABLE))
    rows["error"] = answers.predicted / outcome.measured - 1.0
    rows["inside"] = (answers.low <= outcome.measured) & (outcome.measured <= answers.high)
    parts = [group[~used_in_fit(group, FAMILIES[str(family)].shape)] for family, group in rows.groupby("family")]
    return pd.concat(parts)


@needs_tables
@pytest.mark.parametrize(
    ("family", "median", "mean"),
    [
        ("gdn_scan", 0.08, 0.12),
        ("gdn_step", 0.07, 0.09),
        ("kda_scan", 0.08, 0.10),
        ("kda_step", 0.08, 0.12),
        ("gdn_convolution", 0.06, 0.09),
        ("kda_convolution", 0.05, 0.08),
        ("kda_convolution_step", 0.08, 0.10),
        ("mamba2_convolution", 0.16, 0.16),
        ("mamba2_convolution_step", 0.10, 0.12),
    ],
)
def test_rows_left_out_are_predicted_within_the_bar(
    left_out: pd.DataFrame, family: str, median: float, mean: float
) -> None:
    error = left_out.loc[left_out["family"] == family, "error"].abs()
    assert len(error) >= 15
    assert error.median() <= median
    assert error.mean() <= mean


@needs_tables
def test_all_rows_left_out_are_within_the_bar_and_their_ranges(left_out: pd.DataFrame) -> None:
    """Those of TensorRT-LLM's decoding convolution included, which do not grow with the channels."""
    assert left_out["error"].abs().median() <= 0.14
    assert left_out["error"].abs().mean() <= 0.22
    assert 0.85 <= left_out["inside"].mean() <= 0.97
