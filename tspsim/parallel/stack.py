"""The software stack of a job: its costs beside kernels and links.

A stack is a framework as users run it, fitted once on several published runs (docs/stacks.md), never on a single one.
The default stack costs nothing: kernels follow each other without a gap, and what compilers fuse is fused.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..base.catalog import versioned
from ..base.memo import once
from ..hardware.pricers import in_steps
from ..model.routed import CHOICE_BYTES
from ..operators import ChoiceKernels, Computes, Gemm, GroupedGemm, MemoryBound, Operator, Role, element_bytes
from .eager_kernels import EAGER_KERNELS
from .mixed_precision import MIXED_PRECISIONS
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
from .serving_engine import Captured, Saving
from .stack_facts import StackFacts, launch_name

if TYPE_CHECKING:
    from ..hardware import Device
    from ..hardware.specification import InSteps
    from ..model.parts import Experts


@dataclass(frozen=True)
class Stack(StackFacts):
    """How a framework runs a program, by its facts."""

    @property
    def fuses(self) -> bool:
        """Whether a schedule's operators are the kernels that run."""
        unfused = not self.compiles or self.loss_factor is not None or self.accumulation_bytes > 0.0
        counted = (
            *(self.expert_bias_bytes, self.choice_kernels, self.norm_tensors, self.rotation_factors),
            *(self.head_norm_tensors, self.expert_accumulation_bytes, self.experts_in_bf16),
            self.expert_activation_factor,
        )
        return self.flash_attention and not unfused and not self.casts_apart and not any(counted)

    @property
    def base(self) -> str:
        """The name without a version."""
        return versioned(self.name)[0]

    @property
    def compiles(self) -> bool:
        """Whether norms, rotations and activations are a fused kernel each."""
        return self.traffic_factor == 1.0 and self.eager is None

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
        narrow = self._multiplied_narrow(operator)
        return self._of_roles.get(name, 1.0) + (self.cast_launches if narrow else 0.0)

    def _multiplied_narrow(self, operator: Operator) -> bool:
        """Whether it is a product whose operands this stack casts to a type narrower than bf16."""
        narrow = isinstance(operator, Gemm) and element_bytes(operator.dtype) < WIDE
        return narrow and not (self.experts_in_bf16 and operator.role.routed)

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

        def in_profiles(operator: Operator) -> InSteps | None:
            """Its correction by whole steps, which include what graphs save."""
            return in_steps(device, operator) if measured else None

        def fitted(operator: Operator) -> bool:
            """Whether whole steps show its pace too, and not only its start."""
            entry = in_profiles(operator)
            return entry is not None and entry.factor is not None

        paces = [pace for pace in engine.paces if device.name in pace.devices]
        pace = paced(paces, fitted, device.bound_by_bytes) if paces else None

        def cost(operator: Operator) -> float:
            alone_s = priced(operator)
            entry = in_profiles(operator)
            start_s = entry.start_s if entry is not None and entry.factor is None else 0.0
            saved_s = alone_s if saving is None or entry is not None else saving(operator, alone_s)
            best_s = self.seconds(operator, saved_s - start_s)
            return start_s + best_s if pace is None else pace(operator, start_s, best_s)

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
        gated: bool = True,
        groups: float = 1.0,
    ) -> Iterator[Operator]:
        """The kernels that this stack runs for operators; ``accumulates``: gradients are added to kept ones;
        ``biased``: routed experts have biases; ``lone_experts``: whether those of experts are that no other rank holds,
        None: others hold them; ``recomputed``: roles of products whose inputs are computed again; ``gated``:
        activations have a gate; ``groups``: query heads per key head."""
        added = of_experts = self.accumulation_bytes if accumulates else 0.0
        if accumulates and self.expert_accumulation_bytes is not None:
            of_experts = self.expert_accumulation_bytes
        if lone_experts is not None and self.lone_expert_bytes is not None:
            of_experts = self.lone_expert_bytes if lone_experts else 0.0
        operators = tuple(operators)
        for operator in operators:
            if self.experts_in_bf16 and operator.role.routed and isinstance(operator, Gemm):
                operator = operator.read_as("bf16", operator.weight_dtype)
            if self.casts_apart and forward_activation(operator, operators):
                operator = self.cast_kernels.in_activation(operator)
            for kernel in self._kernels(operator, recomputed):
                yield self._eager(kernel, gated, groups)
            if biased and self.expert_bias_bytes is not None and isinstance(operator, GroupedGemm):
                yield from bias_kernels(operator, self.expert_bias_bytes)
            if isinstance(operator, Gemm) and operator.computes is Computes.WEIGHT_GRADIENT:
                size = of_experts if operator.role.routed else added
                if size:
                    weights = operator.batch * operator.m * operator.n
                    yield MemoryBound("add", size * weights, operator.m, name=ADD_TO_GRADIENT)

    def _kernels(self, operator: Operator, recomputed: Container[Role]) -> tuple[Operator, ...]:
        if not self.flash_attention and operator.role is Role.ATTENTION:
            mixed = MIXED_PRECISIONS.get(self.mixed_precision)
            return operator.without_flash(self.score_bytes or mixed.score_bytes, mixed.head_bytes)
        if self.choice_kernels is not None and operator.role in _ROUTES:
            return self._chosen(operator, self.choice_kernels)
        if self.casts_apart and isinstance(operator, Gemm) and element_bytes(operator.dtype) < WIDE:
            return tuple(map(self._cast, self.cast_kernels.around(operator, recomputed)))
        if self.norm_tensors is not None and operator.role is Role.NORM and isinstance(operator, MemoryBound):
            return norm_kernels(operator, self.norm_tensors, self.norm_blocks)
        if operator.role is Role.ROPE and isinstance(operator, MemoryBound):
            return self._rotated(operator)
        own = self._own_factor(operator.role)
        return (self._cast(operator).unfused(self.traffic_factor if own is None else own),)

    def _own_factor(self, role: Role) -> float | None:
        """A factor stated for operators of a role alone."""
        return {Role.LOSS: self.loss_factor, Role.EXPERTS_ACTIVATION: self.expert_activation_factor}.get(role)

    def _eager(self, operator: Operator, gated: bool, groups: float) -> Operator:
        """A fused kernel as the kernels that run without a compiler; those of a factor of their own are counted."""
        if self.eager is None or not isinstance(operator, MemoryBound) or self._own_factor(operator.role) is not None:
            return operator
        return EAGER_KERNELS.get(self.eager).run(operator, gated=gated, groups=groups)

    def _cast(self, operator: Operator) -> Operator:
        """A cast of rows as long as this stack's takes, and one back on as many multiprocessors."""
        if not self.casts_apart or not isinstance(operator, MemoryBound):
            return operator
        slower = self.cast_time if operator.op == CAST else 1.0
        units = self.cast_back_units if operator.op == CAST_BACK else operator.units
        return replace(operator, slower=slower, units=units)

    @once
    def cast_kernels(self) -> CastKernels:
        """How kernels that cast apart are cut; others share and turn nothing."""
        return CastKernels(**dict.fromkeys(self.casts if self.casts_apart else (), True))

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
