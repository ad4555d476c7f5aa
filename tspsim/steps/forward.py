"""A forward pass over whole sequences: logits of every token, no backward, no activations kept."""

from __future__ import annotations

from ..model import Architecture
from .step import STEPS, Forwards


class ForwardStep(Forwards):
    """All sequences of a replica at once, unless a plan cuts them into micro-batches."""

    name = "forward"
    title = "forward pass"

    def model_of(self, model: Architecture) -> Architecture:
        return model.for_full_sequences


FORWARD_STEP = STEPS.register(ForwardStep())
