"""Work of a search, counted: what is written, walked, checked and simulated, never how long it took.

Each thing counts what it takes of one processor of the machine that these numbers were fitted on (Python 3.11, 2026),
so that effort reads as seconds; on any machine, however busy, the same question makes the same effort.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Seconds of a plan's check, of a program that is written and of each of its instructions, of one that is given times,
#: of summing what the kernels of a few pieces take, and of looking up a bound that is there.
CHECK_S, WRITE_S, WRITTEN_S, TIMED_S, SUM_S, ASK_S = 45e-6, 120e-6, 14e-6, 6e-6, 200e-6, 50e-6
#: Seconds of putting a stage together, of a task that a path goes through, of one layer's bound, of a plan's memory.
STAGE_S, TASK_S, LAYER_S, MEMORY_S = 350e-6, 9e-6, 400e-6, 450e-6
#: Seconds of a simulation that begins, and of an instruction; of one that overlaps micro-batches (measured with 2 to 16
#: stages), or copies to hosts, whose layers are not alike in time, several times that.
BEGIN_S, INSTRUCTION_S, IN_TURN, UNLIKE = 0.04, 1.2e-5, 1.5, 4.0


@dataclass
class Effort:
    """What has been spent so far, in seconds."""

    spent_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.spent_s += seconds

    def now(self) -> float:
        """The effort as the clock of a deadline."""
        return self.spent_s
