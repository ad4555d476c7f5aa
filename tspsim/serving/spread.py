"""The range of a run's answer: all steps faster, or slower, within the uncertainty of the kernel families.

One factor per family is common to all steps, as for single steps (:meth:`tspsim.hardware.Costs.range_of`). Ranges of
a typical decode step and a typical prompt step, weighted by the time of each kind, give one factor for the run.
Requests are served again with all steps faster and slower by it, since queues respond more than in proportion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..steps import PromptChunk
from .costs import ProgramCosts
from .log import StepKind, StepLog
from .streams import total
from .waits import Waits
from .work import Floats, StepWork

#: Most requests that are served again.
MOST_AGAIN = 2000
BASIS = (
    "90 %: one factor per kernel family, one for the stack and one for exposed transfers (residuals), common to all "
    "steps, and the range of the front end; served again with steps faster and slower by it"
)


@dataclass(frozen=True)
class Typical:
    """The typical steps of a run."""

    #: A decode step, and a step with prompts, of one attention replica; None where a run has none.
    decode: StepWork | None
    reading: StepWork | None
    #: Seconds of all engines by kind of step: ``decode``, ``mixed``, ``prefill``.
    seconds: dict[str, float]

    @classmethod
    def of(cls, waits: Waits, logs: Sequence[StepLog], dp_size: int) -> Typical:
        """Means over time: sequences of a step, and tokens in their caches."""
        held = prompt = 1
        if len(waits):
            weighed = waits.stream(lambda piece: (piece.prompt_tokens + piece.output_tokens / 2) * piece.output_tokens)
            held = int(weighed.total(len(waits)) / waits.total(lambda piece: piece.output_tokens))
            prompt = max(1, int(waits.total(lambda piece: piece.prompt_tokens) / len(waits)))
        counts = dict.fromkeys(StepKind, 0)
        beside = 0
        for rows in pieces_of(logs):
            for kind in StepKind:
                counts[kind] += int(np.count_nonzero(rows["kind"] == kind))
            beside += int(rows["sequences"][rows["kind"] != StepKind.DECODE].sum())
        seconds = {
            kind.name.lower(): total((lasted(rows)[rows["kind"] == kind] for rows in pieces_of(logs)), count)
            for kind, count in counts.items()
        }
        decode = reading = None
        alone = counts.pop(StepKind.DECODE)
        if alone:
            weighed_s = (
                (rows["sequences"] * lasted(rows))[rows["kind"] == StepKind.DECODE] for rows in pieces_of(logs)
            )
            batch = max(1, round(total(weighed_s, alone) / seconds["decode"] / dp_size))
            decode = StepWork((), (held,) * batch)
        read = sum(counts.values())
        if read:
            each_step = (
                (rows["chunk_tokens"] / rows["steps"])[rows["kind"] != StepKind.DECODE] for rows in pieces_of(logs)
            )
            tokens = max(1, round(total(each_step, read) / read / dp_size))
            whole, rest = divmod(tokens, prompt)
            pieces = [PromptChunk(prompt, 0)] * whole + ([PromptChunk(rest, prompt - rest)] if rest else [])
            reading = StepWork(tuple(pieces[:64]), (held,) * round(beside / read / dp_size))
        return cls(decode, reading, seconds)


def pieces_of(logs: Sequence[StepLog]) -> Iterator[NDArray[Any]]:
    """Logged runs of all engines, one engine after the other."""
    for log in logs:
        yield from log.pieces()


def lasted(rows: NDArray[Any]) -> Floats:
    """Seconds of each run."""
    seconds: Floats = rows["end_s"] - rows["start_s"]
    return seconds


def factors(costs: ProgramCosts, typical: Typical) -> tuple[float, float]:
    """The 90 % range of steps, as factors."""
    both = [
        (typical.decode, typical.seconds["decode"]),
        (typical.reading, typical.seconds["mixed"] + typical.seconds["prefill"]),
    ]
    weighed = [(costs.range_of(work), seconds) for work, seconds in both if work is not None and seconds > 0.0]
    total = sum(seconds for _, seconds in weighed)
    if not total:
        return 1.0, 1.0
    low, high = (sum(bounds[end] * seconds for bounds, seconds in weighed) / total for end in (0, 1))
    return low, high
