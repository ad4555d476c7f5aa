"""Many draws of one step (such as hashed paths of flows) as one answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..base.units import duration
from ..network import Routing
from .result import PlanResult

#: Percentiles of the draws' step times in an answer.
SHARES = (5, 50, 95)


def median_draw(results: Sequence[PlanResult], routing: Routing) -> PlanResult:
    """The result of the median step, with percentiles of the step time.

    Percentiles are step times of actual draws (the inverse of their distribution), so that the 50 % one is the
    answer's own.
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
