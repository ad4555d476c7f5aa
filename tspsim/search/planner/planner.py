"""The planner: one scenario's cluster and workload in, its best plans, their front and the ends of what fits out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ... import catalog
from ...description import too_large
from ...errors import InfeasibleError, InputError, UnknownNameError
from ...network import Cluster
from ...parallel import Job, build_mesh, peak_memory, scheme_of
from ...question import Question
from ...result import Memory, PlanResult
from ...scenario import ClusterInline, Scenario, load
from ...scenario import Plan as PlanKeys
from ...simulation import Costs, run_plan
from ...units import parse
from ..crews import crew_of
from ..question import Library
from .branch import Best, Found, Search
from .front import front_of
from .limits import Limits, leanest, limits
from .lower_bound import LowerBound
from .space import Candidate, Space, name_of
from .territory import Cell, Points, cell
from .why import Part, compare, parts_s
from .workers import Simulators, scenario_of

#: What a plan may be chosen by.
OBJECTIVES = ("tokens_per_s", "tokens_per_dollar", "memory_headroom")
#: Shares of a GPU's memory that plans of the front leave free, at least; and rounds of simulations for each.
FREE_SHARES = (0.25, 0.5)
FREE_ROUNDS = 1
#: Shares of the time there is at which the search for the best, what follows from it, and everything ends.
SEARCH_SHARE, DETAIL_SHARE, WHOLE_SHARE = 0.6, 0.85, 0.95
#: Plans to come, as far as the number of processes is concerned.
MANY = 100
#: Called with a sentence and the share that is done.
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Stated:
    """A plan of the scenario itself, at the same batch."""

    name: str
    result: PlanResult | None
    error: str = ""


@dataclass(frozen=True)
class Elsewhere:
    """The front's plans where one thing is different: those that may be fastest there with their steps, and those that
    do not fit. ``batch`` is in sequences.
    """

    what: str
    nodes: int
    sequence: int
    batch: int
    ranking: tuple[tuple[str, float], ...]
    unfit: tuple[str, ...]

    @property
    def tokens_per_s(self) -> float:
        return self.batch * self.sequence / self.ranking[0][1] if self.ranking else 0.0


@dataclass
class Planned:
    """What the planner found.

    Attributes
    ----------
    batch
        Sequences of a step, the same for every plan.
    best
        The best plans, best first; ``next_bound`` says what those that were not simulated cannot undercut.
    gap
        By what share a plan that was not simulated may be better than the best; 0: none can.
    front
        Plans that no other simulated one beats in rate, tokens a dollar and memory left.
    """

    scenario: Scenario
    question: Question
    batch: int
    objective: str
    top: int
    best: tuple[Found, ...] = ()
    next_bound_s: float = math.inf
    gap: float = 0.0
    stated: tuple[Stated, ...] = ()
    front: tuple[Found, ...] = ()
    why: tuple[Part, ...] = ()
    rival: str = ""
    elsewhere: tuple[Elsewhere, ...] = ()
    limits: Limits | None = None
    territory: tuple[Cell, ...] = ()
    simulated: int = 0
    bounded: int = 0
    complete: bool = True
    interrupted: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.scenario.workload.sequence

    def to_json(self) -> dict[str, Any]:
        from .document import document

        return document(self)


def load_planned(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> tuple[Scenario, bool]:
    """A scenario that may have no plans of its own; and whether it has."""
    if isinstance(source, Mapping):
        data: Mapping[str, Any] = source
    else:
        data = catalog.read_yaml(catalog.locate("scenarios", source))
    stated = bool(data.get("plans")) or any(text.partition("=")[0].strip() == "plans" for text in overrides)
    return load(source, overrides if stated else [*overrides, "plans=[{name: any}]"]), stated


def read_budget(text: str) -> float | None:
    """Seconds, or None for ``none``; raises InputError.

    >>> read_budget("2 min"), read_budget("none")
    (120.0, None)
    """
    if text.strip() == "none":
        return None
    try:
        return float(parse(text, "s", positive=True))
    except InputError as error:
        raise error.at(key="--budget") from None


def at_nodes(scenario: Scenario, cluster: Cluster, nodes: int) -> Scenario:
    """The scenario on another number of the same nodes."""
    if isinstance(scenario.cluster, ClusterInline):
        inline = scenario.cluster.model_copy(update={"nodes": nodes})
    else:
        if cluster.fabric is None and nodes > 1:
            raise InputError(f"{cluster.name} has no fabric for {nodes} nodes", key="cluster")
        inline = ClusterInline(
            node=cluster.node.name,
            nodes=nodes,
            fabric=cluster.fabric.name if cluster.fabric is not None else None,
            oversubscription=cluster.oversubscription if cluster.fabric is not None else None,
            library=cluster.node.collectives.default_library,
        )
    return scenario.model_copy(update={"cluster": inline})


class Planner:
    """Asks and answers for one scenario.

    Parameters
    ----------
    scenario
        What ``tspsim.load`` returns; its plans are the stated ones.
    stated
        False where its plan only stands in for none.
    objective
        One of :data:`OBJECTIVES`.
    top
        How many plans are wanted.
    jobs
        Processes; as many as this machine lends when None.
    budget_s
        Seconds for everything; None: until nothing better can be left.
    progress
        Called with a sentence and the share done.

    Raises
    ------
    InputError
        The scenario or the objective is wrong.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        stated: bool = True,
        objective: str = "tokens_per_s",
        top: int = 3,
        jobs: int | None = None,
        budget_s: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        if objective not in OBJECTIVES:
            raise UnknownNameError("objective", objective, OBJECTIVES, key="--objective")
        self.begin_s = time.monotonic()
        self.budget_s = budget_s
        self.progress = progress
        self.jobs = jobs
        self.library = Library()
        self.question = self._look_up(scenario)
        self.costs = Costs(self.question.device)
        batch = self._batch(scenario, stated)
        self.answer = Planned(scenario, self.question, batch, objective, top)
        self.stated = scenario.plans if stated else ()
        self.searches: dict[int, Search] = {}

    def _look_up(self, scenario: Scenario) -> Question:
        """Everything a scenario names; its plans are judged one by one later."""
        from ...question import look_up

        any_plan = type(scenario.plans[0])(name="any")
        bare = scenario.model_copy(update={"plans": (any_plan,)})
        return look_up(bare, self.library.lookups)

    def _batch(self, scenario: Scenario, stated: bool) -> int:
        """Sequences of a step: those of the first stated plan, or one a replica of every GPU."""
        dp = scenario.plans[0].degrees(self.question.cluster.gpus)["dp"] if stated else self.question.cluster.gpus
        return scenario.workload.sequences_per_replica * dp

    def run(self, points: Points | None = None) -> Planned:
        """Everything, and the map over ``points``; Ctrl-C ends with what is there (``interrupted``).

        Raises
        ------
        InfeasibleError
            No legal plan fits, and by how much the leanest misses.
        """
        further = [self._why, self._limits, self._elsewhere, self._front]
        if points is not None:
            further.append(lambda: self._map(points))
        return self._answer(self._best, self._stated, *further)

    def only_best(self) -> Planned:
        """The best plans and the stated ones, without what :meth:`run` says about them; raises the same."""
        return self._answer(self._best, self._stated)

    def _answer(self, *steps: Callable[[], None]) -> Planned:
        answer = self.answer
        self._check_feasible(self._space(self.question, answer.batch))
        crew = crew_of(self.jobs, None, MANY)
        self.simulators = Simulators(crew, self.library, self._deadline_s(WHOLE_SHARE))
        finished = False
        try:
            try:
                for step in steps:
                    step()
            except KeyboardInterrupt:
                answer.interrupted, answer.complete = True, False
                self._conclude()
            finished = not answer.interrupted and answer.complete
        finally:
            crew.close(now=not finished)
        return answer

    def _deadline_s(self, share: float) -> float:
        return math.inf if self.budget_s is None else self.begin_s + share * self.budget_s

    def _space(self, question: Question, batch: int) -> Space:
        return Space(question.model, question.work, question.cluster, batch)

    def _check_feasible(self, space: Space) -> None:
        capacity = self.question.device.visible_memory_bytes
        lean = leanest(space, capacity)
        if lean is None:
            raise InfeasibleError(
                f"no plan is legal: {space.batch} sequences of {space.work.sequence} tokens of {space.model.name} "
                f"do not divide over {space.cluster.gpus} GPUs"
            )
        if lean.bytes > capacity:
            memory = Memory(peak_memory(lean.job, scheme_of(lean.job.plan).residency), capacity)
            raise InfeasibleError(f"no plan fits; the leanest, {lean.name}, {too_large(memory)}")

    def search_at(self, nodes: int) -> Search:
        """The search on so many nodes, the batch as it is."""
        if nodes not in self.searches:
            self.searches[nodes] = self._search(self.answer.scenario, nodes, self.answer.batch)
        return self.searches[nodes]

    def _search(self, scenario: Scenario, nodes: int, batch: int) -> Search:
        question = self.question
        if scenario is not self.answer.scenario or nodes != question.cluster.nodes:
            if nodes != question.cluster.nodes:
                scenario = at_nodes(scenario, question.cluster, nodes)
            question = self._look_up(scenario)
        return Search(
            self._space(question, batch),
            self._bounds(question),
            question.device.visible_memory_bytes,
            lambda candidates: self.simulators.simulate(scenario, candidates),
            self._deadline_s(SEARCH_SHARE),
            self._report,
        )

    def _bounds(self, question: Question) -> LowerBound:
        mixed = len(set(question.model.blocks)) > 1
        stack, device = question.work.stack, question.device
        return LowerBound(
            question.cluster,
            lambda operator: stack.seconds(operator, self.costs(operator)),
            max(device.peak_flops_per_s.values()),
            device.compute_slowdown,
            mixed=mixed,
        )

    def _map(self, points: Points) -> None:
        """Tokens a step stay as they are; where there are fewer than one sequence, one."""
        every = [(sequence, nodes) for nodes in points.nodes for sequence in points.sequences]
        for number, (sequence, nodes) in enumerate(every):
            if self.progress is not None:
                self.progress(f"map: {number} of {len(every)} points", number / len(every))
            workload = self.answer.scenario.workload.model_copy(update={"sequence": sequence})
            scenario = self.answer.scenario.model_copy(update={"workload": workload})
            search = self._search(scenario, nodes, max(1, self.answer.tokens // sequence))
            search.report, search.deadline_s = None, self._deadline_s(WHOLE_SHARE)
            self.answer.territory += (cell(search, sequence, nodes),)

    def _report(self, next_bound_s: float, best: Sequence[Found]) -> None:
        simulated = sum(search.tally.simulated for search in self.searches.values())
        if self.progress is None:
            return
        words = f"{simulated} plans simulated"
        share = 0.1
        if best:
            tokens = self.answer.tokens
            gap = max(0.0, best[0].step_s / next_bound_s - 1.0) if next_bound_s < math.inf else 0.0
            words += f", best {tokens / best[0].step_s:,.0f} tokens/s, others at most {100 * gap:.1f} % faster"
            share = min(0.7, 0.2 + 0.05 * simulated)
        if self.budget_s is not None:
            left_s = max(0.0, self.begin_s + self.budget_s - time.monotonic())
            words += f", at most {left_s:.0f} s left"
            share = max(share, 1.0 - left_s / self.budget_s)
        self.progress(words, share)

    def _stated(self) -> None:
        """The scenario's own plans at this batch."""
        answer = self.answer
        asked: dict[str, Scenario] = {}
        errors: dict[str, str] = {}
        for keys in self.stated:
            try:
                asked[keys.name] = self._at_batch(keys)
                self.library.look_up(asked[keys.name])
            except InputError as error:
                errors[keys.name] = str(error)
                asked.pop(keys.name, None)
        results = dict(zip(asked, self.simulators.ask(list(asked.values())), strict=True))
        for keys in self.stated:
            result = results.get(keys.name)
            refused = errors.get(keys.name) or ((result.error or "") if result is not None else "time ran out")
            answer.stated += (Stated(keys.name, result, refused),)

    def _at_batch(self, keys: PlanKeys) -> Scenario:
        """The scenario with one of its plans, whose replicas divide the batch among them."""
        answer = self.answer
        dp = keys.degrees(self.question.cluster.gpus)["dp"]
        if answer.batch % dp:
            raise InputError(f"{dp} replicas do not divide the batch of {answer.batch} sequences")
        workload = answer.scenario.workload.model_copy(update={"sequences_per_replica": answer.batch // dp})
        return answer.scenario.model_copy(update={"workload": workload, "plans": (keys,), "offers": ()})

    def _best(self) -> None:
        answer = self.answer
        if answer.objective == "memory_headroom":
            self._roomiest()
        else:
            for nodes in self._node_counts():
                search = self.search_at(nodes)
                weight = nodes if answer.objective == "tokens_per_dollar" else 1
                known = answer.best
                below_s = self._score(known[answer.top - 1]) / weight if len(known) >= answer.top else math.inf
                best = search.best(answer.top, below_s=below_s)
                self._take(best, weight)
        self._conclude()

    def _node_counts(self) -> Iterator[int]:
        """Nodes to look at: all of them, and where a GPU must earn its price also halves of them."""
        nodes = self.question.cluster.nodes
        yield nodes
        while self.answer.objective == "tokens_per_dollar" and nodes % 2 == 0:
            nodes //= 2
            lean = leanest(self.search_at(nodes).space, self.question.device.visible_memory_bytes)
            if lean is None or lean.bytes > self.question.device.visible_memory_bytes:
                return
            yield nodes

    def _score(self, found: Found) -> float:
        """Less is better: seconds, or seconds times nodes."""
        if self.answer.objective == "tokens_per_dollar":
            return found.step_s * found.result.gpus / self.question.cluster.gpus_per_node
        return found.step_s

    def _take(self, best: Best, weight: float) -> None:
        answer = self.answer
        answer.best = tuple(sorted((*answer.best, *best.plans), key=self._score)[: answer.top])
        answer.next_bound_s = min(answer.next_bound_s, best.next_bound_s * weight)
        answer.complete = answer.complete and best.complete

    def _roomiest(self) -> None:
        """The plans of least memory, the fastest of equals: memory needs no simulation, their rates do."""
        search = self.search_at(self.question.cluster.nodes)
        lean = leanest(search.space)
        assert lean is not None
        least = search.capacity_bytes - lean.bytes
        best = search.best(self.answer.top, free_bytes=least * (1.0 - 1e-9))
        self._take(best, 1.0)

    def _conclude(self) -> None:
        """What the best are, from all that was simulated; also when the search was cut short."""
        answer = self.answer
        known = [found for search in self.searches.values() for found in search.known.values()]
        answer.simulated = len(known)
        answer.bounded = sum(search.tally.bounded for search in self.searches.values())
        if not answer.best and known:
            answer.best = tuple(sorted(known, key=lambda found: found.rank)[: answer.top])
        if answer.best and answer.next_bound_s < math.inf:
            answer.gap = max(0.0, self._score(answer.best[0]) / answer.next_bound_s - 1.0)
        if not answer.front:
            answer.front = tuple(self._front_of(known))
        if not answer.best:
            raise InfeasibleError("time ran out before a plan was simulated; give more with --budget")

    def _front_of(self, known: Sequence[Found]) -> list[Found]:
        def merits(found: Found) -> tuple[float, ...]:
            rate = self.answer.tokens / found.step_s
            return rate, rate / found.result.gpus, found.headroom_bytes

        return front_of(sorted(known, key=lambda found: found.rank), merits)

    def _front(self) -> None:
        search = self.search_at(self.question.cluster.nodes)
        search.deadline_s = self._deadline_s(WHOLE_SHARE)
        for share in FREE_SHARES:
            if self.progress is not None:
                self.progress(f"the fastest plan that leaves {100 * share:.0f} % of the memory free", 0.75)
            search.best(1, free_bytes=share * search.capacity_bytes, most_rounds=FREE_ROUNDS)
        known = [found for each in self.searches.values() for found in each.known.values()]
        self.answer.front = tuple(self._front_of(known))
        self.answer.simulated = len(known)

    def _why(self) -> None:
        """The two best once more, here, with their timelines."""
        answer = self.answer
        if len(answer.best) < 2 or time.monotonic() > self._deadline_s(DETAIL_SHARE):
            return
        parts = []
        for found in answer.best[:2]:
            nodes = found.result.gpus // self.question.cluster.gpus_per_node
            scenario = answer.scenario
            if nodes != self.question.cluster.nodes:
                scenario = at_nodes(scenario, self.question.cluster, nodes)
            asked = self.library.look_up(scenario_of(scenario, found.candidate))
            parts.append(parts_s(run_plan(asked, asked.plans[0])))
        answer.why, answer.rival = compare(parts[0], parts[1]), answer.best[1].candidate.name

    def _limits(self) -> None:
        if self.progress is not None:
            self.progress("longest context, largest batch, fewest nodes", 0.85)
        if time.monotonic() > self._deadline_s(DETAIL_SHARE):
            return
        search = self.search_at(self.question.cluster.nodes)

        def resized(nodes: int) -> Cluster:
            return self._look_up(at_nodes(self.answer.scenario, self.question.cluster, nodes)).cluster

        self.answer.limits = limits(search.space, search.capacity_bytes, resized)

    def _elsewhere(self) -> None:
        """The front at half and double the sequence (tokens a step as they are) and the nodes (batch as it is)."""
        answer, cluster = self.answer, self.question.cluster
        sequence, batch = answer.scenario.workload.sequence, answer.batch
        places = []
        if sequence % 2 == 0:
            places.append(("half the sequence", cluster.nodes, sequence // 2, batch * 2))
        if batch % 2 == 0:
            places.append(("double the sequence", cluster.nodes, sequence * 2, batch // 2))
        if cluster.nodes % 2 == 0:
            places.append(("half the nodes", cluster.nodes // 2, sequence, batch))
        if cluster.fabric is not None:
            places.append(("double the nodes", cluster.nodes * 2, sequence, batch))
        for number, (what, nodes, length, sequences) in enumerate(places):
            if self.progress is not None:
                self.progress(f"the front at {what}", 0.9 + 0.1 * number / len(places))
            if time.monotonic() > self._deadline_s(DETAIL_SHARE):
                return
            answer.elsewhere += (self._ranked_at(what, nodes, length, sequences),)

    def _ranked_at(self, what: str, nodes: int, sequence: int, batch: int) -> Elsewhere:
        """The front's plans there, or where none of them runs the best that a round of simulations finds."""
        workload = self.answer.scenario.workload.model_copy(update={"sequence": sequence})
        search = self._search(self.answer.scenario.model_copy(update={"workload": workload}), nodes, batch)
        search.report, search.deadline_s = None, self._deadline_s(WHOLE_SHARE)
        tried: list[tuple[float, str, Candidate]] = []
        unfit = []
        for found in {each.candidate.name: each for each in (*self.answer.best, *self.answer.front)}.values():
            candidate = adapted(found.candidate.job, search.space, search.capacity_bytes)
            if candidate is None:
                unfit.append(found.candidate.name)
            else:
                tried.append((search.bound.step_s(candidate.job, candidate.mesh), candidate.name, candidate))
        ran: list[tuple[str, float]] = []
        for bound_s, name, candidate in sorted(tried, key=lambda each: each[:2]):
            if ran and bound_s >= min(step_s for _, step_s in ran):
                continue  # cannot be the fastest there
            answer = search.simulate([candidate])[0]
            if answer is not None and answer.ran:
                ran.append((name, answer.step_time_s))
        if not ran:
            ran = [(each.candidate.name, each.step_s) for each in search.best(1, most_rounds=1).plans]
        return Elsewhere(what, nodes, sequence, batch, tuple(sorted(ran, key=lambda each: each[1])), tuple(unfit))


def adapted(job: Job, space: Space, room_bytes: float) -> Candidate | None:
    """A plan in another space, with as many replicas as there is room for; None where it divides nothing or does not
    fit."""
    gpus = space.cluster.gpus
    replica = math.prod(job.plan.degree(axis) for axis in ("tsp", "tp", "sp", "pp"))
    if gpus % replica or space.batch % (gpus // replica):
        return None
    dp = gpus // replica
    sequences = space.batch // dp
    plan = replace(job.plan, degrees={**job.plan.degrees, "dp": dp}, micro_batch=math.gcd(job.sequences, sequences))
    plan = replace(plan, name=name_of(plan))
    moved = Job(space.model, plan, replace(space.work, sequences=sequences))
    try:
        moved.check()
        mesh = build_mesh(plan, gpus, space.cluster.gpus_per_node)
    except InputError:
        return None
    needed = sum(peak_memory(moved, scheme_of(plan).residency).values())
    return Candidate(moved, mesh, ()) if needed <= room_bytes else None
