"""Kernel tables: every row is one call of a kernel family on a device, with a library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tspsim.base.errors import InputError
from tspsim.hardware import Device, Estimate
from tspsim.hardware.families import FAMILIES

from .answers import Predictor, RowAnswers
from .devices import device, named_device
from .kernel_tables import calls, times_of

if TYPE_CHECKING:
    import pandas as pd

MICROSECONDS = 1e6
NO_FAMILY = "no kernel of the table: its direction is neither fwd nor bwd, or its kind and part are unknown"


def predictor(table: str) -> Predictor:
    """The predictor of a kernel table, by its path in a measurements folder."""

    def predict(frame: pd.DataFrame, answers: RowAnswers) -> None:
        for column in times_of(table):
            predict_column(frame, answers, column)

    def predict_column(frame: pd.DataFrame, answers: RowAnswers, column: str) -> None:
        rows = normalised(table, frame, column)
        rows["written"] = frame["gpu"]
        rows["position"] = range(len(rows))
        skip = answers.skip if column == "time_us" else lambda where, reason: None
        unknown = (rows["reason"] != "") | rows["family"].isna()
        for position, reason in zip(rows["position"][unknown], rows["reason"][unknown], strict=True):
            skip(position, reason or NO_FAMILY)
        columns = ["written", "family", "dtype", "second_dtype", "library"]
        for key, group in rows[~unknown].groupby(columns, sort=True):
            gpu, family, dtype, second, library = (str(part) for part in key)
            where = group["position"].to_numpy()
            try:
                _predict_group(device(named_device(gpu)), family, dtype, second, library, group, where, answers, column)
            except InputError as error:  # for example: no kernel of this family on this device or its relatives
                skip(where, error.message)

    return predict


def normalised(table: str, frame: pd.DataFrame, column: str = "time_us") -> pd.DataFrame:
    """The calls of a kernel table (see :func:`.kernel_tables.calls`); a time that is not a number becomes NaN."""
    import pandas as pd

    times = {column: pd.to_numeric(frame[column], errors="coerce")} if column in frame else {}
    return calls(table, frame.assign(**times), column)


def _predict_group(
    on: Device,
    family: str,
    dtype: str,
    second: str,
    library: str,
    group: pd.DataFrame,
    where: Any,
    answers: RowAnswers,
    column: str,
) -> None:
    kernel = on.kernel(family, dtype, library, second)
    if kernel.library != library or not kernel.basis.startswith("fitted"):
        call = f"{on.name} {family} {dtype} of '{library}'" if library else f"{on.name} {family} {dtype}"
        answers.note(f"{call}: {kernel.library}, {kernel.basis}", len(group))
    estimate = ask(on, family, dtype, second, library, group)
    times = [value * MICROSECONDS for value in estimate]
    if column == "time_us":
        answers.predict(where, *times)
    else:
        answers.also(where, column, times[0])


def ask(on: Device, family: str, dtype: str, second: str, library: str, group: pd.DataFrame) -> Estimate:
    """The device's estimate of normalised calls of one family, type and library; arrays of shape (rows,)."""
    columns = {name: group[name].to_numpy(float) for name in FAMILIES[family].shape}
    return on.estimate(family, dtype, library, second, **columns)
