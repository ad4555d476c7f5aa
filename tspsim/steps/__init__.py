"""Steps: the kinds of pass of a model over a batch, one file and one registered object each.

A step defines the order of a stage's tasks, its FLOPs, and what follows the last task. Schemes write the tasks
(:mod:`tspsim.parallel`).
"""

from __future__ import annotations

from .decode import DECODE_STEP
from .forward import FORWARD_STEP
from .load import Batch, Load, PromptChunk, Row, Speculation, Streams
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
    "PromptChunk",
    "Row",
    "ServingStep",
    "Speculation",
    "Step",
    "Streams",
    "Task",
]
