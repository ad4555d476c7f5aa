"""A plan, its precision and its software in words, for readers who do not know names of plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tspsim.parallel import CONTEXT_METHODS, SCHEMES
from tspsim.report.plan_names import DIVIDED, KEPT
from tspsim.step.result import PlanResult, Result

#: Words for the usual axes.
AXES = {
    "tsp": "tensor and sequence parallelism folded on {} GPUs",
    "tp": "tensor parallelism over {} GPUs",
    "sp": "sequences divided over {} GPUs",
    "pp": "a pipeline of {} stages",
    "ep": "experts spread over {} GPUs",
    "dp": "{} replicas",
}


def plan_in_words(plan: PlanResult) -> str:
    """How the plan spreads its work, the largest choices first.

    >>> from tspsim.step.result import Memory
    >>> settings = {"zero": 1, "recomputation": "full", "overlap": True}
    >>> plan_in_words(PlanResult("P", {"tp": 8, "pp": 1, "dp": 2}, Memory({}, 0.0), settings))
    'Tensor parallelism over 8 GPUs; 2 replicas; ZeRO 1; all activations are recomputed; communication overlaps compute'
    """
    text = "; ".join(_pieces(plan))
    return text[:1].upper() + text[1:]


def _pieces(plan: PlanResult) -> Iterator[str]:
    settings = plan.settings
    several = {axis: degree for axis, degree in plan.degrees.items() if degree > 1}
    for axis, degree in several.items():
        yield AXES.get(axis, _scheme_of(axis) + " over {} GPUs").format(f"{degree:,}")
    if not several:
        yield "one GPU holds the whole model"
    method = settings.get("exchange")
    if several.get("sp") and method in CONTEXT_METHODS:
        yield f"K and V: {CONTEXT_METHODS.get(str(method)).summary}"
    if settings.get("zero") in DIVIDED:
        yield f"ZeRO {settings['zero']}"
    if not plan.inference and not plan.serving and settings.get("recomputation"):
        yield recomputation_in_words(plan)
    if settings.get("micro_batch"):
        yield f"micro-batches of {settings['micro_batch']}"
    if settings.get("overlap"):
        yield "communication overlaps compute"
    if isinstance(router := settings.get("router"), str) and settings.get("replicas", 1) > 1:
        yield f"router {router.replace('_', ' ')}"
    if isinstance(drafts := settings.get("speculation"), Mapping) and drafts.get("tokens"):
        yield f"{drafts['tokens']} draft tokens a step"


#: Recomputation in the backward, in short.
RECOMPUTED = {"none": "activations are kept", "full": "all activations are recomputed"}


def recomputation_in_words(plan: PlanResult) -> str:
    """The recomputation of a plan, in words."""
    kept = str(plan.settings.get("recomputation", ""))
    return RECOMPUTED.get(kept) or (KEPT[kept][1] if kept in KEPT else kept)


def _scheme_of(axis: str) -> str:
    """The scheme with this axis."""
    return next((scheme.summary for scheme in SCHEMES.values() if axis in scheme.axes), axis)


def precision(result: Result) -> str:
    """The types of weights, caches and GEMMs."""
    sentences = [
        text.rstrip(".") for text in result.defaults if text.startswith(("Weights are kept", "Caches are kept"))
    ]
    if sentences:
        return _plain("; ".join(sentences))
    stated = result.scenario.get("workload", {}).get("precision")
    if isinstance(stated, Mapping):
        return ", ".join(f"{part} {kind}" for part, kind in stated.items() if kind) or "as in the checkpoint"
    return str(stated or "as in the checkpoint")


def stack(results: Sequence[Result]) -> str:
    """The software stacks; ``ideal`` is named a ceiling."""
    names = dict.fromkeys(str(result.scenario.get("workload", {}).get("stack", "")) for result in results)
    ceiling = " (a ceiling: no host time, no gaps between kernels)"
    return ", ".join(name + (ceiling if name == "ideal" else "") for name in names if name)


def work(result: Result) -> str:
    """Model, step and lengths."""
    workload: Mapping[str, Any] = result.scenario.get("workload", {})
    model = result.scenario.get("model", {}).get("name", workload.get("model", ""))
    parts = [str(model)]
    if result.scenario.get("traffic"):
        return f"{model}, requests served"
    if workload.get("pass"):
        parts.append(str(workload["pass"]))
    if isinstance(workload.get("sequence"), int):
        parts.append(f"{workload['sequence']:,} tokens a sequence")
    return ", ".join(parts)


def _plain(text: str) -> str:
    return text.replace(" (`precision`)", "").replace("; `precision.kv`", "")
