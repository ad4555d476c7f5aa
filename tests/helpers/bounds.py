"""What every simulated answer owes to its ceilings."""

from __future__ import annotations

from tspsim.bound import Bounds
from tspsim.result import Result


def check_below(ceilings: Bounds, result: Result) -> None:
    """No plan is faster than its bound, as a whole or by its block, and both know the same memory."""
    for plan, simulated in zip(ceilings.plans, result.plans, strict=True):
        assert plan.name == simulated.name and plan.memory == simulated.memory
        if simulated.ran:
            assert simulated.tokens_per_s <= plan.tokens_per_s, plan.name
            assert simulated.block_forward_tokens_per_s <= plan.block_tokens_per_s, plan.name
