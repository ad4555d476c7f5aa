"""The facts of a software stack, which its file states: its costs beside kernels and links, and how it cuts kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictBool

from ..base.errors import UnknownNameError
from ..base.stated import STATED, Expected, Stated
from ..base.strict import FileKey
from ..base.units import Count, FlopsPerSecond, PositiveCount, Seconds
from ..operators import Computes, Role
from .activation_store import ACTIVATION_STORES
from .column_inputs import COLUMN_INPUTS, SHARDED
from .eager_kernels import EAGER_KERNELS
from .interleave import INTERLEAVINGS
from .mixed_precision import MIXED_PRECISIONS, PARAMETERS
from .serving_engine import NO_ENGINE, ServingEngine
from .tensor_scales import DELAYED, TENSOR_SCALES

Factor = Annotated[float, Field(ge=1.0, le=20.0, allow_inf_nan=False)]
Lower = Annotated[float, Field(ge=0.3, le=1.0)]
Upper = Annotated[float, Field(ge=1.0, le=20.0)]
#: A registered store of activations; the error for an unknown name offers the nearest.
StoreName = Annotated[str, AfterValidator(lambda name: ACTIVATION_STORES.get(name).name)]
#: The same of what is kept of gathered inputs, and of an order of interleaved micro-batches.
InputsName = Annotated[str, AfterValidator(lambda name: COLUMN_INPUTS.get(name).name)]
ScalesName = Annotated[str, AfterValidator(lambda name: TENSOR_SCALES.get(name).name)]
PrecisionName = Annotated[str, AfterValidator(lambda name: MIXED_PRECISIONS.get(name).name)]
EagerName = Annotated[str, AfterValidator(lambda name: EAGER_KERNELS.get(name).name)]
OrderName = Annotated[str, AfterValidator(lambda name: INTERLEAVINGS.get(name).name)]
BytesPerWeight = Annotated[float, Field(ge=0.0, le=128.0, allow_inf_nan=False)]
Launches = Annotated[float, Field(ge=0.0, le=1000.0, allow_inf_nan=False)]
Tensors = Annotated[float, Field(ge=0.0, le=20.0, allow_inf_nan=False)]
BytesPerLogit = Annotated[float, Field(ge=0.0, le=64.0, allow_inf_nan=False)]
Passes = Annotated[float, Field(ge=0.0, le=8.0)]


def _roles(stated: Stated[dict[str, float]]) -> Stated[dict[str, float]]:
    for name in stated.value:
        if name not in LAUNCH_NAMES:
            raise UnknownNameError("operator", name, LAUNCH_NAMES)
    return stated


#: Kernels launched per operator, by its name (:func:`launch_name`).
Launched = Annotated[Stated[dict[str, Launches]], AfterValidator(_roles)]


@dataclass(frozen=True)
class StackFacts:
    """What a framework states of how it runs a program; :class:`~tspsim.parallel.stack.Stack` runs it.

    Keys of files are derived from the fields (:class:`~tspsim.parallel.stack_spec.StackSpec`); descriptions say what
    they are. Further:

    * The host runs ahead of the device, which waits if it is faster. ``expert_s`` is of frameworks that issue experts'
      products one by one. ``role_launches`` are by :func:`launch_name`, an operator's own kernel included; default 1.
      A library of exchanges reads tokens in place; a plain all-to-all needs counts, splits and orders of rows.
    * ``loss_factor`` None: ``traffic_factor``, of norms, rope, activations and residual sums. ``accumulation_bytes``
      are 6 if the product itself adds to fp32 gradients. ``optimizer_state`` is 4 for two moments in bf16; None:
      Adam's 12 in fp32. ``remakes`` are names of :data:`tspsim.parallel.recompute.ROLES`, ``keeps_whole`` of
      :data:`tspsim.parallel.whole.KEPT_WHOLE`.
    * Without ``overlap_slowdown`` of a vendor, kernels slow by what ``exchange_units`` leave, else by the device's own
      factor, and transfers by the device's own.
    * None of ``exchange_units``: those of library and device; of ``exchange_library``: the first; of
      ``attention_flops_per_s``: the device's best; of ``reduced_bytes``: as kept (4 if summed in fp32).
    * Without ``flash_attention`` scores are written out: two batched products and a softmax with mask and dropout.
      ``libraries`` run instead of the device's default (:meth:`tspsim.hardware.Device.with_engine`). ``clocks`` are
      ``burst`` if other work between products keeps a long step below the power limit.
    * With ``reduces_once`` gradients are whole until the last micro-batch. Copies stand around exchanges between
      replicas (PyTorch's FSDP, ``_fsdp_collectives.py``). With ``casts_apart`` gradients and inputs are also transposed
      for the weights' gradient, weights for the inputs' gradient.
    * With ``regathers_context`` recomputation gathers again too. ``row_copies`` make rows contiguous. Without an
      overlap, exchanges between replicas run after the backward, and before the forward.
    * ``spread`` leaves kernels and transfers aside but on devices of ``spread_on``. In steps of ``engine`` the host
      times above apply outside graphs.
    """

    name: str
    kernel_s: Annotated[Seconds, FileKey(Expected, "kernel"), Field(description="host time of a kernel")] = 0.0
    collective_s: Annotated[
        Seconds, FileKey(Expected, "collective"), Field(description="host time of a collective")
    ] = 0.0
    message_s: Annotated[Seconds, FileKey(Expected, "message"), Field(description="host time of a message")] = 0.0
    collective_s_per_rank: Annotated[
        Seconds, FileKey(Expected, "collective_per_rank"), Field(description="host time of a collective per other rank")
    ] = 0.0
    expert_s: Annotated[
        Seconds, FileKey(Stated, "expert"), Field(description="host time per local expert of a product of experts")
    ] = 0.0
    role_launches: Annotated[
        tuple[tuple[str, float], ...],
        FileKey(Launched),
        Field(description="operator by role → kernels launched for one"),
    ] = ()
    cast_launches: Annotated[
        Launches,
        STATED,
        Field(description="further kernels that scale and cast the operands of a product in eight bits or fewer"),
    ] = 0.0
    exchange_launches: Annotated[
        tuple[Launches, Launches],
        STATED,
        Field(description="kernels launched for an all-to-all with experts: by a library, by a plain all-to-all"),
    ] = (0.0, 0.0)
    node_launches: Annotated[
        Launches,
        STATED,
        Field(
            description="under expert_overlap: micro_batches, further launches for each node that a layer is cut into"
        ),
    ] = 0.0
    reads_counts: Annotated[
        StrictBool,
        STATED,
        Field(description="in training the host waits after a choice of experts to read the rows of each"),
    ] = False
    ahead_without_experts: Annotated[
        StrictBool,
        STATED,
        Field(description="for models without routed experts the host runs ahead of the device: launches cost nothing"),
    ] = False
    awaits_sends: Annotated[
        StrictBool,
        STATED,
        Field(
            description="messages of pipelines are exchanged between tasks: kernels wait until a message has arrived,"
            " and receives stand ready before their task"
        ),
    ] = False
    queues_chunks: Annotated[
        StrictBool,
        STATED,
        Field(description="with several chunks per stage, the device alone waits for messages of other stages"),
    ] = False
    traffic_factor: Annotated[Factor, STATED, Field(description="bytes of unfused kernels over fused ones")] = 1.0
    expert_activation_factor: Annotated[
        Factor | None, STATED, Field(description="the same of routed experts' activations; default: as traffic_factor")
    ] = None
    eager: Annotated[
        EagerName | None,
        STATED,
        Field(description="whose kernels of norms, rotations and activations run, instead of a traffic_factor"),
    ] = None
    loss_factor: Annotated[
        Factor | None, STATED, Field(description="bytes of the loss and its gradient over a fused one")
    ] = None
    softmax_bytes: Annotated[
        BytesPerLogit,
        STATED,
        Field(description="bytes of a logit's softmax that the loss keeps beside logit and gradient; default 4 (fp32)"),
    ] = 4.0
    accumulation_bytes: Annotated[BytesPerWeight, STATED, Field(description="beyond writing a gradient in bf16")] = 0.0
    expert_accumulation_bytes: Annotated[
        BytesPerWeight | None,
        STATED,
        Field(description="the same of routed experts' products; default: as accumulation_bytes"),
    ] = None
    experts_in_bf16: Annotated[
        StrictBool, STATED, Field(description="routed experts multiply in bf16, whatever the step's precision")
    ] = False
    lone_expert_bytes: Annotated[
        BytesPerWeight | None,
        STATED,
        Field(description="the same of experts that no other rank holds; default: as accumulation_bytes"),
    ] = None
    optimizer_state: Annotated[
        BytesPerWeight | None,
        STATED,
        Field(description="bytes per parameter of master weights and moments, if a workload states no optimizer"),
    ] = None
    optimizer_bytes: Annotated[
        BytesPerWeight | None,
        STATED,
        Field(description="moved by the optimizer's kernels; default: each of its tensors once"),
    ] = None
    activation_factor: Annotated[Factor, STATED, Field(description="kept activations over those of fused kernels")] = (
        1.0
    )
    activation_store: Annotated[
        StoreName | None, STATED, Field(description="type of kept activations; a plan's wins")
    ] = None
    remakes: Annotated[
        tuple[str, ...],
        FileKey(Stated[tuple[Literal["norms", "products"], ...]]),
        Field(description="what backwards of its fused kernels recompute, whatever a plan recomputes"),
    ] = ()
    remakes_in_backward: Annotated[
        StrictBool, STATED, Field(description="recomputed activations are computed inside their backward's kernel")
    ] = False
    exchange_units: Annotated[
        PositiveCount | None,
        STATED,
        Field(description="multiprocessors of exchanges with experts, which kernels beside them lack"),
    ] = None
    interleaving: Annotated[
        OrderName,
        STATED,
        Field(description="order of a forward and a backward layer under expert_overlap: micro_batches"),
    ] = "dualpipe"
    exchange_slowdown: Annotated[
        Factor,
        STATED,
        Field(description="under expert_overlap: micro_batches, time of exchanges beside kernels over time alone"),
    ] = 1.0
    overlap_slowdown: Annotated[
        tuple[tuple[str, tuple[Factor, Factor]], ...],
        FileKey(Stated[dict[str, tuple[Factor, Factor]]]),
        Field(
            description="vendor of the device → factors on kernels beside its library's collectives, and on those"
            " beside kernels"
        ),
    ] = ()
    exchange_library: Annotated[
        str | None, STATED, Field(description="library of exchanges with experts, if a node's file has several")
    ] = None
    attention_flops_per_s: Annotated[
        FlopsPerSecond | None, FileKey(Stated, "attention"), Field(description="highest rate of its attention kernel")
    ] = None
    flash_attention: Annotated[StrictBool, STATED] = True
    score_bytes: Annotated[
        tuple[BytesPerWeight, BytesPerWeight] | None,
        STATED,
        Field(
            description="without flash_attention, bytes per score of the kernels between its products; forward,"
            " backward; default: one softmax with mask, and dropout"
        ),
    ] = None
    mixed_precision: Annotated[
        PrecisionName, STATED, Field(description="how bf16 products and fp32 weights go together in training")
    ] = PARAMETERS.name
    attention_factors: Annotated[
        tuple[Factor, Factor],
        STATED,
        Field(description="time of the attention kernel over that of its library; forward, backward"),
    ] = (1.0, 1.0)
    libraries: Annotated[
        tuple[tuple[str, str], ...],
        FileKey(dict[str, Stated[str]]),
        Field(description="kernel family, or family and type: the library that runs it instead of the device's own"),
    ] = ()
    clocks: Annotated[
        Literal["sustained", "burst"],
        STATED,
        Field(description="clock of the device in its steps; default: sustained, products follow each other"),
    ] = "sustained"
    reduced_bytes: Annotated[
        BytesPerWeight | None, STATED, Field(description="bytes of a gradient element in reductions")
    ] = None
    reduces_once: Annotated[
        StrictBool, STATED, Field(description="gradients of ZeRO 2 and 3 are summed after the last micro-batch alone")
    ] = False
    keeps_whole: Annotated[
        tuple[str, ...],
        FileKey(Stated[tuple[Literal["pipelines", "experts"], ...]]),
        Field(
            description="when weights of ZeRO 3 are gathered once per step, and gradients summed after its last"
            " backward"
        ),
    ] = ()
    gathered_copy_bytes: Annotated[BytesPerWeight, STATED, Field(description="per weight, out of gather's buffer")] = (
        0.0
    )
    reduced_copy_bytes: Annotated[BytesPerWeight, STATED, Field(description="per gradient, into the sum's buffer")] = (
        0.0
    )
    norm_tensors: Annotated[
        tuple[tuple[Tensors, Tensors], tuple[Tensors, Tensors]] | None,
        STATED,
        Field(
            description="norms are kernels of their own: tensors of the residual stream moved by one, and by kernels"
            " around it that sum and scale; forward, backward"
        ),
    ] = None
    norm_blocks: Annotated[
        tuple[PositiveCount, PositiveCount],
        STATED,
        Field(description="blocks of such a norm on each multiprocessor; forward, backward"),
    ] = (1, 1)
    head_norm_tensors: Annotated[
        tuple[Tensors, Tensors] | None,
        STATED,
        Field(
            description="norms of queries' and keys' heads are kernels of their own beside the rotation: tensors of"
            " queries and keys moved by them; forward, backward"
        ),
    ] = None
    rotation_factors: Annotated[
        tuple[tuple[str, tuple[Factor, Factor]], ...],
        FileKey(Stated[dict[str, tuple[Factor, Factor]]]),
        Field(
            description="kind of attention → bytes of the kernels that rotate, join and copy heads around attention, or"
            " scale its output, over those of the rotation alone; forward, backward"
        ),
    ] = ()
    casts_apart: Annotated[
        StrictBool,
        STATED,
        Field(description="separate kernels cast and transpose the operands of products in eight bits"),
    ] = False
    casts: Annotated[
        tuple[str, ...],
        FileKey(Stated[tuple[Literal["in_activations", "turns_scales", "shares_sent", "gradients_beside"], ...]]),
        Field(description="how these kernels are cut, by attributes of CastKernels"),
    ] = ()
    cast_time: Annotated[
        Factor, STATED, Field(description="time of a kernel that casts rows over that of a copy of its bytes")
    ] = 1.0
    cast_back_units: Annotated[
        Count, STATED, Field(description="multiprocessors of the kernels that cast rows back; 0: all")
    ] = 0
    choice_kernels: Annotated[
        tuple[Count, Count, Count, Count, Count] | None,
        STATED,
        Field(
            description="kernels that choose a token's experts if no single one does: over all scores, over few"
            " numbers, top-k searches; in a backward over all scores, over few numbers"
        ),
    ] = None
    rows_in_place: Annotated[
        StrictBool,
        STATED,
        Field(
            description="a library's exchange reads tokens where they stand and sums on return, whatever their type;"
            " the kernel that orders arrivals reads each once"
        ),
    ] = False
    notice_s: Annotated[
        Seconds,
        FileKey(Stated, "notice"),
        Field(
            description="time of the kernel before each exchange with experts in which ranks tell each other how much"
            " comes, for each doubling of the nodes of their group"
        ),
    ] = 0.0
    layout_token_s: Annotated[
        Seconds,
        FileKey(Stated, "layout_token"),
        Field(description="time per token of the kernel that counts tokens per destination rank before an exchange"),
    ] = 0.0
    mapping_units: Annotated[
        Count,
        STATED,
        Field(
            description="multiprocessors of kernels that count an exchange's tokens and map them to rows of experts;"
            " 0: no such kernels"
        ),
    ] = 0
    expert_weights_apart: Annotated[
        StrictBool,
        STATED,
        Field(description="a kernel of its own computes the gradients of a token's weights for its experts"),
    ] = False
    expert_bias_bytes: Annotated[
        tuple[BytesPerWeight, BytesPerWeight, BytesPerWeight, BytesPerWeight] | None,
        STATED,
        Field(
            description="bytes per output element of separate kernels that add experts' biases, and clamp gate and up:"
            " of these in a forward and a backward, of down in both"
        ),
    ] = None
    pads_experts: Annotated[
        StrictBool,
        STATED,
        Field(description="routed experts of a rank compute as many rows each as the busiest of them"),
    ] = False
    clip_passes: Annotated[
        Passes, STATED, Field(description="further reads or writes of gradients to clip them by their norm")
    ] = 0.0
    regathers_context: Annotated[
        StrictBool, STATED, Field(description="keys and values are gathered again for the backward, and not kept")
    ] = False
    column_inputs: Annotated[
        InputsName,
        STATED,
        Field(description="what column-split products keep of inputs that sequence regions gathered"),
    ] = SHARDED.name
    sums_beside_weights: Annotated[
        StrictBool,
        STATED,
        Field(
            description="without overlap too, gradients of column-split products' inputs are summed beside the"
            " products of their weights' gradients"
        ),
    ] = False
    quantised_gathers: Annotated[
        StrictBool, STATED, Field(description="rows that tp gathers for a product move in the product's type")
    ] = False
    tensor_scales: Annotated[
        ScalesName,
        STATED,
        Field(description="where eight-bit operands with one scale a tensor get it from in training"),
    ] = DELAYED.name
    row_copies: Annotated[
        Passes, STATED, Field(description="further reads and writes of rows that tp gathers or scatters")
    ] = 0.0
    overlap_gradients: Annotated[StrictBool, STATED] = True
    sums_whole: Annotated[
        StrictBool, STATED, Field(description="ZeRO 1 sums whole gradients, in one all-reduce after the last backward")
    ] = False
    overlap_weights: Annotated[StrictBool, STATED] = True
    collection_s: Annotated[
        Seconds,
        FileKey(Stated, "collection"),
        Field(
            description="in training, time in which automatic collections of garbage stop the host, for each layer and"
            " micro-batch of a replica: a pipeline's stages stop in turn"
        ),
    ] = 0.0
    slices_s: Annotated[
        Seconds,
        FileKey(Stated, "slices"),
        Field(
            description="without overlap of weights, the host's time to copy a layer's weights out of one replica's"
            " part of a gather"
        ),
    ] = 0.0
    step_s: Annotated[Seconds, FileKey(Stated, "step"), Field(description="time of every step, whatever its size")] = (
        0.0
    )
    spread: Annotated[
        tuple[Lower, Upper], STATED, Field(description="90 % interval of measured step time over the simulated one")
    ] = (1.0, 1.0)
    spread_on: Annotated[
        tuple[str, ...],
        STATED,
        Field(description="devices whose whole runs gave the spread, kernels' and transfers' errors in it"),
    ] = ()
    engine: ServingEngine = NO_ENGINE


def launch_name(role: Role, computes: Computes = Computes.OUTPUT) -> str:
    """Name of an operator in :attr:`StackFacts.role_launches`: its role, and what it computes if not its output.

    >>> launch_name(Role.NORM), launch_name(Role.NORM, Computes.INPUT_GRADIENT)
    ('norm', 'norm: input gradient')
    """
    return role.value if computes is Computes.OUTPUT else f"{role.value}: {computes.value}"


#: Names of operators in :attr:`StackFacts.role_launches`.
LAUNCH_NAMES = tuple(launch_name(role, computes) for role in Role for computes in Computes)
