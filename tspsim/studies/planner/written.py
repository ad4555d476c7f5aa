"""A plan as text: keys to paste into a scenario, or a scenario that runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from ...base.units import WITH_UNITS
from ...scenario import Scenario
from ...steps import STEPS

#: A column beyond every line of keys: nothing is folded.
WIDE = 10_000


def keys_text(keys: Mapping[str, Any]) -> str:
    """The plan as the ``plans`` of a scenario.

    >>> print(keys_text({"name": "TP8", "tp": 8}))
    plans:
    - name: TP8
      tp: 8
    """
    return _text({"plans": [dict(keys)]}).rstrip()


def scenario_text(scenario: Scenario) -> str:
    """A scenario as it was stated, without offers: a file that loads to the same question."""
    data = scenario.model_dump(
        mode="json", by_alias=True, exclude_unset=True, exclude_none=True, context={WITH_UNITS: True}
    )
    if scenario.traffic is not None:  # the engine then forms the steps
        amounts = {key for step in STEPS.values() for key in (*step.needs, *step.takes)} - {"speculation"}
        data["workload"] = {key: value for key, value in data["workload"].items() if key not in {"pass", *amounts}}
    return _text({key: value for key, value in data.items() if value or key not in ("offers", "project")})


def _text(data: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=WIDE))
