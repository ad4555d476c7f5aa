"""What a search over plans does with a key: the values that it tries, or why it leaves the key alone.

A key says so where it is declared: a field of every plan in its annotation (:mod:`tspsim.parallel.switches`), a key of
a registered object in its :class:`~tspsim.parallel.registries.Option`. A search reads both (:mod:`.search_keys`) and
prints them with its answer. Degrees, orders of micro-batches, schedules that are left open for the machine, and what is
kept for a backward are tried by the search itself, which knows in which order to bound them; what it is told of them
here is what it may print.
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
    """What rules of a search read of a :class:`~tspsim.parallel.job.Job`, which is defined above the keys of its
    plan."""

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
    def dealt(self) -> Any: ...


@dataclass(frozen=True)
class Sought:
    """One key of a plan.

    Attributes
    ----------
    name
        The key; empty: that of the field or option which says it.
    why_not
        Why a search leaves it as it is stated; empty: it is searched.
    while_serving
        Of a step that serves it is searched too; otherwise left as it is stated there.
    called
        What answers call it; empty: its name.
    of
        (model, work) → whether it can matter there; where it cannot, it is neither searched nor spoken of.
    values
        (model, work) → values that are looked at, in words; none: all that are legal.
    left
        (model, work) → values that are not, and why.
    ways
        Job → values worth a look besides the one that it has, none where they could not matter; not all of them legal.
        None: the search has its own way to go through them.
    kernels
        It changes which kernels a rank runs, or what they wait for: bounded by itself. Otherwise only the order and the
        moment of what runs anyway.
    of_requests
        What a search of plans that serve requests tries of it, in words; empty: nothing.
    used
        Whether a job asks for it. An answer says of a key that is stated, and not asked for, that it does nothing.
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
        """Why a search of such steps leaves it alone; empty: it is searched."""
        return self.why_not or ("" if self.while_serving or not work.step.serves else AS_STATED)


#: Keys that no field or option of this room declares.
SOUGHT: Registry[Sought] = Registry("searched key", "tspsim.searched_keys", Sought)


class SaysWhyNot(Protocol):
    """A registered object that says itself why a search leaves it alone; with an empty reason it is tried."""

    @property
    def name(self) -> str: ...

    @property
    def why_not(self) -> str: ...


def sought_objects(objects: Callable[[Work], Iterable[SaysWhyNot]], **more: Any) -> Sought:
    """A key whose values are registered objects: of those of a question (``objects``) which are tried, and why the
    others are not; ``more`` as :class:`Sought` has it."""
    return Sought(
        values=lambda model, work: [thing.name for thing in objects(work) if not thing.why_not],
        left=lambda model, work: {thing.name: thing.why_not for thing in objects(work) if thing.why_not},
        **more,
    )


def with_experts(model: Architecture, work: Work) -> bool:
    return model.experts is not None


def trains(model: Architecture, work: Work) -> bool:
    return work.step.trains


def of_lengths(model: Architecture, work: Work) -> bool:
    """Sequences of a step differ in length."""
    return bool(work.unequal.tokens)


def serves(model: Architecture, work: Work) -> bool:
    return work.step.serves


def serves_nobody(model: Architecture, work: Work) -> bool:
    return not work.step.serves


def divides_tokens(model: Architecture, work: Work) -> bool:
    """Ranks may have tokens of a sequence each."""
    return work.step.shards_tokens


def decodes(model: Architecture, work: Work) -> bool:
    """Steps of an engine whose ranks may share contexts."""
    return work.step.serves and not work.step.shards_tokens


def shares_tokens(job: SearchedJob) -> bool:
    """Ranks of a replica have tokens of their own: of a step, or where it decodes of the prompts that need room."""
    return bool(job.plan.token_shards > 1)


def spreads_experts(job: SearchedJob) -> bool:
    """Experts are spread over the ranks of a group, or keep a pool of their own."""
    return job.model.experts is not None and (job.plan.ep > 1 or "expert_pool" in job.plan.options)
