"""Factors around a prediction that are expected to cover nine of ten measured runs."""

from __future__ import annotations

from typing import NamedTuple

from tspsim.step.simulation import run_plan

from ...base.memo import remembered
from .question import step_question
from .run import ServedPlan, ServedRun


class Band(NamedTuple):
    """Factors for the time per output token and for the time to the first token."""

    tpot: tuple[float, float]
    ttft: tuple[float, float]


#: Spread of options that pages of offline runs do not state: the least multiple of 0.05, as in the stacks' own
#: spreads, that leaves at most one in twenty of the fitted third beyond each end.
UNSTATED = 1.05
#: Spread of queues beside that of steps: the first token waits for batches that a client's jitter forms.
QUEUE = 1.5


def band_of(run: ServedRun) -> Band:
    """The band of a run, from the ranges of a decode step with its usual batch and of a prompt alone."""
    batch = max(1, (run.concurrency or 256) // (run.plan.dp * run.replicas))
    batch = 1 << (min(batch, 256).bit_length() - 1)
    prompt = 1 << (run.prompt.bit_length() - 1)
    decode = _step(run.plan, "decode", batch, prompt)
    if run.concurrency is None:
        decode = decode[0] / UNSTATED, decode[1] * UNSTATED
    prefill = _step(run.prefill[0] if run.prefill else run.plan, "prefill", 0, min(8192, prompt))
    return Band(decode, (prefill[0] / QUEUE, prefill[1] * QUEUE))


@remembered(4096)
def _step(plan: ServedPlan, step: str, batch: int, tokens: int) -> tuple[float, float]:
    """Low and high of a step over its seconds."""
    question = step_question(plan, step, batch, tokens)
    result = run_plan(question, question.plans[0])
    if not result.ran or result.range is None:
        return 0.7, 1.4
    rate = result.tokens_per_step / result.step_time_s
    return rate / result.range.high, rate / result.range.low
