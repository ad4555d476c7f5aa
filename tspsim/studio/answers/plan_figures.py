"""The figures of a plan's entry, as tables and curves show them; no number is made here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...base.units import compact, digits, duration, gib, percent
from .sort import Figure

Plan = Mapping[str, Any]


def figures(plan: Plan) -> list[Figure]:
    """What a plan's entry says, the rate first; of a refused plan its memory."""
    memory = plan["memory"]
    peak = memory["peak_bytes"]
    held = Figure("memory", "memory a GPU", peak, gib(peak))
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
    return told + (_project(plan["project"]) if "project" in plan else [])


def _project(project: Mapping[str, Any]) -> list[Figure]:
    """The project's tokens on this machine."""
    goodput = project["run"]["goodput"]
    told = [
        Figure("days", "days of the project", project["days"], digits(project["days"])),
        Figure("project_goodput", "goodput of the project", goodput, percent(goodput)),
    ]
    basis, usd = next(iter(project["usd"].items()), ("", None))
    if usd is not None:
        told.append(Figure("project_usd", f"$ of the project ({basis})", usd, f"${compact(usd)}"))
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


def dollars(plan: Plan) -> tuple[float | None, str]:
    """Dollars for a million tokens and the basis of the price, the first of the device's; None without a price."""
    told = plan.get("cost", {}).get("usd_per_million_tokens")
    if isinstance(told, Mapping):
        return next(((value, str(basis)) for basis, value in told.items() if value is not None), (None, ""))
    return (float(told), "") if isinstance(told, int | float) else (None, "")
