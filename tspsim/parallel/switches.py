"""Keys of a plan as plans have them and as files state them: each field once, with what a file may say.

:class:`~tspsim.parallel.plan.Plan` has them resolved, and a scenario's section derives from them
(:class:`tspsim.scenario.spread.Spread`): pydantic reads it by the annotations here, which are no texts, so that each
is made once for all sections.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Discriminator, Field, StrictBool, StrictInt, Tag

from ..base.registry import names_in
from ..base.strict import OneOf, Strict
from ..base.units import BytesPerSecond, PositiveCount, PositiveNumber
from ..operators.dtypes import wires
from .activation_store import ACTIVATION_STORES
from .balance import BUSIEST, Balance
from .balance_key import BalanceType
from .dispatch import DISPATCHES, OVERLAPS
from .pipeline import ORDERS
from .recomputed import ATTENTION, BLOCK, CHEAP, FULL, KEPT, RECOMPUTE_METHODS

#: Products of degrees beyond this are no cluster anybody asks about; the bound keeps work finite.
MOST_RANKS = 2**20

Degree = Annotated[PositiveNumber, Field(le=MOST_RANKS)]
#: Layers of a chunk.
Layers = Annotated[StrictInt, Field(ge=0, le=100_000)]
#: A type on links.
Wire = Annotated[str, OneOf(lambda: tuple(wires()))]
#: Links that blocks of a context take: one of a GPU's, or all that it has to the others of its node.
CONTEXT_TRANSPORTS = ("ring", "multi_ring")
ContextTransport = Annotated[str, OneOf(lambda: CONTEXT_TRANSPORTS)]
Cut = Annotated[str, OneOf(lambda: ("heads", "blocks"))]
Partition = Annotated[str, OneOf(lambda: ("zigzag", "contiguous"))]


class PartlyRecomputed(Strict):
    """What is made again, of some layers of every chunk: ``{what: full, layers: 12}``."""

    what: Literal["selective", "cheap", "full"] = Field(
        "full", description="attention alone; norms, products of activations and heads from latents; or all of a layer"
    )
    layers: PositiveCount = Field(description="of every chunk of a stage, as the method counts them")
    method: Annotated[str, OneOf(RECOMPUTE_METHODS.names)] = Field(
        BLOCK.name, description="the first layers, every so-many-th one, or all in groups of so many"
    )


def _form(value: object) -> str:
    """Whether recomputation is said of all layers or of some."""
    return "some" if isinstance(value, (Mapping, PartlyRecomputed)) else "all"


#: What of a layer.
Again = Annotated[str, OneOf(lambda: (KEPT, ATTENTION, CHEAP, FULL))]
Recomputation = Annotated[
    Annotated[Again, Tag("all")] | Annotated[PartlyRecomputed, Tag("some")],
    Discriminator(_form),
]


@dataclass(frozen=True, kw_only=True)
class Switches:
    """What a plan states beside its degrees.

    ``overlap`` left out is the scheme's own default: on for TSP and for the ring exchange, whose reason to exist it is;
    off for TP's reductions and for gathers. A key that is an order, a dispatch, a balance or a store of activations
    names a registered object.
    """

    partition: Annotated[
        Partition,
        Field(description="which tokens a sequence shard has: two blocks of equal causal work, or one block"),
    ] = "zigzag"
    exchange: Annotated[
        str,
        OneOf(names_in("tspsim.context_methods")),
        Field(description="how sequence shards come by the keys and values of others"),
    ] = "all_gather"
    sequence_regions: Annotated[StrictBool, Field(description="reduce-scatter and all-gather around the norms")] = False
    overlap: Annotated[
        StrictBool | Literal["fused"] | None,
        Field(
            description="exchanges beside compute; fused: tp's products and sums, and exchanges with experts, in "
            "slices of one kernel; default: the scheme's"
        ),
    ] = None
    overlap_chunks: Annotated[
        PositiveCount,
        Field(le=1024, description="pieces that a product and its exchange are cut into where they overlap"),
    ] = 4
    recomputation: Annotated[
        Recomputation | None,
        Field(
            description="what a backward makes again, of all layers or of some; default: full in training, else none"
        ),
    ] = None
    activation_store: Annotated[
        Annotated[str, OneOf(ACTIVATION_STORES.names)] | None,
        Field(description="the type in which activations wait for their backward; default: the stack's"),
    ] = None
    offload_layers: Annotated[
        Layers,
        Field(description="layers of every chunk, spread over it, whose activations wait in the host's memory"),
    ] = 0
    offload_weights: Annotated[
        Layers,
        Field(
            description="layers of every chunk, spread over it, whose weights lie in the host's memory and come ahead "
            "of use"
        ),
    ] = 0
    micro_batch: Annotated[PositiveCount | None, Field(description="sequences; default: 1 in training, else all")] = (
        None
    )
    schedule: Annotated[str, OneOf(ORDERS.names), Field(description="of a pipeline; interleaved with vpp > 1")] = "1f1b"
    stage_layers: Annotated[
        tuple[Annotated[StrictInt, Field(ge=0)], ...],
        Field(
            description="layers of every chunk; the first may be the embedding alone, the last the head; default: even"
        ),
    ] = ()
    accumulation: Annotated[
        PositiveCount,
        Field(description="turns of gradient accumulation in each of which a pipeline fills and empties"),
    ] = 1
    #: 1 divides the optimizer's state, 2 gradients too, 3 weights too (Rajbhandari et al. 2020).
    zero: Annotated[int, Field(ge=0, le=3, description="what replicas divide: 3 is FSDP")] = 0
    shard_group: Annotated[Degree | None, Field(description="ranks that divide it (hybrid sharding); default: all")] = (
        None
    )
    #: ZeRO++'s hpZ; the types below are its qwZ and qgZ.
    secondary_shard: Annotated[
        Degree | None,
        Field(description="with zero: 3, ranks that keep a second copy of the weights among them for backwards"),
    ] = None
    weight_wire: Annotated[
        Wire | None, Field(description="with zero: 3, the type that forwards gather weights in; default: their own")
    ] = None
    gradient_wire: Annotated[
        Wire | None,
        Field(
            description="with zero: 3 and secondary_shard, the type that gradients are summed in; default: their own"
        ),
    ] = None
    checkpoint: Annotated[
        Annotated[str, OneOf(names_in("tspsim.checkpoints"))] | None,
        Field(description="how checkpoints of training are written; default: none is"),
    ] = None
    checkpoint_rate: Annotated[
        BytesPerSecond | None,
        Field(description="with checkpoint, what the file system takes of all ranks; default: it keeps up"),
    ] = None
    checkpoint_every: Annotated[PositiveCount, Field(description="with checkpoint, one in how many steps")] = 1
    expert_dispatch: Annotated[
        str,
        OneOf(DISPATCHES.names),
        Field(
            description="a token travels once to each rank of its experts by a library or at the links' rate, or "
            "once to each expert"
        ),
    ] = "ranks"
    expert_overlap: Annotated[
        str,
        OneOf(OVERLAPS.names),
        Field(description="what hides dispatch and combine: shared experts, and a backward behind another's forward"),
    ] = "none"
    expert_pieces: Annotated[
        PositiveCount,
        Field(le=64, description="pieces of dispatch, experts and combine that run beside each other"),
    ] = 1
    expert_shards: Annotated[
        Annotated[StrictInt, Field(ge=0, le=65536)] | None,
        Field(
            description="where experts and tokens meet: 0 gathers all experts, more are ranks that an expert's "
            "columns are multiplied on, and ep may then be a multiple of the experts; default: whole experts"
        ),
    ] = None
    expert_balance: Annotated[
        Balance,
        BalanceType(),
        Field(description="what ranks get of an uneven load: a policy's name, or its name and options"),
    ] = BUSIEST


@dataclass(frozen=True, kw_only=True)
class OpenSwitches:
    """What a plan may leave to be chosen for the machine (:mod:`tspsim.step.tuning`); until then it stands at the
    published schedule."""

    weight_transport: Annotated[
        str,
        OneOf(names_in("tspsim.weight_transports")),
        Field(description="how TSP brings the MLP's weights: round a ring, round several, or gathered in pieces"),
    ] = "ring"
    mlp_pieces: Annotated[PositiveCount, Field(le=1024, description="pieces that gather brings them in")] = 4
    head_groups: Annotated[
        Degree | None, Field(description="groups of heads that TSP attends; published: one a rank")
    ] = None
    context_transport: Annotated[
        ContextTransport,
        Field(description="exchange: ring over one link of a GPU, or in pieces over all of them"),
    ] = "ring"
    overlap_by: Annotated[
        Cut,
        Field(description="what overlapped gathers of K and V are cut by: heads, or blocks of tokens"),
    ] = "heads"


#: Of :class:`Switches` those that no answer lists among a plan's.
BESIDE = (
    *("activation_store", "offload_layers", "offload_weights"),
    *("stage_layers", "accumulation", "expert_balance"),
)
