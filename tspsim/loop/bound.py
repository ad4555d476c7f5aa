"""Ceilings of an iteration: its parts follow each other, so the floors of their times add up.

With rollouts of n tokens at most, and the floors of :mod:`tspsim.step.bound`,

    rollout ≥ max(FLOPs of all prompts and answers on the GPUs that generate,
                  (n − 1) · a decoding step of one sequence alone)
    T ≥ rollout + Σ forwards + mini-batches · Σ updates,    ahead: T ≥ max(rollout, forwards + updates)

Transfers of weights and waits for them are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..base.errors import InputError
from ..step.bound import Bounds, Floor, PlanBound, plan_bound, served_bound
from ..step.question import Question
from ..step.simulation import scheduled
from .parts import LoopParts


@dataclass(frozen=True)
class Parted(Floor):
    """Floors of parts that follow each other; ``beside``: parts that run at the same time."""

    parts: tuple[Floor, ...] = ()
    beside: tuple[Floor, ...] = ()

    @property
    def longest_s(self) -> float:
        return max(sum(part.longest_s for part in side) for side in (self.parts, self.beside))


def parted(parts: tuple[Floor, ...], beside: tuple[Floor, ...]) -> Parted:
    """The floor of two sides that run together. FLOPs, HBM and links are those of the longer side."""
    longer = max((parts, beside), key=lambda side: sum(part.longest_s for part in side))
    return Parted(
        compute_s=sum(part.compute_s for part in longer),
        hbm_s=sum(part.hbm_s for part in longer),
        links_s=sum(part.links_s for part in longer),
        parts=parts,
        beside=beside,
    )


def times(floor: Floor, count: float) -> Floor:
    """The floor of ``count`` equal steps."""
    return Floor(count * floor.compute_s, count * floor.hbm_s, count * floor.links_s)


def bounds(question: Question) -> Bounds:
    """The ceilings of every plan of a scenario with a loop.

    Raises
    ------
    InputError
        A part is wrong: degrees that do not divide the GPUs, rollouts longer than the packed sequences.
    """
    loop, device, work = question.scenario.loop, question.device, question.work
    if loop is None:
        raise InputError("is missing: ceilings of iterations need a scenario with a loop", key="loop")
    bounds = [plan_bounds(question, plan.name) for plan in question.plans]
    flops_per_token = bounds[0][1]
    return Bounds(
        scenario=question.scenario.name,
        workload=f"iterations of {loop.rollouts:,} rollouts of {question.model.name}, {loop.mini_batches} updates each",
        device=device.name,
        precision=work.precision,
        gpus=question.cluster.gpus,
        flops_per_token=flops_per_token,
        block_flops_per_token=work.block_flops_per_token(question.model),
        peak_flops_per_s=device.peak_of(work.precision),
        hbm_bytes_per_s=device.hbm_bytes_per_s,
        plans=tuple(bound for bound, _ in bounds),
    )


def plan_bounds(question: Question, name: str) -> tuple[PlanBound, float]:
    """The floors of one plan's iteration, and the FLOPs of one of its tokens over all parts."""
    parts = LoopParts(question, name)
    loop, model = parts.loop, parts.scenario.workload.model
    trained = {role: parts.trained(role_model) for role, role_model in {"actor": model, **loop.updates}.items()}
    read = {role: parts.read(role_model) for role, role_model in loop.forwards.items()}
    actor = bound_of(trained["actor"])
    rollout, flops = rollout_floor(parts)
    steps: list[Floor] = []
    counted = [
        *((question, 1) for question in read.values()),
        *((question, loop.mini_batches) for question in trained.values()),
    ]
    for part_question, count in counted:
        one = bound_of(part_question)
        steps.append(times(one.model, count))
        flops += count * one.tokens_per_step * part_question.work.flops_per_token(part_question.model)
    whole = parted((rollout,), tuple(steps)) if parts.rollout.ahead else parted((rollout, *steps), ())
    bound = replace(actor, name=name, tokens_per_step=float(parts.tokens), model=whole,
                    block_tokens=round(actor.through_block))  # fmt: skip
    return bound, flops / parts.tokens


def bound_of(question: Question) -> PlanBound:
    """The bound of a part's only plan."""
    return plan_bound(question, scheduled(question, question.plans[0]))


def rollout_floor(parts: LoopParts) -> tuple[Floor, float]:
    """The floor of all rollouts on the GPUs that generate, and their FLOPs."""
    generated = parts.generated()
    model, work, device = generated.model, generated.work, generated.device
    drawn = parts.traffic.draw(parts.question.model)
    prompts, outputs = int(drawn.prompt_tokens.sum()), int(drawn.output_tokens.sum())
    # Every token that is read or written goes through all layers, except the last one of an answer.
    through = prompts + outputs - len(drawn.output_tokens)
    flops = through * model.layers * model.layer_forward_flops_per_token(0) + outputs * 2.0 * model.hidden * model.vocab
    together_s = flops / (device.peak_of(work.precision) * generated.cluster.gpus)
    alone = served_bound(generated, scheduled(generated, generated.plans[0])).model
    longest = times(alone, int(drawn.output_tokens.max()) - 1)
    return replace(longest, compute_s=max(longest.compute_s, together_s)), flops
