"""A residual stream of several lanes: manifold-constrained hyper-connections, as in DeepSeek-V4 (Xie et al. 2025,
arXiv:2512.24880).

A block reads a weighted sum of n lanes and adds its output to all of them, each lane a mixture of the others. A token's
weights come from one product of all its lanes, n·h to n² + 2n, whose n × n part is made doubly stochastic. So where a
model of one lane adds and norms, n lanes take three kernels:

    weights     (t, n² + 2n, n·h)                       a product
    mixture     n + 1 of t·h elements                   weights finished, lanes summed and normed
    spreading   2n + 1 of t·h elements                  the previous block's output, into mixed lanes

All are whole on every rank, like norms. A backward has both gradients of the product and twice the traffic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..model import Architecture
from ..operators import Gemm, MemoryBound, Operator
from ..operators.base import Computes, Role


def attach(model: Architecture, element: float, operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """The operators, with the kernels of lanes in place of every norm of the residual stream; ``element``: bytes."""
    kernels = list[Operator]()
    for operator in operators:
        if isinstance(operator, MemoryBound) and operator.op == "add_rmsnorm" and operator.role is Role.NORM:
            kernels += _of_lanes(model, element, operator)
        else:
            kernels.append(operator)
    return tuple(kernels)


def _of_lanes(model: Architecture, element: float, operator: MemoryBound) -> Iterator[Operator]:
    lanes, tokens, hidden = model.residual_lanes, operator.rows, model.hidden
    forward = operator.computes is Computes.OUTPUT
    passes = 1.0 if forward else 2.0
    moved = passes * tokens * hidden * element
    weights = Gemm(tokens, lanes * (lanes + 2), lanes * hidden, "bf16", name="weights of lanes", role=Role.NORM)
    yield weights
    if not forward:
        yield replace(weights, m=weights.n, n=weights.k, k=weights.m, name="weights of lanes, gradient")
    yield replace(operator, size_bytes=(lanes + 1.0) * moved, name=f"{operator.name}, of lanes")
    yield MemoryBound("add", (2.0 * lanes + 1.0) * moved, tokens, name="into lanes", role=Role.NORM)
