"""The best plans of a serving step: every legal spread of a replica, at the batch that its limits allow.

A serving step is simulated in tens of milliseconds, so plans are not searched in layers as training's are: each legal
one is bounded (:mod:`tspsim.step.bound`), and simulated unless its ceiling lies below the best. With a limit on the
time of an output token, the batch of a decoding step is free: more sequences take longer and put out more, so the
largest batch that fits and keeps the limits is a plan's best.
"""

from __future__ import annotations

import bisect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...base.display import Progress
from ...base.errors import InputError, UnknownNameError
from ...base.units import were
from ...hardware import Costs
from ...parallel import scheme_axes
from ...parallel.checks import check
from ...parallel.state import capacity
from ...scenario import PlanSpec as PlanKeys
from ...scenario import Scenario
from ...step.bound import plan_bound
from ...step.question import Question
from ...step.result import PlanResult
from ...step.simulation import run_plan, scheduled
from ..front import front_of
from ..query import Library
from .limit import LIMITS, Limit, Limits, limit_texts
from .service_answer import ServicePlanned, SimulatedService, stated_keys
from .spreads import spreads

#: Objectives, each with its merit; more is better.
OBJECTIVES: Mapping[str, Callable[[PlanResult], float]] = {
    "tokens_per_s": lambda result: result.tokens_per_s,
    "tokens_per_s_per_gpu": lambda result: result.tokens_per_s_per_gpu,
    "tokens_per_dollar": lambda result: result.tokens_per_s_per_gpu,
    "tokens_per_joule": lambda result: result.tokens_per_s_per_gpu,  # a device's power does not depend on the step
    "time_to_first_token": lambda result: -result.inference.get("time_to_first_token_s", math.inf),
    "time_per_output_token": lambda result: -result.inference.get("time_per_output_token_s", math.inf),
    "memory_headroom": lambda result: result.memory.capacity_bytes - result.memory.peak_bytes,
}
#: Limited quantities that need decoding sequences or prompts in the load.
_OF_LOAD = {
    "tpot": "batch", "time_per_output_token": "batch", "ttft": "prompts", "time_to_first_token": "prompts"
}  # fmt: skip
#: Batches are searched among powers of two; then this many bisections refine between the last that keeps the limits and
#: the first that does not.
REFINEMENTS = 3
#: The plan's key for layers with weights on hosts.
WEIGHTS = "offload_weights"
#: The largest batch that a search tries.
MOST_BATCH = 1 << 20


@dataclass(frozen=True)
class ServedStep(SimulatedService):
    """A plan of a step; ``batch``: sequences per replica, where it decodes."""

    batch: int | None

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | ({} if self.batch is None else {"batch": self.batch})


@dataclass(repr=False)
class ServingPlanned(ServicePlanned[ServedStep]):
    """The answer for a step; the front is in rate and latency."""

    limits: tuple[Limit, ...] = ()

    def plans_to_json(self) -> dict[str, Any]:
        return {
            "limits": limit_texts(self.limits),
            "best": [plan.to_json() for plan in self.best],
            "front": [plan.to_json() for plan in self.front],
            "stated": [plan.to_json() for plan in self.stated],
        }

    def why_none(self) -> str:
        if self.limits and self.simulated:
            said = " and ".join(f"{limit.name} {limit.compare} {limit.value:g}" for limit in self.limits)
            return f"no plan keeps {said}; {were(self.simulated)} simulated"
        return super().why_none()


class ServingPlanner:
    """Plans one serving step; parameters as of :func:`~.choose.planner_of`. At least one plan is always simulated.

    Raises
    ------
    InputError
        The scenario, the objective or a limit is wrong, or belongs to another step.
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
        progress: Progress | None = None,
    ) -> None:
        if objective not in OBJECTIVES:
            raise UnknownNameError("objective", objective, OBJECTIVES, key="--objective")
        self.merit, self.top, self.progress = OBJECTIVES[objective], top, progress
        kept = Limits.of(limits, serves=True)
        self.limits, self.admits = kept.limits, kept.admits
        self.library = Library()
        question = self.library.look_up(scenario)
        self.question, self.scenario = question, scenario
        self.stated = scenario.plans if stated else ()
        self.costs = Costs(question.device)
        self.end_s = math.inf if budget_s is None else time.process_time() + budget_s
        load, gpus = question.work.load, question.cluster.gpus
        for key, name in (("--objective", objective), *(("--limit", limit.name) for limit in self.limits)):
            if name in _OF_LOAD and not getattr(load, _OF_LOAD[name]):
                can = ", ".join(
                    quantity
                    for quantity in (LIMITS if key == "--limit" else OBJECTIVES)
                    if quantity not in _OF_LOAD or getattr(load, _OF_LOAD[quantity])
                )
                raise InputError(f"a {question.work.step.title} has no {name}; use {can}", key=key)
        first = scenario.plans[0].degrees(gpus)["dp"] if stated else 1
        #: Decoding sequences of the whole cluster, unless a limit frees the batch.
        self.sequences = load.batch * first
        self.prompts = load.prompts * first
        self.free_batch = bool(load.batch) and any(limit.name in ("tpot", "step") for limit in self.limits)
        spread = spreads(question.model, question.work.step, gpus)
        self.candidates = [keys for keys in spread if self.admits(keys)]
        searched = dict.fromkeys(key for keys in self.candidates for key in keys)
        names = ("dp", *searched, *(["batch"] if self.free_batch else []))
        self.answer = ServingPlanned(scenario, question, objective, names, limits=self.limits)

    def run(self) -> ServingPlanned:
        """The best plans, the stated ones and the front; Ctrl-C ends with the results so far.

        Raises
        ------
        InfeasibleError
            No legal plan fits, or keeps the limits.
        """
        answer = self.answer
        try:
            for plan in self.stated:
                self._try(stated_keys(plan), stated=True)
            for number, keys in enumerate(self.candidates):
                if time.process_time() > self.end_s and answer.contenders:
                    answer.complete = False
                    break
                if self.progress is not None:
                    self.progress(f"{answer.simulated} plans simulated", number / len(self.candidates))
                self._try(keys)
            if not (answer.contenders or answer.simulated):
                for keys in self.candidates:
                    self._with_weights_away(keys)
        except KeyboardInterrupt:
            answer.interrupted, answer.complete = True, False
        answer.check_any()
        ranked = sorted(answer.contenders, key=lambda served: (-self.merit(served.result), served.name))
        answer.best = tuple(ranked[: self.top])
        answer.front = tuple(front_of(ranked, lambda served: self._merits(served.result)))
        return answer

    def _merits(self, result: PlanResult) -> tuple[float, ...]:
        """The front's merits: tokens per second and GPU, and latency."""
        seen = result.inference
        seconds = -seen.get("time_to_first_token_s", 0.0)
        return result.tokens_per_s_per_gpu, seen.get("tokens_per_s_per_user", 0.0), seconds

    # --- one plan -----------------------------------------------------------------------------------------------

    def _try(self, keys: dict[str, Any], *, stated: bool = False) -> None:
        """Simulate a plan at its best batch, if it is legal and may beat the best."""
        name = keys.get("name") or name_of(keys, self.question.cluster.gpus)
        try:
            plan = PlanKeys.model_validate({**keys, "name": name})
            recomputation = self.question.work.step.recomputation
            best = self._best_batch(plan.model_copy(update={"recomputation": recomputation}))
        except (InputError, ValueError) as error:
            if stated:
                self.answer.refused += ((name, str(error)),)
            return
        if best is None:
            return
        batch, result = best
        served = ServedStep({**keys, "name": name}, result, self._scenario_of(plan, batch), batch)
        if stated:
            self.answer.stated += (served,)
        if all(limit.holds(served.result) for limit in self.limits):
            self.answer.contenders.append(served)

    def _with_weights_away(self, keys: dict[str, Any]) -> None:
        """A plan that does not fit, with the fewest layers of weights on hosts that make it fit."""
        try:
            question = self._question({**keys, WEIGHTS: 1})
            most = max(question.job(question.plans[0]).chunk_sizes)
            if not self._has_room({**keys, WEIGHTS: most}):
                return
        except InputError:
            return
        least = bisect.bisect_left(range(1, most), True, key=lambda layers: self._has_room({**keys, WEIGHTS: layers}))
        self._try({**keys, WEIGHTS: least + 1})

    def _has_room(self, keys: dict[str, Any]) -> bool:
        """Whether a plan fits at the stated batch, or where the batch is free, with one sequence."""
        question = self._question(keys)
        load, dp = question.work.load, question.plans[0].dp
        batch = 1 if self.free_batch else -(-self.sequences // dp) if load.batch else 0
        return self._refused(amount(question, batch, -(-self.prompts // dp))) is None

    def _question(self, keys: dict[str, Any]) -> Question:
        plan = PlanKeys.model_validate({**keys, "name": name_of(keys, self.question.cluster.gpus)})
        plan = plan.model_copy(update={"recomputation": self.question.work.step.recomputation})
        return self.library.look_up(self.scenario.model_copy(update={"plans": (plan,), "offers": ()}))

    def _scenario_of(self, plan: PlanKeys, batch: int | None) -> Scenario:
        """The scenario of one plan at its batch, as a user may write it."""
        update: dict[str, Any] = {"batch": batch} if batch else {}
        if self.prompts and not self.free_batch:
            update["sequences_per_replica"] = -(-self.prompts // plan.degrees(self.question.cluster.gpus)["dp"])
        workload = self.scenario.workload.model_copy(update=update)
        return self.scenario.model_copy(update={"workload": workload, "plans": (plan,), "offers": ()})

    def _best_batch(self, plan: PlanKeys) -> tuple[int | None, PlanResult] | None:
        """The batch per replica and the result; None where it does not fit or cannot win."""
        scenario = self.scenario.model_copy(update={"plans": (plan,), "offers": ()})
        question = self.library.look_up(scenario)
        dp = question.plans[0].dp
        if not self.free_batch:
            load = question.work.load
            batch = -(-self.sequences // dp) if load.batch else 0
            return self._at(amount(question, batch, -(-self.prompts // dp)))
        most = self._most(question)
        if most is None or self._beaten(self._ceiling(amount(question, most))):
            return None
        wanted = self._wanted_batch(dp)
        if wanted > most or (wanted > 1 and self._kept(question, wanted) is None):
            return None
        # The largest power of two that keeps the limits, then bisection up to the next.
        sizes = [1 << power for power in range(most.bit_length())]
        low, high, best = 0, len(sizes), None
        while low < high:
            middle = (low + high) // 2
            tried = self._kept(question, sizes[middle])
            low, high, best = (middle + 1, high, tried) if tried else (low, middle, best)
        if best is None:
            return None
        size, beyond = sizes[low - 1], min(most + 1, 2 * sizes[low - 1])
        for _ in range(REFINEMENTS):
            if beyond - size < 2:
                break
            middle = (size + beyond) // 2
            tried = self._kept(question, middle)
            size, beyond, best = (middle, beyond, tried) if tried else (size, middle, best)
        return best

    def _wanted_batch(self, dp: int) -> int:
        """The least batch per replica for a plan among the best: the output of the best, in the longest allowed time.
        More sequences in a batch never lower the output per second."""
        longest_s = min(limit.value for limit in self.limits if limit.name in ("tpot", "step"))
        rates = sorted((served.result.tokens_per_s for served in self.answer.contenders), reverse=True)
        if self.merit is not OBJECTIVES["tokens_per_s"] or len(rates) < self.top:
            return 1
        drafts = self.question.work.load.speculation
        return max(1, math.ceil(rates[self.top - 1] * longest_s / dp / (drafts.accepted if drafts else 1.0)))

    def _most(self, question: Question) -> int | None:
        """The largest batch per replica that fits, a power of two or 1.5 times one; None where not even one does."""
        most = None
        for power in range(MOST_BATCH.bit_length()):
            for batch in (1 << power, (1 << power) + (1 << power >> 1)):
                if self._refused(amount(question, batch)) is not None:
                    return most
                most = batch
        return most

    def _kept(self, question: Question, batch: int) -> tuple[int | None, PlanResult] | None:
        """The result with ``batch`` sequences, if it keeps the limits."""
        tried = self._simulated(amount(question, batch))
        return tried if tried and all(limit.holds(tried[1]) for limit in self.limits) else None

    def _at(self, question: Question) -> tuple[int | None, PlanResult] | None:
        """A plan's result, if it fits and may be among the best."""
        refused = self._refused(question)
        if refused is not None:
            self.answer.refused += ((question.plans[0].name, refused),)
            return None
        return None if self._beaten(self._ceiling(question)) else self._simulated(question)

    def _refused(self, question: Question) -> str | None:
        """Why the plan does not fit; None where it does."""
        job = scheduled(question, question.plans[0])
        room = capacity.capacity_of(job, question.device.visible_memory_bytes)
        return room.refusal(capacity.kept_by(job))

    def _ceiling(self, question: Question) -> float:
        self.answer.bounded += 1
        return plan_bound(question, scheduled(question, question.plans[0])).tokens_per_s

    def _simulated(self, question: Question) -> tuple[int | None, PlanResult] | None:
        result = run_plan(question, question.plans[0], costs=self.costs)
        self.answer.simulated += 1
        if not result.ran:
            self.answer.refused += ((result.name, result.error or ""),)
            return None
        return question.work.load.batch or None, result

    def _beaten(self, ceiling_tokens_per_s: float) -> bool:
        """Whether enough simulated plans put out more than a plan's ceiling, where the objective is output."""
        if self.merit is not OBJECTIVES["tokens_per_s"]:
            return False
        rates = sorted((served.result.tokens_per_s for served in self.answer.contenders), reverse=True)
        return len(rates) >= self.top and rates[self.top - 1] > ceiling_tokens_per_s


def amount(question: Question, batch: int, prompts: int | None = None) -> Question:
    """The question with other numbers of sequences and prompts per replica, checked."""
    load = question.work.load
    load = replace(load, batch=batch, prompts=load.prompts if prompts is None else prompts)
    other = replace(question, work=replace(question.work, load=load))
    check(other.job(other.plans[0]))
    return other


def name_of(keys: Mapping[str, Any], gpus: int) -> str:
    """A name with the searched keys.

    >>> name_of({"tp": 4, "ep": 8, "expert_dispatch": "gather"}, 8)
    'TP4-DP2-EP8 gather'
    """
    spread = {axis: int(keys.get(axis, 1)) for axis in (*scheme_axes(), "pp")}
    sizes = {**spread, "dp": gpus // math.prod(spread.values()), "ep": int(keys.get("ep", 1))}
    degrees = [f"{axis.upper()}{size}" for axis, size in sizes.items() if size > 1]
    of_spread = {*scheme_axes(), "pp", "ep", "name"}
    others = [(name, value) for name, value in keys.items() if name not in of_spread]
    words = [f"{name}{value}" if isinstance(value, int) else str(value) for name, value in others]
    return " ".join(["-".join(degrees) or "DP1", *words])
