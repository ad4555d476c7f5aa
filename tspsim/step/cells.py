"""A plan's entry of the JSON answer as cells of a table, under the flat names of frames and sweeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

#: A cell of a table; None: empty.
Cell = int | float | bool | str | None

#: Rates and times of a plan's entry that keep their names as columns.
_RATES = ("tokens_per_s", "tokens_per_s_per_gpu", "block_forward_tokens_per_s", "step_time_s", "mfu", "dropped_share")
#: Columns that come first in frames.
FIRST = (
    "tokens_per_s", "tokens_per_s_low", "tokens_per_s_high", "tokens_per_s_per_gpu", "step_time_s", "mfu",
    "ttft_s_mean", "tpot_s_mean", "requests_per_s", "goodput_requests_per_s", "time_to_first_token_s",
    "time_per_output_token_s", "memory_peak_bytes", "memory_fits",
)  # fmt: skip


def flat(plan: Mapping[str, Any]) -> dict[str, Cell]:
    """A plan's entry of the JSON answer as cells; nested keys are joined with ``_``."""
    cells: dict[str, Cell] = {f"degree_{axis}": degree for axis, degree in plan.get("degrees", {}).items()}
    if "memory" in plan:
        memory = plan["memory"]
        cells |= {
            "memory_peak_bytes": float(memory["peak_bytes"]),
            "memory_capacity_bytes": float(memory["capacity_bytes"]),
            "memory_fits": memory["fits"],
        }
        cells |= {f"memory_{part}_bytes": float(size) for part, size in memory["parts"].items()}
    if "error" in plan:
        return cells | {"error": plan["error"]}
    if "serving" in plan:
        return cells | _of_requests(plan)
    parts = plan["breakdown_s"]
    exposed = parts["exposed_communication"]
    cells |= {name: float(plan[name]) for name in _RATES if isinstance(plan.get(name), int | float)}
    cells |= {
        "tokens_per_step": plan["tokens_per_step"],
        "tokens_per_s_low": plan["range"]["low"],
        "tokens_per_s_high": plan["range"]["high"],
        "compute_s": parts["compute"],
        "exposed_communication_s": sum(exposed.values()),
        "bubble_s": parts["bubble"],
        "idle_s": parts["idle"],
        "communication_bytes_per_layer": float(plan["communication_bytes_per_layer"]["total"]),
        "bottleneck": plan["bottleneck"],
    }
    moved = plan.get("communication_bytes_per_step")  # absent from older stored answers
    cells |= {"communication_bytes_per_step": float(moved["total"])} if moved else {}
    cells |= {"host_s": parts["host"]} if "host" in parts else {}
    cells |= {f"compute_{family}_s": seconds for family, seconds in plan["compute_by_kind_s"].items()}
    cells |= {f"exposed_{kind}_s": seconds for kind, seconds in exposed.items()}
    cells |= _served(plan.get("inference", {}))
    cells |= {name: value for name, value in plan.get("loop", {}).items() if isinstance(value, int | float)}
    return cells | _costs(plan["cost"])


def frame(plans: Iterable[tuple[str, Any]]) -> pandas.DataFrame:
    """One row per plan, with rates first.

    Parameters
    ----------
    plans
        (name, object whose ``to_json`` is a plan's entry).
    """
    import pandas

    named = list(plans)
    rows = [flat(plan.to_json()) for _, plan in named]
    columns = dict.fromkeys(column for row in rows for column in row)
    first = [column for column in FIRST if column in columns]
    order = [*first, *(column for column in columns if column not in first)]
    index = pandas.Index([name for name, _ in named], name="plan")
    return pandas.DataFrame(rows, index=index, columns=pandas.Index(order))


def _costs(cost: Mapping[str, Any]) -> dict[str, Cell]:
    """Money and energy; dollars have a column per price basis."""
    cells: dict[str, Cell] = {}
    for name, value in cost.items():
        if isinstance(value, Mapping):
            cells |= {f"{name}_{basis}": float(price) for basis, price in value.items()}
        else:
            cells[name] = float(value)
    return cells


def _nested(name: str, value: Mapping[str, Any]) -> dict[str, Cell]:
    """Cells of a nested mapping, keys joined with ``_``."""
    cells: dict[str, Cell] = {}
    for key, cell in value.items():
        cells |= _nested(f"{name}_{key}", cell) if isinstance(cell, Mapping) else {f"{name}_{key}": cell}
    return cells


def _of_requests(plan: Mapping[str, Any]) -> dict[str, Cell]:
    """Cells of an answer to requests: means and percentiles as columns, ranges as ``_low`` and ``_high``."""
    cells: dict[str, Cell] = {name: float(plan[name]) for name in ("tokens_per_s", "tokens_per_s_per_gpu")}
    spread = plan["range"]
    cells |= {"tokens_per_s_low": spread["low"], "tokens_per_s_high": spread["high"]}
    for name, value in plan["serving"].items():
        if isinstance(value, Mapping):
            cells |= _nested(name, value)
        elif value is not None:  # a column wall_s is the time that an answer took
            cells["serving_wall_s" if name == "wall_s" else name] = value
        if isinstance(spread.get(name), Mapping):
            cells |= {f"{name}_{end}": spread[name][end] for end in ("low", "high")}
    return cells | {"bottleneck": plan["bottleneck"]} | _costs(plan["cost"])


def _served(inference: Mapping[str, Any]) -> dict[str, Cell]:
    """Cells of a serving step: what users see, and the capacity of its caches."""
    cells: dict[str, Cell] = {name: float(value) for name, value in inference.items() if isinstance(value, int | float)}
    room = inference.get("capacity", {})
    if room:
        cells |= {
            "cache_capacity_bytes": float(room["cache_bytes"]),
            "sessions": float(room["sessions"]),
            "session_context": room["context"],
            "session_tokens": room["tokens"],
            "longest_context": room["longest_context"],
        }
        cells |= dict(zip(("sessions_low", "sessions_high"), map(float, room["sessions_range"]), strict=True))
    return cells
