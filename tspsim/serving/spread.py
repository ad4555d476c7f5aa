"""How far the answer of a run can be trusted: all steps faster, or slower, by what the kernels' families may be off.

One factor a family is common to all steps, as for single steps (:meth:`tspsim.costs.Costs.range_of`); of a step
that decodes and one that reads prompts, weighed by the time each kind takes, it makes one factor for the run. Requests
are served again with steps so much faster and so much slower: queues answer more than in proportion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .costs import ProgramCosts
from .log import Kind, StepLog
from .metrics import Waits
from .work import Chunk, Floats, Work

#: Requests that are served again, at most.
MOST_AGAIN = 2000
BASIS = (
    "90 %: one factor a kernel family, one for the stack and one for exposed transfers (residuals), common to all "
    "steps, and the range of the front end; served again with steps so much faster and slower"
)


@dataclass(frozen=True)
class Typical:
    """What a run's steps are like.

    Attributes
    ----------
    decode, reading
        A step that decodes alone, and one that reads prompts, each of one attention replica; None where a run has none.
    seconds
        Of all engines, by kind of step: ``decode``, ``mixed``, ``prefill``.
    """

    decode: Work | None
    reading: Work | None
    seconds: dict[str, float]

    @classmethod
    def of(cls, waits: Waits, logs: Sequence[StepLog], lanes: int) -> Typical:
        """Means over time: sequences of a step, and tokens in their caches."""

        def column(name: str) -> NDArray[Any]:
            """Of all engines; of one alone it is no second copy."""
            found = [log.column(name) for log in logs]
            return found[0] if len(found) == 1 else np.concatenate(found)

        lasted, kind = column("end_s") - column("start_s"), column("kind")
        sequences, chunks, steps = map(column, ("sequences", "chunk_tokens", "steps"))
        seconds = {each.name.lower(): float(lasted[kind == each].sum()) for each in Kind}
        outputs, prompts = waits.output_tokens, waits.prompt_tokens
        held = int(((prompts + outputs / 2) * outputs).sum() / outputs.sum()) if len(waits) else 1
        prompt = max(1, int(prompts.mean())) if len(waits) else 1

        def mean(values: Floats, chosen: Floats) -> int:
            weights = lasted[chosen]
            return max(1, round(float((values[chosen] * weights).sum() / weights.sum() / lanes)))

        alone, read = kind == Kind.DECODE, kind != Kind.DECODE
        decode = Work((), (held,) * mean(sequences, alone)) if alone.any() else None
        reading = None
        if read.any():
            tokens = max(1, round(float((chunks[read] / steps[read]).mean() / lanes)))
            whole, rest = divmod(tokens, prompt)
            pieces = [Chunk(prompt, 0)] * whole + ([Chunk(rest, prompt - rest)] if rest else [])
            beside = round(float(sequences[read].mean()) / lanes)
            reading = Work(tuple(pieces[:64]), (held,) * beside)
        return cls(decode, reading, seconds)


def factors(costs: ProgramCosts, typical: Typical) -> tuple[float, float]:
    """Low and high factor of steps, nine times of ten."""
    both = [
        (typical.decode, typical.seconds["decode"]),
        (typical.reading, typical.seconds["mixed"] + typical.seconds["prefill"]),
    ]
    weighed = [(costs.range_of(work), seconds) for work, seconds in both if work is not None and seconds > 0.0]
    total = sum(seconds for _, seconds in weighed)
    if not total:
        return 1.0, 1.0
    low, high = (sum(each[end] * seconds for each, seconds in weighed) / total for end in (0, 1))
    return low, high

