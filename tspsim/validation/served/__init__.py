"""Published serving runs: their rows, repaired, as runs of an engine, and what the product predicts of them."""

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
