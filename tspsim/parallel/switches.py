"""Keys of every plan, for plans and for files: each field once, with the values that a file may state and its search
rule.

:class:`~tspsim.parallel.plan.Plan` has them resolved; a scenario's section derives from them
(:class:`tspsim.scenario.spread.Spread`). Pydantic reads the annotations here, which are no strings, so that each is
built once for all sections.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import (
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    StrictBool,
    StrictInt,
    Tag,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import core_schema

from ..base.errors import did_you_mean, shorten
from ..base.registry import names_in
from ..base.strict import OneOf, Strict, refuse
from ..base.units import BytesPerSecond, PositiveCount, PositiveNumber
from ..operators.dtypes import wires
from .activation_store import ACTIVATION_STORES
from .balance import BALANCES, BUSIEST, Balance, ExpertBalance
from .dispatch import DISPATCHES, OVERLAPS
from .pipeline import ORDERS
from .plan_keys import (
    PIECES,
    dispatches,
    folds,
    gathers_in_pieces,
    hides,
    in_chunks,
    orders,
    orders_left,
    overlaps,
    policies,
    shared,
    uneven,
    ways_to_balance,
    ways_to_cut,
    ways_to_dispatch,
    ways_to_hide,
    ways_to_shard,
)
from .reasons import ANOTHER_QUESTION, CHANGES_NUMBERS, OWN_KERNELS
from .recomputed import ATTENTION, CHEAP, FULL, KEPT, PartialRecompute
from .search_rule import (
    SearchRule,
    divides_tokens,
    not_serving,
    of_lengths,
    rule_for_objects,
    serves,
    shares_tokens,
    spreads_experts,
    trains,
    with_experts,
)

#: Upper limit of degrees and of numbers of ranks, which keeps work finite.
MOST_RANKS = 2**20

Degree = Annotated[PositiveNumber, Field(le=MOST_RANKS)]
#: Number of layers of a chunk.
Layers = Annotated[StrictInt, Field(ge=0, le=100_000)]
#: A numeric type on links.
Wire = Annotated[str, OneOf(lambda: tuple(wires()))]
#: Links for blocks of a context: one ring, or all links of a GPU to the others of its node.
CONTEXT_TRANSPORTS = ("ring", "multi_ring")
ContextTransport = Annotated[str, OneOf(lambda: CONTEXT_TRANSPORTS)]
Cut = Annotated[str, OneOf(lambda: ("heads", "blocks"))]
Partition = Annotated[str, OneOf(lambda: ("zigzag", "contiguous"))]


class PartlyRecomputed(PartialRecompute, Strict):
    """Recomputation of some layers of every chunk: ``{what: full, layers: 12}``."""

    what: Literal["selective", "cheap", "full"] = Field(
        "full", description="attention alone; norms, products of activations and heads from latents; or the whole layer"
    )


def _form(value: object) -> str:
    """Whether recomputation is stated for all layers or for some."""
    return "some" if isinstance(value, (Mapping, PartlyRecomputed)) else "all"


#: What is recomputed of a layer.
Again = Annotated[str, OneOf(lambda: (KEPT, ATTENTION, CHEAP, FULL))]
Recomputation = Annotated[
    Annotated[Again, Tag("all")] | Annotated[PartlyRecomputed, Tag("some")],
    Discriminator(_form),
]


#: The key that names the policy.
BALANCE_POLICY = "policy"


class BalanceType:
    """Annotates a :class:`~tspsim.parallel.balance.Balance`: text or a mapping in files and in JSON."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            balance_of, serialization=core_schema.plain_serializer_function_ser_schema(as_stated)
        )

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: Any) -> dict[str, Any]:
        names = list(BALANCES.names())
        return {"anyOf": [{"enum": names, "type": "string"}, *(_schema_of(policy) for policy in BALANCES.values())]}


def _schema_of(policy: ExpertBalance) -> dict[str, Any]:
    """JSON Schema of a policy with its options."""
    keys: dict[str, Any] = {BALANCE_POLICY: {"const": policy.name, "description": "which policy"}}
    for option in policy.options:
        keys[option.name] = TypeAdapter(option.type).json_schema() | {
            "description": option.summary,
            "default": option.default,
        }
    return {"type": "object", "properties": keys, "required": [BALANCE_POLICY], "additionalProperties": False}


def balance_of(value: object) -> Balance:
    """Parse the value in a file."""
    if isinstance(value, Balance):
        return value
    stated = dict(value) if isinstance(value, dict) else {BALANCE_POLICY: value}
    name = stated.pop(BALANCE_POLICY, None)
    if not isinstance(name, str) or name not in BALANCES:
        said = f"'{shorten(str(name))}' is not allowed; use" if name is not None else f"needs {BALANCE_POLICY}:"
        raise refuse(f"{said} {' or '.join(BALANCES.names())}{did_you_mean(str(name), BALANCES.names())}")
    policy = BALANCES.get(name)
    options = {option.name: option for option in policy.options}
    strange = next((key for key in stated if key not in options), None)
    if strange is not None:
        allowed = f"; {name} has {', '.join(options)}" if options else f"; {name} has none"
        raise refuse(f"unknown option '{shorten(str(strange))}'{did_you_mean(str(strange), options) or allowed}")
    values = []
    for key, setting in stated.items():
        try:
            values.append((key, TypeAdapter(options[key].type).validate_python(setting)))
        except ValidationError as error:
            raise refuse(f"{key}: {shorten(str(setting))} is not allowed: {error.errors()[0]['msg']}") from None
    return Balance(name, tuple(sorted(values)))


def as_stated(balance: Balance) -> str | dict[str, Any]:
    """The balance as plain data."""
    return {BALANCE_POLICY: balance.policy, **dict(balance.stated)} if balance.stated else balance.policy


@dataclass(frozen=True, kw_only=True)
class Switches:
    """Keys of a plan beside its degrees.

    The default of ``overlap`` is the scheme's: on for TSP and for the ring exchange, which exist for it; off for TP's
    reductions and for gathers. An order, a dispatch, a balance or a store of activations names a registered object.
    """

    partition: Annotated[
        Partition,
        Field(description="tokens of a sequence shard: two chunks with equal causal work, or one block"),
        SearchRule(why_not="zigzag shares causal attention evenly", of=divides_tokens, used=shares_tokens),
    ] = "zigzag"
    exchange: Annotated[
        str,
        OneOf(names_in("tspsim.context_methods")),
        Field(description="how sequence shards get the keys and values of others"),
        SearchRule(of=divides_tokens, used=shared),
    ] = "all_gather"
    sequence_regions: Annotated[
        StrictBool,
        Field(description="reduce-scatter and all-gather around the norms"),
        SearchRule(of=not_serving, used=lambda job: job.plan.tp > 1),
    ] = False
    overlap: Annotated[
        StrictBool | Literal["fused"] | None,
        Field(
            description="run exchanges beside compute; fused: tp's products and sums, and exchanges with experts, in "
            "slices of one kernel; default: the scheme's"
        ),
        SearchRule(
            of=not_serving,
            values=lambda model, work: ["off", "on"],
            left=lambda model, work: {"fused": OWN_KERNELS},
            used=lambda job: job.plan.tp * job.plan.token_shards > 1 or job.plan.overlap == "fused",
        ),
    ] = None
    overlap_chunks: Annotated[
        PositiveCount,
        Field(le=1024, description="pieces that a product and its exchange are cut into to overlap"),
        SearchRule(why_not="four, as libraries have", of=not_serving, used=in_chunks),
    ] = 4
    recomputation: Annotated[
        Recomputation | None,
        Field(description="what a backward recomputes, in all layers or in some; default: full in training, else none"),
        SearchRule(of=trains, values=lambda model, work: (KEPT, ATTENTION, CHEAP, FULL, "the fewest layers in full")),
    ] = None
    activation_store: Annotated[
        Annotated[str, OneOf(ACTIVATION_STORES.names)] | None,
        Field(description="type in which activations are kept for the backward; default: the stack's"),
        SearchRule(of=trains, values=lambda model, work: ["in eight bits where products are"]),
    ] = None
    offload_layers: Annotated[
        Layers,
        Field(description="layers of every chunk, spread evenly, whose activations are offloaded to the host's memory"),
        SearchRule(of=trains, values=lambda model, work: ["the fewest that fit"]),
    ] = 0
    offload_weights: Annotated[
        Layers,
        Field(
            description="layers of every chunk, spread evenly, whose weights are in the host's memory and are copied "
            "ahead of use"
        ),
        SearchRule(of=serves, values=lambda model, work: ["the fewest that fit, where nothing does without"]),
        SearchRule("offload_weights of training", "needs replicas that divide nothing: state it to try", of=trains),
    ] = 0
    micro_batch: Annotated[
        PositiveCount | None,
        Field(description="sequences of a micro-batch; default: 1 in training, else all"),
        SearchRule(of=lambda model, work: not of_lengths(model, work) and not serves(model, work)),
    ] = None
    schedule: Annotated[
        str,
        OneOf(ORDERS.names),
        Field(description="schedule of a pipeline; interleaved with vpp > 1"),
        SearchRule(of=trains, values=orders, left=orders_left, used=lambda job: job.plan.pp > 1),
    ] = "1f1b"
    stage_layers: Annotated[
        tuple[Annotated[StrictInt, Field(ge=0)], ...],
        Field(
            description="layers of every chunk; the first may be the embedding alone, the last the head; default: even"
        ),
        SearchRule(why_not="layers are spread as evenly as can be"),
    ] = ()
    accumulation: Annotated[
        PositiveCount,
        Field(description="turns of gradient accumulation, in each of which a pipeline fills and empties"),
        SearchRule(why_not="a pipeline that empties more often is never faster"),
    ] = 1
    #: 1 divides the optimizer's state, 2 gradients too, 3 weights too (Rajbhandari et al. 2020).
    zero: Annotated[
        int,
        Field(ge=0, le=3, description="ZeRO stage: what replicas divide; 3 is FSDP"),
        SearchRule(of=trains, used=lambda job: job.training and job.copies > 1),
    ] = 0
    shard_group: Annotated[
        Degree | None,
        Field(description="ranks that divide state (hybrid sharding); default: all"),
        SearchRule(of=trains, values=lambda model, work: ["groups of whole nodes"]),
    ] = None
    #: ZeRO++'s hpZ; the types below are its qwZ and qgZ.
    secondary_shard: Annotated[
        Degree | None,
        Field(description="with zero: 3, ranks that divide a second copy of the weights for backwards"),
        SearchRule(why_not="of one framework's ZeRO (DeepSpeed)", of=trains),
    ] = None
    weight_wire: Annotated[
        Wire | None,
        Field(description="with zero: 3, type in which forwards gather weights; default: their own"),
        SearchRule(why_not=CHANGES_NUMBERS, of=trains),
    ] = None
    gradient_wire: Annotated[
        Wire | None,
        Field(description="with zero: 3 and secondary_shard, type in which gradients are summed; default: their own"),
        SearchRule(why_not=CHANGES_NUMBERS, of=trains),
    ] = None
    checkpoint: Annotated[
        Annotated[str, OneOf(names_in("tspsim.checkpoints"))] | None,
        Field(description="how checkpoints of training are written; default: none"),
        SearchRule(why_not=ANOTHER_QUESTION, of=trains),
    ] = None
    checkpoint_rate: Annotated[
        BytesPerSecond | None,
        Field(description="with checkpoint, bytes/s of the file system for all ranks; default: no limit"),
        SearchRule(why_not=ANOTHER_QUESTION, of=trains),
    ] = None
    checkpoint_every: Annotated[
        PositiveCount,
        Field(description="with checkpoint, steps per checkpoint"),
        SearchRule(why_not=ANOTHER_QUESTION, of=trains),
    ] = 1
    expert_dispatch: Annotated[
        str,
        OneOf(DISPATCHES.names),
        Field(
            description="how tokens reach experts: a copy to each rank of a token's experts, by a library or at the "
            "links' rate, or a copy to each expert"
        ),
        rule_for_objects(dispatches, of=with_experts, ways=ways_to_dispatch, kernels=True, used=spreads_experts),
    ] = "ranks"
    expert_overlap: Annotated[
        str,
        OneOf(OVERLAPS.names),
        Field(description="what hides dispatch and combine: shared experts, or another micro-batch's passes"),
        SearchRule(while_serving=False, of=with_experts, values=overlaps, ways=ways_to_hide, used=hides),
    ] = "none"
    expert_pieces: Annotated[
        PositiveCount,
        Field(le=64, description="pieces of dispatch, experts and combine that overlap"),
        SearchRule(
            while_serving=False,
            of=with_experts,
            values=lambda model, work: [str(pieces) for pieces in (1, *PIECES)],
            ways=ways_to_cut,
            kernels=True,
        ),
    ] = 1
    expert_shards: Annotated[
        Annotated[StrictInt, Field(ge=0, le=65536)] | None,
        Field(
            description="0: all experts are gathered; n: ranks that multiply an expert's columns, with which ep may be "
            "a multiple of the experts; default: whole experts"
        ),
        SearchRule(
            of=lambda model, work: with_experts(model, work) and not work.step.serves, ways=ways_to_shard, kernels=True
        ),
    ] = None
    expert_balance: Annotated[
        Balance,
        BalanceType(),
        Field(description="policy that evens out loads of experts: a name, or a name and options"),
        rule_for_objects(
            policies,
            while_serving=False,
            of=uneven,
            ways=ways_to_balance,
            kernels=True,
            used=lambda job: job.plan.ep > 1,
        ),
    ] = BUSIEST


#: Search rule of keys of the folded scheme.
FOLDED = SearchRule(of=divides_tokens, values=lambda model, work: ["some"], used=folds)


@dataclass(frozen=True, kw_only=True)
class OpenSwitches:
    """Keys that a plan may leave to the tuner (:mod:`tspsim.step.tuning`); until then they have published values."""

    weight_transport: Annotated[
        str,
        OneOf(names_in("tspsim.weight_transports")),
        Field(description="how TSP moves the MLP's weights: around one ring, around several, or gathered in pieces"),
        FOLDED,
    ] = "ring"
    mlp_pieces: Annotated[
        PositiveCount,
        Field(le=1024, description="pieces in which they are gathered"),
        FOLDED,
    ] = 4
    head_groups: Annotated[
        Degree | None,
        Field(description="groups of heads that TSP attends; published: one per rank"),
        FOLDED,
    ] = None
    context_transport: Annotated[
        ContextTransport,
        Field(description="exchange: ring over one link of a GPU, or in parts over all of them"),
        SearchRule(of=divides_tokens, used=lambda job: shared(job) and job.plan.exchange == "ring"),
    ] = "ring"
    overlap_by: Annotated[
        Cut,
        Field(description="how overlapped gathers of K and V are cut: by heads, or by blocks of tokens"),
        SearchRule(of=divides_tokens, used=gathers_in_pieces),
    ] = "heads"


def declared() -> list[SearchRule]:
    """The search rules of these keys, from their annotations."""
    keys = Switches.__annotations__ | OpenSwitches.__annotations__
    return [
        replace(rule, name=rule.name or name)
        for name, annotated in keys.items()
        for rule in annotated.__metadata__
        if isinstance(rule, SearchRule)
    ]


#: Keys of :class:`Switches` that answers do not list among a plan's.
BESIDE = (
    *("activation_store", "offload_layers", "offload_weights"),
    *("stage_layers", "accumulation", "expert_balance"),
)
