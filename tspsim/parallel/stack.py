"""The software stack of a job: its costs beside kernels and links.

A stack is a framework as users run it, fitted once on several published runs (docs/stacks.md), never on a single one.
The default stack costs nothing: kernels follow each other without a gap, and what compilers fuse is fused.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, StrictBool

from ..base.errors import UnknownNameError
from ..base.memo import once
from ..base.stated import STATED, Expected, Stated
from ..base.strict import FileKey
from ..base.units import Count, FlopsPerSecond, PositiveCount, Seconds
from ..hardware.pricers import in_steps
from ..model.routed import CHOICE_BYTES
from ..operators import ChoiceKernels, Computes, Gemm, GroupedGemm, MemoryBound, Operator, Role, element_bytes
from .activation_store import ACTIVATION_STORES
from .column_inputs import COLUMN_INPUTS, SHARDED
from .interleave import INTERLEAVINGS
from .mixed_precision import MIXED_PRECISIONS, PARAMETERS
from .paces import paced
from .separate_kernels import (
    CAST,
    CAST_BACK,
    WIDE,
    CastKernels,
    bias_kernels,
    forward_activation,
    norm_kernels,
)
from .serving_engine import NO_ENGINE, Captured, Saving, ServingEngine

if TYPE_CHECKING:
    from ..hardware import Device
    from ..model.parts import Experts

Factor = Annotated[float, Field(ge=1.0, le=20.0, allow_inf_nan=False)]
Lower = Annotated[float, Field(ge=0.3, le=1.0)]
Upper = Annotated[float, Field(ge=1.0, le=20.0)]
#: A registered store of activations; the error for an unknown name offers the nearest.
StoreName = Annotated[str, AfterValidator(lambda name: ACTIVATION_STORES.get(name).name)]
#: The same of what is kept of gathered inputs, and of an order of interleaved micro-batches.
InputsName = Annotated[str, AfterValidator(lambda name: COLUMN_INPUTS.get(name).name)]
PrecisionName = Annotated[str, AfterValidator(lambda name: MIXED_PRECISIONS.get(name).name)]
OrderName = Annotated[str, AfterValidator(lambda name: INTERLEAVINGS.get(name).name)]
BytesPerWeight = Annotated[float, Field(ge=0.0, le=64.0, allow_inf_nan=False)]
Launches = Annotated[float, Field(ge=0.0, le=1000.0, allow_inf_nan=False)]
Tensors = Annotated[float, Field(ge=0.0, le=20.0, allow_inf_nan=False)]
BytesPerLogit = Annotated[float, Field(ge=0.0, le=64.0, allow_inf_nan=False)]
Passes = Annotated[float, Field(ge=0.0, le=8.0)]


def _roles(stated: Stated[dict[str, float]]) -> Stated[dict[str, float]]:
    for name in stated.value:
        if name not in LAUNCH_NAMES:
            raise UnknownNameError("operator", name, LAUNCH_NAMES)
    return stated


#: Kernels launched per operator, by its name (:func:`tspsim.parallel.stack.launch_name`).
Launched = Annotated[Stated[dict[str, Launches]], AfterValidator(_roles)]


@dataclass(frozen=True)
class Stack:
    """How a framework runs a program.

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
    loss_factor: Annotated[
        Factor | None, STATED, Field(description="bytes of the loss and its gradient over a fused one")
    ] = None
    softmax_bytes: Annotated[
        BytesPerLogit,
        STATED,
        Field(description="bytes of a logit's softmax that the loss keeps beside logit and gradient; default 4 (fp32)"),
    ] = 4.0
    accumulation_bytes: Annotated[BytesPerWeight, STATED, Field(description="beyond writing a gradient in bf16")] = 0.0
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
    row_copies: Annotated[
        Passes, STATED, Field(description="further reads and writes of rows that tp gathers or scatters")
    ] = 0.0
    overlap_gradients: Annotated[StrictBool, STATED] = True
    overlap_weights: Annotated[StrictBool, STATED] = True
    collection_s: Annotated[
        Seconds,
        FileKey(Stated, "collection"),
        Field(
            description="in training, time in which automatic collections of garbage stop the host, for each layer and"
            " micro-batch of a replica: a pipeline's stages stop in turn"
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

    @property
    def fuses(self) -> bool:
        """Whether a schedule's operators are the kernels that run."""
        unfused = self.traffic_factor > 1.0 or self.loss_factor is not None or self.accumulation_bytes > 0.0
        counted = (
            *(self.expert_bias_bytes, self.choice_kernels, self.norm_tensors, self.rotation_factors),
            self.head_norm_tensors,
        )
        return self.flash_attention and not unfused and not self.casts_apart and not any(counted)

    @property
    def products_accumulate(self) -> bool:
        """Whether products of weight gradients add to kept gradients themselves: they read and write fp32 instead of
        writing bf16, and no further kernel adds."""
        return 0.0 < self.accumulation_bytes <= ADDED_BY_PRODUCT

    def launches(self, *, experts: bool) -> bool:
        """Whether launches take host time for a model with or without experts."""
        if self.ahead_without_experts and not experts:
            return False
        anything = max(self.kernel_s, self.collective_s, self.collective_s_per_rank, self.message_s)
        return max(anything, self.expert_s if experts else 0.0) > 0.0

    def compute_s(
        self,
        operators: Iterable[Operator],
        captured: Captured = Captured.NOTHING,
        experts: Experts | None = None,
    ) -> float:
        """Host seconds of ``operators``' kernels; with piecewise graphs, attention and the next launch."""
        if captured is Captured.PIECES:
            return 2.0 * self.kernel_s * sum([operator.role is Role.ATTENTION for operator in operators])
        launches = self.engine.launches if self.engine.launched else self.launches_of
        return sum(
            [
                self.kernel_s * launches(operator, experts) * operator.kernels + self.expert_s * operator.local_experts
                for operator in operators
            ]
        )

    @once
    def _of_roles(self) -> dict[str, float]:
        return dict(self.role_launches)

    def launches_of(self, operator: Operator, experts: Experts | None = None) -> float:
        """Kernels that the host launches for one operator, for stacks without an engine's own count."""
        if not self.role_launches and not self.cast_launches:
            return 1.0
        name = launch_name(operator.role, operator.computes)
        narrow = isinstance(operator, Gemm) and element_bytes(operator.dtype) < element_bytes("bf16")
        return self._of_roles.get(name, 1.0) + (self.cast_launches if narrow else 0.0)

    def exchange_s(self, ranks: int, captured: Captured = Captured.NOTHING) -> float:
        """Host seconds of a collective between ``ranks`` ranks, outside graphs."""
        if ranks <= 1 or captured is Captured.PIECES:
            return 0.0
        return self.collective_s + self.collective_s_per_rank * (ranks - 1)

    def expert_exchange_s(self, captured: Captured = Captured.NOTHING, *, library: bool) -> float:
        """Further host seconds of the kernels around an all-to-all with experts, of a library or a plain one."""
        return 0.0 if captured is Captured.PIECES else self.kernel_s * self.exchange_launches[not library]

    def seconds(self, operator: Operator, best_s: float) -> float:
        """Seconds of a kernel that takes ``best_s`` with the device's best library."""
        if operator.role is Role.ATTENTION:
            best_s *= self.attention_factors[operator.computes is not Computes.OUTPUT]
        if operator.role is Role.ATTENTION and self.attention_flops_per_s is not None:
            return max(best_s, operator.flops / self.attention_flops_per_s)
        return best_s

    def cost(
        self, best: Callable[[Operator], float], device: Device, captured: Captured = Captured.NOTHING
    ) -> Callable[[Operator], float]:
        """Seconds of kernels on a device, from those measured alone with its best library."""
        engine = self.engine
        finding, fuses = engine.finding, bool(engine.fused_quantising or engine.separate_quantising)
        priced = (lambda operator: best(finding(operator))) if fuses else best
        saves = captured is not Captured.NOTHING and engine.saves
        saving = Saving(engine, device).seconds if saves else None
        measured = bool(device.spec.in_steps)

        def fitted(operator: Operator) -> bool:
            """Whether it was calibrated on whole steps, which include pace and graph savings."""
            return measured and in_steps(device, operator) is not None

        paces = [pace for pace in engine.paces if device.name in pace.devices]
        pace = paced(paces, fitted) if paces else None

        def cost(operator: Operator) -> float:
            alone_s = priced(operator)
            saved_s = alone_s if saving is None or fitted(operator) else saving(operator, alone_s)
            best_s = self.seconds(operator, saved_s)
            return best_s if pace is None else pace(operator, best_s)

        return cost

    def slowdown(self, device: Device) -> float:
        """Factor on a kernel's time while its device moves data."""
        measured = dict(self.overlap_slowdown).get(device.vendor)
        if measured is not None:
            return measured[0]
        if self.exchange_units is None:
            return device.compute_slowdown
        units = device.spec.compute_units.value
        return max(1.0, float(units / max(1.0, units - self.exchange_units)))

    def communication_slowdown(self, device: Device, *, interleaved: bool = False) -> float:
        """Factor on a transfer's time while kernels run on its device, ``interleaved``: of another micro-batch."""
        usual = dict(self.overlap_slowdown).get(device.vendor, (1.0, device.communication_slowdown))[1]
        return max(usual, self.exchange_slowdown) if interleaved else usual

    def on(self, device: str, kind: str = "") -> Stack:
        """The stack with a device's host times, its engine's waits there, and blocks for a kind of attention."""
        factor, engine = self.engine.slower_host(device), self.engine.on(device, kind)
        if self.rotation_factors:
            own = tuple(entry for entry in self.rotation_factors if entry[0] == kind)
            if own != self.rotation_factors:
                return replace(self, rotation_factors=own).on(device, kind)
        if factor == 1.0:
            return self if engine is self.engine else replace(self, engine=engine)
        names = ("kernel_s", "collective_s", "collective_s_per_rank", "message_s", "expert_s", "collection_s")
        times = {name: factor * getattr(self, name) for name in names}
        return replace(self, engine=engine, **times)

    def run(
        self,
        operators: Iterable[Operator],
        *,
        accumulates: bool = True,
        biased: bool = False,
        lone_experts: bool | None = None,
        recomputed: Container[Role] = (),
    ) -> Iterator[Operator]:
        """The kernels that this stack runs for operators; ``accumulates``: gradients are added to kept ones;
        ``biased``: routed experts have biases; ``lone_experts``: whether those of experts are that no other rank holds,
        None: others hold them; ``recomputed``: roles of products whose inputs are computed again."""
        added = of_experts = self.accumulation_bytes if accumulates else 0.0
        if lone_experts is not None and self.lone_expert_bytes is not None:
            of_experts = self.lone_expert_bytes if lone_experts else 0.0
        operators = tuple(operators)
        for operator in operators:
            if self.casts_apart and forward_activation(operator, operators):
                operator = self.cast_kernels.in_activation(operator)
            yield from self._kernels(operator, recomputed)
            if biased and self.expert_bias_bytes is not None and isinstance(operator, GroupedGemm):
                yield from bias_kernels(operator, self.expert_bias_bytes)
            if isinstance(operator, Gemm) and operator.computes is Computes.WEIGHT_GRADIENT:
                size = of_experts if operator.role.routed else added
                if size:
                    weights = operator.batch * operator.m * operator.n
                    yield MemoryBound("add", size * weights, operator.m, name=ADD_TO_GRADIENT)

    def _kernels(self, operator: Operator, recomputed: Container[Role]) -> tuple[Operator, ...]:
        if not self.flash_attention and operator.role is Role.ATTENTION:
            return operator.without_flash(self.score_bytes)
        if self.choice_kernels is not None and operator.role in _ROUTES:
            return self._chosen(operator, self.choice_kernels)
        if self.casts_apart and isinstance(operator, Gemm) and element_bytes(operator.dtype) < WIDE:
            return tuple(map(self._cast, self.cast_kernels.around(operator, recomputed)))
        if self.norm_tensors is not None and operator.role is Role.NORM and isinstance(operator, MemoryBound):
            return norm_kernels(operator, self.norm_tensors, self.norm_blocks)
        if operator.role is Role.ROPE and isinstance(operator, MemoryBound):
            return self._rotated(operator)
        own_factor = self.loss_factor if operator.role is Role.LOSS else None
        return (self._cast(operator).unfused(self.traffic_factor if own_factor is None else own_factor),)

    def _cast(self, operator: Operator) -> Operator:
        """A cast of rows as long as this stack's takes, and one back on as many multiprocessors."""
        if not self.casts_apart or not isinstance(operator, MemoryBound):
            return operator
        slower = self.cast_time if operator.op == CAST else 1.0
        units = self.cast_back_units if operator.op == CAST_BACK else operator.units
        return replace(operator, slower=slower, units=units)

    @once
    def cast_kernels(self) -> CastKernels:
        """How kernels that cast apart are cut."""
        return CastKernels(**dict.fromkeys(self.casts, True))

    def _rotated(self, operator: MemoryBound) -> tuple[MemoryBound, ...]:
        """The kernels that rotate heads and lay them out for attention, and those of the heads' norms."""
        backward = operator.computes is not Computes.OUTPUT
        size, kernels = operator.size_bytes, list[MemoryBound]()
        if self.head_norm_tensors is not None and operator.op == NORMED_ROTATION:
            moved = self.head_norm_tensors[backward] / ROTATION_TENSORS
            norms = replace(operator, op="rmsnorm", size_bytes=moved * size, name=f"norms before {operator.name}")
            kernels.append(norms)
            operator = replace(operator, op="rope")
        if not self.rotation_factors:
            return *kernels, operator.unfused(self.traffic_factor)
        factor = self.rotation_factors[0][1][backward]
        return *kernels, replace(operator, size_bytes=factor * size)

    def _chosen(self, operator: Operator, counts: tuple[int, int, int, int, int]) -> tuple[Operator, ...]:
        """The kernels that replace the single one that chooses experts; in a backward, before the router's product."""
        if isinstance(operator, MemoryBound):
            experts = round(operator.size_bytes / (CHOICE_BYTES * operator.rows))
            return (ChoiceKernels(operator.rows, experts, *counts[:3]),)
        if isinstance(operator, Gemm) and operator.computes is Computes.INPUT_GRADIENT:
            behind = ChoiceKernels(operator.m, operator.k, *counts[3:], computes=Computes.INPUT_GRADIENT)
            return behind, operator
        return (operator,)


def launch_name(role: Role, computes: Computes = Computes.OUTPUT) -> str:
    """Name of an operator in :attr:`Stack.role_launches`: its role, and what it computes if not its output.

    >>> launch_name(Role.NORM), launch_name(Role.NORM, Computes.INPUT_GRADIENT)
    ('norm', 'norm: input gradient')
    """
    return role.value if computes is Computes.OUTPUT else f"{role.value}: {computes.value}"


#: Names of operators in :attr:`Stack.role_launches`.
LAUNCH_NAMES = tuple(launch_name(role, computes) for role in Role for computes in Computes)
#: Tensors of queries and keys that a rotation in place moves, and its name with their norms.
ROTATION_TENSORS, NORMED_ROTATION = 2.0, "qk_norm_rope"
#: Roles of the operators that choose a token's experts.
_ROUTES = frozenset({Role.ROUTER, Role.EXPERT_CHOICE})
#: Bytes per weight of a product that adds in fp32: 4 read and 4 written instead of 2 written.
ADDED_BY_PRODUCT = 6.0
#: Name of the kernels that add a product's gradient to the kept one.
ADD_TO_GRADIENT = "add to gradient"
#: The default stack.
IDEAL = Stack("ideal")
