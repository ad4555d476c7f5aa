"""Kernel tables: every row is one call of a kernel family on a device, with a library."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tspsim.errors import InputError
from tspsim.hardware import Device, Estimate

from .answers import Answers
from .devices import device, device_name, no_device
from .kernel_tables import calls, times_of

if TYPE_CHECKING:
    import pandas as pd

MICROSECONDS = 1e6


def predictor(table: str) -> Callable[[pd.DataFrame, Answers], None]:
    """The predictor of a kernel table, by its path in a measurements folder."""

    def predict(frame: pd.DataFrame, answers: Answers) -> None:
        for column in times_of(table):
            predict_column(frame, answers, column)

    def predict_column(frame: pd.DataFrame, answers: Answers, column: str) -> None:
        rows = normalised(table, frame, column)
        rows["written"] = frame["gpu"]
        rows["position"] = range(len(rows))
        skip = answers.skip if column == "time_us" else lambda where, reason: None
        unknown = (rows["reason"] != "") | rows["family"].isna()
        for position, reason in zip(rows["position"][unknown], rows["reason"][unknown], strict=True):
            skip(position, reason or "direction is neither fwd nor bwd")
        columns = ["written", "family", "dtype", "second_dtype", "library"]
        for key, group in rows[~unknown].groupby(columns, sort=True):
            gpu, family, dtype, second, library = (str(part) for part in key)
            where = group["position"].to_numpy()
            name = device_name(gpu)
            if name is None:
                skip(where, no_device(gpu))
                continue
            try:
                _predict_group(device(name), family, dtype, second, library, group, where, answers, column)
            except InputError as error:  # such as no kernel of this family on this device or its relatives
                skip(where, error.message)

    return predict


def normalised(table: str, frame: pd.DataFrame, column: str = "time_us") -> pd.DataFrame:
    """The calls of a kernel table (see :func:`.kernel_tables.calls`); a time that is no number is unknown."""
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
    answers: Answers,
    column: str,
) -> None:
    kernel = on.kernel(family, dtype, library, second)
    if kernel.library != library or not kernel.basis.startswith("fitted"):
        asked = f"{on.name} {family} {dtype} of '{library}'" if library else f"{on.name} {family} {dtype}"
        answers.note(f"{asked}: {kernel.library}, {kernel.basis}", len(group))
    estimate = ask(on, family, dtype, second, library, group)
    times = [value * MICROSECONDS for value in estimate]
    if column == "time_us":
        answers.predict(where, *times)
    else:
        answers.also(where, column, times[0])


def ask(on: Device, family: str, dtype: str, second: str, library: str, group: pd.DataFrame) -> Estimate:
    """The device's estimate of normalised calls of one family, type and library; arrays of shape (rows,)."""
    columns = {name: group[name].to_numpy(float) for name in _SHAPE[family]}
    if family == "gemm":
        return on.gemm(**columns, dtype=dtype, library=library)
    if family in ("grouped_gemm", "grouped_gemm_backward"):
        columns["groups"] = columns.pop("batch")
        direction = "backward" if family.endswith("backward") else "forward"
        return on.grouped_gemm(**columns, dtype=dtype, direction=direction, library=library)
    if family in ("attention_forward", "attention_backward"):
        direction = family.removeprefix("attention_")
        return on.attention(**columns, dtype=dtype, direction=direction, kv_dtype=second, library=library)
    if family == "attention_decode":
        return on.decode_attention(**columns, kv_dtype=second, library=library)
    if family == "memory_bound":
        return on.memory_bound(**columns, op=library)
    return on.fused_moe(**columns, dtype=dtype, weight_dtype=second, library=library)


_ATTENTION = ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "causal")
_SHAPE = {
    "gemm": ("m", "n", "k", "batch"),
    "grouped_gemm": ("m", "n", "k", "batch"),
    "grouped_gemm_backward": ("m", "n", "k", "batch"),
    "attention_forward": _ATTENTION,
    "attention_backward": _ATTENTION,
    "attention_decode": ("batch", "context", "heads", "kv_heads", "head_dim"),
    "memory_bound": ("size_bytes", "rows"),
    "fused_moe": ("tokens", "hidden", "expert_ffn", "experts", "topk"),
}
