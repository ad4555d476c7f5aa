"""Runs of nanotron's sweep have the software that their labels and their twins tell."""

from __future__ import annotations

import pandas as pd
import pytest

from tspsim.validation import nanotron
from tspsim.validation.training import nanotron_run

PLAN = {"hidden_size": 2048, "num_layers": 16, "seq_len": 4096, "nodes": 4, "dp": 1, "tp": 2, "pp": 16}
REST = {"num_heads": 32, "vocab_size": 131072, "zero_stage": 1, "tp_mode": "REDUCE_SCATTER", "gpu": "H100"}


def sweep(sequences: list[int], rates: list[float], **cells: object) -> pd.DataFrame:
    """Runs of one plan that differ in the sequences of a micro-batch, of 32 sequences a step."""
    accumulated = [32 // count for count in sequences]
    batch = {"mbs": sequences, "batch_accum": accumulated, "gbs": 32, "tokens_per_s_per_gpu": rates}
    return pd.DataFrame({**PLAN, **REST, **batch, "after_pp_fix": True, **cells})


@pytest.mark.parametrize(
    ("sequences", "rates", "contradicted"),
    [
        ([1, 4], [4.0, 20.0], [True, False]),  # a turn of one sequence takes longer than one of four
        ([1, 4], [40.0, 40.0], [False, False]),
        ([1, 4], [80.0, 10.0], [False, True]),  # four turns of one sequence would be done sooner
        ([1, 4], [30.0, 50.0], [False, False]),
    ],
)
def test_a_run_that_takes_longer_than_its_twin_allows_had_the_old_pipeline(
    sequences: list[int], rates: list[float], contradicted: list[bool]
) -> None:
    table = sweep(sequences, rates)
    assert nanotron.contradicted(table).tolist() == contradicted
    assert not nanotron.contradicted(table.assign(tp=[1, 2])).any()
    mended, notes = nanotron.mend(table.astype(str))
    assert [version == nanotron.POLLING for version in mended[nanotron.VERSION]] == contradicted
    assert notes == {nanotron.NOTE: sum(contradicted)}
    assert [nanotron_run(row).stack for row in mended.to_dict("records")] == [
        "nanotron@polling" if contradicts else "nanotron" for contradicts in contradicted
    ]


def test_labels_are_believed_unless_a_twin_contradicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of before the repair contradict nobody, and those without a pipeline or a rate cannot."""
    table = sweep([1, 4], [4.0, 20.0], after_pp_fix=False)
    assert nanotron.versions(table).tolist() == [nanotron.POLLING] * 2
    assert nanotron.versions(table.assign(pp=1)).tolist() == [nanotron.UNMENDED] * 2
    assert nanotron.versions(table.assign(pp=1, after_pp_fix=True)).tolist() == [nanotron.MENDED] * 2
    assert nanotron.versions(sweep([1, 4], [4.0, float("nan")])).tolist() == [nanotron.MENDED] * 2
    assert nanotron.mend(table.drop(columns="after_pp_fix"))[1] == {nanotron.NOTE: 0}
    row = {**table.iloc[0].to_dict(), "tp_mode": "REDUCE_SCATTER"}
    assert nanotron_run(row).stack == "nanotron@polling"
