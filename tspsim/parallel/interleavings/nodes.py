"""A forward and a backward task as nodes, layer by layer, and an order of these nodes.

A node is named like the module whose forward or backward it is: the backward of a combine dispatches gradients, that of
a dispatch combines them. A layer's nodes depend on each other in their own order:

    forward    attention (with norms, router, pack), dispatch, experts, combine, sum
    backward   combine, experts, dispatch, attention; weight gradients of experts and of attention apart or with them

A layer without exchanges has its MLP in ``experts``. A layer that is recomputed as a whole runs forward first, with its
exchanges, right before its backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from ...operators import Computes, Role
from ...program import Collective, Compute, Instruction, Launch
from ..expert_shards import STREAM as EXPERT_WEIGHTS
from ..interleave import Interleaving, Place, exchanges_tokens, merged
from ..stack import ADD_TO_GRADIENT

#: Streams and part of instructions that need complete weight gradients.
_GRADIENT_STREAMS = frozenset({"gradients", "weight gradients", "moved experts", EXPERT_WEIGHTS})
_GRADIENT_PART = "gradients"


class LayerNode(Enum):
    """A part of a layer's forward or backward; ``AGAIN`` is its recomputed forward."""

    AGAIN = "again"
    ATTENTION = "attention"
    ATTENTION_WEIGHTS = "attention's weight gradients"
    DISPATCH = "dispatch"
    EXPERTS = "experts"
    EXPERTS_WEIGHTS = "experts' weight gradients"
    SHARED = "shared experts' backward, behind that of the routed ones"
    COMBINE = "combine"
    SUM = "sum of experts"


class Turn(NamedTuple):
    """A node of the forward task, or of the backward one."""

    node: LayerNode
    backward: bool = False


class PairOrder(NamedTuple):
    """The nodes of a pair of layers in issue order, and how a task is cut into nodes."""

    turns: tuple[Turn, ...]
    defers_weights: bool
    shared_with_attention: bool
    #: A node begins when the node before it of its own task has ended (one event per task in the source).
    by_events: bool

    def named(self, name: str, summary: str) -> Interleaving:
        """The order as what registers: its name, what a plan's kernels need to know of it, and how it merges."""
        return Interleaving(
            name,
            summary,
            self.merge,
            defers_weights=self.defers_weights,
            shared_with_attention=self.shared_with_attention,
        )

    def merge(self, tasks: Sequence[Sequence[Instruction]]) -> Iterator[Instruction]:
        """The instructions of a forward and a backward task, layer by layer: the forward's first layer with the
        backward's first, which is its chunk's last; layers that one task has more follow alone."""
        forward, backward = tasks
        cut = list(forward), weights_apart(backward) if self.defers_weights else list(backward)
        layers = layers_of(cut[0], self, backward=False), layers_of(cut[1], self, backward=True)
        order: list[tuple[int, int]] = []
        before = [-1, -1]
        waits: dict[Place, Place] = {}
        exchanged: Place | None = None
        for number in range(max(len(task.layers) for task in layers)):
            for node, back in self.turns:
                if number < len(layers[back].layers):
                    indices = layers[back].layers[number].get(node, [])
                    if self.by_events and indices and node not in _WEIGHTS:
                        before[back] = _chained(cut[back], indices, before[back])
                    order += [(int(back), index) for index in indices]
                    for index in indices:
                        if exchanges_tokens(cut[back][index]):
                            exchanged = int(back), index
                        elif exchanged is not None and _reads_counts(cut[back], index, indices):
                            waits[int(back), index] = exchanged
        order += [(task, index) for task in (0, 1) for index in layers[task].tail]
        return merged(cut, order, waits)


_WEIGHTS = frozenset({LayerNode.ATTENTION_WEIGHTS, LayerNode.EXPERTS_WEIGHTS})


class TaskLayers(NamedTuple):
    """A task's layers as nodes with indices of instructions, and what follows its last layer."""

    layers: list[dict[LayerNode, list[int]]]
    tail: list[int]


def _reads_counts(task: Sequence[Instruction], index: int, node: Sequence[int]) -> bool:
    """Whether the host waits there for counts that a library's exchange brings: its first kernel runs on the stream of
    exchanges (DeepEP, ``notify_dispatch``). Those of a plain all-to-all come by a collective of their own."""
    if not (isinstance(task[index], Launch) and task[index].after):
        return False
    moves = [instruction for instruction in map(task.__getitem__, node) if isinstance(instruction, Collective)]
    return any(exchanges_tokens(move) and move.tokens is not None for move in moves)


def _chained(task: list[Instruction], indices: Sequence[int], before: int) -> int:
    """Let the node's first instruction of every stream wait for ``before``; returns the node's last instruction that
    is no launch."""
    begun = set[str]()
    for index in indices:
        instruction = task[index]
        if not isinstance(instruction, Launch) and instruction.stream not in begun:
            begun.add(instruction.stream)
            if 0 <= before not in instruction.after:
                task[index] = replace(instruction, after=(*instruction.after, before))
    moved = [index for index in indices if not isinstance(task[index], Launch)]
    return moved[-1] if moved else before


# --- weight gradients apart -------------------------------------------------------------------------------------


def weights_apart(task: Sequence[Instruction]) -> list[Instruction]:
    """A backward task whose weight gradients are instructions of their own, behind those that they were part of.

    A router's stay: frameworks defer those of linear layers. What sums gradients waits for them, all else does not.
    """
    result: list[Instruction] = []
    #: Index before → indices of the kernels without weight gradients, and of the weight gradients.
    kept: dict[int, int] = {}
    deferred: dict[int, int] = {}
    newest = -1
    for number, instruction in enumerate(task):
        own, weights = _weights_of(instruction)
        late = bool(weights) and not own
        sums = instruction.stream in _GRADIENT_STREAMS or instruction.part == _GRADIENT_PART
        after = dict.fromkeys(kept[index] for index in instruction.after if kept[index] >= 0)
        if sums or late:
            after |= dict.fromkeys(deferred[index] for index in instruction.after if index in deferred)
        if not weights or own:
            kept[number] = len(result)
            whole = instruction if not weights else _with_operators(instruction, own)
            result.append(replace(whole, after=tuple(after)))
        else:
            # Others that waited for it wait for the kernel before it.
            kept[number] = newest
        if weights:
            deferred[number] = len(result)
            waits = (kept[number],) if own else tuple(after)
            result.append(replace(_with_operators(instruction, weights, apart=bool(own)), after=waits))
        if isinstance(instruction, Compute) and kept[number] >= 0:
            newest = kept[number]
    return result


def _with_operators(instruction: Instruction, indices: Sequence[int], *, apart: bool = False) -> Compute:
    assert isinstance(instruction, Compute)
    operators = tuple(instruction.operators[index] for index in indices)
    sized = tuple(instruction.sized_by[index] for index in indices) if instruction.sized_by else ()
    name = f"{instruction.name}, {WEIGHTS_NAME}" if apart else instruction.name
    return replace(instruction, operators=operators, sized_by=sized, name=name)


#: End of the names of instructions with deferred weight gradients.
WEIGHTS_NAME = "weight gradients"


def _weights_of(instruction: Instruction) -> tuple[list[int], list[int]]:
    """Indices of an instruction's operators without and with the weight gradients of linear layers."""
    own, weights = list[int](), list[int]()
    if not isinstance(instruction, Compute) or instruction.part == _GRADIENT_PART:
        return [0], []
    for index, operator in enumerate(instruction.operators):
        adds = operator.name == ADD_TO_GRADIENT and weights and weights[-1] == index - 1
        linear = operator.computes is Computes.WEIGHT_GRADIENT and operator.role is not Role.ROUTER
        (weights if adds or linear else own).append(index)
    return own, weights


# --- nodes ------------------------------------------------------------------------------------------------------


def layers_of(task: Sequence[Instruction], order: PairOrder, *, backward: bool) -> TaskLayers:
    """A task's layers in order; what stands between layers belongs to the next."""
    layers: list[dict[LayerNode, list[int]]] = []
    between: list[int] = []
    for indices in _visits(task):
        if task[indices[0]].layer < 0:
            between += indices
            continue
        again = [index for index in indices if _part(task[index])[1] == "again"]
        rest = indices[len(again) :] if again else indices
        nodes = _nodes(task, rest, order, backward=backward)
        first = LayerNode.ATTENTION
        if backward:
            first = LayerNode.AGAIN
            nodes[LayerNode.AGAIN] = again
        nodes[first] = between + nodes.get(first, [])
        layers.append(nodes)
        between = []
    return TaskLayers(layers, between)


def _part(instruction: Instruction) -> tuple[str, str]:
    name, _, phase = instruction.part.partition(" ")
    return name, phase.partition(",")[0]


def _visits(task: Sequence[Instruction]) -> Iterator[list[int]]:
    """Runs of instructions of one layer."""
    run: list[int] = []
    for index, instruction in enumerate(task):
        if run and instruction.layer != task[run[-1]].layer:
            yield run
            run = []
        run.append(index)
    if run:
        yield run


def _nodes(
    task: Sequence[Instruction], indices: Sequence[int], order: PairOrder, *, backward: bool
) -> dict[LayerNode, list[int]]:
    """The nodes of one layer's forward or backward."""
    node_of = _backward_nodes if backward else _forward_nodes
    nodes: dict[LayerNode, list[int]] = {}
    held: list[int] = []
    kinds = node_of(task, indices, order)
    for index in indices:
        # A launch goes with what it launches; a host that waits holds up the dispatch.
        instruction = task[index]
        if isinstance(instruction, Launch) and not instruction.after:
            held.append(index)
            continue
        nodes.setdefault(kinds[index], []).extend((*held, index))
        held = []
    if held:
        nodes.setdefault(kinds[indices[-1]], []).extend(held)
    if LayerNode.SHARED in nodes:
        nodes[LayerNode.EXPERTS] += nodes.pop(LayerNode.SHARED)
    return nodes


def _awaiting(task: Sequence[Instruction], indices: Sequence[int], exchange: int) -> set[int]:
    """Instructions of the layer that wait for ``exchange``, directly or by others."""
    waiting = {exchange}
    for index in indices:
        if waiting.intersection(task[index].after):
            waiting.add(index)
    return waiting


def _forward_nodes(task: Sequence[Instruction], indices: Sequence[int], order: PairOrder) -> dict[int, LayerNode]:
    exchanges = [index for index in indices if exchanges_tokens(task[index])]
    if not exchanges:
        return {index: _dense(task[index]) for index in indices}
    first, last = exchanges[0], exchanges[-1]
    waiting = _awaiting(task, indices, first)
    kinds: dict[int, LayerNode] = {}
    for index in indices:
        if index < first:
            waits = isinstance(task[index], Launch) and task[index].after
            kinds[index] = LayerNode.DISPATCH if waits else LayerNode.ATTENTION
        elif index == first:
            kinds[index] = LayerNode.DISPATCH
        elif index < last:
            apart = index not in waiting and order.shared_with_attention
            kinds[index] = LayerNode.ATTENTION if apart else LayerNode.EXPERTS
        else:
            kinds[index] = LayerNode.COMBINE if index == last else LayerNode.SUM
    return kinds


def _backward_nodes(task: Sequence[Instruction], indices: Sequence[int], order: PairOrder) -> dict[int, LayerNode]:
    exchanges = [index for index in indices if exchanges_tokens(task[index])]
    kinds: dict[int, LayerNode] = {}
    first, last = (exchanges[0], exchanges[-1]) if exchanges else (-1, -1)
    fed, returned = (_awaiting(task, indices, exchange) for exchange in (first, last))
    behind = False
    for index in indices:
        instruction = task[index]
        deferred = order.defers_weights and _deferred(instruction)
        behind = behind or (index > last and index in returned and isinstance(instruction, Compute))
        if not exchanges:
            node = _dense(instruction)
        elif index <= first:
            node = LayerNode.COMBINE
        elif index < last and index not in fed:
            node = LayerNode.ATTENTION if order.shared_with_attention else LayerNode.SHARED
        elif index < last:
            node = LayerNode.EXPERTS
        elif index == last:
            node = LayerNode.DISPATCH
        else:
            node = LayerNode.ATTENTION if behind else LayerNode.EXPERTS
            deferred = deferred or (order.defers_weights and not behind)
        kinds[index] = _DEFERRED[node] if deferred else node
    return kinds


_DEFERRED = {
    LayerNode.ATTENTION: LayerNode.ATTENTION_WEIGHTS,
    LayerNode.EXPERTS: LayerNode.EXPERTS_WEIGHTS,
    LayerNode.SHARED: LayerNode.EXPERTS_WEIGHTS,
}


def _deferred(instruction: Instruction) -> bool:
    """Whether it is a deferred weight gradient, or a sum of gradients."""
    if instruction.part == _GRADIENT_PART or instruction.stream in _GRADIENT_STREAMS:
        return True
    own, weights = _weights_of(instruction)
    return bool(weights) and not own


def _dense(instruction: Instruction) -> LayerNode:
    return LayerNode.EXPERTS if _part(instruction)[0] == "mlp" else LayerNode.ATTENTION
