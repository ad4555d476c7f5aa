"""A plan whose overlap costs more than it hides is told so, and one whose overlap pays is not."""

from __future__ import annotations

import pytest

import tspsim


@pytest.mark.parametrize(
    ("cluster", "sequence", "plan", "loses"),
    [
        ("hgx-b200-8", 512, {"tp": 8}, True),
        ("hgx-h100-8", "2Ki", {"tp": 2, "sp": 4}, True),
        ("mi300x-8", "8Ki", {"tp": 8}, False),
        ("hgx-h100-8", "8Ki", {"tp": 8, "sequence_regions": True}, False),
    ],
)
def test_overlap_that_loses_is_said(cluster: str, sequence: str, plan: dict[str, object], loses: bool) -> None:
    work = {"model": "tsp-8b", "pass": "training", "sequence": sequence}
    plans = [{"name": str(how), **plan, "overlap": how, "recomputation": "none"} for how in (True, False)]
    cut, whole = tspsim.simulate({"name": "o", "cluster": cluster, "workload": work, "plans": plans}).plans
    assert any("overlap: true loses" in note for note in cut.notes) == loses
    assert not any("loses" in note for note in whole.notes)
    assert cut.step_time_s is not None and whole.step_time_s is not None
    assert (cut.step_time_s > whole.step_time_s) == loses
