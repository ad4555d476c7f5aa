"""A plan as replicas that serve: its engine as the user configures it, room for caches, costs, or why it cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from ..base.errors import InputError, UnknownNameError, describe
from ..base.memo import once
from ..base.units import compact
from ..model import Architecture
from ..parallel import Job, Plan, scheme_axes, scheme_of
from ..parallel.decode import draft_pool
from ..parallel.remedy import fitting
from ..parallel.serving_engine import ServingEngine
from ..parallel.state import capacity, served
from ..scenario.tiers import Tiers
from ..scenario.traffic import TrafficSpec
from ..scenario.workload import SpeculationSpec
from ..step.description import cost_of, settings_of, too_large
from ..step.question import Question
from ..step.result import Memory
from ..steps import Speculation
from ..traffic.kind import Ints
from .blocks import States
from .costs import ProgramCosts
from .engine import Engine
from .metrics import Bill, Cache
from .policies import POLICIES, Policy
from .pooled_drafts import costs_of
from .replicas import Members, ReplicaPool
from .routers import ROUTERS
from .service import Dispatcher
from .speculation import AcceptanceModel as Drafts
from .tier_specs import tier_specs
from .tiers import TieredPool
from .work import Floats, LaunchedCost, StepwiseCost, StepWork

#: Keys of ``engine`` that are no option of a scheduler: which one, and blocks or tokens of cache instead of the rule's.
POLICY, BLOCKS, TOKENS = "policy", "num_gpu_blocks", "kv_tokens"
ROUTER = "router"


def request_tokens(traffic: TrafficSpec, model: Architecture) -> Ints:
    """Tokens of the prompt and the output of every request, at the first load. Raises InputError where the model has
    fewer positions."""
    first = traffic.points()[0]
    requests = (first.at_rate(1.0) if first.arrivals.searches else first).draw(model)
    return requests.prompt_tokens + requests.output_tokens


@dataclass(frozen=True)
class Deployment:
    """One plan of a question with traffic."""

    #: Looked up, with the speculation of this plan and the engine as it is configured.
    question: Question
    #: Of the question.
    plan: Plan
    #: Of the engine by their real names, as stated: the workload's, and the plan's over them.
    options: Mapping[str, Any]
    #: Where options and the router are stated, for messages: key → path.
    place: Mapping[str, str]
    speculation: SpeculationSpec | None = None
    router: str = "round_robin"
    tiers: Tiers | None = None
    #: So many of its clusters stand beside each other behind one router, and share nothing.
    machines: int = 1
    #: It reads prompts for engines that go on with their answers.
    reads_only: bool = False

    def __post_init__(self) -> None:
        if self.router not in ROUTERS:
            raise UnknownNameError("router", self.router, ROUTERS.names(), key=self.place.get(ROUTER))

    @once
    def dp_size(self) -> int:
        """Attention replicas that step together: those that share experts, or that one replica drafts for."""
        return self.plan.attention_replicas * self.verifying

    @property
    def verifying(self) -> int:
        """Engines of their own that step together: those that one replica drafts for."""
        return draft_pool.group(self.plan)[0]

    @property
    def replicas(self) -> int:
        """Engines, or groups of those that step together, that share nothing."""
        return self.machines * (self.plan.dp // (self.plan.attention_replicas * draft_pool.group(self.plan)[1]))

    @once
    def drafts(self) -> Speculation | None:
        """What decoding sequences verify, with the acceptance that holds for the model."""
        if self.speculation is None or not self.speculation.tokens:
            return None
        return self.speculation.served(self.question.scenario.workload.model).speculation()

    @once
    def configured(self) -> Question:
        """The question with the engine's own limits as they are configured: graphs and memory follow them."""
        stack, policy = self.question.work.stack, self.policy
        replicas = self.plan.attention_replicas
        few = replicas > 1 and self.plan.dispatch.few_tokens
        try:
            engine = configured(stack.engine, policy, self.options, replicas, few=few)
        except InputError as error:
            raise InputError(error.message, key=self.place[str(error.key)]) from None
        work = replace(self.question.work, stack=replace(stack, engine=engine))
        return replace(self.question, work=work)

    @once
    def costs(self) -> ProgramCosts:
        """Of its steps."""
        return costs_of(self.configured, self.plan, speculation=self.drafts, num_gpu_blocks=self._whole(BLOCKS))

    @property
    def every_cost(self) -> tuple[ProgramCosts, ...]:
        """Of all its kinds of engines."""
        return (self.costs,)

    @once
    def engine(self) -> Engine:
        """The scheduler, its options, and its cache.

        Raises
        ------
        InputError
            An option is unknown or out of range; it is told where it is stated.
        """
        native, policy, tokens = self.configured.work.stack.engine, self.policy, self._room
        block, drafts = self.costs.block_tokens, self._drafts_of_engine
        own = (POLICY, BLOCKS, TOKENS, native.scheduler.share)
        options = {key: value for key, value in self.options.items() if key not in own}
        try:
            return Engine.of_stack(
                native,
                self.question.device.visible_memory_bytes,
                kv_tokens=None if tokens is None else max(1, tokens),  # of a plan without room its options are told
                block_tokens=block,
                scheduler=policy.name,
                speculation=drafts,
                states=self.states,
                counts_on_host=self.plan.attention_replicas > 1 and self.plan.dispatch.counts_on_host,
                reads_only=self.reads_only,
                **options,
            )
        except InputError as error:
            option, dot, inside = (getattr(error, "name", None) or error.key or "").partition(".")
            where = self.place.get(option)
            where = f"{where}{dot}{inside}" if where else self.place.get(POLICY, "workload.stack")
            raise InputError(error.message, key=where) from None

    @property
    def _room(self) -> int | None:
        """Tokens that the cache of an attention replica holds."""
        stated = self._whole(TOKENS, least=0)
        if stated is not None:
            return stated
        rule, states = self.configured.work.stack.engine.states, self.states
        if rule is None or states is None or rule.kept == "never":
            return self._room_of_windows if self.costs.capacity.has_windows else self.costs.capacity_tokens
        return self.costs.tokens_beside_states(1.0 / (1.0 + rule.share))

    @property
    def _room_of_windows(self) -> int | None:
        """Tokens in sequences as long as the mean request: each takes its windows, however short. At least the longest
        request if that fits alone."""
        if self.options.get(BLOCKS) is not None:
            return self.costs.capacity_tokens
        traffic = self.question.scenario.traffic
        assert traffic is not None
        lengths = request_tokens(traffic, self.question.model)
        room, longest = self.costs.tokens_of(ceil(lengths.mean())), int(lengths.max())
        alone = self.costs.capacity.whole_sessions(longest) > 0
        return max(room, longest + self.costs.block_tokens) if room is not None and alone else room

    @property
    def _remembers(self) -> bool:
        """Whether the engine shares equal beginnings, as stated or by default."""
        policy = self.policy
        if policy.switch is None:
            return False
        name, off = policy.switch
        own = policy.own_options(self.question.work.stack.engine)
        usual = own.get(name, policy.options.model_fields[name].default)
        return bool(self.options.get(name, usual) != off)

    @once
    def states(self) -> States | None:
        """How the engine keeps states of linear attention; None: the model has none, or nobody says."""
        rule, capacity = self.configured.work.stack.engine.states, self.costs.capacity
        if rule is None or not capacity.has_states:
            return None
        remembers, block = self._remembers, self.costs.block_tokens
        if rule.kept == "never":
            return States(most=0)
        grid, decoding = max(1, rule.grid // block), rule.decoding // block
        if rule.kept == "blocks":
            blocks = capacity.state_blocks
            live = rule.live + (self.drafts.tokens if self.drafts else 0)
            every = rule.every // block
            return States(live * blocks, blocks, rule.at, grid, every, decoding, inside=bool(rule.inside))
        if not remembers:
            return None
        part = rule.share / (1.0 + rule.share)
        sizes = [(stage.budget.size_bytes, capacity.state_bytes(stage)) for stage in capacity.stages]
        held = min(part * room / size for room, size in sizes if size)
        running = max(1, int(held) // rule.copies)
        most = max(0, int(held) - rule.live * running)
        return States(at=rule.at, grid=grid, decoding=decoding, most=most, running=running)

    @property
    def policy(self) -> Policy:
        """Who schedules; raises UnknownNameError."""
        stated = self.options.get(POLICY)
        try:
            return POLICIES.get(str(stated or self.question.work.stack.engine.scheduler.name))
        except UnknownNameError as error:
            raise error.at(key=self.place.get(POLICY, "workload.stack")) from None

    @property
    def _drafts_of_engine(self) -> Drafts | None:
        spec = self.speculation
        if spec is None or self.drafts is None:
            return None
        scenario = self.question.scenario
        assert scenario.traffic is not None
        rates, _ = spec.rates(scenario.workload.model)
        return Drafts(rates, spec.mode == "sampled", scenario.traffic.seed, spec.tokens if spec.tree else None)

    def _whole(self, key: str, least: int = 1) -> int | None:
        value = self.options.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            words = "one" if least else "zero"
            raise InputError(f"'{value}' is not a whole number of at least {words}", key=self.place[key])
        return value

    @once
    def memory(self) -> Memory:
        """What a started engine takes of a GPU: weights, the largest pass, graphs, runtime, room for caches."""
        configured_, plan = self.configured, self.plan
        job = self.costs.programs.decoding((1,))
        engine, visible = configured_.work.stack.engine, configured_.device.visible_memory_bytes
        stages = [job.chunks(stage) for stage in range(plan.pp)]
        budgets = [capacity.budget_of(job, visible, chunks).size_bytes for chunks in stages]
        fullest = min(range(plan.pp), key=lambda stage: budgets[stage])
        ranks = configured_.cluster.gpus // plan.dp
        context = engine.context_bytes.value or configured_.work.runtime_reserve_bytes
        parts = {
            "weights": served.weight_bytes(job, scheme_of(job.plan).residency.weight_shards(job), stages[fullest]),
            "activations": capacity.activation_bytes(job, visible, stages[fullest]),
            "graphs": engine.graph_bytes.value,
            "context": context + engine.peer_bytes.value * (ranks - 1),
            "kv_cache": budgets[fullest],
        }
        return Memory(parts, visible)

    @property
    def degrees(self) -> dict[str, int]:
        """Sizes of its axes."""
        return {axis: self.plan.degree(axis) for axis in (*scheme_axes(), "pp", "ep", "dp")}

    @property
    def settings(self) -> dict[str, Any]:
        """Its switches, and how its engine is set."""
        options = self.engine.options.model_dump(mode="json")
        engine_settings = {"scheduler": self.engine.scheduler, **options, "kv_tokens": self.engine.kv_tokens}
        drafts = self.speculation.model_dump(mode="json") if self.speculation else None
        return settings_of(self.plan) | {
            "engine": engine_settings,
            "replicas": self.replicas,
            "attention_replicas": self.dp_size,
            "router": self.router,
            "speculation": drafts,
        }

    def refusal(self, longest: int) -> str | None:
        """Why it cannot serve requests of up to so many tokens; None where it can."""
        if not self.memory.fits:
            return too_large(self.memory)
        room = self._room
        if room is not None and longest - 1 > room:
            full = not room and TOKENS not in self.options
            why = ": weights, activations and graphs take all the engine's share of memory" if full else ""
            held = f"the caches of a replica, which hold {compact(room)}{why}"
            return f"a request of {longest:,} tokens does not fit {held}"
        return None

    def advice(self, longest: int) -> str:
        """Keys of the plan with which the same GPUs could serve such requests, in words; empty where none are known."""

        def fits(job: Job) -> bool:
            try:
                return replace(self, plan=job.plan).refusal(longest) is None
            except InputError:
                return False

        keys = fitting(self.costs.programs.decoding((1,)), fits)
        return f"; it fits with {keys}" if keys else ""

    @property
    def gpus(self) -> int:
        """All that it takes."""
        return self.machines * self.question.cluster.gpus

    @property
    def bill(self) -> Bill:
        """Prices and power of its GPUs."""
        return Bill(cost_of(self.question, 1.0, 1.0)["usd_per_gpu_hour"], self.question.device.all_in_watts)

    def engines(self) -> list[tuple[str, Deployment, int, bool]]:
        """Engines to be started: the name of their pool (empty: there is one), one replica, how many there are, and
        whether caches go on while prompts are read."""
        return [("", self, self.replicas, False)]

    def cost(self, wall_s: float, tokens: float) -> dict[str, Any]:
        """Money and energy of so many tokens in so long (:func:`tspsim.step.description.cost_of`)."""
        return cost_of(self.question, wall_s, tokens)

    def cache(self, length: int) -> Cache:
        """Room for caches of all replicas, and sessions of so many tokens."""
        tokens, caches = self.engine.kv_tokens, self.replicas * self.dp_size
        if tokens is None:
            return Cache(None)
        block = self.engine.block_tokens
        stated = any(self.options.get(key) is not None for key in (BLOCKS, TOKENS))
        states = self.engine.states
        if not stated and (states is None or states.most == 0):
            return Cache(tokens * caches, self.costs.capacity.sessions(length) * caches)
        sessions = tokens / ((-(-length // block) + (states.live if states else 0)) * block)
        most = sessions if states is None or states.running is None else float(states.running)
        return Cache(tokens * caches, min(sessions, most) * caches)

    def pool(self, count: int, factor: float = 1.0, name: str = "replica") -> ReplicaPool:
        """So many of its engines behind their router, with steps that take ``factor`` times as long."""
        cost = self.costs if factor == 1.0 else Scaled(self.costs, factor)
        members = [Members(self.engine, cost, count, self.plan.attention_replicas, self.verifying)]
        if self.tiers is None:
            return ReplicaPool(members, self.router, name)
        specs = tier_specs(self.tiers, self.question.cluster.node, self.costs.capacity, self.dp_size)
        layers, overlap = self.question.model.layers, self.tiers.overlap
        return TieredPool(members, self.router, name, tiers=specs, layers=layers, overlap=overlap)

    def dispatcher(self, factor: float = 1.0) -> Dispatcher:
        """Its replicas behind their router, with steps that take ``factor`` times as long."""
        return self.pool(self.replicas, factor)


@dataclass(frozen=True)
class Scaled:
    """A cost times a factor."""

    cost: StepwiseCost
    factor: float

    @property
    def launching_s(self) -> float:
        return self.factor * self.cost.launching_s if isinstance(self.cost, LaunchedCost) else 0.0

    def seconds(self, works: Sequence[StepWork]) -> float:
        return self.factor * self.cost.seconds(works)

    def decode_ends_s(self, works: Sequence[StepWork], steps: int) -> Floats:
        return self.decode_each_s(works, steps).cumsum()

    def decode_each_s(self, works: Sequence[StepWork], steps: int) -> Floats:
        return self.factor * self.cost.decode_each_s(works, steps)


def configured(
    engine: ServingEngine, policy: Policy, options: Mapping[str, Any], replicas: int = 1, *, few: bool = False
) -> ServingEngine:
    """An engine of so many attention replicas with the limits and the share of memory that its user states by their
    real names; sequences are then those of one replica. ``few``: experts are reached by messages for few tokens.

    Raises
    ------
    InputError
        The share is none; told with its own name.
    """
    names = policy.sequence_option, engine.scheduler.share
    sequences, share = (options.get(name) if name else None for name in names)
    tokens = policy.step_tokens(options)
    if tokens is None and few and engine.few_tokens and policy.schedules(engine):
        tokens = engine.few_tokens
    sequences = sequences if isinstance(sequences, int) else None  # what it is instead, the scheduler refuses
    if sequences is not None:
        sequences = policy.of_replica(policy.sequence_option, sequences, replicas)
    if sequences is not None:
        engine = replace(engine, slots=sequences)
    if policy.token_each and tokens is not None and sequences is not None and sequences > tokens:
        problem = f"{sequences} is more than the {tokens} tokens of a step ({policy.token_option})"
        raise InputError(f"{problem}; the engine refuses that", key=policy.sequence_option)
    if tokens is not None or sequences is not None:
        limits = tuple([policy.limited(limit, tokens, sequences) for limit in engine.limits])
        engine = replace(engine, limits=limits)
    block = policy.block_of(options)
    if block is not None:
        engine = replace(engine, block_tokens=block)
    if engine.scheduler.shares_tokens != policy.shares_tokens:
        engine = replace(engine, scheduler=replace(engine.scheduler, shares_tokens=policy.shares_tokens))
    if share is not None:
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0.0 < share <= 1.0:
            problem = f"{describe(share)} is no share of memory; it must be above 0 and at most 1"
            raise InputError(problem, key=engine.scheduler.share)
        engine = replace(engine, memory=engine.memory.with_share(float(share)))
    return engine
