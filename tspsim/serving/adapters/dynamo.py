"""NVIDIA Dynamo's mocker and planner: its performance model as arrays of an NPZ file, and objects in place of
AIConfigurator.

Read from ai-dynamo/dynamo@0894f5c6 (2026), ``lib/mocker/src/common/perf_model.rs``: ``prefill_isl``,
``prefill_ttft_ms``, by all new tokens of a step; ``decode_active_kv_tokens``, ``decode_context_length`` and
``decode_itl`` (rows by the former, columns by the latter), asked for the sum of all contexts of the scheduled batch and
their mean. It interpolates and extrapolates linearly, adds the two where a step has both, and takes at least a
millisecond for a step that decodes. Since its engine is AISimulate's (@39accd75, ``components/.../mocker/config.py``),
the option that names the file fills ``timing_model: {type: external, provider: dynamo_profile, config: {path: FILE}}``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.errors import InputError
from ...base.files import replacing
from ..oracle import Oracle, Row
from .rows import spread


def arrays(
    oracle: Oracle, *, context: int, sequences: int, tokens: int, points: int = 48
) -> dict[str, NDArray[np.float64]]:
    """The five arrays.

    Parameters
    ----------
    context
        Longest context of a sequence, in tokens.
    sequences
        Most sequences that decode at once; together they have no more tokens than the cache of a replica.
    tokens
        Most prompt tokens of a step.
    points
        Points per axis, in equal ratios.

    Raises
    ------
    InputError
        A number is less than two.

    >>> import tspsim
    >>> oracle = tspsim.predict({"name": "d", "cluster": "mi300x-8", "workload": {"model": "qwen3-8b", "pass": "decode",
    ...     "stack": "vllm", "batch": 1, "context": 1}, "plans": [{"name": "TP1", "tp": 1}]})
    >>> profile = arrays(oracle, context=4096, sequences=64, tokens=8192, points=4)
    >>> profile["decode_itl"].shape, bool((np.diff(profile["prefill_ttft_ms"]) > 0).all())
    ((4, 4), True)
    """
    for name, value in (("context", context), ("sequences", sequences), ("tokens", tokens), ("points", points)):
        if not isinstance(value, int) or value < 2:
            raise InputError(f"is a whole number from 2 on, not {value!r}", key=name)
    prompts = _steps(1, tokens, points)
    contexts = _steps(1, context, points)
    held = _steps(1, int(min(context * sequences, oracle.most_tokens - sequences * oracle.query_len)), points)
    itl = np.empty((len(held), len(contexts)))
    for row, total in enumerate(held.tolist()):
        for column, mean in enumerate(contexts.tolist()):
            count = max(1, min(sequences, round(total / mean)))
            itl[row, column] = oracle(
                [(oracle.query_len, tokens_before, often) for tokens_before, often in spread(max(total, count), count)]
            )
    return {
        "prefill_isl": prompts.astype(np.float64),
        "prefill_ttft_ms": 1e3 * np.array([float(oracle([(prompt, 0, 1)])) for prompt in prompts.tolist()]),
        "decode_active_kv_tokens": held.astype(np.float64),
        "decode_context_length": contexts.astype(np.float64),
        "decode_itl": 1e3 * itl,
    }


def write(oracle: Oracle, path: Path | str, *, context: int, sequences: int, tokens: int, points: int = 48) -> None:
    """Write the arrays for ``python -m dynamo.mocker --planner-profile-data FILE``, whole or not at all."""
    profile = arrays(oracle, context=context, sequences=sequences, tokens=tokens, points=points)
    with replacing(Path(path)) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **profile)


class Callback:
    """The step times that the mocker asks of AIConfigurator, answered by an oracle in milliseconds.

    Read from the trait ``AicCallback`` of the same file (``AisCallback`` @39accd75): new tokens of a prompt without its
    prefix, and a context with two output tokens, the first of which the prompt's step gives. An error ends the mocker's
    pass.
    """

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def predict_prefill(self, batch_size: int, effective_isl: int, prefix: int) -> float:
        """Milliseconds of ``batch_size`` prompts with ``effective_isl`` new tokens after ``prefix`` tokens in the
        cache."""
        return 1e3 * float(self._oracle([(effective_isl, prefix, batch_size)]))

    def predict_decode(self, batch_size: int, isl: int, osl: int) -> float:
        """Milliseconds of the ``osl`` − 1 steps that give ``batch_size`` sequences ``osl`` tokens after ``isl``; each
        takes as long as half way."""
        return 1e3 * (osl - 1) * float(self._oracle([(self._oracle.query_len, isl + osl // 2, batch_size)]))


class ForwardPass:
    """The forward-pass model under the planner's engine queries, in place of ``RustForwardPassPerfModel``.

    Read from ai-dynamo/dynamo@083c4932 (2026-09), ``components/src/dynamo/planner/core/perf_model/engine_query.py``,
    whose ``AicCoreEnginePerfModel`` takes it as ``model`` (``AISCoreEnginePerfModel`` @39accd75): it passes
    ``ForwardPassMetrics`` as mappings, one for each rank of attention data parallelism, and reads milliseconds.
    """

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def estimate_forward_pass_time_ms(self, metrics_by_rank: Sequence[Mapping[str, Any]]) -> float:
        """Milliseconds of the slowest rank's step; zero where no rank has requests."""
        batches = [list(self._rows(metrics["scheduled_requests"])) for metrics in metrics_by_rank]
        return max((1e3 * float(self._oracle(rows)) for rows in batches if rows), default=0.0)

    def tune_with_fpms(self, iterations: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        """Does nothing: the oracle learns from profiles (``tspsim calibrate``)."""

    def diagnostics(self) -> dict[str, Any]:
        """What the planner looks at before it asks."""
        return {"source": "tspsim", "readiness": "ready"}

    def _rows(self, scheduled: Mapping[str, Any]) -> Iterator[Row]:
        """Rows of the sums that a rank states: prompts alike, contexts as far from their mean as the variance says."""
        tokens = int(scheduled.get("sum_prefill_tokens", 0))
        count = min(max(int(scheduled.get("num_prefill_requests", 0)), 1), tokens)
        if count:
            before = round(int(scheduled.get("sum_prefill_kv_tokens", 0)) / count)
            yield from ((query, before, often) for query, often in spread(tokens, count))
        decoding = int(scheduled.get("num_decode_requests", 0))
        if decoding:
            mean = max(int(scheduled.get("sum_decode_kv_tokens", 0)) / decoding, 1.0)
            away = float(scheduled.get("var_decode_kv_tokens", 0.0)) ** 0.5 if decoding > 1 else 0.0
            away = min(away, mean - 1.0)
            halves = (decoding // 2, mean - away), (decoding - decoding // 2, mean + away)
            for often, context in halves:
                if often:
                    yield self._oracle.query_len, round(context), often


def _steps(first: int, last: int, points: int) -> NDArray[np.int64]:
    return np.unique(np.geomspace(first, last, points).round().astype(np.int64))
