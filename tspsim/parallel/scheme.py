"""What a scheme is to everybody else: one object that registers itself.

A scheme spreads one replica over the ranks of its own mesh axes. It writes the pieces of a pass for every position on
its token axis, and answers for them: bytes received in closed form, what stays in memory, what it asks of a plan, what
it leaves to be chosen. :func:`~tspsim.parallel.step.write_program` joins the pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..base.registry import Registry
from ..model.layer import LayerShard
from ..steps import Step
from .builder import ProgramBuilder
from .choice import Choice
from .job import Job
from .pipeline import Refusal
from .plan import Plan, check_own_keys
from .registries import SCHEME_FACTS, ContextShare, Option
from .residency import Residency

Piece = Callable[[ProgramBuilder, Job, LayerShard], None]
LayerPiece = Callable[[ProgramBuilder, Job, LayerShard, int], list[int]]
WeightPiece = Callable[[ProgramBuilder, Job, LayerShard], None]


@dataclass(frozen=True)
class Received:
    """Payload that a rank receives over one axis and did not hold, in a block's forward.

    ``distinct``: every rank needs bytes of its own (all-to-all). Otherwise ranks of a node need the same, which has to
    enter the node once.
    """

    axis: str
    bytes: float
    distinct: bool = False


@dataclass(frozen=True)
class WholeTokens:
    """The pieces of a serving step whose tokens every rank of a replica has: decoding, and prompts that no sequence
    shards divide."""

    embed: Piece
    layer: LayerPiece
    head: Piece
    #: Whether of all that they write for a job operators of attention alone depend on the rows of its passes; all else
    #: on tokens that pass, that are sampled, and that experts get in the mean.
    attends_alone: Callable[[Job], bool] = lambda job: False


@dataclass(frozen=True)
class Scheme:
    """A way to spread one replica.

    Attributes
    ----------
    name, summary
        What it is called, and a line for the catalogue.
    axes, token_axis
        Its mesh axes, innermost first: keys of a scenario's plan, and several ranks on one ask for the scheme. The
        ranks of the last-named one hold a shard of the tokens each.
    shards
        Job → parts that heads, FFN columns and vocabulary rows are cut into.
    embed, layer, head
        Write the forward of a model's three parts; ``layer`` is told the rank's position on the token axis and returns
        the instructions whose end means that its output is complete.
    layer_backward, head_backward, embed_backward
        Write their backward (of the head: from the loss on).
    layer_weights
        Write the gradients of a layer's weights alone, where ``layer_backward`` can leave them out
        (``builder.weight_gradients`` is False); None where it cannot.
    residency
        What stays in memory.
    whole
        The pieces of serving steps whose tokens are not divided; None where it has none.
    context
        Plan → how ranks share the contexts of a serving step.
    whole_ranks
        Job → ranks that have the same tokens in a serving step, and divide heads, columns and experts among them.
    groups
        Plan → axes of groups that it brings, and how many neighbours of each mesh axis are in one.
    received
        (job, whether a switch adds) → payload a rank receives in a block's forward at least, by axis.
    check
        Job → the key of the plan that does not go with it and why; None where all do.
    head_shards
        Job → ranks, or steps of the schedule, that heads are spread over.
    overlaps
        Plan → whether exchanges run beside compute where the plan does not say.
    by_position
        Plan → whether the programs of its token shards differ.
    variants
        Plan → keys of the plan, each set another way for its ranks to talk; simplest first, not all of them legal.
    serving_variants
        (step, keys of a plan's degrees) → further keys that a serving step's plan may have, simplest first, not all of
        them legal.
    choices
        Plan → what it leaves to be chosen for the machine.
    published
        Values of the plan's keys under which nothing is left to be chosen; mostly none.
    options
        Keys of a scenario's plan that come with it.
    notes
        Job → what a reader of such a plan has to know.
    alone
        Why degrees of other schemes do not go beside its own.
    usual
        The one of a plan that names no degree.
    unequal
        Sequences of a step may differ in length.
    folds
        Tokens and weights are divided over the same ranks, and weights come to the tokens.
    assumption, unexplained
        Sentences for reports: what it assumes of every plan, and what of it the model does not explain.
    assumptions
        Plan → what it assumes of this plan, where that depends on the plan's keys.
    """

    name: str
    summary: str
    axes: tuple[str, ...]
    token_axis: str
    shards: Callable[[Job], int]
    embed: Piece
    layer: LayerPiece
    head: Piece
    layer_backward: LayerPiece
    head_backward: Piece
    embed_backward: Piece
    layer_weights: WeightPiece | None
    residency: Residency
    received: Callable[[Job, bool], tuple[Received, ...]]
    whole: WholeTokens | None = None
    context: Callable[[Plan], ContextShare] = lambda plan: ContextShare()
    whole_ranks: Callable[[Job], int] = lambda job: 1
    groups: Callable[[Plan], Mapping[str, Mapping[str, int]]] = lambda plan: {}
    check: Callable[[Job], Refusal] = lambda job: None
    head_shards: Callable[[Job], int] = lambda job: 1
    overlaps: Callable[[Plan], bool] = lambda plan: False
    by_position: Callable[[Plan], bool] = lambda plan: True
    variants: Callable[[Plan], Iterable[Mapping[str, Any]]] = lambda plan: ({},)
    serving_variants: Callable[[Step, Mapping[str, Any]], Iterable[Mapping[str, Any]]] = lambda step, keys: ({},)
    choices: Callable[[Plan], tuple[Choice, ...]] = lambda plan: ()
    published: Mapping[str, Any] | None = None
    options: tuple[Option, ...] = ()
    notes: Callable[[Job], Iterable[str]] = lambda job: ()
    alone: str = "is a scheme of its own"
    usual: bool = False
    unequal: bool = False
    folds: bool = False
    assumption: str = ""
    unexplained: str = ""
    assumptions: Callable[[Plan], Iterable[str]] = lambda plan: ()

    def __post_init__(self) -> None:
        """Raises ValueError for axes that cannot be keys of a plan beside those that every plan has."""
        if not isinstance(self.axes, tuple) or self.token_axis not in self.axes:
            raise ValueError(f"scheme '{self.name}': axes is a tuple of names, and token_axis '{self.token_axis}' one")
        check_own_keys(f"scheme '{self.name}'", (*self.axes, *(option.name for option in self.options)))


#: By name; :mod:`tspsim.parallel.registries` has what plans read of them.
SCHEMES: Registry[Scheme] = SCHEME_FACTS.holding(Scheme)


def scheme_of(plan: Plan) -> Scheme:
    """The scheme a plan's degrees ask for."""
    return SCHEMES.get(plan.scheme)


def choices_of(plan: Plan) -> tuple[Choice, ...]:
    """What a plan's scheme, and its context method, leave to be chosen."""
    return scheme_of(plan).choices(plan)


def switches_of(plan: Plan) -> tuple[str, ...]:
    """The switches of all choices of a plan."""
    return tuple(name for choice in choices_of(plan) for name in choice.switches)
