"""Features: what a plan may have beside its scheme, one object each, used only by jobs that state one of its keys.

A feature declares the keys that switch it on, its own and others'. :func:`features_of` returns those of a job; a plan
without these keys never reaches their code. A check of a key that needs others runs too, since the key is the
feature's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..base.memo import remembered
from ..base.registry import Registry, changes
from ..model.layer import ServingLayer
from ..steps import STEPS
from .builder import ProgramBuilder
from .job import Job
from .ledger import Buffer
from .pipeline import Refusal
from .placement import Chunk
from .plan import Plan, check_own_keys
from .registries import ContextShare, Option
from .scheme import Scheme, WholeTokens

#: (builder, job, layer, context share, dependencies) → dependencies of what follows.
Attend = Callable[[ProgramBuilder, Job, ServingLayer, ContextShare, list[int]], list[int]]


@dataclass(frozen=True)
class Feature:
    """A feature of plans.

    Attributes
    ----------
    name, summary
        Its name, and a line for the catalogue.
    options
        Keys that it adds to a scenario's plan; a stated one switches it on.
    keys
        Further keys that switch it on: fields of the plan and names of its axes, ``model.`` and ``work.`` with a field
        of the architecture or of the work. A key counts as stated if it differs from its default.
    scheme
        The scheme whose plans may have it; empty: all.
    serves
        Whether it is for serving steps alone.
    first
        Whether its check precedes that of the scheme, which relies on it.
    check
        Job → the key of the plan that does not fit and why; None if all fit.
    notes
        Job → notes for readers of such a plan.
    buffers
        (job, chunks of a rank) → buffers of a rank.
    axes
        Job → mesh axes along which programs differ because of it.
    groups
        Plan → axes of groups that it adds, with the neighbours of each mesh axis in a group.
    context
        (plan, how ranks share the contexts of a serving step) → the same with the feature.
    pieces
        Parts of a serving step in which all ranks have every token → the same with the feature.
    attends
        Writer of the attention of a layer of such a step → the same with the feature.
    """

    name: str
    summary: str
    options: tuple[Option, ...] = ()
    keys: tuple[str, ...] = ()
    scheme: str = ""
    serves: bool = False
    first: bool = False
    check: Callable[[Job], Refusal] = lambda job: None
    notes: Callable[[Job], Iterable[str]] = lambda job: ()
    buffers: Callable[[Job, Sequence[Chunk]], Iterable[Buffer]] = lambda job, chunks: ()
    axes: Callable[[Job], tuple[str, ...]] = lambda job: ()
    groups: Callable[[Plan], Mapping[str, Mapping[str, int]]] = lambda plan: {}
    context: Callable[[Plan, ContextShare], ContextShare] = lambda plan, share: share
    pieces: Callable[[WholeTokens], WholeTokens] = lambda whole: whole
    attends: Callable[[Attend], Attend] = lambda attend: attend

    def __post_init__(self) -> None:
        """Raise ValueError for a feature that nothing switches on, or an option that is a key of every plan."""
        if not self.switches:
            raise ValueError(f"feature '{self.name}': no key of a plan switches it on; name one in options or keys")
        check_own_keys(f"feature '{self.name}'", (option.name for option in self.options))

    @property
    def switches(self) -> frozenset[str]:
        """The keys that switch it on."""
        return frozenset((*(option.name for option in self.options), *self.keys))

    def refusal(self, job: Job) -> Refusal:
        """Why a job that states its keys cannot have it; None if it can."""
        if self.serves and not job.step.serves:
            stated = next((option.name for option in self.options if option.name in job.plan.options), None)
            if stated is not None:
                serving = ", ".join(step.name for step in STEPS.values() if step.serves)
                return stated, f"is of steps that serve: {serving}"
        return self.check(job)


FEATURES: Registry[Feature] = Registry("plan feature", "tspsim.plan_features", Feature)


def features_of(of: Job | Plan) -> tuple[Feature, ...]:
    """The features of which a job, or a plan, states a key, in the order of registration."""
    plan = of.plan if isinstance(of, Job) else of
    return _switched_on(of.stated, plan.scheme, changes())


@remembered(1024)
def _switched_on(stated: frozenset[str], scheme: str, _: int) -> tuple[Feature, ...]:
    return tuple(
        feature
        for feature in FEATURES.values()
        if feature.scheme in ("", scheme) and not feature.switches.isdisjoint(stated)
    )


def plan_options(scheme: Scheme) -> tuple[Option, ...]:
    """Keys of a plan that a scheme adds, and the features that its plans may have."""
    features = (feature for feature in FEATURES.values() if feature.scheme in ("", scheme.name))
    return *scheme.options, *(option for feature in features for option in feature.options)


def pieces_of(job: Job, whole: WholeTokens) -> WholeTokens:
    """The parts of a serving step, changed by the job's features."""
    for feature in features_of(job):
        whole = feature.pieces(whole)
    return whole


def attending(job: Job, attend: Attend) -> Attend:
    """The writer of a layer's attention, changed by the job's features."""
    for feature in features_of(job):
        attend = feature.attends(attend)
    return attend
