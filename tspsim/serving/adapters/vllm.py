"""vLLM's scheduler with a mocked model: seconds of a scheduled step.

Read from vllm-project/vllm@00e8f1fd, ``vllm/v1/core/sched/output.py``: a ``SchedulerOutput`` has
``num_scheduled_tokens`` (by request), ``scheduled_new_reqs`` (each with ``req_id`` and ``num_computed_tokens``) and
``scheduled_cached_reqs`` (``req_ids`` and ``num_computed_tokens``, lists of equal length).
"""

from __future__ import annotations

from typing import Any

from ..oracle import Oracle
from .rows import rows_of


def step_s(oracle: Oracle, scheduled: Any) -> float:
    """Seconds of a step; zero where nothing was scheduled."""
    before = {request.req_id: request.num_computed_tokens for request in scheduled.scheduled_new_reqs}
    cached = scheduled.scheduled_cached_reqs
    before |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    rows = rows_of((tokens, before[request]) for request, tokens in scheduled.num_scheduled_tokens.items() if tokens)
    return float(oracle(rows)) if rows else 0.0
