"""Types in which activations are kept for the backward: registered stores.

wide            as computed (the default)
fp8             inputs of the MLP's activation in eight bits: Megatron-Core's ``activation_func_fp8_input_store``, which
                casts them in kernels of their own
fp8_products    the same, and inputs of products, which eight-bit products quantise anyway and Transformer Engine keeps
in
                that type (DeepSeek-V3, arXiv:2412.19437, §3.3.3)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..base.registry import Registry
from ..operators import Computes, MemoryBound, Operator, Role
from .separate_kernels import CAST, CAST_BACK, EIGHT_BITS, forward_activation, is_activation


@dataclass(frozen=True)
class ActivationStore:
    """Bytes of kept activations."""

    #: Its name in plans, and a line for people.
    name: str
    summary: str
    #: Bytes of an element that enters the MLP's activation; None: as computed.
    columns_bytes: float | None = None
    #: Bytes of an element that enters a product and nothing else; None: as computed.
    products_bytes: float | None = None
    #: Whether it requires products in eight bits or fewer.
    products_in_eight_bits: bool = False

    def cast(self, operators: Sequence[Operator]) -> Iterator[Operator]:
        """The operators with casts after a forward's activation, and back before the first kernel of a backward that
        reads what was kept."""
        #: By role the size of a cast back that still lacks: of the first gradient, which reads the kept inputs.
        back: dict[Role, float] = {}
        if self.columns_bytes is not None:
            for operator in reversed(operators):
                if is_activation(operator) and operator.computes is not Computes.OUTPUT:
                    back[operator.role] = operator.hbm_bytes
        for operator in operators:
            if self.columns_bytes is None or not is_activation(operator):
                yield operator
                continue
            # Of the three tensors that a gated activation moves, two are inputs; of the five of its backward, two.
            # Without a gate, one of two, and one of three.
            factor = 1.0 + self.columns_bytes / 2.0
            rows, size = operator.rows, back.pop(operator.role, 0.0)
            if size:
                yield MemoryBound(CAST_BACK, _MOVED[False] * size * factor, rows, name="cast back")
            yield operator
            if forward_activation(operator, operators):
                yield MemoryBound(CAST, _MOVED[True] * operator.size_bytes * factor, rows, name="cast for backward")


#: Share of a gated activation's bytes that are its inputs, forward (True) and backward.
_MOVED = {True: 2.0 / 3.0, False: 2.0 / 5.0}

ACTIVATION_STORES: Registry[ActivationStore] = Registry("activation store", "tspsim.activation_stores", ActivationStore)
WIDE = ACTIVATION_STORES.register(ActivationStore("wide", "as they were computed"))
ACTIVATION_STORES.register(ActivationStore("fp8", "inputs of the MLP's activation in eight bits", columns_bytes=1.0))
ACTIVATION_STORES.register(
    ActivationStore(
        "fp8_products", "and inputs of products that are in eight bits",
        columns_bytes=EIGHT_BITS, products_bytes=EIGHT_BITS, products_in_eight_bits=True,
    )
)  # fmt: skip
