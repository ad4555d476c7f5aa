"""Many draws of the same step, such as those of a fabric that hashes flows to paths: one answer of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..base.units import duration
from ..network import Routing
from .result import PlanResult

#: Shares of the draws whose step an answer tells.
SHARES = (5, 50, 95)


def median_draw(results: Sequence[PlanResult], routing: Routing) -> PlanResult:
    """The result of the median step, with how long a step takes in others.

    Shares are those of draws that take no longer (the inverse of the distribution of those that ran), so that each is
    the step of some draw, and the one at 50 % that of the answer itself.
    """
    steps_s = [result.step_time_s for result in results]
    low_s, middle_s, high_s = np.percentile(steps_s, SHARES, method="inverted_cdf").tolist()
    median = results[steps_s.index(middle_s)]
    note = (
        f"paths are drawn (`{routing.policy}`): of {len(results)} draws half take {duration(middle_s)} a step or less, "
        f"nine of ten {duration(low_s)} to {duration(high_s)}"
    )
    return replace(
        median,
        notes=(*median.notes, note),
        draws={
            "policy": routing.policy,
            "seed": routing.seed,
            "seeds": len(results),
            "step_time_s": {f"p{share}": value for share, value in zip(SHARES, (low_s, middle_s, high_s), strict=True)},
        },
    )
