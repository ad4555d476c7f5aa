"""What a scheduler of an engine is to everybody else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ...base.errors import InputError
from ...base.registry import Registry
from ...scenario.section import Section
from ..lane import Lane, StepPlan
from ..requests import Request
from ..settings import Settings

if TYPE_CHECKING:
    from ...parallel.serving_engine import EngineLimits, ServingEngine


class ReplicaGroup:
    """Attention replicas of one engine, which step together."""

    def __init__(self, settings: Settings, lane: type[Lane], count: int) -> None:
        #: Of the engine.
        self.settings = settings
        #: One an attention replica; mostly one.
        self.lanes = tuple(lane(settings) for _ in range(count))

    def deal(self, request: Request) -> Lane:
        """Who serves a request: the replica with fewest, the first of equals."""
        return min(self.lanes, key=lambda lane: lane.present)

    def schedule(self) -> list[StepPlan]:
        """What each does in the next step."""
        if len(self.lanes) == 1:
            return [self.lanes[0].schedule()]
        return [lane.schedule() for lane in self.lanes]


class GroupsInStep(ReplicaGroup):
    """Engines, each with attention replicas of its own, that begin every step together."""

    def __init__(self, groups: Sequence[ReplicaGroup]) -> None:
        self.settings = groups[0].settings
        self.groups = tuple(groups)
        self.lanes = tuple(lane for group in groups for lane in group.lanes)

    def deal(self, request: Request) -> Lane:
        fewest = min(self.groups, key=lambda group: sum(lane.present for lane in group.lanes))
        return fewest.deal(request)

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
    """How an engine schedules.

    Attributes
    ----------
    name
        As scenarios write it.
    options
        Its options by their real names, with their defaults.
    lane
        Queues of one attention replica, and what its next step does.
    block_option
        Which option says how many tokens a block of the cache has.
    token_option, sequence_option
        And how many tokens a step has at most, and how many requests run at once; empty: none does.
    chunk_option
        Which option says whether a prompt may be computed in several steps; empty: its tokens of a step do, or none.
    group
        Several replicas that step together.
    switch
        Which option says whether equal beginnings are shared, and its value where they are not.
    shares_tokens
        Several attention replicas share the tokens of a step, each having its part; otherwise each has all of them.
    groups
        How the project's validation groups published runs of it.
    in_batches
        Requests run in batches that begin and end together, whatever of them has ended.
    token_each
        No more requests run at once than a step has tokens: as many where nobody states fewer, and a larger number is
        refused.
    """

    name: str
    options: type[Section]
    lane: type[Lane]
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

    def schedules(self, engine: ServingEngine) -> bool:
        """Whether it is the scheduler that an engine has of itself."""
        return engine.scheduler.name == self.name

    def own_options(self, engine: ServingEngine) -> dict[str, Any]:
        """Options that an engine sets otherwise than the defaults; none where its scheduler is another."""
        return dict(engine.scheduler.options) if self.schedules(engine) else {}

    def usual_options(self, engine: ServingEngine, memory_bytes: float) -> dict[str, Any]:
        """The same, and an engine's limits on GPUs of so much memory: what it takes where nobody states anything."""
        limits = engine.limits_on(memory_bytes) if self.schedules(engine) else None
        if limits is None:
            return self.own_options(engine)
        stated = {self.token_option: limits.tokens, self.sequence_option: limits.sequences}
        # What is none by default an engine finds by itself, of every attention replica.
        fields = self.options.model_fields
        usual = {name: value for name, value in stated.items() if name and fields[name].default is not None}
        return self.own_options(engine) | usual

    def remembers(self, options: Section) -> bool:
        """Whether equal beginnings are shared."""
        return self.switch is not None and getattr(options, self.switch[0]) != self.switch[1]

    def block_of(self, options: Mapping[str, Any]) -> int | None:
        """Tokens of a block by its options, as stated; None: they say nothing of it."""
        stated = options.get(self.block_option)
        return stated if isinstance(stated, int) and not isinstance(stated, bool) and stated > 0 else None

    def of_replica(self, option: str, value: Any, replicas: int) -> Any:
        """What one of so many attention replicas that step together runs by, where a user states ``value`` of the
        engine; most engines mean one replica."""
        return value

    def settings_of(self, settings: Settings, replicas: int) -> Settings:
        """An engine's settings as one of its attention replicas goes by them."""
        options = {name: self.of_replica(name, value, replicas) for name, value in settings.options}
        if options == dict(settings.options):
            return settings
        own = settings.options.model_copy(update=options)
        return Settings(own, settings.kv_tokens, settings.block_tokens, settings.speculation, settings.states)

    def step_tokens(self, options: Mapping[str, Any]) -> int | None:
        """Tokens that a step has at most by its options, as stated; None: they say nothing of it."""
        stated = options.get(self.token_option)
        return stated if isinstance(stated, int) and stated > 0 else None

    def limited(self, limits: EngineLimits, tokens: int | None, sequences: int | None) -> EngineLimits:
        """An engine's limits with the tokens of a step and the requests at once that somebody states."""
        tokens = tokens or limits.tokens
        usual = min(limits.sequences, tokens) if self.token_each else limits.sequences
        return replace(limits, tokens=tokens, sequences=sequences or usual)

    def check(self, settings: Settings, request: Request) -> None:
        """Whether a request can ever be served; raises InputError with why not."""
        capacity, block = settings.capacity_blocks, settings.block_tokens
        most = settings.most_tokens(request)
        live = 0 if settings.states is None else settings.states.live
        if capacity is not None and -(-most // block) + live > capacity:
            lengths = f"a prompt of {request.prompt_tokens} tokens and {request.output_tokens} outputs"
            raise InputError(f"{lengths} take {most} tokens of cache, and there are {capacity * block} (kv_tokens)")


POLICIES: Registry[Policy] = Registry("scheduler", "tspsim.schedulers", Policy)
