"""Steps: what one pass of a model over a batch is made of, one file and one registered object each.

A step says how its tasks follow each other on a stage, how much arithmetic they are, and what comes at the end. Schemes
write the tasks (:mod:`tspsim.parallel`); nobody compares the names of steps. Prefill, decode, mixed and verify come
with serving: their names are known, and refused until then.
"""

from __future__ import annotations

from .batch import Batch, Row
from .forward import FORWARD_STEP
from .step import BACKWARD, FORWARD, STEPS, WEIGHTS, Step, Task
from .training import TRAINING_STEP

#: Names of steps that come with serving.
SERVING_STEPS = ("prefill", "decode", "mixed", "verify")

__all__ = [
    "BACKWARD",
    "FORWARD",
    "FORWARD_STEP",
    "SERVING_STEPS",
    "STEPS",
    "TRAINING_STEP",
    "WEIGHTS",
    "Batch",
    "Row",
    "Step",
    "Task",
]
