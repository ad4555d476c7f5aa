"""The software a job runs on: what it loses beside its kernels and links.

A stack is a framework as its users run it, fitted once on published runs of it (docs/stacks.md), never on one run.
The default has nothing to lose: kernels follow each other without a gap, and what compilers fuse is fused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ..hardware.pricers import in_steps
from ..operators import Computes, Gemm, GroupedGemm, MemoryBound, Operator, Role
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
        The host's time to launch a kernel. It runs ahead of the device, which waits where it is the faster one.
    collective_s, collective_s_per_rank
        The host's time to launch a collective, and how much more for every other rank of the group.
    message_s
        The host's time to launch a message.
    expert_s
        The host's time for each local expert of a product of experts, where a framework issues them one by one.
    traffic_factor
        Bytes that norms, rope, activations and residual sums move, over those of the fused kernels.
    loss_factor
        Bytes that the loss and its gradient move, over those of a fused loss; None: as the other kernels.
    softmax_bytes
        Bytes of a logit's softmax that the loss keeps beside the logits and their gradient: 4 in fp32, 2 where it works
        in their own type.
    accumulation_bytes
        Bytes a weight that adding a micro-batch's gradient to the kept one moves, beyond writing it in bf16: 6 for fp32
        gradients added to by the product itself.
    optimizer_state
        Bytes a parameter of the master weights and moments that its optimizer keeps, where a workload states none: 4 of
        two moments in bf16; None: Adam's 12 in fp32.
    activation_factor
        What a layer keeps for its backward, over what fused kernels need.
    activation_store
        The type in which a plan that states none keeps activations (:mod:`tspsim.parallel.activation_store`).
    remakes
        What its fused kernels make again in their backward rather than keep: names of
        :data:`tspsim.parallel.recompute.ROLES`.
    remakes_in_backward
        Activations that are made again are made by the kernel of their backward, which reads what they do.
    exchange_units
        Multiprocessors that its exchanges with experts run on, which kernels beside them lack; None: as the library and
        the device have it.
    exchange_library
        Library of its exchanges with experts where a node's file has several; None: the first.
    attention_flops_per_s
        The most that its attention kernel reaches; None where it is the device's best.
    flash_attention
        One kernel; otherwise scores are written out: two batched products and a softmax with mask and dropout.
    libraries
        Kernel family, or family and type → the library that runs it where the device's default is another
        (:meth:`tspsim.hardware.Device.preferring`).
    clocks
        At which clock of the device its steps run (:class:`tspsim.hardware.Device`): ``burst`` where so much other work
        stands between products that a long step never reaches the power limit.
    reduced_bytes
        Bytes of a gradient's element while replicas sum it: 4 where a framework reduces in fp32; None: as it is kept.
    reduces_once
        Replicas that divide gradients (ZeRO 2 and 3) sum them behind the last micro-batch alone, and keep them whole
        until then.
    keeps_whole
        With which plans and models (:data:`tspsim.parallel.whole.KEPT_WHOLE`) weights stay that the first micro-batch
        gathered until the last one's backward, and gradients are summed behind it.
    gathered_copy_bytes, reduced_copy_bytes
        Bytes an element that kernels of the compute stream move around replicas' exchanges: weights out of the buffer
        that gathered them, gradients into the one that sums them (PyTorch's FSDP, ``_fsdp_collectives.py``).
    expert_bias_bytes
        Bytes that adding biases of routed experts moves where kernels of their own do, an element of what the products
        make: of gate and up in a forward and in a backward, of the down projection in both.
    clip_passes
        How often gradients are read, or written, once more before the optimizer to clip them by their norm.
    regathers_context
        K and V of other sequence shards are gathered again for recomputation and for the backward, and not kept.
    row_copies
        How often rows gathered or scattered by ``tp`` are read and written once more, where they are not contiguous.
    overlap_gradients, overlap_weights
        Replicas' exchanges run beside the backward, and beside the forward; otherwise after and before them.
    step_s
        Of every step: data, logging, checks that wait for the device.
    spread
        Between which factors of the simulated step's time nine of ten measured ones lie, kernels and transfers aside.
    spread_on
        Names of devices whose whole runs gave ``spread``: what kernels and transfers err there is in it.
    engine
        What a serving engine does beside: graphs, padding, its own time a step, memory. In its steps the host's times
        above are of what no graph holds.
    """

    name: str
    kernel_s: float = 0.0
    collective_s: float = 0.0
    collective_s_per_rank: float = 0.0
    message_s: float = 0.0
    expert_s: float = 0.0
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
        return self.flash_attention and not unfused and self.expert_bias_bytes is None

    @property
    def products_accumulate(self) -> bool:
        """Whether products of weights' gradients add to the kept ones themselves: they read and write fp32 in the place
        of writing bf16, and no kernel does so behind them."""
        return 0.0 < self.accumulation_bytes <= ADDED_BY_PRODUCT

    def launches(self, *, experts: bool) -> bool:
        """Whether the host takes time to issue anything of a model with experts or without."""
        anything = max(self.kernel_s, self.collective_s, self.collective_s_per_rank, self.message_s)
        return max(anything, self.expert_s if experts else 0.0) > 0.0

    def compute_s(
        self,
        operators: Iterable[Operator],
        captured: Captured = Captured.NOTHING,
        experts: Experts | None = None,
    ) -> float:
        """Host time of some kernels of a model with such ``experts``; where graphs hold the pieces between attentions,
        of the attention and the next piece."""
        if captured is Captured.PIECES:
            return 2.0 * self.kernel_s * sum([operator.role is Role.ATTENTION for operator in operators])
        launches = self.engine.launches
        return sum(
            [
                self.kernel_s * launches(operator, experts) + self.expert_s * operator.local_experts
                for operator in operators
            ]
        )

    def exchange_s(self, ranks: int, captured: Captured = Captured.NOTHING) -> float:
        """Host time of a collective between ``ranks`` ranks, if no graph holds it."""
        if ranks <= 1 or captured is Captured.PIECES:
            return 0.0
        return self.collective_s + self.collective_s_per_rank * (ranks - 1)

    def seconds(self, operator: Operator, best_s: float) -> float:
        """Time of a kernel that takes ``best_s`` with the device's best library."""
        if operator.role is Role.ATTENTION and self.attention_flops_per_s is not None:
            return max(best_s, operator.flops / self.attention_flops_per_s)
        return best_s

    def cost(
        self, best: Callable[[Operator], float], device: Device, captured: Captured = Captured.NOTHING
    ) -> Callable[[Operator], float]:
        """Times of kernels on a device, from those with its best library measured alone."""
        engine = self.engine
        finding, fuses = engine.finding, bool(engine.fused_quantising or engine.separate_quantising)
        priced = (lambda operator: best(finding(operator))) if fuses else best
        saves = captured is not Captured.NOTHING and engine.saves
        saving = Saving(engine, device).seconds if saves else None
        measured = bool(device.spec.in_steps)

        def fitted(operator: Operator) -> bool:
            """Whether it was calibrated on whole steps, which have its pace, and what a graph saves, in them."""
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
        """The stack beside a device's host, with its engine's waits there, and blocks for a kind of attention."""
        factor, engine = self.engine.slower_host(device), self.engine.on(device, kind)
        if factor == 1.0:
            return self if engine is self.engine else replace(self, engine=engine)
        names = ("kernel_s", "collective_s", "collective_s_per_rank", "message_s", "expert_s")
        times = {name: factor * getattr(self, name) for name in names}
        return replace(self, engine=engine, **times)

    def run(
        self, operators: Iterable[Operator], *, accumulates: bool = True, biased: bool = False
    ) -> Iterator[Operator]:
        """The kernels that this stack runs for some operators; ``accumulates``: gradients are added to kept ones;
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
        """What adds the biases of a product of experts, or sums their gradients beside that of its weights."""
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
        own_factor = self.loss_factor if operator.role is Role.LOSS else None
        return (operator.unfused(self.traffic_factor if own_factor is None else own_factor),)


#: Bytes a weight that a product moves more which adds in fp32: 4 read and 4 written, in the place of 2 written.
ADDED_BY_PRODUCT = 6.0
#: What is named so adds a product's gradient to the kept one.
ADD_TO_GRADIENT = "add to gradient"
#: The default.
IDEAL = Stack("ideal")
