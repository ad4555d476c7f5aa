"""Agents: tasks of several turns, with a tool call on a host processor between two turns.

A task of n turns has n prompts with all that was said before, n answers, and n − 1 tool calls. Each call waits for one
of a number of workers, in order (a queue of c servers). The tool's result is the new text of the next prompt (Asgar et
al. 2025, arXiv:2507.19635: models on accelerators, tools on CPUs).
"""

from __future__ import annotations

from .base import Prefixes
from .conversing import Conversing
from .tools import WithTools


class Agents(WithTools, Conversing):
    """Tasks of ``turns`` requests; after each but the last a tool runs on one of the ``workers``."""

    name = "agents"

    def in_words(self) -> str:
        call = self.tools_in_words()
        return f"tasks of {self.turns:,} turns with {call} between them, and all that was said as their prompts"


Prefixes.registry.register(Agents)
