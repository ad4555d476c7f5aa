"""Effort of a search: counted work (programs written, walked, checked, simulated), not measured time.

Each kind of work counts the seconds that it took on one processor of the machine of the fit (Python 3.11, 2026), so
that effort reads as seconds. The same question has the same effort on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Seconds of a plan's check, of writing a program, per instruction written, per instruction timed, of summing the
#: kernels of a few pieces, of looking up a cached bound.
CHECK_S, WRITE_S, WRITTEN_S, TIMED_S, SUM_S, ASK_S = 45e-6, 120e-6, 14e-6, 6e-6, 200e-6, 50e-6
#: Seconds of assembling a stage, per task on a path, of one layer's bound, of a plan's memory.
STAGE_S, TASK_S, LAYER_S, MEMORY_S = 350e-6, 9e-6, 400e-6, 450e-6
#: Seconds of starting a simulation, per GPU of the cluster (whose links are sorted into classes; 0.9 to 1.7 s for
#: 16,384), and per instruction; factors on the latter if micro-batches overlap (measured with 2 to 16 stages), and if
#: layers differ in time because they copy to hosts.
BEGIN_S, GPU_S, INSTRUCTION_S, IN_TURN, UNLIKE = 0.04, 8e-5, 1.2e-5, 1.5, 4.0


@dataclass
class Effort:
    """Effort spent so far, in seconds."""

    spent_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.spent_s += seconds

    def now(self) -> float:
        """The effort, as the clock of a deadline."""
        return self.spent_s
