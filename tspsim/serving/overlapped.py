"""Costs of steps with prompts where streams overlap, or drafts follow.

Taken serially, the parts of such a step have tables (:mod:`.mixed`); the engine simulates the overlapped time. Their
ratio depends on little more than the number of tokens and of decoding sequences: it is tabulated over tokens for a few
numbers of sequences, and interpolated between these (in their logarithm).
"""

from __future__ import annotations

from math import log2

import numpy as np

from ..model.attention.base import MOST_DECODED
from ..steps import PromptChunk
from .grid import Cells
from .mixed import Mixed
from .programs import StepPrograms
from .tables import Floats
from .work import StepWork

#: Numbers of decoding sequences that are simulated, and their context.
SEQUENCES, CONTEXT = (1, 8, 32, 128, 512, 2048), 2048
#: Relative error of a ratio between tabulated tokens: a run of the engine is costly.
EPSILON = 0.004


class Overlapped:
    """Steps of one plan.

    Parameters
    ----------
    programs
        Programs of the plan.
    serial
        Serial costs of the plan, or of the plan without overlap and drafts.
    """

    def __init__(self, programs: StepPrograms, serial: Mixed) -> None:
        self.programs, self._serial = programs, serial
        self._ratios: dict[int, Cells] = {}

    def seconds(self, work: StepWork, expert_tokens: int | None = None) -> float | None:
        """Seconds of one step; None where its parts have no tables."""
        serial_s = self._serial.seconds(work, expert_tokens)
        if serial_s is None:
            return None
        ratio = 0.0
        for sequences, share in between(work.sequences):
            beside = sequences * self.programs.query_len
            ratio += share * float(self._ratio(sequences)(max(work.tokens, beside + MOST_DECODED + 1))[0])
        return ratio * serial_s

    def _ratio(self, sequences: int) -> Cells:
        if sequences not in self._ratios:
            query_len = self.programs.query_len
            beside = sequences * query_len

            def value(tokens: int) -> Floats:
                """The ratio at the least number of tokens from ``tokens`` on that has tables: padding may leave the
                first without."""
                work = StepWork((PromptChunk(tokens - beside, 0),), (CONTEXT,) * sequences, query_len)
                serial_s = self._serial.seconds(work)
                if serial_s is None:
                    return value(tokens + 1)
                return np.array([self.programs.together_s(work) / serial_s])

            self._ratios[sequences] = Cells(value, first=beside + MOST_DECODED + 1, epsilon=EPSILON)
        return self._ratios[sequences]


def between(sequences: int) -> list[tuple[int, float]]:
    """Simulated numbers of sequences around a number, with the share of each.

    >>> between(0), between(8), between(16)
    ([(0, 1.0)], [(8, 1.0)], [(8, 0.5), (32, 0.5)])
    """
    if not sequences:
        return [(0, 1.0)]
    above = next((index for index, count in enumerate(SEQUENCES) if count >= sequences), len(SEQUENCES) - 1)
    low, high = SEQUENCES[max(0, above - 1)], SEQUENCES[above]
    if sequences >= high:
        return [(high, 1.0)]
    share = log2(sequences / low) / log2(high / low)
    return [(low, 1.0 - share), (high, share)]
