"""The interface of an engine's scheduling policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ...base.errors import InputError
from ...base.registry import Registry
from ...scenario.section import Section
from ..rank_scheduler import RankScheduler, StepPlan
from ..requests import Request
from ..settings import Settings

if TYPE_CHECKING:
    from ...parallel.engine_memory import EngineLimits
    from ...parallel.serving_engine import ServingEngine


class ReplicaGroup:
    """The attention replicas of one engine, which step together."""

    def __init__(self, settings: Settings, scheduler: type[RankScheduler], count: int) -> None:
        #: Settings of the engine.
        self.settings = settings
        #: One scheduler per attention replica; mostly one.
        self.schedulers = tuple(scheduler(settings) for _ in range(count))

    def assign(self, request: Request) -> RankScheduler:
        """The scheduler for a request: of the replica with fewest requests, the first of equals."""
        return min(self.schedulers, key=lambda scheduler: scheduler.present)

    def schedule(self) -> list[StepPlan]:
        """The plan of each for the next step."""
        if len(self.schedulers) == 1:
            return [self.schedulers[0].schedule()]
        return [scheduler.schedule() for scheduler in self.schedulers]


class GroupsInStep(ReplicaGroup):
    """Engines with attention replicas of their own that begin every step together."""

    def __init__(self, groups: Sequence[ReplicaGroup]) -> None:
        self.settings = groups[0].settings
        self.groups = tuple(groups)
        self.schedulers = tuple(scheduler for group in groups for scheduler in group.schedulers)

    def assign(self, request: Request) -> RankScheduler:
        fewest = min(self.groups, key=lambda group: sum(scheduler.present for scheduler in group.schedulers))
        return fewest.assign(request)

    def schedule(self) -> list[StepPlan]:
        return [plan for group in self.groups for plan in group.schedule()]


class RunGroups(NamedTuple):
    """Names of the groups that published runs of a scheduler count to: of dense models, of models with experts, and on
    the AMD GPU that most of them ran on; empty: the scheduler's own."""

    dense: str = ""
    experts: str = ""
    mi355x: str = ""


@dataclass(frozen=True)
class Policy:
    """The scheduling policy of an engine.

    Attributes
    ----------
    name
        Its name in scenarios.
    options
        Its options by their real names, with their defaults.
    scheduler
        Scheduler class of one attention replica.
    block_option
        Option for the tokens of a block of the cache.
    token_option, sequence_option
        Options for the tokens of a step, and for the requests at once; empty: none.
    chunk_option
        Option for chunked prefill; empty: none.
    group
        Class of replicas that step together.
    switch
        Option for prefix caching, and its value for off.
    shares_tokens
        Whether attention replicas divide the tokens of a step; otherwise each has all of them.
    groups
        Groups of the project's validation that published runs with this scheduler belong to.
    in_batches
        Whether requests run in batches that begin and end together, even if some of them have ended.
    token_each
        Whether requests at once are limited to the tokens of a step: that is the default, and a larger number is
        refused.
    checkpoint_cache
        Type of the cache that the engine takes from a quantised checkpoint which names one; empty: none.
    """

    name: str
    options: type[Section]
    scheduler: type[RankScheduler]
    block_option: str
    token_option: str = ""
    sequence_option: str = ""
    chunk_option: str = field(default="", kw_only=True)
    group: type[ReplicaGroup] = ReplicaGroup
    shares_tokens: bool = False
    switch: tuple[str, bool] | None = None
    groups: RunGroups = field(default=RunGroups(), kw_only=True)
    in_batches: bool = field(default=False, kw_only=True)
    token_each: bool = field(default=False, kw_only=True)
    checkpoint_cache: str = field(default="", kw_only=True)

    def schedules(self, engine: ServingEngine) -> bool:
        """Whether it is the engine's own scheduler."""
        return engine.scheduler.name == self.name

    def own_options(self, engine: ServingEngine) -> dict[str, Any]:
        """Options that an engine sets otherwise than the defaults; none if its scheduler is another."""
        return dict(engine.scheduler.options) if self.schedules(engine) else {}

    def usual_options(self, engine: ServingEngine, memory_bytes: float) -> dict[str, Any]:
        """The engine's own options and its limits on GPUs with this memory: the defaults of a deployment."""
        limits = engine.limits_on(memory_bytes) if self.schedules(engine) else None
        if limits is None:
            return self.own_options(engine)
        stated = {self.token_option: limits.tokens, self.sequence_option: limits.sequences}
        # Options without a default are found by the engine for each attention replica.
        fields = self.options.model_fields
        usual = {name: value for name, value in stated.items() if name and fields[name].default is not None}
        return self.own_options(engine) | usual

    def caches_prefixes(self, options: Section) -> bool:
        """Whether prefix caching is on."""
        return self.switch is not None and getattr(options, self.switch[0]) != self.switch[1]

    def block_of(self, options: Mapping[str, Any]) -> int | None:
        """Tokens of a block by its options as stated; None: not stated."""
        stated = options.get(self.block_option)
        return stated if isinstance(stated, int) and not isinstance(stated, bool) and stated > 0 else None

    def of_replica(self, option: str, value: Any, replicas: int) -> Any:
        """The value for one of ``replicas`` attention replicas, where a user states ``value`` for the engine; mostly
        the same."""
        return value

    def settings_of(self, settings: Settings, replicas: int) -> Settings:
        """An engine's settings for one of its attention replicas."""
        options = {name: self.of_replica(name, value, replicas) for name, value in settings.options}
        if options == dict(settings.options):
            return settings
        own = settings.options.model_copy(update=options)
        others = settings.speculation, settings.states, settings.counts_on_host, settings.reads_only
        return Settings(own, settings.kv_tokens, settings.block_tokens, *others)

    def step_tokens(self, options: Mapping[str, Any]) -> int | None:
        """Token budget of a step by its options as stated; None: not stated."""
        stated = options.get(self.token_option)
        return stated if isinstance(stated, int) and stated > 0 else None

    def limited(self, limits: EngineLimits, tokens: int | None, sequences: int | None) -> EngineLimits:
        """An engine's limits with stated tokens per step and requests at once."""
        tokens = tokens or limits.tokens
        usual = min(limits.sequences, tokens) if self.token_each else limits.sequences
        return replace(limits, tokens=tokens, sequences=sequences or usual)

    def check(self, settings: Settings, request: Request) -> None:
        """Checks that a request can be served at all; raises InputError with the reason."""
        capacity, block = settings.capacity_blocks, settings.block_tokens
        most = settings.most_tokens(request)
        live = 0 if settings.states is None else settings.states.live
        if capacity is not None and -(-most // block) + live > capacity:
            lengths = f"a prompt of {request.prompt_tokens} tokens and {request.output_tokens} outputs"
            raise InputError(f"{lengths} take {most} tokens of cache, and there are {capacity * block} (kv_tokens)")


POLICIES: Registry[Policy] = Registry("scheduler", "tspsim.schedulers", Policy)
