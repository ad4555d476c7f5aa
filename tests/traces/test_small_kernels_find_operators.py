"""Small kernels are of the small operator next to them, and of one that a framework runs in two places."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tspsim.operators import ChoiceKernels, Gemm, MemoryBound, Operator, Role
from tspsim.traces.learned import factors_of, kernels_found
from tspsim.traces.match import align
from tspsim.traces.simulated import Operation, kind_of_operator


def operations(*operators: Operator) -> list[Operation]:
    return [
        Operation(number, kind_of_operator(operator), operator.name, "", "forward", 0, "compute", 1e-3 * number, 1e-3,
                  False, operator)
        for number, operator in enumerate(operators)
    ]  # fmt: skip


def taken(kinds: str, own: Sequence[Operation]) -> list[int]:
    words = kinds.split()
    return align(words, [""] * len(words), own).tolist()


PRODUCT = Gemm(64, 64, 64)
NORM = MemoryBound("add_rmsnorm", 1e6, 64, role=Role.NORM)
ROPE = MemoryBound("rope", 1e6, 64, role=Role.ROPE)


def test_a_small_kernel_between_a_product_and_a_norm_is_the_norms() -> None:
    assert taken("gemm elementwise norm elementwise gemm", operations(PRODUCT, NORM, PRODUCT)) == [0, 1, 1, 1, 2]
    # A cast is the product's, and so is anything where no small operator is near.
    assert taken("norm quantize gemm", operations(NORM, PRODUCT)) == [0, 1, 1]
    assert taken("gemm reduction gemm", operations(PRODUCT, PRODUCT))[1] in (0, 1)


def test_a_chain_takes_small_kernels_of_any_kind() -> None:
    own = operations(PRODUCT, ChoiceKernels(64, 8, 4, 3, 1), PRODUCT)
    assert taken("gemm elementwise memcpy router copy reduction memset gemm", own) == [0, 1, 1, 1, 1, 1, 1, 2]
    # Its gradient has no kernel of a router's name.
    assert taken("gemm elementwise copy reduction gemm", own) == [0, 1, 1, 1, 2]


def test_keys_rotated_by_their_product_count_to_the_rotation() -> None:
    own = operations(ROPE, PRODUCT, PRODUCT)
    assert taken("rope quantize gemm rope copy quantize gemm", own) == [0, 1, 1, 0, 0, 2, 2]


def test_copies_behind_a_rotation_further_on_are_no_casts() -> None:
    """They count to the rotation, unless an operator that casts has kernels of its own and took them too."""
    cast = MemoryBound("cast", 1e6, 64)
    own = operations(ROPE, PRODUCT, cast, PRODUCT)
    assert taken("rope gemm rope copy copy gemm", own) == [0, 1, 0, 0, 0, 3]
    assert taken("rope gemm quantize gemm", own) == [0, 1, 2, 3]


def test_what_is_learned_of_a_product_has_its_casts() -> None:
    """A cast that is priced with its product is a row of its own in the comparison, and the product's in a fit."""
    cast = Operation(0, "quantize", "cast for gemm", "", "forward", 0, "compute", 0.0, 1e-3, False, prepares=True)
    product = Operation(0, "gemm", "gemm", "", "forward", 0, "compute", 1e-3, 3e-3, False, PRODUCT)
    names = ["per_token_cast", "nvjet", "nvjet"]
    columns = {"start_s": np.array([0.0, 4e-3, 9e-3]), "duration_s": np.array([4e-3, 4e-3, 4e-3])}
    trace = SimpleNamespace(
        word=lambda column: names, columns=columns, end_s=columns["start_s"] + columns["duration_s"]
    )
    laid: Any = SimpleNamespace(
        trace=trace, operation=np.array([0, 1, 2]), lane=SimpleNamespace(operations=(cast, product, product))
    )
    assert kernels_found(laid) == {1: [0, 1], 2: [2]}
    # Twelve milliseconds of what was priced at one and three, and three.
    assert factors_of(laid) == {"gemm": pytest.approx(12 / 7)}
