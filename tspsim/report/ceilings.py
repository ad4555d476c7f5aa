"""Physical ceilings, and the verdict on a claim, on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tspsim.base.units import GIB, flops, millions

from .numbers import seconds
from .tables import add_row, empty_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tspsim.step.bound import Bounds

#: Heading for serving steps, which show no row of a single block.
_SERVED = "step at least"
_COLUMNS = ("by FLOPs", "by HBM", "by links", "ceiling", "memory, GiB")


def ceilings(bounds: Bounds, claim_tokens_per_s: float | None = None) -> list[RenderableType]:
    """A table of every plan's ceilings, the highest in a sentence, and the verdicts on a claim."""
    from rich.padding import Padding
    from rich.text import Text

    from tspsim.step.bound import LIMITS

    head = f"{bounds.scenario}: {bounds.workload}, on {bounds.gpus:,} {bounds.device}"
    table = empty_table(())
    table.add_column("tokens/s at most", no_wrap=True)
    served = all(plan.block_tokens is not None for plan in bounds.plans)
    for heading in (*_COLUMNS[:-1], *([_SERVED] if served else []), _COLUMNS[-1]):
        table.add_column(heading, justify="right", no_wrap=True)
    for plan in bounds.plans:
        memory = f"{plan.memory.peak_bytes / GIB:.1f} of {plan.memory.capacity_bytes / GIB:.1f}"
        if not plan.memory.fits:
            memory += ", too large"
        rows = ((plan.name, plan.model, memory), ("  one block, forward", plan.block, ""))
        for title, floor, last in rows[:1] if served else rows:
            times = (floor.compute_s, floor.hbm_s, floor.links_s, floor.longest_s)
            rates = [millions(plan.tokens_per_step / limit_s) if limit_s else "–" for limit_s in times]
            step = [seconds(floor.longest_s)] if served else []
            add_row(table, (title, *rates, *step, last), "" if plan.memory.fits else "yellow")
    best, block = bounds.best, bounds.best_block
    whole, alone = (flops(work).removesuffix("/s") for work in (bounds.flops_per_token, bounds.block_flops_per_token))
    sentence = (
        f"A GPU does at most {flops(bounds.peak_flops_per_s)} (dense {bounds.precision}); a token takes "
        f"{whole}, in one block {alone}. No schedule passes {millions(best.tokens_per_s)} tokens/s "
        f"({best.name}, by {LIMITS[best.model.limit]}), or {millions(block.block_tokens_per_s)} in one block alone."
    )
    if served:
        sentence = (
            f"A GPU does at most {flops(bounds.peak_flops_per_s)} (dense {bounds.precision}); a token takes {whole}. "
            f"No schedule, kernel or engine passes {millions(best.tokens_per_s)} tokens/s ({best.name}, by "
            f"{LIMITS[best.model.limit]}), or ends a step of it before {seconds(best.model.longest_s)}."
        )
    parts: list[RenderableType] = [Text(head, style="bold"), "", table, "", Text(sentence)]
    if claim_tokens_per_s is None:
        return parts
    parts += ["", Text(f"Claim: {millions(claim_tokens_per_s)} tokens/s", style="bold")]
    verdicts = list(zip(("whole model", "one block"), bounds.judge(claim_tokens_per_s), strict=True))
    for title, verdict in verdicts[:1] if served else verdicts:
        line = Text(f"{title}: ")
        line.append(verdict.word, style="bold green" if verdict.possible else "bold red")
        parts.append(Padding(line.append(f". It {verdict.reason}."), (0, 0, 0, 2)))
    return parts
