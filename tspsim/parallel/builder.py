"""Writing programs: the builder that all schemes use.

:func:`lowering_of` turns a scheme's operators into the kernels that run: lanes of the residual stream, adapters beside
frozen weights, casts of kept activations, the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from ..model.layer import gradients
from ..operators import BatchQuantity, Gemm, Operator, Part
from ..program import Collective, Compute, Copy, ExpertExchange, Instruction, Launch, Program, Repeat, SendReceive
from . import hyper_connections
from .interleave import EXCHANGE
from .job import Job
from .rank_groups import expert_copies, ranks_along
from .recompute import recomputed_inputs
from .serving_engine import Captured
from .whole import accumulates_gradients
from .written_layers import MOST_BEFORE, Buffers, WrittenLayer, numbered


class Slice(NamedTuple):
    """The ``number``-th of ``of`` equal slices of a kernel or a transfer that begins and ends once."""

    number: int = 0
    of: int = 1


WHOLE = Slice()


Lowering = Callable[[Sequence[Operator]], tuple[Operator, ...]]


def lowering_of(job: Job) -> Lowering:
    """The lowering of a job's operators by its work and stack; the same for every scheme."""
    steps: list[Lowering] = []
    work, store = job.work, job.store
    adapters, stack = work.adapters, work.stack
    if job.model.residual_lanes > 1:
        steps.append(partial(hyper_connections.attach, job.model, job.activation_bytes))
    if adapters is not None:
        steps.append(lambda operators: tuple(adapters.attach(operators)))
    if job.training and store.columns_bytes is not None:
        steps.append(lambda operators: tuple(store.cast(operators)))
    mixed = job.mixed_precision
    if job.training and not mixed.casts_nothing:
        steps.append(lambda operators: tuple(mixed.lower(operators, job.activation_bytes)))
    if job.training and (scales := job.tensor_scales).reads_first:
        steps.append(lambda operators: tuple(scales.lower(operators)))
    if not stack.fuses:
        accumulates = accumulates_gradients(job)
        biased = job.training and job.model.experts is not None and job.model.experts.expert_bias
        run = partial(
            stack.run,
            accumulates=accumulates,
            biased=biased,
            lone_experts=_adds_own_experts(job),
            recomputed=recomputed_inputs(job) if job.training else (),
            gated=job.model.gated,
            groups=job.model.heads / job.model.kv_heads,
        )
        steps.append(lambda operators: tuple(run(operators)))

    if not steps:
        return tuple

    def lower(operators: Sequence[Operator]) -> tuple[Operator, ...]:
        lowered = tuple(operators)
        for step in steps:
            lowered = step(lowered)
        return lowered

    return lower


def _adds_own_experts(job: Job) -> bool | None:
    """Whether gradients of experts that no other rank holds are added to kept ones; None: others hold them."""
    if not job.training or job.plan.ep == 1 or expert_copies(job) > 1:
        return None
    return job.micro_batches > 1


def waiting_for(instruction: Instruction, after: tuple[int, ...]) -> Instruction:
    """The instruction with other dependencies."""
    return instruction.at(instruction.layer, after)


class ProgramBuilder:
    """Collects instructions in issue order; every method returns the index to wait for.

    ``part`` (``attention``, ``mlp``, …) is written on each instruction until it is changed. Indices do not cross the
    border of a run of layers: streams carry the order there. ``recomputing`` is set while a layer's forward is repeated
    for its backward, ``further_token`` in an MTP module, ``weight_gradients`` cleared while they are deferred;
    ``exchanged_gradients`` are a layer's instructions that bring its weights' gradients to their owners.
    ``sized_by`` is what the sizes of a serving step's instructions depend on, until :meth:`sized` changes it.
    ``coordinates`` are the positions of the program's ranks on the axes along which programs differ; ``capture`` is the
    part of the pass that runs as graphs; ``renamed`` maps axes to those that replace them.
    """

    def __init__(self, role: str, job: Job, coordinates: Mapping[str, int] | None = None) -> None:
        self.role = role
        self.coordinates: Mapping[str, int] = coordinates or {}
        self.renamed: Mapping[str, str] = {}
        self.plan = job.plan
        self._lower = lowering_of(job)
        self._job = job
        self._ranks: dict[str, int] = {}
        self._launches = job.work.stack.launches(experts=job.model.experts is not None)
        self._library = job.plan.dispatch.sums_before_return
        self._waits = not (job.work.stack.queues_chunks and job.plan.vpp > 1)
        self.part = ""
        self.sized_by = BatchQuantity.TOKENS
        self.capture = job.capture
        self._items: list[Instruction | Repeat] = []
        self._length = 0
        self._body: list[Instruction] = []
        self._across: list[tuple[int, int, str, int]] = []
        self._left: list[dict[str, int]] = []
        self._buffers: dict[str, Buffers] = {}
        self._layer = -1
        self.recomputing = False
        self.further_token = False
        self.weight_gradients = True
        self.exchanged_gradients: list[int] = []

    def compute(
        self,
        name: str,
        *operators: Operator,
        after: Iterable[int] = (),
        stream: str = "compute",
        slice_of: Slice = WHOLE,
        reads: Callable[[Operator], BatchQuantity] | None = None,
    ) -> int:
        """Kernels; or one slice of each, launched with the first. ``reads``: what an operator's size depends on."""
        if reads is None:
            kernels = self._lower(operators)
            sized_by = (self.sized_by,) * len(kernels)
        else:
            kernels, sized_by = self._lower_each(operators, reads)
        if slice_of.of > 1:
            kernels = tuple(Part(kernel, slice_of.of) for kernel in kernels)
        step = Compute(kernels, name, self._part(), self._layer, tuple(after), stream, sized_by)
        return self._put(step) if slice_of.number else self._add(step)

    def _lower_each(
        self, operators: Sequence[Operator], reads: Callable[[Operator], BatchQuantity]
    ) -> tuple[tuple[Operator, ...], tuple[BatchQuantity, ...]]:
        """Kernels, and what their sizes depend on: what that of the operator does which they are of."""
        if self._lower is tuple:  # each is its own kernel
            return tuple(operators), tuple([reads(operator) for operator in operators])
        kernels, sized_by = list[Operator](), list[BatchQuantity]()
        for operator in operators:
            lowered = self._lower((operator,))
            kernels += lowered
            sized_by += [reads(operator)] * len(lowered)
        return tuple(kernels), tuple(sized_by)

    @contextmanager
    def sized(self, quantity: BatchQuantity) -> Iterator[None]:
        """Sizes of what is written inside depend on ``quantity``."""
        before, self.sized_by = self.sized_by, quantity
        yield
        self.sized_by = before

    def host(self, name: str, seconds: float, *, after: Iterable[int] = (), stream: str = "host") -> int:
        """Work of the host that kernels and transfers may wait for."""
        return self._put(Launch(name, seconds, self._part(), self._layer, tuple(after), stream))

    def read_counts(self, after: Iterable[int]) -> None:
        """Write the host's wait for the rows of each expert, which later launches depend on, if the stack waits in
        training."""
        if self._launches and self._job.training and self._job.work.stack.reads_counts:
            self.host("read counts of rows", 0.0, after=after)

    def copy(self, direction: str, size_bytes: float, name: str, *, after: Iterable[int] = (), stream: str = "") -> int:
        """Bytes between this rank's memory and its host's, on a stream of their own."""
        copied = Copy(direction, round(size_bytes), name, part=self._part(), layer=self._layer, after=tuple(after))
        return self._put(replace(copied, stream=stream) if stream else copied)

    def wait_for_store(self, name: str, seconds: float, *, after: Iterable[int] = ()) -> int:
        """A transfer of ``seconds`` between host and store."""
        return self._put(Copy("out", 0, name, seconds, self._part(), self._layer, tuple(after)))

    def gradients(self, product: Gemm) -> tuple[Gemm, ...]:
        """Both gradients of a product, or its input's alone while the weights' are deferred."""
        both = gradients(product)
        return both if self.weight_gradients else both[:1]

    def collective(
        self,
        kind: str,
        axis: str,
        size_bytes: float,
        name: str,
        *,
        after: Iterable[int] = (),
        root: int = 0,
        stream: str = "",
        algorithm: str | None = None,
        tokens: ExpertExchange | None = None,
        slice_of: Slice = WHOLE,
    ) -> int:
        """A collective of ``size_bytes``; or one slice of it, issued with the first.

        ``algorithm``: kernels that a schedule brings itself; a plan's choice among the node's library does not apply
        then.
        """
        moved = Collective(
            kind,
            self.renamed.get(axis, axis),
            round(size_bytes / slice_of.of),
            name,
            root,
            algorithm or self.plan.algorithms.get(kind),
            self._part(),
            self._layer,
            tuple(after),
            stream or "communication",
            tokens,
            slice_of.of,
            self.sized_by,
        )
        return self._put(moved) if slice_of.number else self._add(moved)

    def send(
        self, axis: str, offset: int, size_bytes: float, name: str, *, after: Iterable[int], wrap: bool, way: int = 1
    ) -> int:
        """Send to the rank ``offset`` positions on, if there is one, on a stream per direction ``way``."""
        stream = f"send {axis}" + (" down" if way < 0 else "")
        return self._message(axis, size_bytes, name, tuple(after), wrap, to=offset, source=None, stream=stream)

    def receive(
        self,
        axis: str,
        offset: int,
        size_bytes: float,
        name: str,
        *,
        after: Iterable[int] = (),
        wrap: bool,
        way: int = 1,
    ) -> int:
        """Receive from the rank ``offset`` positions before."""
        stream = f"receive {axis}" + (" down" if way < 0 else "")
        return self._message(axis, size_bytes, name, tuple(after), wrap, to=None, source=-offset, stream=stream)

    def _message(
        self,
        axis: str,
        size_bytes: float,
        name: str,
        after: tuple[int, ...],
        wrap: bool,
        *,
        to: int | None,
        source: int | None,
        stream: str,
    ) -> int:
        direction = "forward" if (to or -(source or 0)) > 0 else "backward"
        return self._add(
            SendReceive(
                axis,
                round(size_bytes),
                name,
                to,
                source,
                wrap,
                self._part(),
                self._layer,
                after,
                f"{stream} {direction}",
                self.sized_by,
            )
        )

    def ring_hop(self, axis: str, size_bytes: float, name: str, *, after: Iterable[int] = (), stream: str = "") -> int:
        """Every rank sends to the next position and receives from the one before."""
        return self.pass_on(axis, 1, size_bytes, name, after=after, stream=stream)

    def pass_on(
        self, axis: str, offset: int, size_bytes: float, name: str, *, after: Iterable[int] = (), stream: str = ""
    ) -> int:
        """Every rank sends ``offset`` positions on and receives from as many before; the axis is a ring."""
        return self._add(
            SendReceive(
                self.renamed.get(axis, axis),
                round(size_bytes),
                name,
                offset,
                -offset,
                part=self._part(),
                layer=self._layer,
                after=tuple(after),
                stream=stream or "communication",
                sized_by=self.sized_by,
            )
        )

    def begin_run(self) -> None:
        """The next layer depends on none written before."""
        self._left = []

    def begin_layers(self, first: int = 0) -> None:
        """Start a layer with number ``first``, until :meth:`end_layers` or :meth:`end_layer`."""
        self._layer = first
        self._buffers = {}
        self.exchanged_gradients = []

    def buffers(self, name: str, count: int, a_layer: int) -> Buffers:
        """The buffers of this name in the layer being written, created on first use."""
        return self._buffers.setdefault(name, Buffers(count, a_layer))

    def _hand_over_buffers(self) -> None:
        """Write the fillings' dependencies into the layer."""
        for name, buffers in self._buffers.items():
            for move, use, layers, number in buffers.waits():
                if layers:
                    self.after_previous_layer(move, use, f"{name} {number}", layers)
                else:
                    self._body[move] = waiting_for(self._body[move], (*self._body[move].after, use))
        self._buffers = {}

    def after_previous_layer(self, consumer: int, producer: int, what: str, turns: int = 1) -> None:
        """Instruction ``consumer`` of a layer depends on ``producer`` of the layer before (or ``turns`` before).

        ``what`` they share (a buffer, a chunk of tokens) identifies the producer in a layer of another kind.
        """
        self._across.append((consumer, producer, what, turns))

    @property
    def layer(self) -> int:
        """Number of the layer being written; −1 outside."""
        return self._layer

    @property
    def first_kernel(self) -> int:
        """Index of the first kernel of the layer being written."""
        return next(index for index, instruction in enumerate(self._body) if isinstance(instruction, Compute))

    @property
    def last_kernel(self) -> int:
        """Index of the last kernel of the layer being written."""
        return max(index for index, instruction in enumerate(self._body) if isinstance(instruction, Compute))

    def hold_until(self, gate: int) -> None:
        """The first kernel of the layer being written depends on ``gate``, an instruction of the same layer."""
        for index, instruction in enumerate(self._body):
            if isinstance(instruction, Compute):
                self._body[index] = waiting_for(instruction, (*instruction.after, gate))
                return

    def end_layers(self, times: int, layer_step: int = 1) -> Repeat:
        """The layer written since :meth:`begin_layers`, to run ``times`` times at a :meth:`repeat`."""
        self._hand_over_buffers()
        body = list(self._body)
        for consumer, producer, _, turns in self._across:
            waits = (*body[consumer].after, producer - turns * len(body))
            body[consumer] = waiting_for(body[consumer], waits)
        self._body, self._across, self._layer, self.part = [], [], -1, ""
        return Repeat(tuple(body), times, layer_step)

    def repeat(self, layers: Repeat) -> int:
        """Append layers to the program, for the first time or again.

        Returns the index at which their last iteration begins, to be added to an index inside the layer.
        """
        self._items.append(layers)
        self._length += layers.times * len(layers.body)
        self.part = ""
        return self._length - len(layers.body)

    def end_layer(self) -> int:
        """Append the layer written since :meth:`begin_layers` once, after layers that may be of another kind.

        Returns the index at which it begins, as :meth:`repeat` does.
        """
        return self.put_layers(self.take_layer(), self._layer, 1)

    def take_layer(self) -> WrittenLayer:
        """The layer written since :meth:`begin_layers`, for :meth:`put_layers`."""
        self._hand_over_buffers()
        taken = WrittenLayer(tuple(self._body), tuple(self._across))
        self._body, self._across, self.part = [], [], ""
        return taken

    def put_layers(self, written: WrittenLayer, layer: int, times: int, step: int = 1) -> int:
        """Append ``times`` layers of one kind, numbered from ``layer`` in steps of ``step``, after layers that may be
        of another; returns the index at which the last begins."""
        # Layers that depend on layers before these are written one by one.
        alone = min(times, max((turns for *_, turns in written.across), default=1))
        for number in range(alone):
            self._put_layer(written, layer + step * number)
        start = self._length - len(written.body)
        if times > alone:
            again = numbered(written.body, layer + step * alone)
            for consumer, producer, _, turns in written.across:
                waits = (*again[consumer].after, producer - turns * len(again))
                again[consumer] = waiting_for(again[consumer], waits)
            start = self.repeat(Repeat(tuple(again), times - alone, step, continues=True))
            kept = min(times - alone, MOST_BEFORE)
            self._left += [written.left(start - back * len(again)) for back in reversed(range(kept))]
        return start

    def _put_layer(self, written: WrittenLayer, layer: int) -> None:
        start, crossing = self._length, dict[int, tuple[int, ...]]()
        for consumer, _, what, turns in written.across:
            earlier = self._left[-turns].get(what) if turns <= len(self._left) else None
            if earlier is not None:
                crossing[consumer] = (*crossing.get(consumer, ()), earlier)
        put = self._items.append
        for index, instruction in enumerate(written.body):
            waits = tuple([start + other for other in instruction.after]) if instruction.after else ()
            if index in crossing:
                waits += crossing[index]
            put(instruction.at(layer if instruction.layer >= 0 else -1, waits))
        self._left.append(written.left(start))
        self._length += len(written.body)
        self._layer, self.part = -1, ""

    @property
    def length(self) -> int:
        """Instructions so far, Repeats unrolled: the index of the next one outside a layer."""
        return self._length

    def add(self, instruction: Instruction) -> int:
        """Append an instruction made elsewhere, outside a layer; its dependencies are indices of the program."""
        return self._put(instruction)

    def program(self) -> Program:
        return Program(self.role, tuple(self._items))

    def _add(self, instruction: Compute | Collective | SendReceive) -> int:
        """Append the instruction, preceded by a Launch if the stack's host takes time to issue it."""
        stack, captured = self._job.work.stack, self.capture
        if captured is Captured.WHOLE or not self._launches:
            return self._put(instruction)
        if isinstance(instruction, Compute):
            host_s = stack.compute_s(instruction.operators, captured, self._job.model.experts)
        elif isinstance(instruction, SendReceive):
            host_s = stack.message_s
        else:
            host_s = stack.exchange_s(self._ranks_along(instruction.axis), captured)
            if host_s and instruction.stream == EXCHANGE:
                host_s += stack.expert_exchange_s(captured, library=self._library)
            if instruction.stream == EXCHANGE and self._job.interleaves:
                # Each exchange is a node, and so is what runs up to it.
                host_s += 2.0 * stack.node_launches * stack.kernel_s
        received = isinstance(instruction, SendReceive) and instruction.to is None
        stands_ready = received and stack.awaits_sends
        if stands_ready or (host_s == 0.0 and (isinstance(instruction, Compute) or stack.kernel_s == 0.0)):
            index = self._put(instruction)
        else:
            part, layer = instruction.part, instruction.layer
            issued = self._put(Launch(f"issue {instruction.name}", host_s, part, layer))
            index = self._put(instruction.at(layer, (*instruction.after, issued)))
        if received and self._waits:
            # Frameworks wait for a receive before they issue what uses it: the host runs at most one task ahead of the
            # device.
            self._put(Launch(f"wait for {instruction.name}", 0.0, instruction.part, instruction.layer, (index,)))
        return index

    def _ranks_along(self, axis: str) -> int:
        if axis not in self._ranks:
            self._ranks[axis] = ranks_along(self._job, axis)
        return self._ranks[axis]

    def _put(self, instruction: Instruction) -> int:
        if self._layer < 0:
            self._items.append(instruction)
            self._length += 1
            return self._length - 1
        self._body.append(instruction)
        return len(self._body) - 1

    def _part(self) -> str:
        part = f"{self.part} again" if self.recomputing else self.part
        return f"{part}, further token" if self.further_token else part
