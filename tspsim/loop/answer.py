"""From a scenario with a loop to its answer: every plan's iteration."""

from __future__ import annotations

from collections.abc import Iterator

from ..base.display import Progress
from ..step.description import describe_cluster, describe_model, provenance
from ..step.question import Question
from ..step.result import Result
from ..step.statements import defaults_in_words
from .iteration import run_plan


def answer(question: Question, *, progress: Progress | None = None) -> Result:
    """Every plan's iteration, in the scenario's order.

    Parameters
    ----------
    question
        Looked up; its scenario has a loop.
    progress
        Called with a plan's name and the share of plans done before it.

    Raises
    ------
    InputError
        A part is wrong: degrees that do not divide the GPUs, rollouts longer than the packed sequences.
    """
    results = []
    for index, plan in enumerate(question.plans):
        if progress is not None:
            progress(plan.name, index / len(question.plans))
        results.append(run_plan(question, plan))
    return Result(
        scenario=question.scenario.to_dict() | {"model": describe_model(question.model)},
        cluster=describe_cluster(question.cluster, question.device),
        plans=tuple(results),
        provenance=tuple(provenance(question)),
        defaults=(*question.scenario.in_words(), *in_words(question), *defaults_in_words(question, question.plans)),
        unexplained=UNEXPLAINED,
        source_scenario=question.scenario,
    )


def in_words(question: Question) -> Iterator[str]:
    """Sentences that say what one iteration contains."""
    loop = question.scenario.loop
    assert loop is not None
    yield (
        f"A step is one iteration: {loop.rollouts:,} rollouts, prompts {loop.prompt.in_words()}, answers "
        f"{loop.output.in_words()} (`loop`, seed {loop.seed}), all sent at once; both count as tokens."
    )
    read = ", ".join(f"{role} ({model})" for role, model in loop.forwards.items()) or "no model"
    trained = ", ".join(("actor", *(f"{role} ({model})" for role, model in loop.updates.items())))
    yield f"Forwards over them, with the plan's degrees: {read} (`loop.forwards`)."
    yield f"Trained on them in {loop.mini_batches} steps: {trained} (`loop.updates`, `loop.mini_batches`)."
    yield "Training's state stays on its GPUs while they generate; caches get what is left of the engine's share."


#: What the model leaves out, knowingly.
UNEXPLAINED = (
    "Tools, verifiers and scripts that judge rollouts on hosts; samples of one prompt that share its cache.",
    "Loading, logging and the controller between parts; checkpoints of the loop.",
    "Training state that moves to hosts while a GPU generates; restarts of engines.",
    "Borders of packed rollouts: a packed sequence is attended as one, which costs slightly more attention.",
)
