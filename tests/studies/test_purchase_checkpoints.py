"""Checkpoints and failures: the formulas against the literature, their own optimum, and a run played out."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tspsim.scenario.project import DAY_S, NODE_MTBF_S, Failures
from tspsim.studies.purchase.checkpoints import daly_interval_s, expected_s, schedule, young_interval_s

HOUR_S = 3600.0


@pytest.mark.parametrize(("mtbf_s", "minutes"), [(24 * HOUR_S, 117), (6 * HOUR_S, 57)])
def test_daly_interval_is_that_of_his_figures(mtbf_s: float, minutes: int) -> None:
    """Figures 3 and 4 of Daly 2006: δ = 5 min, τ = 117 and 57 min."""
    assert round(daly_interval_s(300.0, mtbf_s) / 60.0) == minutes


def test_young_is_the_limit_of_rare_failures() -> None:
    assert daly_interval_s(1.0, 1e9) == pytest.approx(young_interval_s(1.0, 1e9), rel=1e-3)


@given(
    mtbf_s=st.floats(1e4, 1e8),
    checkpoint=st.floats(1e-3, 0.02),
    restart=st.floats(0.0, 0.1),
    other=st.floats(0.3, 3.0),
)
def test_no_other_interval_is_much_better_than_daly_s(
    mtbf_s: float, checkpoint: float, restart: float, other: float
) -> None:
    delta_s, restart_s = checkpoint * mtbf_s, restart * mtbf_s
    best_s = daly_interval_s(delta_s, mtbf_s)
    chosen, another = (expected_s(1e6, each, delta_s, restart_s, mtbf_s) for each in (best_s, other * best_s))
    assert chosen <= another * (1.0 + 1e-3)


def played_s(work_s: float, interval_s: float, delta_s: float, restart_s: float, mtbf_s: float, seed: int) -> float:
    """A run with failures drawn one by one; a failure may hit a restart too."""
    dice = random.Random(seed)
    clock_s = done_s = 0.0
    while done_s < work_s:
        to_failure_s = dice.expovariate(1.0 / mtbf_s)
        segment_s = interval_s + delta_s
        while to_failure_s >= segment_s and done_s < work_s:
            to_failure_s -= segment_s
            clock_s += segment_s
            done_s += interval_s
        if done_s >= work_s:
            break
        clock_s += to_failure_s
        while (survived_s := dice.expovariate(1.0 / mtbf_s)) < restart_s:
            clock_s += survived_s
        clock_s += restart_s
    return clock_s


def test_the_expected_time_is_that_of_runs_played_out() -> None:
    mtbf_s, delta_s, restart_s, interval_s, work_s = 10_000.0, 200.0, 500.0, 2_000.0, 400_000.0
    runs = [played_s(work_s, interval_s, delta_s, restart_s, mtbf_s, seed) for seed in range(400)]
    mean_s = sum(runs) / len(runs)
    spread_s = math.sqrt(sum((run - mean_s) ** 2 for run in runs)) / len(runs)
    assert expected_s(work_s, interval_s, delta_s, restart_s, mtbf_s) == pytest.approx(mean_s, abs=4 * spread_s)


def test_without_failures_only_checkpoints_cost() -> None:
    run = schedule(30 * DAY_S, 1, Failures(node_mtbf="1e12 s", restart="10 min", checkpoint="60 s"))
    assert run.goodput == pytest.approx(run.interval_s / (run.interval_s + 60.0), rel=1e-4)
    assert run.failures < 1e-3


def test_more_nodes_fail_more_often() -> None:
    few, many = (schedule(30 * DAY_S, nodes, Failures()) for nodes in (16, 2048))
    assert few.mtbf_s == pytest.approx(128 * many.mtbf_s)
    assert many.goodput < few.goodput < 1.0
    assert many.elapsed_s > few.elapsed_s > 30 * DAY_S


def test_an_outage_is_detection_diagnosis_and_restart_and_nobody_gains_by_noticing_late() -> None:
    quick = Failures(restart="10 min")
    late = Failures(restart="10 min", detection="10 min", diagnosis="40 min")
    assert (quick.outage_s, late.outage_s) == (600.0, 3600.0)
    at_once, later = (schedule(30 * DAY_S, 2048, each) for each in (quick, late))
    assert later.interval_s == at_once.interval_s
    assert later.goodput / at_once.goodput == pytest.approx(math.exp(-3000.0 / at_once.mtbf_s))
    same = schedule(30 * DAY_S, 2048, Failures(restart="1 h"))
    assert same.goodput == later.goodput
    assert "detection" not in quick.model_dump()
    assert late.model_dump()["detection"] == 600.0


def test_hopeless_machines_never_finish_but_do_not_crash() -> None:
    assert expected_s(1e6, 1e6, 60.0, 600.0, 1.0) == math.inf


def test_the_default_failure_rate_gives_back_its_source() -> None:
    """2,048 nodes for 54 days: 419 failures; one in three hours."""
    assert pytest.approx(419) == 54 * DAY_S * 2048 / NODE_MTBF_S
    assert pytest.approx(3.1, abs=0.05) == NODE_MTBF_S / 2048 / HOUR_S
