"""What steps with prompts cost where streams overlap, or drafts are made behind them.

Taken one after the other, the parts of such a step have tables (:mod:`.mixed`); what the engine finds is another time.
Their ratio hardly depends on more than how many tokens pass and how many sequences decode: it is found at a few of both
and taken straight between them (in their logarithms).
"""

from __future__ import annotations

from itertools import product
from math import log2

from ..model.attention.base import MOST_DECODED
from .mixed import Mixed
from .programs import StepPrograms
from .work import Chunk, Work

#: Numbers of sequences that are looked at, and contexts of theirs.
SEQUENCES, CONTEXT = (1, 8, 32, 128, 512, 2048), 2048
#: Numbers of tokens an octave.
OCTAVE = 4


class Overlapped:
    """Steps of one plan.

    Parameters
    ----------
    programs
        Of the plan.
    serial
        The same, or of a plan that hides and drafts nothing, one thing after the other.
    """

    def __init__(self, programs: StepPrograms, serial: Mixed) -> None:
        self.programs, self._serial = programs, serial
        self._ratios: dict[tuple[int, int], float | None] = {}

    def seconds(self, work: Work, expert_tokens: int | None = None) -> float | None:
        """Of one step; None where its parts have no tables."""
        serial_s = self._serial.seconds(work, expert_tokens)
        if serial_s is None:
            return None
        ratio = 0.0
        for (tokens, share), (sequences, of) in product(self._tokens(work.tokens), self._sequences(work.sequences)):
            if share * of:
                found = self._ratio(tokens, sequences)
                if found is None:
                    return None
                ratio += share * of * found
        return ratio * serial_s

    @staticmethod
    def _tokens(tokens: int) -> list[tuple[int, float]]:
        place = OCTAVE * log2(tokens)
        share = place - int(place)
        return [(int(place), 1.0 - share), (int(place) + 1, share)]

    @staticmethod
    def _sequences(sequences: int) -> list[tuple[int, float]]:
        if not sequences:
            return [(0, 1.0)]
        above = next((index for index, each in enumerate(SEQUENCES) if each >= sequences), len(SEQUENCES) - 1)
        low, high = SEQUENCES[max(0, above - 1)], SEQUENCES[above]
        if low == high or sequences >= high:
            return [(high, 1.0)]
        share = log2(sequences / low) / log2(high / low)
        return [(low, 1.0 - share), (high, share)]

    def _ratio(self, place: int, sequences: int) -> float | None:
        key = place, sequences
        if key not in self._ratios:
            queries = self.programs.queries
            piece = max(MOST_DECODED + 1, round(2.0 ** (place / OCTAVE)) - queries * sequences)
            work = Work((Chunk(piece, 0),), (CONTEXT,) * sequences, queries)
            serial_s = self._serial.seconds(work)
            self._ratios[key] = None if serial_s is None else self.programs.seconds(work) / serial_s
        return self._ratios[key]
