"""Columns of a purchase's table: their names, and their cells for an offer's entry; taken from the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...base.units import compact, digits, percent

NOTHING = "–"
Offer = Mapping[str, Any]


def _stated(key: str) -> Callable[[Offer], str]:
    def cell(offer: Offer) -> str:
        value = offer.get(key)
        if value is None:
            return NOTHING
        return compact(value) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)

    return cell


def _hour(offer: Offer) -> str:
    usd = offer["rates"]["usd_per_gpu_hour"].get(offer["rates"]["basis"])
    return NOTHING if usd is None else f"${digits(usd)}"


def _days(offer: Offer) -> str:
    project = offer.get("project")
    return NOTHING if project is None else digits(project["days"]) + _between(project, "days")


def _dollars(offer: Offer) -> str:
    project = offer.get("project")
    usd = (project or {}).get("usd", {}).get(offer["rates"].get("basis"))
    return NOTHING if project is None or usd is None else f"${compact(usd)}" + _between(project, "usd")


def _between(project: Offer, key: str) -> str:
    """The range of a figure, nine times of ten."""
    ends = (project.get("likely") or {}).get(key)
    return f" ({compact(ends[0])} to {compact(ends[1])})" if ends else ""


def _goodput(offer: Offer) -> str:
    project = offer.get("project")
    return NOTHING if project is None else percent(project["run"]["goodput"])


def _nodes(offer: Offer) -> str:
    need = offer.get("need") or offer.get("service")
    nodes = (need or {}).get("nodes")
    return NOTHING if nodes is None else f"{nodes:,}"


#: The name of each column, and its cell of an offer; :data:`NOTHING` where an offer has none.
OFFER_COLUMNS: Mapping[str, Callable[[Offer], str]] = {
    "offer": _stated("name"),
    "device": _stated("device"),
    "GPUs": _stated("gpus"),
    "plan": _stated("plan"),
    "load": _stated("load"),
    "tokens/s": _stated("tokens_per_s"),
    "$ a GPU hour": _hour,
    "tokens a dollar": _stated("tokens_per_usd"),
    "tokens a joule": _stated("tokens_per_joule"),
    "days": _days,
    "$ of the project": _dollars,
    "goodput": _goodput,
    "nodes needed": _nodes,
    "why too small": _stated("too_small"),
    "missed bounds": _stated("misses"),
    "limited by": _stated("limit"),
}
