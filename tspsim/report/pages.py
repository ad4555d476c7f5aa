"""Which page a result has: that of a step, or that of requests served."""

from __future__ import annotations

from tspsim.result import Result


def render(result: Result, plotly_js: str = "inline") -> str:
    """The whole page (see :func:`tspsim.report.render`)."""
    if result.scenario.get("traffic"):
        from .serving.page import render as of_requests

        return of_requests(result, plotly_js)
    from .page import render as of_a_step

    return of_a_step(result, plotly_js)
