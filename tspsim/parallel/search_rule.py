"""Search rules of plan keys: the values that a search over plans tries, or why it keeps a key as stated.

A rule stands where its key is declared: for fields of every plan in the annotation (:mod:`tspsim.parallel.switches`),
for keys of registered objects in the :class:`~tspsim.parallel.registries.Option`. A search reads both
(:mod:`.search_keys`) and prints them with its answer. Degrees, orders of micro-batches, open schedules and
recomputation are varied by the search itself, which knows in which order to bound them; their rules only say what to
print.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..base.registry import Registry
from ..model import Architecture
from ..steps import Step
from .balance import Balanced
from .reasons import AS_STATED
from .work import Work


class SearchedJob(Protocol):
    """What rules read of a :class:`~tspsim.parallel.job.Job`, which is defined above the keys of its plan."""

    @property
    def model(self) -> Architecture: ...
    @property
    def plan(self) -> Any: ...
    @property
    def work(self) -> Work: ...
    @property
    def step(self) -> Step: ...
    @property
    def scheme(self) -> Any: ...
    @property
    def training(self) -> bool: ...
    @property
    def copies(self) -> int: ...
    @property
    def micro_batches(self) -> int: ...
    @property
    def replicates_tokens(self) -> bool: ...
    @property
    def expert_loads(self) -> Balanced: ...
    @property
    def unequal(self) -> bool: ...
    @property
    def assignment(self) -> Any: ...


@dataclass(frozen=True)
class SearchRule:
    """The search rule of one key of a plan.

    Attributes
    ----------
    name
        The key; empty: the field or option with the rule.
    why_not
        Why a search keeps it as stated; empty: it is searched.
    while_serving
        Whether it is also searched for serving steps; otherwise kept as stated there.
    called
        Its name in answers; empty: ``name``.
    of
        (model, work) → whether it can matter; otherwise it is neither searched nor mentioned.
    values
        (model, work) → values that are tried, in words; empty: all legal ones.
    left
        (model, work) → values that are not tried, and why.
    ways
        Job → candidates beside its present value, some of which may not be legal. None: the search varies the key
        itself.
    kernels
        Whether it changes the kernels of a rank, or what they wait for, so that each value has its own bound; otherwise
        only the order and time of the same work.
    of_requests
        What a search of plans that serve requests tries, in words; empty: nothing.
    used
        Whether a job uses it; an answer says that a stated key without use does nothing.
    """

    name: str = ""
    why_not: str = ""
    while_serving: bool = True
    called: str = ""
    of: Callable[[Architecture, Work], bool] = lambda model, work: True
    values: Callable[[Architecture, Work], Sequence[str]] = lambda model, work: ()
    left: Callable[[Architecture, Work], Mapping[str, str]] = lambda model, work: {}
    ways: Callable[[Any], Iterable[Any]] | None = None
    kernels: bool = False
    of_requests: str = ""
    used: Callable[[Any], bool] = lambda job: True

    def reason(self, work: Work) -> str:
        """Why a search for such steps keeps it as stated; empty: it is searched."""
        return self.why_not or ("" if self.while_serving or not work.step.serves else AS_STATED)


#: Keys that no field or option of this room declares.
SEARCH_RULES: Registry[SearchRule] = Registry("searched key", "tspsim.searched_keys", SearchRule)


class Skippable(Protocol):
    """A registered object that says why a search skips it; with an empty reason it is tried."""

    @property
    def name(self) -> str: ...

    @property
    def why_not(self) -> str: ...


def rule_for_objects(objects: Callable[[Work], Iterable[Skippable]], **more: Any) -> SearchRule:
    """The rule of a key whose values are registered objects: those of ``objects`` are tried unless they say why not;
    ``more`` as in :class:`SearchRule`."""
    return SearchRule(
        values=lambda model, work: [thing.name for thing in objects(work) if not thing.why_not],
        left=lambda model, work: {thing.name: thing.why_not for thing in objects(work) if thing.why_not},
        **more,
    )


def with_experts(model: Architecture, work: Work) -> bool:
    return model.experts is not None


def trains(model: Architecture, work: Work) -> bool:
    return work.step.trains


def of_lengths(model: Architecture, work: Work) -> bool:
    """Whether sequences of a step differ in length."""
    return bool(work.unequal.tokens)


def serves(model: Architecture, work: Work) -> bool:
    return work.step.serves


def not_serving(model: Architecture, work: Work) -> bool:
    return not work.step.serves


def divides_tokens(model: Architecture, work: Work) -> bool:
    """Whether ranks may divide the tokens of a sequence."""
    return work.step.shards_tokens


def decodes(model: Architecture, work: Work) -> bool:
    """Whether ranks of a serving step may share contexts."""
    return work.step.serves and not work.step.shards_tokens


def shares_tokens(job: SearchedJob) -> bool:
    """Whether ranks of a replica have tokens of their own, in the step or in the prompts that a decode step needs."""
    return bool(job.plan.token_shards > 1)


def spreads_experts(job: SearchedJob) -> bool:
    """Whether experts are spread over the ranks of a group, or have a pool of their own."""
    return job.model.experts is not None and (job.plan.ep > 1 or "expert_pool" in job.plan.options)
