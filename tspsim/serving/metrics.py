"""Metrics of a run of requests: latencies, rates, caches and money, as benchmarks define them.

Letters: a request is sent at s, its first token reaches the client at f, its last at e, it has n outputs.

=================  =====================================================================================================
TTFT               f − s: front end, queue and prefill (vLLM's benchmark, InferenceX, MLPerf)
TPOT               (e − f)/(n − 1) of a request; of a run the mean *over requests*, not over tokens. One output has none
ITL                every gap between two tokens (or between two groups of accepted ones), pooled over requests
E2E                e − s
wall               from the first s to the last e of the requests that count, ramp and drain included
output tokens/s    Σ n / wall; per GPU over *all* GPUs, prefill GPUs included
tokens/s per user  1 / TPOT (InferenceX's interactivity; TensorRT-LLM's n / E2E is another number)
goodput            requests within all bounds / wall (``vllm bench serve --goodput``); one output counts as TPOT 0
=================  =====================================================================================================

Percentiles are over requests (over gaps for ITL), linearly interpolated. The mean ITL is exact. Its percentiles are
over the steps in the engines' logs, which are equal within a merged run of steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..traffic.kind import Floats, Ints
from .log import StepKind, StepLog
from .streams import ONCE, ValueStream, reached
from .waits import Waits, tpot_s

__all__ = ["Bill", "Cache", "Waits", "gaps", "itl", "measure", "spread", "tpot_s", "weighted_percentiles"]
PERCENTILES = (50, 90, 99)


def spread(values: Floats | ValueStream) -> dict[str, float] | None:
    """Mean and percentiles of the finite values; None without any."""
    if isinstance(values, ValueStream):
        if not values.count():
            return None
        percentiles = zip(PERCENTILES, values.percentiles(PERCENTILES), strict=True)
        return {"mean": values.mean()} | {f"p{percentile}": value for percentile, value in percentiles}
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    return {"mean": float(values.mean())} | {
        f"p{percentile}": float(np.percentile(values, percentile)) for percentile in PERCENTILES
    }


def spread_of(waits: Waits, name: str) -> dict[str, float] | None:
    """The same for ``ttft_s``, ``tpot_s`` or ``e2e_s``."""
    few = list(islice(waits.pieces(), 2))
    if len(few) == 1:
        return spread(getattr(few[0], name))
    return spread(waits.stream(lambda piece: getattr(piece, name)))


def gaps(logs: Iterable[StepLog], from_s: float, to_s: float) -> Iterator[tuple[Floats, Ints]]:
    """Gaps between tokens in engines' steps within a time, with the number of sequences that waited so long; in pieces.

    A decoding sequence waits since its last token: since the step before; or, if prompts were read in between, since
    the last decode step before those, or since the step that read its own prompt.
    """
    for log in logs:
        #: Rows from the last decode run on, whose gaps are already yielded (for the first ``done`` rows).
        kept, done = np.empty(0, dtype=log.TYPE), 0
        for piece in log.pieces():
            rows = np.concatenate([kept, piece])
            decoding = (rows["sequences"] > 0) & (rows["kind"] != StepKind.PREFILL)
            decodes = np.flatnonzero(decoding)
            if len(decodes) > done:
                yield from _gaps_of(rows, decoding, decodes[done:], from_s, to_s)
            first = int(decodes[-1]) if len(decodes) else 0
            kept, done = rows[first:], int(len(decodes) > 0)


def _gaps_of(
    rows: NDArray[Any], decoding: NDArray[np.bool_], decodes: Ints, from_s: float, to_s: float
) -> Iterator[tuple[Floats, Ints]]:
    """The gaps that end in some of a log's rows."""
    start, end, sequences, steps = (rows[name][decodes] for name in ("start_s", "end_s", "sequences", "steps"))
    inside = (end > from_s) & (start < to_s)
    gap = (end - start) / steps
    # A sequence whose prompt was read in a step without decodes waits from then on.
    read = np.flatnonzero(~decoding & (rows["staying"] > 0))
    into = np.searchsorted(decodes, read)
    read, into = read[into < len(decodes)], into[into < len(decodes)]
    joined = np.bincount(into, rows["staying"][read], minlength=len(decodes)).astype(np.int64)
    # Sequences that stalled meanwhile wait since the step before; preempted ones are not counted.
    before = np.maximum.accumulate(np.where(decoding, np.arange(len(rows)), -1))[decodes - 1]
    before[decodes == 0] = -1
    halted = (before >= 0) & (before != decodes - 1)
    still = np.where(halted, np.clip(sequences - joined, 0, rows["staying"][before]), 0)
    yield gap[inside], np.maximum(0, sequences * steps - still - joined)[inside]
    halted &= inside
    yield (gap + start - rows["end_s"][before])[halted], still[halted]
    seen = inside[into]
    yield (gap + start)[into[seen]] - rows["end_s"][read[seen]], rows["staying"][read[seen]].astype(np.int64)


def weighted_percentiles(values: Floats, weights: Ints) -> dict[str, float]:
    """Percentiles of weighted values: the least value that this percentage does not exceed."""
    order = np.argsort(values, kind="stable")
    reach = np.cumsum(weights[order])
    places = [np.searchsorted(reach, percentile / 100.0 * reach[-1]) for percentile in PERCENTILES]
    return {
        f"p{percentile}": float(values[order][place]) for percentile, place in zip(PERCENTILES, places, strict=True)
    }


def itl(waits: Waits, logs: Sequence[StepLog], tokens_a_gap: float = 1.0) -> dict[str, float] | None:
    """Gaps between tokens: the mean from the requests, percentiles from the engines' steps.

    ``tokens_a_gap``: with drafts several tokens come at once.
    """
    count = waits.total(lambda piece: piece.output_tokens - 1) / tokens_a_gap
    if count <= 0.0:
        return None
    between = waits.stream(lambda piece: piece.end_s - piece.first_token_s)
    mean = between.total(len(waits)) / count
    from_s, to_s = waits.first_s, waits.last_s
    if sum(map(len, logs)) <= ONCE:
        gap_pieces = [(np.empty(0), np.empty(0, dtype=np.int64)), *gaps(logs, from_s, to_s)]
        values, weights = (np.concatenate(column) for column in zip(*gap_pieces, strict=True))
        return {"mean": mean, **(weighted_percentiles(values, weights) if weights.any() else all_alike(mean))}
    every = sum(int(weights.sum()) for _, weights in gaps(logs, from_s, to_s))
    if not every:
        return {"mean": mean, **all_alike(mean)}
    percentiles = reached(lambda: gaps(logs, from_s, to_s), [percentile / 100.0 * every for percentile in PERCENTILES])
    return {"mean": mean} | {
        f"p{percentile}": value for percentile, value in zip(PERCENTILES, percentiles, strict=True)
    }


def all_alike(value: float) -> dict[str, float]:
    """Percentiles of equal values."""
    return dict.fromkeys((f"p{percentile}" for percentile in PERCENTILES), value)


@dataclass(frozen=True)
class Bill:
    """Price and power of GPUs: dollars per hour by price basis, and all-in watts per GPU (None: not known)."""

    usd_per_gpu_hour: Mapping[str, float]
    watts_per_gpu: float | None = None

    def usd_per_million(self, gpus: int, wall_s: float, tokens: float) -> dict[str, float]:
        """Dollars per million tokens by basis."""
        hours = gpus * wall_s / 3600.0
        return {basis: usd * hours / tokens * 1e6 for basis, usd in self.usd_per_gpu_hour.items()} if tokens else {}


@dataclass(frozen=True)
class Cache:
    """Size of the caches: tokens of all engines together (None: no limit), and sessions of the run's mean length.

    ``engines``: the caches belong to this number of engines, the last of a run; None: to all.
    """

    capacity_tokens: float | None
    sessions: float | None = None
    engines: int | None = None


def measure(
    waits: Waits,
    logs: Sequence[StepLog],
    *,
    gpus: int,
    bill: Bill,
    cache: Cache,
    bounds: Mapping[str, float],
    tokens_a_gap: float = 1.0,
) -> dict[str, Any]:
    """The entry ``serving`` of a plan (docs/json.md).

    Parameters
    ----------
    waits
        Requests that count.
    logs
        Logs of all engines.
    gpus
        Number of all GPUs.
    bounds
        Bounds on ``ttft``, ``tpot``, ``e2e`` of a good request, in seconds; empty: none.
    tokens_a_gap
        Mean tokens of a step with drafts.
    """
    wall_s = waits.wall_s
    outputs, prompts = waits.total(lambda piece: piece.output_tokens), waits.total(lambda piece: piece.prompt_tokens)
    tpot = spread_of(waits, "tpot_s")
    per_s = 1.0 / wall_s if wall_s > 0.0 else 0.0
    good = waits.total(lambda piece: piece.good(bounds)) if bounds else None
    entry: dict[str, Any] = {
        "ttft_s": spread_of(waits, "ttft_s"),
        "tpot_s": tpot,
        "itl_s": itl(waits, logs, tokens_a_gap),
        "e2e_s": spread_of(waits, "e2e_s"),
        "output_tokens_per_s": outputs * per_s,
        "output_tokens_per_s_per_gpu": outputs * per_s / gpus,
        "total_tokens_per_s": (outputs + prompts) * per_s,
        "requests_per_s": len(waits) * per_s,
        "goodput_requests_per_s": None if good is None else good * per_s,
        "good_share": None if good is None or not len(waits) else good / len(waits),
        "tokens_per_s_per_user": 1.0 / tpot["mean"] if tpot and tpot["mean"] > 0.0 else None,
        "usd_per_million_output_tokens": bill.usd_per_million(gpus, wall_s, outputs),
        "usd_per_million_input_tokens": bill.usd_per_million(gpus, wall_s, prompts),
        "usd_per_million_tokens": bill.usd_per_million(gpus, wall_s, outputs + prompts),
        "kv": {
            "capacity_tokens": cache.capacity_tokens,
            "peak_share": peak_share(logs[-cache.engines :] if cache.engines else logs, cache.capacity_tokens),
            "sessions": cache.sessions,
        },
        "preemptions": waits.total(lambda piece: piece.preemptions),
        "prefix_hit_share": waits.total(lambda piece: piece.cached_tokens) / prompts if prompts else 0.0,
        "wall_s": wall_s,
        "requests": len(waits),
        "prompt_tokens": prompts,
        "output_tokens": outputs,
    }
    if bill.watts_per_gpu is not None:
        kwh = gpus * bill.watts_per_gpu * wall_s / 3.6e6
        entry |= {"energy_kwh": kwh, "kwh_per_million_output_tokens": kwh / outputs * 1e6 if outputs else None}
    return entry


def peak_share(logs: Sequence[StepLog], capacity_tokens: float | None) -> float | None:
    """The peak share of any engine's cache; engines are alike and hold ``capacity_tokens`` together."""
    if not capacity_tokens or not logs:
        return None
    own_tokens = capacity_tokens / len(logs)
    used = (int(piece["used_tokens"].max()) for log in logs for piece in log.pieces())
    return float(max(used, default=0)) / own_tokens
