"""The figures of a plan's entry, for tables and curves; taken from the answer, not computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...base.units import compact, digits, duration, gib, percent
from .sort import Figure

Plan = Mapping[str, Any]


def figures(plan: Plan) -> list[Figure]:
    """The figures of a plan, the rate first; of a refused plan its memory."""
    memory = plan["memory"]
    peak = memory["peak_bytes"]
    held = Figure("memory", "memory a GPU", peak, gib(peak))
    if "error" in plan:
        return [held]
    rate = plan["tokens_per_s"]
    shown = [Figure("tokens_per_s", "tokens/s", rate, compact(rate, ""))]
    if "serving" in plan:
        shown += _served(plan["serving"])
    else:
        seen = plan.get("inference", {})
        for key, words in _SEEN.items():
            if key in seen:
                shown.append(Figure(key, words, seen[key], duration(seen[key])))
        shown.append(Figure("step_time_s", "step", plan["step_time_s"], duration(plan["step_time_s"])))
        shown.append(Figure("mfu", "MFU", plan["mfu"], percent(plan["mfu"])))
    shown.append(held)
    usd, basis = dollars(plan)
    if usd is not None:
        shown.append(Figure("usd", f"$ a million tokens{basis and f' ({basis})'}", usd, f"${digits(usd)}"))
    return shown + (_project(plan["project"]) if "project" in plan else [])


def _project(project: Mapping[str, Any]) -> list[Figure]:
    """The figures of the project's tokens on this machine."""
    goodput = project["run"]["goodput"]
    shown = [
        Figure("days", "days of the project", project["days"], digits(project["days"])),
        Figure("project_goodput", "goodput of the project", goodput, percent(goodput)),
    ]
    basis, usd = next(iter(project["usd"].items()), ("", None))
    if usd is not None:
        shown.append(Figure("project_usd", f"$ of the project ({basis})", usd, f"${compact(usd)}"))
    return shown


_SEEN = {"time_to_first_token_s": "first token after", "time_per_output_token_s": "a token every"}
_WAITS = {"ttft_s": "first token after", "tpot_s": "a token every"}


def _served(serving: Mapping[str, Any]) -> list[Figure]:
    shown = []
    for key, words in _WAITS.items():
        wait = serving.get(key)
        if wait:
            shown.append(Figure(key, f"{words}, mean", wait["mean"], duration(wait["mean"])))
            if "p99" in wait:
                shown.append(Figure(f"{key}_p99", f"{words}, p99", wait["p99"], duration(wait["p99"])))
    good = (serving.get("steady") or serving).get("goodput_requests_per_s")
    if good is not None:
        shown.append(Figure("goodput", "requests/s within bounds", good, digits(good)))
    return shown


def dollars(plan: Plan) -> tuple[float | None, str]:
    """USD per million tokens, and the basis of its price, the first of the device's; None without a price."""
    usd = plan.get("cost", {}).get("usd_per_million_tokens")
    if isinstance(usd, Mapping):
        return next(((value, str(basis)) for basis, value in usd.items() if value is not None), (None, ""))
    return (float(usd), "") if isinstance(usd, int | float) else (None, "")
