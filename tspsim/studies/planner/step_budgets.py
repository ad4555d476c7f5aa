"""Token budgets of an engine's step, chunked prefill, and why the fastest step does not make the best service.

A schedule in which weights move to tokens moves all of them in every step. It reads a long prompt fastest in one step,
and loses that gain where an engine's budget cuts the prompt. The budget is an option of the engine, so a search tries
larger ones, up to the prompt, and a quarter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...base.units import digits
from ...serving.deployment import Deployment
from ...serving.work import StepWork
from ...steps import PromptChunk
from .rates import ClosedFormEngine

#: Budgets grow and shrink by FACTOR; prompts are rounded up to UNIT tokens; no budget is below LEAST.
FACTOR, UNIT, LEAST = 4, 1024, 1024
#: The fastest step is discussed where it reads the prompt in less than this share of the time.
FASTER = 0.98


def whole(prompt: int) -> int:
    """A budget for a whole prompt."""
    return -(-prompt // UNIT) * UNIT


def option_of(deployment: Deployment) -> tuple[str, int | None]:
    """The option for the tokens of a step, and its value; empty: there is none."""
    policy = deployment.engine.policy
    return policy.token_option, policy.step_tokens(dict(deployment.engine.options))


def budgets(deployment: Deployment, prompt: int) -> Iterator[dict[str, Any]]:
    """Options of the engine with larger budgets, up to the whole prompt, or a smaller one; and with chunked prefill
    switched, where the engine has a choice."""
    option, usual = option_of(deployment)
    if not option or usual is None:
        return
    most, sizes = whole(prompt), list[int]()
    while usual * FACTOR ** (len(sizes) + 1) < most:
        sizes.append(usual * FACTOR ** (len(sizes) + 1))
    sizes += [most] if most > usual else []
    sizes += [usual // FACTOR] if LEAST <= usual // FACTOR < most else []
    yield from ({option: size} for size in sizes)
    cut = deployment.engine.policy.chunk_option
    if cut and most > UNIT:
        yield {option: max(usual, most), cut: not getattr(deployment.engine.options, cut)}


@dataclass(frozen=True)
class Reading:
    """The time in which a plan reads a prompt: in one step, and in the engine's steps."""

    name: str
    engine: ClosedFormEngine

    @property
    def at_once_s(self) -> float:
        return float(self.engine.deployment.costs.seconds([StepWork((PromptChunk(self.engine.demand.prompt, 0),))]))


def why_not_the_step_s(best: Reading, others: Sequence[Reading], clients: int) -> str:
    """Why the plan with the fastest prompt step does not serve best; empty where it does."""
    if not others:
        return ""
    winner = min(others, key=lambda reading: reading.at_once_s)
    first, own = winner.at_once_s, best.at_once_s
    if first > FASTER * own:
        return ""
    said = (
        f"In one step {winner.name} reads a prompt of {best.engine.demand.prompt:,} tokens soonest, "
        f"{digits(first)} s against {digits(own)} of {best.name}"
    )
    if best.engine.count > 1 and own / best.engine.count <= first:
        several = f"its {best.engine.count} replicas each read one, {digits(own / best.engine.count)} s a prompt"
        return f"{said}; {several}, without waiting."
    option, budget = option_of(best.engine.deployment)
    cut = budget is not None and budget < best.engine.demand.prompt
    pieces = (winner.engine.read_s, best.engine.read_s) if cut else (first, own)
    if cut:
        steps = f"in steps of {budget:,} tokens ({option}) it takes {digits(pieces[0])} against {digits(pieces[1])}"
        said += f"; {steps}, because every step moves its weights again" if pieces[0] > FASTER * pieces[1] else ""
    if pieces[0] > pieces[1]:
        return f"{said}."
    together = max(1, min(clients, best.engine.most, winner.engine.most))
    decoding = winner.engine.step_s(together), best.engine.step_s(together)
    answer = best.engine.demand.output
    lost, gained = answer * (decoding[0] - decoding[1]), pieces[1] - pieces[0]
    if lost > 0.0:
        rest = f"{digits(1e3 * decoding[0])} ms against {digits(1e3 * decoding[1])} with {together} sequences"
        return f"{said}; a token after it takes {rest}, {digits(lost)} s over an answer for {digits(gained)} s gained."
    return f"{said}; beside decoding sequences its step is not the one that reads alone."


def keys_with(keys: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A plan's keys with more options of its engine."""
    return {**keys, "engine": {**keys.get("engine", {}), **options}}
