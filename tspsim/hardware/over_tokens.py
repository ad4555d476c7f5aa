"""Seconds of kernels inside a step as functions of their rows, of several kernels and many numbers of rows at once.

A product's time is a staircase over its rows whose steps are tiles: a table of steps needs it at both ends of every
tile. A class of operators may register a *token pricer*, which looks up models, clocks and types once::

    @token_pricer(MyProduct)
    def over(device: Device, products: Sequence[MyProduct]) -> OverTokens:
        widths = np.array([[product.row_bytes] for product in products])
        return lambda rows: device.memory_bound(rows * widths, rows=rows).seconds

The function gives, of an array of rows (kernels, numbers), the seconds of the pricer of the class. Where none is
registered, operators are priced one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from ..operators import Gemm, Operator, element_bytes, widened_to
from .device import Device
from .families import FAMILIES
from .kernels import Kernel
from .limits import Estimate, FloatArray

#: Seconds of calls by their rows, both of shape (kernels, numbers).
OverTokens = Callable[[FloatArray], FloatArray]
Priced = TypeVar("Priced", bound=Operator)
TokenPricer = Callable[[Device, Sequence[Priced]], OverTokens]

TOKEN_PRICERS: dict[type[Operator], TokenPricer[Any]] = {}


def token_pricer(*classes: type[Priced]) -> Callable[[TokenPricer[Priced]], TokenPricer[Priced]]:
    """Decorator that registers a function as the token pricer of these classes, without their subclasses."""

    def register(function: TokenPricer[Priced]) -> TokenPricer[Priced]:
        TOKEN_PRICERS.update(dict.fromkeys(classes, function))
        return function

    return register


def over_tokens(device: Device, operators: Sequence[Operator]) -> OverTokens:
    """Seconds of operators with other rows, of classes that have a token pricer."""
    alike: dict[type[Operator], list[int]] = {}
    for number, operator in enumerate(operators):
        alike.setdefault(type(operator), []).append(number)
    parts = [(numbers, TOKEN_PRICERS[cls](device, [operators[i] for i in numbers])) for cls, numbers in alike.items()]

    def seconds(rows: FloatArray) -> FloatArray:
        taken_s = np.empty(rows.shape)
        for numbers, own_s in parts:
            taken_s[numbers] = own_s(rows[numbers])
        return taken_s

    return seconds


@token_pricer(Gemm)
def products(device: Device, products: Sequence[Gemm]) -> OverTokens:
    """Products of a forward pass (:func:`tspsim.hardware.prices.products`): each is the quickest of those in its type
    and in wider ones, with a cast of A to a narrow type."""
    wide = element_bytes("bf16")
    alike: dict[Any, tuple[Kernel, list[int]]] = {}
    for number, product in enumerate(products):
        wider = widened_to(product.dtype) if product.weight_dtype is None else ()
        for dtype in (product.dtype, *(dtype for dtype in wider if dtype in device.peak_flops_per_s)):
            kernel = device.product_without_cast("gemm", dtype)
            alike.setdefault((dtype, product.weight_dtype), (kernel, []))[1].append(number)
    kernels = [
        (np.array(numbers), _without_cast(device, kernel, [replace(products[i], dtype=dtype) for i in numbers]))
        for (dtype, _), (kernel, numbers) in alike.items()
    ]
    cast = [
        number
        for number, product in enumerate(products)
        if element_bytes(product.dtype) < wide and not (product.cast_apart or product.quantised)
    ]
    cast_bytes = np.array([[products[i].k * (wide + element_bytes(products[i].dtype))] for i in cast])

    def seconds(m: FloatArray) -> FloatArray:
        taken_s = np.full(m.shape, np.inf)
        for numbers, own_s in kernels:
            taken_s[numbers] = np.minimum(taken_s[numbers], own_s(m[numbers]))
        if cast:
            rows = m[cast]
            taken_s[cast] += device.streaming(rows * cast_bytes, rows).seconds + device.cast_start_s
        return taken_s

    return seconds


def _without_cast(device: Device, kernel: Kernel, products: Sequence[Gemm]) -> OverTokens:
    """Products of one kernel whose A is already in their type."""
    first, one = products[0], kernel
    if first.weight_dtype is not None and kernel.switches.get("tiles") == "wide":
        one = replace(kernel, switches={**kernel.switches, "tiles": "all"})
    family, limits, parameters = FAMILIES[one.family], device.limits(one.dtype), one.parameters
    widths = element_bytes(one.dtype), element_bytes(first.weight_dtype or one.dtype)
    element = element_bytes(first.dtype)
    n, k = (np.array([[float(size)] for size in sizes]) for sizes in zip(*[(p.n, p.k) for p in products], strict=True))
    cold_bytes = np.array([[product.cold_bytes] for product in products])
    slowed = device.shares_at_clock(Estimate(1.0, 1.0, 1.0), 1.0, kernel).seconds - 1.0
    conflict = device.spec.channel_conflict
    row_bytes = [product.k * element_bytes(product.weight_dtype or product.dtype) for product in products]
    spread = np.array([[conflict is not None and conflict.spreads(size)] for size in row_bytes])
    peak = device.peak_flops_per_s.get(first.dtype) or device.peak_flops_per_s.get("bf16")

    def seconds(m: FloatArray) -> FloatArray:
        columns = [np.broadcast_to(sizes, m.shape).ravel() for sizes in (m, n, k)]
        alone_s: FloatArray = family.form(limits, parameters, *columns, 1.0, *widths, **one.switches)
        flops, moved = 2.0 * m * n * k, cold_bytes + m * k * element + 2.0 * m * n
        taken_s: FloatArray = alone_s.reshape(m.shape) * (
            1.0 + device.matrix_shares(first.dtype, flops, moved) * slowed
        )
        if conflict is not None:
            by_bytes = moved / device.hbm_bytes_per_s >= (flops / peak if peak else 0.0)
            by_bytes &= spread & (2.0 * cold_bytes >= moved)
            taken_s = np.where(by_bytes, taken_s / conflict.value, taken_s)
        return taken_s

    return seconds
