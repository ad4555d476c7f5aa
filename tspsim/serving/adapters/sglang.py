"""SGLang's simulator (``tools/sglang-simulator``): a time predictor, and the file that its ``ml`` predictor loads.

Read from sgl-project/sglang@2f070b1b (``time_predictor/base.py``) and @bb346ef3 (``time_predictor/ml.py``), 2026-08: a
batch has ``reqs``, each with ``extend_length`` and ``past_kv_length``; the predictor gives seconds, and raises where it
cannot. The ``ml`` predictor loads a pickle of ``{"model", "features"}`` and asks ``model.predict`` for rows of 18
features of a batch.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...base.files import replacing
from ..oracle import Oracle, Row, predict
from .rows import rows_of, spread

#: The features of a batch, in order: e are query tokens of a request, p its tokens in the cache before.
FEATURES = (
    "batch_size", "sum_extend", "max_extend", "min_extend", "sum_past", "max_past", "min_past", "sum_extend_x_past",
    "sum_extend_squared", "sum_past_squared", "sum_attn_flops", "sum_extend_x_max_past", "log1p_sum_past",
    "log1p_sum_attn_flops", "batch_size_x_sum_extend", "max_past_minus_min_past", "is_decode", "is_prefill",
)  # fmt: skip


class SGLangTimePredictor:
    """Replaces SGLang's ``InferTimePredictor`` in its simulator."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def predict_infer_time(self, batch: Any) -> float:
        """Seconds of a ``ScheduleBatch``; zero for an empty one."""
        rows = rows_of((request.extend_length, request.past_kv_length) for request in batch.reqs)
        return float(self._oracle(rows)) if rows else 0.0

    def get_metrics(self) -> dict[str, Any]:
        """Empty: nothing is counted."""
        return {}

    def reset_metrics(self) -> None:
        """Does nothing: nothing is counted."""


#: The name that the simulator imports.
TimePredictor = SGLangTimePredictor


class Regressor:
    """A model with ``predict`` as in scikit-learn, built from a scenario so that it can be pickled.

    The features do not describe every request: the longest piece is exact, the rest is split evenly.
    """

    def __init__(self, scenario: Mapping[str, Any] | str, plan: str | None = None, drafts: int = 0) -> None:
        self._asked = (scenario, plan, drafts)
        self._oracle: Oracle | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_asked": self._asked, "_oracle": None}

    def predict(self, batches: Sequence[Sequence[float]]) -> list[float]:
        """Seconds of each batch, from its :data:`FEATURES`."""
        if self._oracle is None:
            scenario, plan, drafts = self._asked
            self._oracle = predict(scenario, plan, drafts=drafts)
        return [float(self._oracle(_rows(features))) for features in batches]


def write(scenario: Mapping[str, Any] | str, path: Path | str, plan: str | None = None, *, drafts: int = 0) -> None:
    """Write the file for ``"predictor": {"name": "ml", "database_path": FILE}``, whole or not at all.

    Raises
    ------
    InputError
        The scenario is wrong, does not serve, or has no such plan.
    """
    predict(scenario, plan, drafts=drafts)
    bundle = {"model": Regressor(scenario, plan, drafts), "features": list(FEATURES)}
    with replacing(Path(path)) as temporary:
        temporary.write_bytes(pickle.dumps(bundle))


def _rows(features: Sequence[float]) -> list[Row]:
    values = dict(zip(FEATURES, features, strict=True))
    count, queries, before = (int(values[name]) for name in ("batch_size", "sum_extend", "sum_past"))
    if values["is_decode"]:
        return [(1, context, often) for context, often in spread(before, count)]
    longest = int(values["max_extend"])
    rows = [(longest, before // count)]
    if count > 1:
        others = [query for query, often in spread(queries - longest, count - 1) for _ in range(often)]
        held = [context for context, often in spread(before - before // count, count - 1) for _ in range(often)]
        rows += zip(others, held, strict=True)
    return rows_of((query, context) for query, context in rows if query)
