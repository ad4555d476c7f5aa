"""The best plans of a serving step: every legal way to spread a replica, at the batch that its limits allow.

A step that serves is simulated in tens of milliseconds, so plans are not searched in layers as training's are: each
legal one is bounded (:mod:`tspsim.bound`), and simulated unless its ceiling lies below what is known. Where a limit is
set on the time of an output token, the batch of a decoding step is free: more sequences take longer and put out more,
so that the largest batch that keeps the limits, and has room, is the best of a plan.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...bound import plan_bound
from ...description import describe_cluster, describe_model, provenance
from ...errors import InfeasibleError, InputError, UnknownNameError
from ...parallel import SCHEMES, capacity, scheme_axes
from ...question import Question
from ...result import SCHEMA_VERSION, PlanResult
from ...scenario import Plan as PlanKeys
from ...scenario import Scenario
from ...simulation import Costs, run_plan, scheduled
from ...statements import defaults_in_words
from ..front import front_of
from ..query import Library
from .limit import Limit, Limits, limit_texts

#: What a plan may be chosen by → its merit, of which more is better.
OBJECTIVES: Mapping[str, Callable[[PlanResult], float]] = {
    "tokens_per_s": lambda result: result.tokens_per_s,
    "tokens_per_s_per_gpu": lambda result: result.tokens_per_s_per_gpu,
    "tokens_per_dollar": lambda result: result.tokens_per_s_per_gpu,
    "time_to_first_token": lambda result: -result.inference.get("time_to_first_token_s", math.inf),
    "time_per_output_token": lambda result: -result.inference.get("time_per_output_token_s", math.inf),
    "memory_headroom": lambda result: result.memory.capacity_bytes - result.memory.peak_bytes,
}
#: A plan that ran: batch a replica, what came out, its ceiling in tokens/s, and the scenario of it alone.
Tried = tuple[int | None, PlanResult, float, Scenario]
#: Batches are looked for among powers of two and, between the last that keeps the limits and the first that does not,
#: so many steps finer.
REFINEMENTS = 3
#: Stated batches that a search doubles at most.
MOST_BATCH = 1 << 20


@dataclass(frozen=True)
class Served:
    """A plan that was simulated: its keys, its batch where it decodes, and what came out."""

    keys: Mapping[str, Any]
    batch: int | None
    result: PlanResult
    bound_tokens_per_s: float
    asked: Scenario = field(repr=False)

    @property
    def name(self) -> str:
        return self.result.name


@dataclass
class ServingPlanned:
    """What was found; ``searched`` names the keys that were, ``complete`` is False where time ran out."""

    scenario: Scenario
    question: Question
    objective: str
    limits: tuple[Limit, ...]
    searched: tuple[str, ...]
    best: tuple[Served, ...] = ()
    front: tuple[Served, ...] = ()
    stated: tuple[Served, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    simulated: int = 0
    bounded: int = 0
    complete: bool = True
    interrupted: bool = False
    known: list[Served] = field(default_factory=list, repr=False)

    def to_json(self) -> dict[str, Any]:
        """The answer as plain data (docs/planner.md)."""

        def entry(served: Served) -> dict[str, Any]:
            batch = {} if served.batch is None else {"batch": served.batch}
            return served.result.to_json() | {"keys": dict(served.keys), **batch}

        return {
            "schema": SCHEMA_VERSION,
            "scenario": self.scenario.to_dict() | {"model": describe_model(self.question.model)},
            "cluster": describe_cluster(self.question.cluster, self.question.device),
            "plan": {
                "objective": self.objective,
                "limits": limit_texts(self.limits),
                "best": [entry(each) for each in self.best],
                "front": [entry(each) for each in self.front],
                "stated": [entry(each) for each in self.stated],
                "refused": [{"name": name, "error": error} for name, error in self.refused],
                "search": {
                    "searched": list(self.searched),
                    "simulated": self.simulated,
                    "bounded": self.bounded,
                    "complete": self.complete,
                    "interrupted": self.interrupted,
                },
            },
            "provenance": [dict(row) for row in provenance(self.question)],
            "defaults": list(defaults_in_words(self.question.work, self.question.plans)),
        }


class ServingPlanner:
    """Asks and answers for one serving step.

    Parameters
    ----------
    scenario
        Its plans are the stated ones; ``stated`` False where one only stands in for none.
    objective, limits
        Of :data:`OBJECTIVES`, and texts such as ``tpot<=50ms``.
    top
        How many plans are wanted.
    budget_s
        Seconds of processor time; None: as it takes. One plan is always answered.

    Raises
    ------
    InputError
        The scenario, the objective or a limit is wrong.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        stated: bool = True,
        objective: str = "tokens_per_s",
        limits: Sequence[str] = (),
        top: int = 3,
        budget_s: float | None = None,
        progress: Callable[[str, float], None] | None = None,
    ) -> None:
        if objective not in OBJECTIVES:
            raise UnknownNameError("objective", objective, OBJECTIVES, key="--objective")
        self.merit, self.top, self.progress = OBJECTIVES[objective], top, progress
        kept = Limits.of(limits, serves=True)
        self.limits, self.admits = kept.each, kept.admits
        self.library = Library()
        question = self.library.look_up(scenario)
        self.question, self.scenario = question, scenario
        self.stated = scenario.plans if stated else ()
        self.costs = Costs(question.device)
        self.end_s = math.inf if budget_s is None else time.process_time() + budget_s
        load, gpus = question.work.load, question.cluster.gpus
        first = scenario.plans[0].degrees(gpus)["dp"] if stated else 1
        #: Decoding sequences of the whole cluster, where no limit frees them.
        self.sequences = load.batch * first
        self.prompts = load.prompts * first
        self.free_batch = bool(load.batch) and any(limit.name in ("tpot", "step") for limit in self.limits)
        self.candidates = [keys for keys in self._candidates() if self.admits(keys)]
        searched = dict.fromkeys(key for keys in self.candidates for key in keys)
        names = ("dp", *searched, *(["batch"] if self.free_batch else []))
        self.answer = ServingPlanned(scenario, question, objective, self.limits, names)

    def run(self) -> ServingPlanned:
        """The best plans, the stated ones and the front; Ctrl-C ends with what is there.

        Raises
        ------
        InfeasibleError
            No legal plan has room, or keeps the limits.
        """
        answer = self.answer
        try:
            for plan in self.stated:
                self._try(self._stated_keys(plan), stated=True)
            for number, keys in enumerate(self.candidates):
                if time.process_time() > self.end_s and answer.known:
                    answer.complete = False
                    break
                if self.progress is not None:
                    self.progress(f"{answer.simulated} plans simulated", number / len(self.candidates))
                self._try(keys)
        except KeyboardInterrupt:
            answer.interrupted, answer.complete = True, False
        known = sorted(answer.known, key=lambda served: (-self.merit(served.result), served.name))
        if not known:
            if answer.interrupted:
                raise KeyboardInterrupt
            raise InfeasibleError(self._why_none())
        answer.best = tuple(known[: self.top])
        answer.front = tuple(front_of(known, lambda served: self._merits(served.result)))
        return answer

    def _merits(self, result: PlanResult) -> tuple[float, ...]:
        """A front's: tokens a second and GPU, what a user sees, and memory left."""
        seen = result.inference
        return (
            result.tokens_per_s_per_gpu,
            seen.get("tokens_per_s_per_user", 0.0),
            -seen.get("time_to_first_token_s", 0.0),
            result.memory.capacity_bytes - result.memory.peak_bytes,
        )

    def _why_none(self) -> str:
        refused = self.answer.refused
        if self.limits and self.answer.simulated:
            said = " and ".join(f"{each.name} {each.compare} {each.value:g}" for each in self.limits)
            return f"no plan keeps {said}; {self.answer.simulated} were simulated"
        return f"no plan fits; {refused[0][0]}: {refused[0][1]}" if refused else "no plan is legal"

    # --- what there is ----------------------------------------------------------------------------------------

    def _candidates(self) -> Iterator[dict[str, Any]]:
        """Keys of plans, simplest first; not all of them legal."""
        gpus = self.question.cluster.gpus
        divisors = [degree for degree in range(1, gpus + 1) if gpus % degree == 0]
        experts = self.question.model.experts is not None
        for scheme in sorted(SCHEMES.values(), key=lambda each: not each.usual):
            for sizes in itertools.product(divisors, repeat=len(scheme.axes)):
                spread = {axis: size for axis, size in zip(scheme.axes, sizes, strict=True) if size > 1}
                if not (spread or scheme.usual):
                    continue
                for pp in divisors:
                    replica = math.prod(sizes) * pp
                    if gpus % replica or pp > self.question.model.layers:
                        continue
                    keys = spread | ({"pp": pp} if pp > 1 else {})
                    for further in scheme.serving_variants(self.question.work.step, keys):
                        yield keys | dict(further)
                        if experts:
                            yield from self._with_experts(keys | dict(further), math.prod(sizes), gpus // replica)

    @staticmethod
    def _with_experts(keys: dict[str, Any], ranks: int, replicas: int) -> Iterator[dict[str, Any]]:
        """Experts over the ranks of a replica, and over all replicas with every way to get there."""
        if ranks > 1:
            yield keys | {"ep": ranks}
        if replicas > 1:
            for dispatch in ("gather", "low_latency", "ranks"):
                yield keys | {"ep": ranks * replicas, "expert_dispatch": dispatch}

    # --- one plan -----------------------------------------------------------------------------------------------

    def _try(self, keys: dict[str, Any], *, stated: bool = False) -> None:
        """Simulate a plan at its best batch, if it is legal and may be better than what is known."""
        name = keys.get("name") or name_of(keys)
        try:
            plan = PlanKeys.model_validate({**keys, "name": name})
            recomputation = self.question.work.step.recomputation
            found = self._best_batch(plan.model_copy(update={"recomputation": recomputation}))
        except (InputError, ValueError) as error:
            if stated:
                self.answer.refused += ((name, str(error)),)
            return
        if found is None:
            return
        served = Served({**keys, "name": name}, *found)
        if stated:
            self.answer.stated += (served,)
        if all(limit.holds(served.result) for limit in self.limits):
            self.answer.known.append(served)

    def _stated_keys(self, plan: PlanKeys) -> dict[str, Any]:
        return {key: value for key, value in plan.model_dump(exclude_unset=True).items() if value is not None}

    def _best_batch(self, plan: PlanKeys) -> Tried | None:
        """The batch a replica, what comes out, and what was asked; None where there is no room or no hope."""
        dp = plan.degrees(self.question.cluster.gpus)["dp"]
        if not self.question.work.load.batch:
            return self._at(plan, None, -(-self.prompts // dp))
        if not self.free_batch:
            return self._at(plan, -(-self.sequences // dp), -(-self.prompts // dp) if self.prompts else 0)
        best, batch, beyond = None, 1, None
        while batch <= MOST_BATCH:
            tried = self._at(plan, batch, 0, hopeless=False)
            if tried is None or not all(limit.holds(tried[1]) for limit in self.limits):
                beyond = batch
                break
            best, batch = tried, 2 * batch
        for _ in range(REFINEMENTS):
            if best is None or beyond is None or beyond - best[0] < 2:  # type: ignore[operator]
                break
            middle = (best[0] + beyond) // 2  # type: ignore[operator]
            tried = self._at(plan, middle, 0, hopeless=False)
            if tried is None or not all(limit.holds(tried[1]) for limit in self.limits):
                beyond = middle
            else:
                best = tried
        return best

    def _at(
        self, plan: PlanKeys, batch: int | None, prompts: int, *, hopeless: bool = True
    ) -> Tried | None:
        """A plan with so many sequences and prompts a replica; ``hopeless``: only where it may be among the best."""
        update: dict[str, Any] = {"batch": batch} if batch is not None else {}
        update |= {"sequences_per_replica": prompts} if prompts else {}
        workload = self.scenario.workload.model_copy(update=update)
        asked = self.scenario.model_copy(update={"workload": workload, "plans": (plan,), "offers": ()})
        question = self.library.look_up(asked)
        job = scheduled(question, question.plans[0])
        room = capacity.capacity_of(job, question.device.visible_memory_bytes)
        refused = room.refusal(capacity.kept_by(job))
        if refused is not None:
            self.answer.refused += ((plan.name, refused),)
            return None
        ceiling = plan_bound(question, job)
        self.answer.bounded += 1
        if hopeless and self._hopeless(ceiling.tokens_per_s):
            return None
        result = run_plan(question, question.plans[0], costs=self.costs)
        self.answer.simulated += 1
        if not result.ran:
            self.answer.refused += ((plan.name, result.error or ""),)
            return None
        return batch, result, ceiling.tokens_per_s, asked

    def _hopeless(self, ceiling_tokens_per_s: float) -> bool:
        """Whether as many plans as are wanted put out more than a plan can, where that is what counts."""
        if self.merit is not OBJECTIVES["tokens_per_s"]:
            return False
        rates = sorted((served.result.tokens_per_s for served in self.answer.known), reverse=True)
        return len(rates) >= self.top and rates[self.top - 1] > ceiling_tokens_per_s


def name_of(keys: Mapping[str, Any]) -> str:
    """A name that says what was searched.

    >>> name_of({"tp": 4, "ep": 8, "expert_dispatch": "gather"})
    'TP4-EP8 gather'
    """
    degrees = [f"{axis.upper()}{keys[axis]}" for axis in (*scheme_axes(), "pp", "ep") if keys.get(axis, 1) > 1]
    known = {*scheme_axes(), "pp", "ep", "name"}
    others = [(name, value) for name, value in keys.items() if name not in known]
    words = [f"{name}{value}" if isinstance(value, int) else str(value) for name, value in others]
    return " ".join(["-".join(degrees) or "DP", *words])
