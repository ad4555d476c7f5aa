"""TensorRT-LLM's simulation mode: a batch time predictor.

Read from NVIDIA/TensorRT-LLM@2216e3d5 (2026-04), ``tensorrt_llm/_torch/pyexecutor/sim_predictor.py``: a ``SimBatch``
has ``requests``, each with ``input_length`` and ``past_kv_length``; ``InferTimePredictor.predict`` gives seconds.
"""

from __future__ import annotations

from typing import Any

from ..oracle import Oracle
from .rows import rows_of


class TensorRTTimePredictor:
    """Replaces TensorRT-LLM's ``InferTimePredictor``."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def predict(self, batch: Any) -> float:
        """Seconds of a ``SimBatch``; zero for an empty one."""
        rows = rows_of((request.input_length, request.past_kv_length) for request in batch.requests)
        return float(self._oracle(rows)) if rows else 0.0


#: The name that the simulator imports.
TimePredictor = TensorRTTimePredictor
