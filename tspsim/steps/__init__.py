"""Steps: what one pass of a model over a batch is made of, one file and one registered object each.

A step says how its tasks follow each other on a stage, how much arithmetic they are, and what comes at the end. Schemes
write the tasks (:mod:`tspsim.parallel`); nobody compares the names of steps.
"""

from __future__ import annotations

from .decode import DECODE_STEP
from .forward import FORWARD_STEP
from .load import Batch, Load, Piece, Row, Speculation, Streams
from .mixed import MIXED_STEP
from .prefill import PREFILL_STEP
from .step import BACKWARD, FORWARD, STEPS, WEIGHTS, ServingStep, Step, Task
from .training import TRAINING_STEP
from .verify import VERIFY_STEP

__all__ = [
    "BACKWARD",
    "DECODE_STEP",
    "FORWARD",
    "FORWARD_STEP",
    "MIXED_STEP",
    "PREFILL_STEP",
    "STEPS",
    "TRAINING_STEP",
    "VERIFY_STEP",
    "WEIGHTS",
    "Batch",
    "Load",
    "Piece",
    "Row",
    "ServingStep",
    "Speculation",
    "Step",
    "Streams",
    "Task",
]
