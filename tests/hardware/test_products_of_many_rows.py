"""Products over many numbers of rows at once take what each takes alone."""

from __future__ import annotations

import numpy as np
import pytest

from tspsim.hardware.over_tokens import over_tokens
from tspsim.hardware.pricers import price
from tspsim.operators import Gemm
from tspsim.scenario import load
from tspsim.studies.query import Library

LIBRARY = Library()
WORK = {"model": "llama-3.1-8b", "stack": "vllm", "pass": "decode", "batch": 8, "context": 64}
#: Operand type, and type of weights that are widened.
TYPES = (("bf16", None), ("fp8", None), ("fp8_block", None), ("mxfp4", None), ("bf16", "int4"), ("bf16", "mxfp4"))
WIDTHS = ((4096, 4160), (1024, 8192), (128, 1000), (9999, 4096))
ROWS = np.array([1.0, 16, 17, 100, 513, 768, 1000, 5000, 8192, 40_000])


@pytest.mark.parametrize("name", ["h100", "h200", "b200", "mi300x", "mi355x", "a100-80gb"])
def test_products_of_many_rows_are_those_priced_one_by_one(name: str) -> None:
    """Types, casts before narrow ones, weights that are widened, and rows that begin in the same memory channels."""
    asked = {"name": "s", "cluster": {"device": name, "nodes": 1}, "workload": WORK, "plans": [{"name": "P"}]}
    device = LIBRARY.look_up(load(asked)).device
    own = [types for types in TYPES if types[0] in device.peak_flops_per_s]
    products = [
        Gemm(64, n, k, dtype, quantised=quantised, weight_dtype=weights)
        for dtype, weights in own
        for n, k in WIDTHS
        for quantised in (False, True)
    ]
    found = over_tokens(device, products)(np.tile(ROWS, (len(products), 1)))
    exact = [[price(device, product.over(int(rows))).seconds for rows in ROWS] for product in products]
    np.testing.assert_allclose(found, exact, rtol=1e-12)
    # Others beside it do not change a product's.
    alone = np.concatenate([over_tokens(device, [product])(ROWS[None]) for product in products[:3]])
    np.testing.assert_allclose(found[:3], alone, rtol=1e-12)
