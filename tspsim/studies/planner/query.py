"""The planner's input: a scenario that may have no plans of its own, and the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...base import catalog, dialect
from ...base.errors import InputError, shorten
from ...base.units import parse
from ...scenario import PlanSpec, Scenario, load


def load_planned(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> tuple[Scenario, bool]:
    """A scenario that may have no plans of its own, and whether it has."""
    if isinstance(source, Mapping):
        data: Mapping[str, Any] = source
    else:
        data = dialect.read_yaml(catalog.locate("scenarios", source))
    stated = bool(data.get("plans")) or any(text.partition("=")[0].strip() == "plans" for text in overrides)
    scenario = load(source, overrides if stated else [*overrides, "plans=[{name: any}]"])
    return scenario, stated


def searched_apart(scenario: Scenario, stated: bool) -> tuple[Scenario, bool, tuple[str, ...]]:
    """Splits off plans that are to be searched: the scenario without them, whether it states others, and the limits of
    the search.

    A placeholder stands in where no other plan is stated.
    """
    searched = [plan for plan in scenario.plans if plan.search is not None]
    if not searched:
        return scenario, stated, ()
    others = tuple(plan for plan in scenario.plans if plan.search is None)
    limits = tuple(limit for plan in searched if plan.search is not None for limit in plan.search.limits)
    plans = others or (PlanSpec(name="any", recomputation=searched[0].recomputation),)
    return scenario.model_copy(update={"plans": plans}), stated and bool(others), limits


def read_budget(text: str | float | None) -> float | None:
    """Seconds, also as a plain number, or None for ``none``; raises InputError.

    >>> read_budget("2 min"), read_budget("none"), read_budget(10)
    (120.0, None, 10.0)
    """
    if text is None:
        return None
    text = text if isinstance(text, str) else f"{float(text):g} s"
    if text.strip() == "none":
        return None
    try:
        return float(parse(text, "s", positive=True))
    except InputError:
        raise InputError(
            f"'{shorten(text)}' is no time; use one such as 40 s or 2 min, or none", key="--budget"
        ) from None
