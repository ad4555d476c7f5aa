"""What a run of requests was like: waits, rates, caches and money, as benchmarks define them.

Letters: a request is sent at s, its first token reaches the client at f, its last at e, it has n outputs.

=================  =====================================================================================================
TTFT               f − s: front end, queue and prefill (vLLM's benchmark, InferenceX, MLPerf)
TPOT               (e − f)/(n − 1) of a request; of a run the mean *over requests*, not over tokens. One output has none
ITL                every gap between two tokens (or between two groups of accepted ones), pooled over requests
E2E                e − s
wall               from the first s to the last e of the requests that count, ramp and drain included
output tokens/s    Σ n / wall; per GPU over *all* GPUs, those that only read prompts too
tokens/s a user    1 / TPOT (InferenceX's interactivity; TensorRT-LLM's n / E2E is another number)
goodput            requests within all bounds / wall (``vllm bench serve --goodput``); one output counts as TPOT 0
=================  =====================================================================================================

Percentiles are of requests (of gaps for ITL), interpolated linearly. The mean ITL is exact; its percentiles are of the
steps in the engines' logs, equal within a run of steps that were folded to one entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..traffic.kind import Floats, Ints
from .log import Kind, StepLog
from .traffic import Book

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Waits:
    """Requests that count and ended: columns in order of their numbers; times in seconds."""

    sent_s: Floats
    scheduled_s: Floats
    first_token_s: Floats
    end_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    preemptions: Ints
    cached_tokens: Ints

    @classmethod
    def of(cls, book: Book) -> Waits:
        """Of a run's book."""
        asked = book.settle().asked
        counted = np.zeros(len(book), dtype=bool)
        counted[asked.counted] = True
        chosen = counted & np.isfinite(book.end_s)
        columns = (
            book.arrival_s,
            book.first_scheduled_s,
            book.first_token_s,
            book.end_s,
            asked.prompt_tokens,
            asked.output_tokens,
            book.preemptions,
            book.cached_tokens,
        )
        return cls(*(column[chosen] for column in columns))

    def __len__(self) -> int:
        return len(self.sent_s)

    @property
    def ttft_s(self) -> Floats:
        return self.first_token_s - self.sent_s

    @property
    def e2e_s(self) -> Floats:
        return self.end_s - self.sent_s

    @property
    def tpot_s(self) -> Floats:
        return tpot_s(self.first_token_s, self.end_s, self.output_tokens)

    @property
    def wall_s(self) -> float:
        return float(self.end_s.max() - self.sent_s.min()) if len(self) else 0.0

    def good(self, bounds: Mapping[str, float]) -> NDArray[np.bool_]:
        """Which keep all bounds: seconds of ``ttft``, ``tpot``, ``e2e``."""
        waits = {"ttft": self.ttft_s, "tpot": np.nan_to_num(self.tpot_s), "e2e": self.e2e_s}
        kept = np.ones(len(self), dtype=bool)
        for name, seconds in bounds.items():
            kept &= waits[name] <= seconds
        return kept


def tpot_s(first_token_s: Floats, end_s: Floats, output_tokens: Ints) -> Floats:
    """(e − f)/(n − 1) of every request; nan of those with one output."""
    gaps = np.where(output_tokens > 1, output_tokens - 1, 1)
    return np.where(output_tokens > 1, (end_s - first_token_s) / gaps, np.nan)


def spread(values: Floats, mean: float | None = None) -> dict[str, float] | None:
    """Mean and percentiles; None of nothing."""
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    found = {"mean": float(values.mean()) if mean is None else mean}
    return found | {f"p{each}": float(np.percentile(values, each)) for each in PERCENTILES}


def gaps(logs: Iterable[StepLog], from_s: float, to_s: float) -> tuple[Floats, Ints]:
    """Seconds between tokens in engines' steps within a time, and how many sequences waited so long.

    A sequence that decodes in a step waited for it since its last token: since the step before, or where that read
    prompts alone, since the step before those. Sequences that have joined since waited for the last step only.
    """
    seconds: list[Floats] = []
    counts: list[Ints] = []
    for log in logs:
        columns: list[Any] = [log.column(name) for name in ("start_s", "end_s", "steps", "sequences", "kind")]
        start, end, steps, sequences, kind = columns
        decodes = (sequences > 0) & (kind != Kind.PREFILL)
        inside = decodes & (end > from_s) & (start < to_s)
        places = np.flatnonzero(inside)
        if not len(places):
            continue
        each = (end[places] - start[places]) / steps[places]
        before = np.concatenate([[-1], np.flatnonzero(decodes)])[np.searchsorted(np.flatnonzero(decodes), places)]
        halted = (before >= 0) & (before != places - 1)
        still = np.where(halted, np.minimum(sequences[places], sequences[before]), 0)
        seconds += [each, (each + start[places] - end[before])[halted]]
        counts += [sequences[places] * steps[places] - still, still[halted]]
    if not seconds:
        return np.empty(0), np.empty(0, dtype=np.int64)
    return np.concatenate(seconds), np.concatenate(counts)


def weighted_percentiles(values: Floats, weights: Ints) -> dict[str, float]:
    """Of values that stand for several each: the least value that so many per cent do not exceed."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    places = [np.searchsorted(reached, each / 100.0 * reached[-1]) for each in PERCENTILES]
    return {f"p{each}": float(values[order][place]) for each, place in zip(PERCENTILES, places, strict=True)}


def itl(waits: Waits, logs: Sequence[StepLog], tokens_a_gap: float = 1.0) -> dict[str, float] | None:
    """Gaps between tokens: the mean of the requests' own, percentiles of the engines' steps.

    ``tokens_a_gap``: of a step with drafts several tokens come at once.
    """
    between = waits.end_s - waits.first_token_s
    count = float((waits.output_tokens - 1).sum()) / tokens_a_gap
    if count <= 0.0:
        return None
    mean = float(between.sum()) / count
    seconds, weights = gaps(logs, float(waits.sent_s.min()), float(waits.end_s.max()))
    if not len(seconds) or not weights.sum():
        return {"mean": mean, **dict.fromkeys((f"p{each}" for each in PERCENTILES), mean)}
    return {"mean": mean, **weighted_percentiles(seconds, weights)}


@dataclass(frozen=True)
class Bill:
    """What GPUs cost and draw: dollars an hour of one by basis, and watts of one, all in (None: not known)."""

    usd_per_gpu_hour: Mapping[str, float]
    watts_per_gpu: float | None = None

    def usd_per_million(self, gpus: int, wall_s: float, tokens: float) -> dict[str, float]:
        """Dollars by basis."""
        hours = gpus * wall_s / 3600.0
        return {basis: usd * hours / tokens * 1e6 for basis, usd in self.usd_per_gpu_hour.items()} if tokens else {}


@dataclass(frozen=True)
class Cache:
    """Room for caches: tokens of all engines together (None: no limit), and sessions of the run's mean length.

    ``engines`` says whose: so many, the last of a run's; None: all.
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
        Of all engines.
    gpus
        All of them.
    bounds
        Seconds of ``ttft``, ``tpot``, ``e2e`` that a good request keeps; empty: there are none.
    tokens_a_gap
        Tokens that a step with drafts puts out, mean.
    """
    wall_s, outputs, prompts = waits.wall_s, int(waits.output_tokens.sum()), int(waits.prompt_tokens.sum())
    tpot = spread(waits.tpot_s)
    per_s = 1.0 / wall_s if wall_s > 0.0 else 0.0
    good = waits.good(bounds) if bounds else None
    told: dict[str, Any] = {
        "ttft_s": spread(waits.ttft_s),
        "tpot_s": tpot,
        "itl_s": itl(waits, logs, tokens_a_gap),
        "e2e_s": spread(waits.e2e_s),
        "output_tokens_per_s": outputs * per_s,
        "output_tokens_per_s_per_gpu": outputs * per_s / gpus,
        "total_tokens_per_s": (outputs + prompts) * per_s,
        "requests_per_s": len(waits) * per_s,
        "goodput_requests_per_s": None if good is None else int(good.sum()) * per_s,
        "good_share": None if good is None or not len(good) else float(good.mean()),
        "tokens_per_s_per_user": 1.0 / tpot["mean"] if tpot and tpot["mean"] > 0.0 else None,
        "usd_per_million_output_tokens": bill.usd_per_million(gpus, wall_s, outputs),
        "usd_per_million_input_tokens": bill.usd_per_million(gpus, wall_s, prompts),
        "usd_per_million_tokens": bill.usd_per_million(gpus, wall_s, outputs + prompts),
        "kv": {
            "capacity_tokens": cache.capacity_tokens,
            "peak_share": peak_share(logs[-cache.engines :] if cache.engines else logs, cache.capacity_tokens),
            "sessions": cache.sessions,
        },
        "preemptions": int(waits.preemptions.sum()),
        "prefix_hit_share": float(waits.cached_tokens.sum()) / prompts if prompts else 0.0,
        "wall_s": wall_s,
        "requests": len(waits),
        "prompt_tokens": prompts,
        "output_tokens": outputs,
    }
    if bill.watts_per_gpu is not None:
        kwh = gpus * bill.watts_per_gpu * wall_s / 3.6e6
        told |= {"energy_kwh": kwh, "kwh_per_million_output_tokens": kwh / outputs * 1e6 if outputs else None}
    return told


def peak_share(logs: Sequence[StepLog], capacity_tokens: float | None) -> float | None:
    """The fullest that any engine's cache was, where engines are alike and have so much room together."""
    if not capacity_tokens or not logs:
        return None
    each = capacity_tokens / len(logs)
    return float(max((np.max(log.column("used_tokens"), initial=0) for log in logs), default=0.0)) / each
