"""The contract of a scheme, and their registry.

A scheme spreads one replica over the ranks of its own mesh axes. It writes the parts of a pass for every position on
its token axis, and states bytes received (closed form), memory, constraints on plans, and open choices.
:func:`~tspsim.parallel.step.write_program` joins the parts.
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
    """Payload bytes that a rank receives over one axis and did not hold, in a block's forward.

    ``distinct``: every rank needs different bytes (all-to-all). Otherwise ranks of a node need the same bytes, which
    enter the node once.
    """

    axis: str
    bytes: float
    distinct: bool = False


@dataclass(frozen=True)
class WholeTokens:
    """The parts of a serving step in which all ranks of a replica have every token: decoding, and prompts that no
    sequence shards divide."""

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
        Its name, and a line for the catalogue.
    axes, token_axis
        Its mesh axes, innermost first, which are keys of a scenario's plan; several ranks on one select the scheme.
        Ranks along ``token_axis`` hold a shard of the tokens each.
    shards
        Job → parts that heads, FFN columns and vocabulary rows are divided into.
    embed, layer, head
        Write the forward of a model's three parts; ``layer`` takes the rank's position on the token axis and returns
        the instructions that complete its output.
    layer_backward, head_backward, embed_backward
        Write their backward (of the head: from the loss on).
    layer_weights
        Writes a layer's weight gradients alone, if ``layer_backward`` can leave them out (``builder.weight_gradients``
        is False); None if it cannot.
    residency
        Its memory.
    whole
        The parts of serving steps whose tokens are not divided; None: it has none.
    context
        Plan → how ranks share the contexts of a serving step.
    tensor_ranks
        Job → ranks with the same tokens in a serving step, which divide heads, columns and experts.
    groups
        Plan → axes of groups that it adds, with the neighbours of each mesh axis in a group.
    received
        (job, whether a switch adds) → least payload that a rank receives in a block's forward, by axis.
    check
        Job → the key of the plan that does not fit and why; None if all fit.
    head_shards
        Job → ranks, or steps of the schedule, that divide the heads.
    overlaps
        Plan → whether exchanges run beside compute by default.
    by_position
        Plan → whether programs differ between its token shards.
    variants
        Plan → values of keys, one for each way in which its ranks exchange; simplest first, some may not be legal.
    serving_variants
        (step, degrees of a plan) → further keys of a serving step's plan, simplest first, some may not be legal.
    choices
        Plan → choices left to the tuner.
    published
        Values of the plan's keys with which nothing is left to the tuner; usually none.
    options
        Keys that it adds to a scenario's plan.
    notes
        Job → notes for readers of such a plan.
    alone
        Why degrees of other schemes do not fit beside its own.
    usual
        Whether it is the scheme of a plan that states no degree.
    unequal
        Whether sequences of a step may differ in length.
    folds
        Whether tokens and weights are divided over the same ranks, and weights move to the tokens.
    assumption, unexplained
        Sentences for reports: what it assumes of every plan, and what the model does not explain of it.
    assumptions
        Plan → sentences on what it assumes of this plan.
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
    tensor_ranks: Callable[[Job], int] = lambda job: 1
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
        """Raise ValueError for axes that cannot be keys of a plan beside those of every plan."""
        if not isinstance(self.axes, tuple) or self.token_axis not in self.axes:
            raise ValueError(f"scheme '{self.name}': axes is a tuple of names, and token_axis '{self.token_axis}' one")
        check_own_keys(f"scheme '{self.name}'", (*self.axes, *(option.name for option in self.options)))


#: Schemes by name; :mod:`tspsim.parallel.registries` has what plans read of them.
SCHEMES: Registry[Scheme] = SCHEME_FACTS.holding(Scheme)


def scheme_of(plan: Plan) -> Scheme:
    """The scheme that a plan's degrees select."""
    return SCHEMES.get(plan.scheme)


def choices_of(plan: Plan) -> tuple[Choice, ...]:
    """Choices that a plan's scheme, and its context method, leave to the tuner."""
    return scheme_of(plan).choices(plan)


def switches_of(plan: Plan) -> tuple[str, ...]:
    """The switches of all choices of a plan."""
    return tuple(name for choice in choices_of(plan) for name in choice.switches)
