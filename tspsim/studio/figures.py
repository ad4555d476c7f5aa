"""The figures of an answer's JSON, as pages and curves show them; no number is made here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..units import compact, digits, duration, gib, percent


@dataclass(frozen=True)
class Figure:
    """A figure of a plan: its key, what it is called, its value (None: it has none) and how it is written."""

    key: str
    name: str
    value: float | None
    text: str


def figures(plan: Mapping[str, Any]) -> list[Figure]:
    """What a plan's entry says, the rate first; of a refused plan its memory."""
    memory = plan["memory"]
    held = Figure("memory", "memory a GPU", memory["peak_bytes"], gib(memory["peak_bytes"]))
    if "error" in plan:
        return [held]
    rate = plan["tokens_per_s"]
    told = [Figure("tokens_per_s", "tokens/s", rate, compact(rate, ""))]
    if "serving" in plan:
        told += _served(plan["serving"])
    else:
        seen = plan.get("inference", {})
        for key, words in _SEEN.items():
            if key in seen:
                told.append(Figure(key, words, seen[key], duration(seen[key])))
        told.append(Figure("step_time_s", "step", plan["step_time_s"], duration(plan["step_time_s"])))
        told.append(Figure("mfu", "MFU", plan["mfu"], percent(plan["mfu"])))
    told.append(held)
    usd, basis = dollars(plan)
    if usd is not None:
        told.append(Figure("usd", f"$ a million tokens{basis and f' ({basis})'}", usd, f"${digits(usd)}"))
    return told


_SEEN = {"time_to_first_token_s": "first token after", "time_per_output_token_s": "a token every"}
_WAITS = {"ttft_s": "first token after", "tpot_s": "a token every"}


def _served(serving: Mapping[str, Any]) -> list[Figure]:
    told = []
    for key, words in _WAITS.items():
        wait = serving.get(key)
        if wait:
            told.append(Figure(key, f"{words}, mean", wait["mean"], duration(wait["mean"])))
            if "p99" in wait:
                told.append(Figure(f"{key}_p99", f"{words}, p99", wait["p99"], duration(wait["p99"])))
    good = (serving.get("steady") or serving).get("goodput_requests_per_s")
    if good is not None:
        told.append(Figure("goodput", "requests/s within bounds", good, digits(good)))
    return told


def dollars(plan: Mapping[str, Any]) -> tuple[float | None, str]:
    """Dollars for a million tokens and the basis of the price, the first of the device's; None without a price."""
    told = plan.get("cost", {}).get("usd_per_million_tokens")
    if isinstance(told, Mapping):
        return next(((value, str(basis)) for basis, value in told.items() if value is not None), (None, ""))
    return (float(told), "") if isinstance(told, int | float) else (None, "")


def curve_figures(plan: Mapping[str, Any]) -> dict[str, float]:
    """Figures that a curve can be drawn of, by key; none of a refused plan."""
    if "error" in plan:
        return {}
    return {each.key: each.value for each in figures(plan) if each.value is not None}


def names(plans: list[Mapping[str, Any]]) -> dict[str, str]:
    """Keys of the figures of some plans, and what they are called."""
    return {each.key: each.name for plan in plans for each in figures(plan)}
