"""What a search over plans does with each of their keys: the values that it tries, or why it leaves the key alone.

Whoever owns a key says so beside what the key switches, once: a search asks here, and prints both with its answer. A
key of a registered object's own (:class:`~tspsim.parallel.choice.Option`) may say it there instead. Degrees, orders of
micro-batches, schedules that are left open for the machine, and what is kept for a backward are tried by the search
itself, which knows in which order to bound them; what it is told of them here is what it may print.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..base.registry import Registry
from ..model import Architecture
from .job import Job
from .reasons import AS_STATED, OF_THE_MACHINE
from .work import Work


@dataclass(frozen=True)
class Sought:
    """One key of a plan.

    Attributes
    ----------
    name
        The key.
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

    name: str
    why_not: str = ""
    while_serving: bool = True
    called: str = ""
    of: Callable[[Architecture, Work], bool] = lambda model, work: True
    values: Callable[[Architecture, Work], Sequence[str]] = lambda model, work: ()
    left: Callable[[Architecture, Work], Mapping[str, str]] = lambda model, work: {}
    ways: Callable[[Job], Iterable[Any]] | None = None
    kernels: bool = False
    of_requests: str = ""
    used: Callable[[Job], bool] = lambda job: True

    def reason(self, work: Work) -> str:
        """Why a search of such steps leaves it alone; empty: it is searched."""
        return self.why_not or ("" if self.while_serving or not work.step.serves else AS_STATED)


SOUGHT: Registry[Sought] = Registry("searched key", "tspsim.searched_keys", Sought)


class SaysWhyNot(Protocol):
    """A registered object that says itself why a search leaves it alone; with an empty reason it is tried."""

    @property
    def name(self) -> str: ...

    @property
    def why_not(self) -> str: ...


def sought_objects(name: str, objects: Callable[[Work], Iterable[SaysWhyNot]], **more: Any) -> Sought:
    """A key whose values are registered objects: of those of a question (``objects``) which are tried, and why the
    others are not; ``more`` as :class:`Sought` has it."""
    return Sought(
        name,
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


def decodes(model: Architecture, work: Work) -> bool:
    """Steps of an engine whose ranks may share contexts."""
    return work.step.serves and not work.step.shards_tokens


def shares_tokens(job: Job) -> bool:
    """Ranks of a replica have tokens of their own: of a step, or where it decodes of the prompts that need room."""
    return job.plan.token_shards > 1


def spreads_experts(job: Job) -> bool:
    """Experts are spread over the ranks of a group, or keep a pool of their own."""
    return job.model.experts is not None and (job.plan.ep > 1 or "expert_pool" in job.plan.options)


def searched_keys(model: Architecture, work: Work) -> list[Sought]:
    """Keys that a search goes through for a question, in the order in which they were declared."""
    return [key for key in SOUGHT.values() if not key.reason(work) and key.of(model, work)]


def left_alone(model: Architecture, work: Work) -> dict[str, list[str]]:
    """Why keys that could matter are left as they are stated → these keys."""
    reasons: dict[str, list[str]] = {}
    for key in SOUGHT.values():
        if not key.of(model, work):
            continue
        if key.reason(work):
            reasons.setdefault(key.reason(work), []).append(key.called or key.name)
        for value, reason in key.left(model, work).items():
            reasons.setdefault(reason, []).append(f"{key.called or key.name}: {value}")
    return reasons


def ways_of(job: Job, keys: Sequence[Sought]) -> Iterator[Job]:
    """The job itself, then with every combination of what ``keys`` try; not all of them legal."""
    tried = [key for key in keys if key.ways is not None]
    if not tried:
        yield job
        return
    *others, last = tried
    for first in ways_of(job, others):
        yield first
        assert last.ways is not None
        for value in last.ways(first):
            yield replace(first, plan=first.plan.with_values({last.name: value}))


# --- keys that nobody in this room owns -------------------------------------------------------------------------

SOUGHT.register(Sought("algorithms", why_not="the node's library chooses them"))
SOUGHT.register(Sought("routing", why_not=OF_THE_MACHINE))
