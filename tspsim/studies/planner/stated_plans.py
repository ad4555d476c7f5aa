"""The scenario's own plans, simulated before a search; where none runs, the simplest plan that fits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from ...base.errors import InputError
from ...parallel import Job, build_mesh, located
from ...scenario import PlanSpec as PlanKeys
from ...scenario import Scenario
from ...step.paths import Effort
from ...step.result import PlanResult
from ...step.simulation import scheduled
from ..query import Library
from .answer import Planned, StatedPlan
from .branch import Search
from .candidate import NAMED, Candidate, name_of
from .clock import Deadline
from .limits import bytes_up_to, lean_jobs
from .simulated_plan import SimulatedPlan
from .space import Space
from .workers import Simulators, scenario_of

#: Instructions of a short simulation; plans among which a short one is looked for.
EASY, FEW = 20_000, 16


class StatedPlans:
    """The plans that a scenario states, at the batch of an answer."""

    def __init__(self, plans: Sequence[PlanKeys], answer: Planned, library: Library, effort: Effort) -> None:
        self.plans, self.answer, self.library, self.effort = plans, answer, library, effort

    def simulate(self, search: Search, simulators: Simulators, deadline: Deadline) -> None:
        """Simulates them and adds them to the answer and to the search's results."""
        answer = self.answer
        scenarios: dict[str, Scenario] = {}
        errors: dict[str, str] = {}
        for keys in self.plans:
            try:
                scenarios[keys.name] = self._at_batch(keys)
                self.library.look_up(scenarios[keys.name])
            except InputError as error:
                errors[keys.name] = str(error)
                scenarios.pop(keys.name, None)
        # The first is always simulated, so that there is always an answer.
        names = list(scenarios)
        results: dict[str, PlanResult | None] = {}
        try:
            for number, name in enumerate(names):
                if number and deadline.passed:
                    break
                candidate = self._stated_candidate(scenarios[name], scenarios[name].plans[0])
                self.effort.add(search.bound.simulation_s(candidate.job, candidate.mesh))
                (results[name],) = simulators.ask([scenarios[name]])
        finally:
            for keys in self.plans:
                result = results.get(keys.name)
                refused = errors.get(keys.name) or ((result.error or "") if result is not None else "time ran out")
                answer.stated += (StatedPlan(keys.name, result, refused),)
                if result is not None and result.ran:
                    self._know(search, self._stated_candidate(scenarios[keys.name], keys), result)
        if not search.simulated:
            simplest = simplest_of(search)
            self.effort.add(search.bound.simulation_s(simplest.job, simplest.mesh))
            (result,) = simulators.ask([scenario_of(answer.scenario, simplest)])
            if result is not None and result.ran:
                self._know(search, simplest, result)

    def _know(self, search: Search, candidate: Candidate, result: PlanResult) -> None:
        """Adds a plan that was simulated outside the search to its results."""
        plan = replace(candidate.plan, micro_batch=candidate.job.sequences)
        own = candidate.stated is None or NAMED.issuperset(candidate.stated)
        # Under the search's name for it, if the name contains all keys: it is not simulated twice.
        name = name_of(plan) if own else f"{candidate.name} (stated)"
        search.simulated[name] = SimulatedPlan(candidate, result, search.bound.step_s(candidate.job, candidate.mesh))
        # The bound at an MFU of one: the model's own products at the device's peak.
        search.least_s = max(search.least_s, result.step_time_s * result.mfu)

    def _stated_candidate(self, scenario: Scenario, keys: PlanKeys) -> Candidate:
        question = self.library.look_up(scenario)
        job, cluster = scheduled(question, question.plans[0]), question.cluster
        mesh = build_mesh(job.plan, cluster.gpus, cluster.gpus_per_node)
        stated = keys.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        return Candidate(job, mesh, (), stated)

    def _at_batch(self, keys: PlanKeys) -> Scenario:
        """The scenario with one of its plans, whose replicas share the batch."""
        answer = self.answer
        dp = keys.degrees(answer.question.cluster.gpus)["dp"]
        if answer.batch % dp and not answer.question.work.unequal.tokens:
            raise InputError(f"{dp} replicas do not divide the batch of {answer.batch} sequences")
        workload = answer.scenario.workload.with_sequences(answer.batch // dp)
        return answer.scenario.model_copy(update={"workload": workload, "plans": (keys,), "offers": ()})


def simplest_of(search: Search) -> Candidate:
    """The first plan that fits, or if that is long to simulate, the quickest to simulate of the next few."""
    room_bytes = search.capacity_bytes
    fitting = (job for job in lean_jobs(search.space) if bytes_up_to(room_bytes, job) <= room_bytes)
    tried: list[tuple[int, Candidate]] = []
    for job in itertools.islice(fitting, FEW):
        candidate = candidate_of(search.space, job)
        tried.append((search.bound.instructions(candidate.job, candidate.mesh), candidate))
        if tried[-1][0] <= EASY:
            return candidate
    return min(tried, key=lambda entry: entry[0])[1]


def candidate_of(space: Space, job: Job) -> Candidate:
    """A plan of a space under its own name."""
    cluster = space.cluster
    plan = located(replace(job.plan, name=name_of(job.plan)), cluster.gpus, cluster.gpus_per_node)
    return Candidate(replace(job, plan=plan), build_mesh(plan, cluster.gpus, cluster.gpus_per_node), ())
