"""Sizes of products that kernels state, and the operators that they may belong to."""

from __future__ import annotations

import json
from itertools import pairwise

from ..base.memo import remembered
from ..operators import Computes


@remembered(8192)
def stated_sizes(text: str) -> tuple[int, int, int] | None:
    """m, n and k of a product from the shapes of its inputs: two matrices, or a bias and two matrices
    (``aten::addmm``)."""
    if not text:
        return None
    try:
        dims = json.loads(text)
    except ValueError:
        return None
    matrices = [
        shape
        for shape in dims
        if isinstance(shape, list) and len(shape) >= 2 and all(isinstance(v, int) for v in shape)
    ]
    for left, right in pairwise(matrices):
        if len(right) == 2 and len(left) == 2:
            (m, k), (p, n) = left, right
            if k == p:
                return m, n, k
            if k == n:  # weights as they are stored; the kernel transposes them
                return m, p, k
    return None


def fits(
    stated: tuple[int, int, int] | None,
    sizes: tuple[int, int, int],
    computes: Computes = Computes.OUTPUT,
    *,
    outputs_first: bool = True,
) -> bool:
    """Whether a kernel of stated sizes may belong to an operator: the sizes are equal, or a slice of the operator's
    columns.

    The two gradients of a product may run in either order. Each fits both operators, and :func:`gradient_of`
    distinguishes them.

    >>> fits((32, 4096, 1024), (32, 6144, 1024)), fits((32, 4096, 512), (32, 6144, 1024)), fits(None, (1, 2, 3))
    (True, False, True)
    """
    if stated is None:
        return True
    if computes is not Computes.OUTPUT:
        return gradient_of(stated, sizes, computes, outputs_first=outputs_first) is not None
    (rows, columns, inner), (want_rows, want_columns, want_inner) = stated, sizes
    # Q, K and V, or gate and up, of one operator may be separate products.
    return within_padding(inner, want_inner) and within_padding(rows, want_rows) and _part(columns, want_columns)


def gradient_of(
    stated: tuple[int, int, int], sizes: tuple[int, int, int], computes: Computes, *, outputs_first: bool = True
) -> Computes | None:
    """The gradient of a product Y = X·W that a kernel computes, whole or for a slice of W's columns; None for another
    product.

    Parameters
    ----------
    stated
        m, n, k of the kernel.
    sizes, computes
        m, n, k of an operator that computes one of the two gradients: dX (tokens, inputs, outputs) or dW (inputs,
        outputs, tokens).
    outputs_first
        Whether dW comes as (outputs, inputs), as PyTorch keeps weights.

    >>> gradient_of((512, 64, 128), (32, 64, 512), Computes.INPUT_GRADIENT) is None  # other tokens
    True
    >>> str(gradient_of((128, 64, 32), (32, 64, 512), Computes.INPUT_GRADIENT))  # dW of a slice, outputs first
    'weight gradient'
    """
    own = computes is Computes.INPUT_GRADIENT
    tokens, inputs, outputs = sizes if own else (sizes[2], sizes[0], sizes[1])
    rows, columns, inner = stated
    first, second = (columns, rows) if outputs_first else (rows, columns)
    makes = {
        Computes.INPUT_GRADIENT: within_padding(rows, tokens)
        and within_padding(columns, inputs)
        and _part(inner, outputs),
        Computes.WEIGHT_GRADIENT: within_padding(inner, tokens)
        and within_padding(first, inputs)
        and _part(second, outputs),
    }
    return computes if makes[computes] else next((which for which, true in makes.items() if true), None)


def within_padding(value: int, wanted: int) -> bool:
    """Whether a kernel's size may be an operator's, with the few rows or columns that libraries pad."""
    return wanted <= value <= wanted * 1.1 + 64


def _part(value: int, wanted: int) -> bool:
    return value <= wanted or within_padding(value, wanted)
