"""The quantities of a serving step's batch that sizes of kernels and transfers are functions of."""

from __future__ import annotations

from enum import Enum


class BatchQuantity(Enum):
    """What the size of a kernel, or of a transfer, of a serving step depends on."""

    TOKENS = "tokens that pass"
    EXPERTS = "tokens that pass, of all replicas that share experts"
    OUTPUTS = "tokens that are sampled"
    DECODING = "sequences that decode, and their contexts"
    READ = "tokens of prompts that pass"
    CACHED = "tokens of prompts that were there before"
    LENGTHS = "tokens that prompts have, together"
    PROMPTS = "prompts, each with its tokens and those before them"
    BENT_PROMPTS = "the same, of which attention reads a window, or chunks"
    ROWS = "all rows of the pass"
