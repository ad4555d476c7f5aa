"""``tspsim check``: whether a file is right, and its question in a few lines, without simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..answer.refusals import nothing_fits, placed
from ..base.errors import InputError, printable
from .completion import scenarios
from .grammar import set_option

if TYPE_CHECKING:
    from ..parallel import Plan
    from ..scenario import Scenario
    from ..step.question import Question
    from ..step.result import Memory


@click.command()
@click.argument("file", shell_complete=scenarios)
@set_option
def check(file: str, overrides: tuple[str, ...]) -> None:
    """Whether FILE is right: a scenario, or a device, node, fabric, transport, cluster, model or stack.

    Nothing is simulated.

    Of a scenario it prints machine and workload, and which plans fit in memory.
    """
    from ..base import catalog, dialect

    if catalog.is_path(file):
        path = catalog.locate("scenarios", file)
        kind = catalog.kind_of(path, dialect.read_yaml(path))
        if kind is not None and kind != "scenarios":
            from ..answer.entries import entry_in_words

            if overrides:
                raise InputError("changes scenarios; this is none", file=file, key="--set")
            click.echo("\n".join(map(printable, f"{file}: right. {entry_in_words(kind, path)}".splitlines())))
            return
    _check_scenario(file, overrides)


def _check_scenario(source: str, overrides: tuple[str, ...]) -> None:
    """Check all questions of the file: one, or one per offer."""
    from ..scenario import load
    from ..studies.purchase.offers import expand

    scenario = load(source, overrides)
    lines = [f"{source}: right"]
    memories: list[tuple[str, Memory]] = []
    with placed(scenario):
        for question in expand(scenario):
            sentences, plans = _described(question)
            lines += sentences
            memories += plans
    lines += [f"note: {note}" for note in (*scenario.in_words(), *_of_its_model(scenario))]
    click.echo("\n".join(map(printable, lines)))
    if memories and not any(memory.fits for _, memory in memories):
        raise nothing_fits(memories)


def _of_its_model(scenario: Scenario) -> list[str]:
    """The note of the model's file, where a key is read in another way than it is written."""
    from ..model import load_model

    model = load_model(scenario.workload.model)
    return [f"{model.name}: {model.note}"] if model.note else []


def _described(scenario: Scenario) -> tuple[list[str], list[tuple[str, Memory]]]:
    """Lines on machine and workload, and every plan with its memory."""
    from ..base.units import gib
    from ..loop.parts import LoopParts
    from ..parallel import peak_memory, scheme_of
    from ..step.question import look_up
    from ..step.result import Memory
    from ..step.simulation import scheduled
    from ..studies.planner.query import searched_apart

    scenario, stated, _ = searched_apart(scenario, True)
    question = look_up(scenario)
    if scenario.traffic is not None:
        return _served(question)
    cluster, workload = question.cluster, scenario.workload
    machine = f"{cluster.gpus:,} × {cluster.device_name} in {cluster.nodes:,} × {cluster.node.name}"
    up_to = "up to " if workload.lengths else ""
    work = f"{question.model.name}, {workload.pass_}, {up_to}{workload.sequence:,} tokens a sequence"
    lines = [f"{scenario.name}: {machine}; {work}"]
    memories: list[tuple[str, Memory]] = []
    if not stated:
        return [*lines, "  the best plan is searched for when it is run"], []
    width = max(len(plan.name) for plan in question.plans)
    for plan in question.plans:
        updated = question if scenario.loop is None else LoopParts(question, plan.name).trained(workload.model)
        job = scheduled(updated, plan if scenario.loop is None else updated.plans[0])
        memory = Memory(peak_memory(job, scheme_of(job.plan).residency), question.device.visible_memory_bytes)
        used = f"{gib(memory.peak_bytes)} of {gib(memory.capacity_bytes)}"
        fits = "fits" if memory.fits else "does not fit"
        lines.append(f"  {plan.name:<{width}}  {_degrees(plan)}: {used}, {fits}")
        memories.append((plan.name, memory))
    return lines, memories


def _served(question: Question) -> tuple[list[str], list[tuple[str, Memory]]]:
    """Lines on machine and load, and the memory and cache room of every plan."""
    from ..base.units import compact, gib
    from ..serving.answer import deployment_of, longest_request

    cluster, traffic = question.cluster, question.scenario.traffic
    assert traffic is not None
    machine = f"{cluster.gpus:,} × {cluster.device_name} in {cluster.nodes:,} × {cluster.node.name}"
    points = many(len(traffic.points()), "point")
    lines = [f"{question.scenario.name}: {machine}; {question.model.name}, requests, {points} of load"]
    memories = []
    width = max(len(plan.name) for plan in question.plans)
    for plan in question.plans:
        deployment = deployment_of(question, plan)
        refusal = deployment.refusal(longest_request(deployment, traffic))
        room = deployment.engine.kv_tokens
        holds = "any number of tokens" if room is None else compact(room, "tokens")
        used = f"{gib(deployment.memory.peak_bytes)} of {gib(deployment.memory.capacity_bytes)}"
        engine = f"{deployment.engine.scheduler}, {many(deployment.replicas, 'replica')}, caches of each hold {holds}"
        lines.append(f"  {plan.name:<{width}}  {_degrees(plan)}: {used}; {engine}; {refusal or 'fits'}")
        memories.append((plan.name, deployment.memory))
    return lines, memories


def many(count: int, of: str) -> str:
    return f"{count:,} {of}{'' if count == 1 else 's'}"


def _degrees(plan: Plan) -> str:
    """``tp 8 · dp 2``; degrees of one are left out."""
    from ..parallel import scheme_axes

    stated = [(axis, plan.degree(axis)) for axis in (*scheme_axes(), "pp", "ep", "dp")]
    return " · ".join(f"{axis} {degree}" for axis, degree in stated if degree > 1) or "one GPU"
