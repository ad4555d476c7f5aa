"""TensorRT-LLM's simulation mode: a batch time predictor.

Read from NVIDIA/TensorRT-LLM@2216e3d5 (2026-04), ``tensorrt_llm/_torch/pyexecutor/sim_predictor.py``: a ``SimBatch``
has numbers of requests and tokens in two phases, and ``requests``, each with ``input_length`` and ``past_kv_length``;
``InferTimePredictor.predict`` gives seconds. Its first version had the numbers alone, which say no context.
"""

from __future__ import annotations

from typing import Any

from ...base.errors import InputError
from ..oracle import Oracle
from .rows import rows_of


class TensorRTTimePredictor:
    """Replaces TensorRT-LLM's ``InferTimePredictor``."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def predict(self, batch: Any) -> float:
        """Seconds of a ``SimBatch``; zero for an empty one.

        Raises
        ------
        InputError
            The batch counts requests and does not list them.
        """
        rows = rows_of((request.input_length, request.past_kv_length) for request in getattr(batch, "requests", ()))
        if rows:
            return float(self._oracle(rows))
        counted = batch.num_context_requests + batch.num_generation_requests
        if counted:
            raise InputError(f"lists none of its {counted} requests; each states past_kv_length", key="batch.requests")
        return 0.0


#: The name that the simulator imports.
TimePredictor = TensorRTTimePredictor
