"""Predictors of the tables of served runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tspsim.base.errors import InputError

from ...base.memo import remembered
from . import cookbook, published, silicon
from .bands import Band, band_of
from .groups import fitted, group_of
from .measures import Measures
from .replayed import replay
from .run import ServedPlan, ServedRun

if TYPE_CHECKING:
    import pandas as pd

    from ..answers import RowAnswers

#: Column with a row's run, or the reason why it has none.
RUN = "run"
#: Runs whose outcomes are kept: metrics of one run are in neighbouring rows.
RUNS = 512
_replayed: Callable[[ServedRun], Measures] = remembered(RUNS)(replay)


def with_runs(
    mend: Callable[[pd.DataFrame], silicon.Mended],
) -> Callable[[pd.DataFrame], tuple[pd.DataFrame, dict[str, int]]]:
    """A function that adds a table's runs as a column, and reports repairs."""

    def prepared(frame: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
        import pandas as pd

        mended = mend(frame)
        out = frame.copy()
        out[RUN] = pd.Series(mended.runs, index=out.index, dtype=object)
        return out, dict(mended.notes)

    return prepared


mend_silicon = with_runs(silicon.mend)
mend_published = with_runs(published.mend)
mend_cookbook = with_runs(cookbook.mend)


def plan_by_plan(frame: pd.DataFrame) -> Iterable[Sequence[int]]:
    """Positions of rows with runs of one plan, so that its step costs are tabulated once; longest first."""
    positions: dict[tuple[ServedPlan, ...] | None, list[int]] = {}
    work: dict[tuple[ServedPlan, ...] | None, int] = {}
    for position, run in enumerate(frame[RUN]):
        key = None if isinstance(run, str) else run.plans
        positions.setdefault(key, []).append(position)
        work[key] = work.get(key, 0) + (0 if isinstance(run, str) else run.requests)
    return [positions[key] for key in sorted(positions, key=lambda key: -work[key])]


def predict_silicon(frame: pd.DataFrame, answers: RowAnswers) -> None:
    """Predict mean time per output token, and mean time to the first token as a further column, in milliseconds."""
    _label(frame, answers)
    for position, run in enumerate(frame[RUN]):
        measures = _measures(run, position, answers)
        if measures is None:
            continue
        band = band_of(run)
        tpot = 1e3 * measures.tpot_s
        answers.predict(position, tpot, tpot * band.tpot[0], tpot * band.tpot[1])
        if run.cold:
            continue
        ttft = 1e3 * measures.ttft_s
        answers.also(position, "silicon_ttft_ms", ttft)
        answers.also(position, "silicon_ttft_ms_low", ttft * band.ttft[0])
        answers.also(position, "silicon_ttft_ms_high", ttft * band.ttft[1])


def predict_published(frame: pd.DataFrame, answers: RowAnswers) -> None:
    """Predict the metric of a row, in its unit."""
    _label(frame, answers)
    _metric_by_metric(frame, answers, published.METRICS)


def predict_cookbook(frame: pd.DataFrame, answers: RowAnswers) -> None:
    """Predict the metric of a row, with errors by group."""
    _metric_by_metric(frame, answers, cookbook.METRICS)


def _metric_by_metric(frame: pd.DataFrame, answers: RowAnswers, metrics: Mapping[str, published.Metric]) -> None:
    for position, (run, name) in enumerate(zip(frame[RUN], frame["metric"], strict=True)):
        measures = _measures(run, position, answers)
        if measures is None:
            continue
        metric = metrics[str(name)]
        value = metric.of(measures, run.gpus)
        low, high = _ends(metric, band_of(run))
        answers.predict(position, value, value * low, value * high)


def _ends(metric: published.Metric, band: Band) -> tuple[float, float]:
    if metric.rate:
        return 1.0 / band.tpot[1], 1.0 / band.tpot[0]
    return band.ttft if metric.kind == "TTFT" else band.tpot


def _measures(run: ServedRun | str, position: int, answers: RowAnswers) -> Measures | None:
    if isinstance(run, str):
        answers.skip(position, run)
        return None
    try:
        return _replayed(run)
    except InputError as error:
        answers.skip(position, error.message)
        return None


def _label(frame: pd.DataFrame, answers: RowAnswers) -> None:
    for position, run in enumerate(frame[RUN]):
        if isinstance(run, str):
            continue
        answers.label(position, "group", group_of(run))
        answers.label(position, "fitted", "fitted" if fitted(run) else "not fitted")
