"""Seconds of attention over caches as a function of sequences and their context, all else looked up once.

A step decodes sequences of many contexts, and :func:`~tspsim.hardware.prices.decode_attention` prices each of their
batches. What that price is made of are times of equal contexts, which a table of a plan holds: a class of operators
may register a *cache pricer*, which makes the function of them, over arrays::

    @cache_pricer(MyDecodeKernel)
    def over(device: Device, kernel: MyDecodeKernel) -> OverCaches:
        return lambda batches, contexts: device.memory_bound(kernel.bytes_a_token * batches * contexts).seconds
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..base.quick import replace
from ..operators import DecodeAttention, LatentDecode, Operator
from .device import Device
from .limits import Estimate, FloatArray
from .pricers import registers

#: Seconds of calls over so many sequences of as many tokens each, in arrays (calls,).
OverCaches = Callable[[FloatArray, FloatArray], FloatArray]
Priced = TypeVar("Priced", bound=Operator)
CachePricer = Callable[[Device, Priced], OverCaches]

CACHE_PRICERS: dict[type[Operator], CachePricer[Any]] = {}


def cache_pricer(*classes: type[Priced]) -> Callable[[CachePricer[Priced]], CachePricer[Priced]]:
    """Decorator that registers a function as the cache pricer of these classes, without their subclasses."""
    return registers(CACHE_PRICERS, classes)


def over_caches(device: Device, operator: Operator) -> OverCaches | None:
    """Seconds of an operator over other caches; None where nobody registered how."""
    pricer = CACHE_PRICERS.get(type(operator))
    return None if pricer is None else pricer(device, operator)


@cache_pricer(DecodeAttention)
def decode_attention(device: Device, attention: DecodeAttention) -> OverCaches:
    """Attention over cached keys and values."""
    widths = {"kv_heads": attention.kv_heads, "head_dim": attention.head_dim}
    return _at_clock(device, "attention_decode", attention, **widths)


@cache_pricer(LatentDecode)
def latent_decode(device: Device, attention: LatentDecode) -> OverCaches:
    """Attention over cached latents."""
    widths = {"latent_dim": attention.latent_dim, "rope_dim": attention.rope_dim}
    return _at_clock(device, "latent_decode", attention, **widths)


def _at_clock(device: Device, family: str, attention: DecodeAttention | LatentDecode, **widths: int) -> OverCaches:
    """Calls at the clock of a step."""
    kernel = device.kernel(family, attention.dtype, kv_dtype=device.read_as(family, attention.kv_dtype))
    shape = {"heads": attention.heads, "queries": attention.queries, **widths}
    # FLOPs are proportional to tokens, bytes to sequences and to tokens: two small calls give the factors.
    one, longer = (replace(attention, rows=((context, 1),)) for context in (1, 2))
    token_flops, token_bytes = longer.flops - one.flops, longer.hbm_bytes - one.hbm_bytes
    sequence_bytes = one.hbm_bytes - token_bytes

    def seconds(batches: FloatArray, contexts: FloatArray) -> FloatArray:
        alone_s = device.isolated(kernel, attention.kv_dtype, batch=batches, context=contexts, **shape).seconds
        tokens = batches * contexts
        flops, moved = token_flops * tokens, sequence_bytes * batches + token_bytes * tokens
        shares = device.matrix_shares(attention.dtype, flops, moved)
        at_clock_s: FloatArray = device.shares_at_clock(Estimate(alone_s, alone_s, alone_s), shares, kernel).seconds
        return at_clock_s

    return seconds
