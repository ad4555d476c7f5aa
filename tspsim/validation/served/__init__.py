"""Published serving runs: repaired rows, read as runs of an engine, and their predictions."""

from .predict import (
    mend_cookbook,
    mend_published,
    mend_silicon,
    plan_by_plan,
    predict_cookbook,
    predict_published,
    predict_silicon,
)

__all__ = [
    "mend_cookbook",
    "mend_published",
    "mend_silicon",
    "plan_by_plan",
    "predict_cookbook",
    "predict_published",
    "predict_silicon",
]
