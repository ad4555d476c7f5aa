"""The page of a result: of a step, of served requests, or of a fleet of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tspsim.step.result import Result

if TYPE_CHECKING:
    from tspsim.fleet import FleetAnswer


def render(result: Result, plotly_js: str = "inline") -> str:
    """The whole page (see :func:`tspsim.report.render`)."""
    if result.scenario.get("jobs"):
        from .fleet_page import render as of_jobs

        return of_jobs(cast("FleetAnswer", result), plotly_js)
    if result.scenario.get("traffic"):
        from .serving.page import render as of_requests

        return of_requests(result, plotly_js)
    from .page import render as of_a_step

    return of_a_step(result, plotly_js)
