"""What a plan may have beside its scheme: one object that registers itself, and is asked where a job states one of its
keys and nowhere else.

A feature declares the keys that switch it on, its own and others'. Whoever goes through features gets those of a job
whose keys are stated (:func:`features_of`); a plan without them never meets their code. A check that is about a key
stated without what it needs is asked too, for that key is its own.
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
from .pipeline import Chunk, Refusal
from .plan import Plan, check_own_keys
from .registries import ContextShare, Option
from .scheme import Scheme, WholeTokens

#: (builder, job, layer, parts that its heads are attended in, what to wait for) → what to wait for then.
Attend = Callable[[ProgramBuilder, Job, ServingLayer, ContextShare, list[int]], list[int]]


@dataclass(frozen=True)
class Feature:
    """Something beside a scheme.

    Attributes
    ----------
    name, summary
        What it is called, and a line for the catalogue.
    options
        Keys of a scenario's plan that come with it. One that is stated switches it on.
    keys
        Further keys that do: fields of the plan and names of its axes, ``model.`` and ``work.`` with a field of the
        architecture or of the work. A key is stated where it does not stand at its default.
    scheme
        The scheme whose plans may have it; empty: every one.
    serves
        It is of steps that serve alone.
    first
        Its check comes before that of the scheme, which reads what it has made sure of.
    check
        Job → the key of the plan that does not go with it and why; None where all do.
    notes
        Job → what a reader of such a plan has to know.
    buffers
        (job, chunks of a rank) → what a rank keeps for it.
    axes
        Job → mesh axes along which programs differ for its sake.
    groups
        Plan → axes of groups that it brings, and how many neighbours of each mesh axis are in one.
    context
        (plan, how ranks share the contexts of a serving step) → how they do with it.
    pieces
        Pieces of a serving step whose tokens every rank has → the same with it.
    attends
        What writes the attention of a layer of such a step → the same with it.
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
        """Raises ValueError for a feature that nothing switches on, or an option that is a key of every plan."""
        if not self.switches:
            raise ValueError(f"feature '{self.name}': no key of a plan switches it on; name one in options or keys")
        check_own_keys(f"feature '{self.name}'", (option.name for option in self.options))

    @property
    def switches(self) -> frozenset[str]:
        """The keys that switch it on."""
        return frozenset((*(option.name for option in self.options), *self.keys))

    def refusal(self, job: Job) -> Refusal:
        """Why a job that states its keys cannot have it; None where it can."""
        if self.serves and not job.step.serves:
            stated = next((option.name for option in self.options if option.name in job.plan.options), None)
            if stated is not None:
                serving = ", ".join(step.name for step in STEPS.values() if step.serves)
                return stated, f"is of steps that serve: {serving}"
        return self.check(job)


FEATURES: Registry[Feature] = Registry("plan feature", "tspsim.plan_features", Feature)


def features_of(of: Job | Plan) -> tuple[Feature, ...]:
    """The features that a job, or a plan by itself, states a key of, in the order in which they registered."""
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
    """Keys of a plan that come with a scheme, and with the features that its plans may have."""
    features = (feature for feature in FEATURES.values() if feature.scheme in ("", scheme.name))
    return *scheme.options, *(option for feature in features for option in feature.options)


def pieces_of(job: Job, whole: WholeTokens) -> WholeTokens:
    """The pieces of a serving step, with what the job's features make of them."""
    for feature in features_of(job):
        whole = feature.pieces(whole)
    return whole


def attending(job: Job, attend: Attend) -> Attend:
    """What writes the attention of a layer, with what the job's features make of it."""
    for feature in features_of(job):
        attend = feature.attends(attend)
    return attend
