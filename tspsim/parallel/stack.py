"""The software stack of a job: its costs beside kernels and links.

A stack is a framework as users run it, fitted once on several published runs (docs/stacks.md), never on a single one.
The default stack costs nothing: kernels follow each other without a gap, and what compilers fuse is fused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ..base.memo import once
from ..hardware.pricers import in_steps
from ..model.routed import CHOICE_BYTES
from ..operators import ChoiceKernels, Computes, Gemm, GroupedGemm, MemoryBound, Operator, Role, element_bytes
from .paces import paced
from .serving_engine import NO_ENGINE, Captured, Saving, ServingEngine

if TYPE_CHECKING:
    from ..hardware import Device
    from ..model.parts import Experts


@dataclass(frozen=True)
class Stack:
    """How a framework runs a program.

    Attributes
    ----------
    kernel_s
        Host seconds to launch a kernel. The host runs ahead of the device, which waits if it is faster.
    collective_s, collective_s_per_rank
        Host seconds to launch a collective, and in addition per other rank of the group.
    message_s
        Host seconds to launch a message.
    expert_s
        Host seconds per local expert of a product of experts, in frameworks that issue them one by one.
    role_launches
        Name of an operator (:func:`launch_name`) → kernels that the host launches for it, its own included; default 1.
    cast_launches
        Further kernels launched for a product in eight bits or fewer, which scale and cast its operands.
    exchange_launches
        Kernels launched for an all-to-all with experts: by a library that reads tokens in place, and by a plain
        all-to-all, which needs counts, splits and orders of rows.
    reads_counts
        Whether the host, in training, waits after every choice of experts to read the rows of each expert.
    ahead_without_experts
        Whether the host always runs ahead of the device for models without routed experts; their launches then cost
        nothing.
    queues_chunks
        Whether, with several chunks per stage, the device alone waits for messages, and the host goes on launching.
    traffic_factor
        Bytes of norms, rope, activations and residual sums over those of the fused kernels.
    loss_factor
        Bytes of the loss and its gradient over those of a fused loss; None: ``traffic_factor``.
    softmax_bytes
        Bytes of a logit's softmax that the loss keeps beside the logits and their gradient: 4 in fp32, 2 in their type.
    accumulation_bytes
        Bytes per weight of adding a micro-batch's gradient to the kept one, beyond writing it in bf16: 6 if the product
        itself adds to fp32 gradients.
    optimizer_state
        Bytes per parameter of master weights and moments, for workloads that state no optimizer: 4 for two moments in
        bf16; None: Adam's 12 in fp32.
    activation_factor
        Kept activations of a layer over those that fused kernels need.
    activation_store
        Type of kept activations for plans that state none (:mod:`tspsim.parallel.activation_store`).
    remakes
        What the backwards of its fused kernels recompute: names of :data:`tspsim.parallel.recompute.ROLES`.
    remakes_in_backward
        Whether recomputed activations are computed inside their backward's kernel, which reads their inputs anyway.
    exchange_units
        Multiprocessors of its exchanges with experts, which kernels beside them lack; None: those of library and
        device.
    exchange_library
        Library of its exchanges with experts, if a node's file has several; None: the first.
    attention_flops_per_s
        Upper limit of its attention kernel's rate; None: the device's best.
    flash_attention
        Whether attention is one kernel; otherwise scores are written out: two batched products and a softmax with mask
        and dropout.
    libraries
        Kernel family, or family and type → library that runs it instead of the device's default
        (:meth:`tspsim.hardware.Device.with_engine`).
    clocks
        The device's clock in its steps (:class:`tspsim.hardware.Device`): ``burst`` if so much other work is between
        products that a long step never reaches the power limit.
    reduced_bytes
        Bytes of a gradient element in reductions between replicas: 4 if the framework reduces in fp32; None: as kept.
    reduces_once
        Whether replicas that divide gradients (ZeRO 2 and 3) sum them after the last micro-batch alone, and keep them
        whole until then.
    keeps_whole
        Plans and models (:data:`tspsim.parallel.whole.KEPT_WHOLE`) with which gathered weights stay from the first
        micro-batch to the last one's backward, and gradients are summed after it.
    gathered_copy_bytes, reduced_copy_bytes
        Bytes per element that compute kernels copy around exchanges between replicas: weights out of the gather's
        buffer, gradients into the reduction's (PyTorch's FSDP, ``_fsdp_collectives.py``).
    norm_tensors
        Tensors of the residual stream that kernels read and write around a norm: forward, recomputed, backward. None:
        one kernel with 4 in each; recomputed, it would need only 2.
    casts_apart
        Whether separate kernels cast the operands of products in eight bits, also after norms. Gradients and inputs are
        also transposed for the weights' gradient, weights for the inputs' gradient.
    choice_kernels
        Kernels in which a library chooses a token's experts, if no single kernel does: in a forward those over all
        scores, those over few numbers, and top-k searches; in a backward the first two.
    layout_token_s
        Seconds per token of the kernel that counts tokens per destination rank, before a forward's exchange.
    expert_bias_bytes
        Bytes per output element of separate kernels that add routed experts' biases: of gate and up in a forward and in
        a backward, of the down projection in both.
    clip_passes
        Further reads or writes of gradients to clip them by their norm.
    regathers_context
        Whether K and V of other sequence shards are gathered again for recomputation and for the backward, and not
        kept.
    row_copies
        Further reads and writes of rows that ``tp`` gathers or scatters, to make them contiguous.
    overlap_gradients, overlap_weights
        Whether exchanges between replicas run beside the backward, and beside the forward; otherwise after and before
        them.
    step_s
        Seconds of every step: data, logging, checks that wait for the device.
    spread
        90 % interval of measured over simulated step time, kernels and transfers aside.
    spread_on
        Devices whose whole runs gave ``spread``, which there includes the errors of kernels and transfers.
    engine
        The serving engine: graphs, padding, host time per step, memory. In its steps the host times above apply outside
        graphs.
    """

    name: str
    kernel_s: float = 0.0
    collective_s: float = 0.0
    collective_s_per_rank: float = 0.0
    message_s: float = 0.0
    expert_s: float = 0.0
    role_launches: tuple[tuple[str, float], ...] = ()
    cast_launches: float = 0.0
    exchange_launches: tuple[float, float] = (0.0, 0.0)
    reads_counts: bool = False
    ahead_without_experts: bool = False
    queues_chunks: bool = False
    traffic_factor: float = 1.0
    loss_factor: float | None = None
    softmax_bytes: float = 4.0
    accumulation_bytes: float = 0.0
    optimizer_state: float | None = None
    activation_factor: float = 1.0
    activation_store: str | None = None
    remakes: tuple[str, ...] = ()
    remakes_in_backward: bool = False
    exchange_units: int | None = None
    exchange_library: str | None = None
    attention_flops_per_s: float | None = None
    flash_attention: bool = True
    libraries: tuple[tuple[str, str], ...] = ()
    clocks: Literal["sustained", "burst"] = "sustained"
    reduced_bytes: float | None = None
    reduces_once: bool = False
    keeps_whole: tuple[str, ...] = ()
    gathered_copy_bytes: float = 0.0
    reduced_copy_bytes: float = 0.0
    norm_tensors: tuple[float, float, float] | None = None
    casts_apart: bool = False
    choice_kernels: tuple[int, int, int, int, int] | None = None
    layout_token_s: float = 0.0
    expert_bias_bytes: tuple[float, float, float, float] | None = None
    clip_passes: float = 0.0
    regathers_context: bool = False
    row_copies: float = 0.0
    overlap_gradients: bool = True
    overlap_weights: bool = True
    step_s: float = 0.0
    spread: tuple[float, float] = (1.0, 1.0)
    spread_on: tuple[str, ...] = ()
    engine: ServingEngine = NO_ENGINE

    @property
    def fuses(self) -> bool:
        """Whether a schedule's operators are the kernels that run."""
        unfused = self.traffic_factor > 1.0 or self.loss_factor is not None or self.accumulation_bytes > 0.0
        counted = (self.expert_bias_bytes, self.choice_kernels, self.norm_tensors)
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
        if self.exchange_units is None:
            return device.compute_slowdown
        units = device.spec.compute_units.value
        return max(1.0, float(units / max(1.0, units - self.exchange_units)))

    def on(self, device: str, kind: str = "") -> Stack:
        """The stack with a device's host times, its engine's waits there, and blocks for a kind of attention."""
        factor, engine = self.engine.slower_host(device), self.engine.on(device, kind)
        if factor == 1.0:
            return self if engine is self.engine else replace(self, engine=engine)
        names = ("kernel_s", "collective_s", "collective_s_per_rank", "message_s", "expert_s")
        times = {name: factor * getattr(self, name) for name in names}
        return replace(self, engine=engine, **times)

    def run(
        self, operators: Iterable[Operator], *, accumulates: bool = True, biased: bool = False
    ) -> Iterator[Operator]:
        """The kernels that this stack runs for operators; ``accumulates``: gradients are added to kept ones;
        ``biased``: routed experts have biases."""
        adds = self.accumulation_bytes > 0.0 and accumulates
        for operator in operators:
            yield from self._kernels(operator)
            if biased and self.expert_bias_bytes is not None and isinstance(operator, GroupedGemm):
                yield from self._biases(operator, self.expert_bias_bytes)
            if adds and isinstance(operator, Gemm) and operator.computes is Computes.WEIGHT_GRADIENT:
                weights = operator.batch * operator.m * operator.n
                yield MemoryBound("add", self.accumulation_bytes * weights, operator.m, name=ADD_TO_GRADIENT)

    @staticmethod
    def _biases(product: GroupedGemm, sizes: tuple[float, float, float, float]) -> Iterator[Operator]:
        """Kernels that add the biases of a product of experts, or sum their gradients beside its weights'."""
        forward, backward = sizes[2:] if product.role is Role.EXPERTS_DOWN else sizes[:2]
        rows, size = product.m, forward
        if product.computes is Computes.WEIGHT_GRADIENT:
            rows, size = product.k, backward
        elif product.computes is Computes.INPUT_GRADIENT:
            return
        if size:
            yield MemoryBound("add", size * product.batch * rows * product.n, rows, name="biases of experts")

    def _kernels(self, operator: Operator) -> tuple[Operator, ...]:
        if not self.flash_attention and operator.role is Role.ATTENTION:
            return operator.without_flash()
        if self.choice_kernels is not None and operator.role in _ROUTES:
            return self._chosen(operator, self.choice_kernels)
        if self.casts_apart and isinstance(operator, Gemm) and element_bytes(operator.dtype) < WIDE:
            return _with_casts(operator)
        if self.norm_tensors is not None and operator.role is Role.NORM and isinstance(operator, MemoryBound):
            return (self._norm(operator, self.norm_tensors),)
        own_factor = self.loss_factor if operator.role is Role.LOSS else None
        return (operator.unfused(self.traffic_factor if own_factor is None else own_factor),)

    @staticmethod
    def _norm(operator: MemoryBound, tensors: tuple[float, float, float]) -> MemoryBound:
        """The kernels around a norm of the residual stream; norms of latents stay one kernel."""
        if operator.op != "add_rmsnorm":
            return operator
        moved = tensors[0 if operator.computes is Computes.OUTPUT else 2]
        return replace(operator, size_bytes=operator.size_bytes * moved / NORM_TENSORS)

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


def _with_casts(product: Gemm) -> tuple[Operator, ...]:
    """A product in eight bits, and the kernels that write its operands.

    Hopper's tensor cores read eight-bit operands along k alone (CUTLASS and DeepGEMM multiply "NT"). Operands kept in
    eight bits for the weights' gradient are therefore transposed, with scales of their own (DeepSeek-V3, §3.5.2, asks
    for hardware that makes this needless), and so are the weights. Attention's output is kept in 12 bits instead
    (§3.3.3), cast there and back by further kernels.
    """
    element, rows = element_bytes(product.dtype), product.batch * product.m
    waits = product.role is Role.OUTPUT

    def moved(name: str, elements: float, size: float, rows: int) -> MemoryBound:
        return MemoryBound("copy", elements * size, rows, name=name, computes=product.computes)

    own = product.batch * product.m * product.k
    alone = replace(product, cast_apart=True)
    if product.computes is Computes.WEIGHT_GRADIENT:
        if waits:
            back = moved("cast back", own, E5M6 + WIDE, rows)
            return back, moved("inputs across", own, WIDE + element, rows), alone
        return moved("inputs across", own, 2.0 * element, rows), alone
    casts = () if product.quantised else (moved("cast", own, WIDE + element, rows),)
    if product.computes is Computes.OUTPUT:
        return *((moved("cast for backward", own, WIDE + E5M6, rows),) if waits else ()), *casts, alone
    weights = product.batch * product.n * product.k
    turned = moved("weights across", weights, 2.0 * element, product.batch * product.k)
    read = element if product.quantised else WIDE
    return turned, *casts, alone, moved("gradients across", own, read + element, rows)


#: Names of operators in :attr:`Stack.role_launches`.
LAUNCH_NAMES = tuple(launch_name(role, computes) for role in Role for computes in Computes)
#: Bytes of an element before a cast, and of one in 12 bits (E5M6) with a scale per 128 elements.
WIDE, E5M6 = element_bytes("bf16"), 1.5 + 4.0 / 128.0
#: Tensors of the residual stream that a fused residual add and norm moves, forward or backward.
NORM_TENSORS = 4.0
#: Roles of the operators that choose a token's experts.
_ROUTES = frozenset({Role.ROUTER, Role.EXPERT_CHOICE})
#: Bytes per weight of a product that adds in fp32: 4 read and 4 written instead of 2 written.
ADDED_BY_PRODUCT = 6.0
#: Name of the kernels that add a product's gradient to the kept one.
ADD_TO_GRADIENT = "add to gradient"
#: The default stack.
IDEAL = Stack("ideal")
