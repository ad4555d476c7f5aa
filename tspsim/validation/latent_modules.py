"""Tables of latent attention: calls of a kernel family, and whole attention blocks as a serving step runs them.

A row of scope ``module`` goes from hidden state to hidden state on one rank. Its operators are those that
:mod:`tspsim.model.attention.latent` writes for such rows, each priced as the device's isolated kernel: the
tables time a block in a loop by itself, at the clock of such a loop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tspsim.base.errors import InputError
from tspsim.hardware import Device, Estimate
from tspsim.model import Architecture
from tspsim.model.layer import ServingLayer
from tspsim.model.parts import Formats, LatentAttention, WeightClass
from tspsim.operators import AbsorbProduct, Gemm, LatentDecode, LatentPrefill, MemoryBound, Operator

from ..base.memo import remembered
from . import kernels
from .answers import Predictor, RowAnswers, each_row
from .cells import Row
from .devices import device, named_device
from .kernels import MICROSECONDS

if TYPE_CHECKING:
    import pandas as pd


class Further(NamedTuple):
    """The time of an engine's block beside the operators of a step: small kernels that a compiler did not fuse."""

    #: Seconds per block, for any number of tokens.
    seconds: float
    #: Moved bytes, in hidden states of the tokens.
    states: float
    #: Moved bytes, in keys and values of one head of the tokens.
    heads: float
    #: Half width, in log time, of the spread of blocks, beside the ranges of their kernels.
    spread: float
    #: Seconds that a product saves against its isolated kernel, by type: the cost of quantisation that is fused into
    #: the kernel before. The time never falls below the roofline.
    gain: Mapping[str, float] = MappingProxyType({})


#: By engine, and by device or device family where builds differ. Fitted to seven of ten shapes of the modules, with
#: all types, phases and backends together. Only vLLM on the B200 was compiled: elsewhere its small kernels run one by
#: one.
FURTHER: Mapping[str, Mapping[str, Further]] = {
    "TensorRT-LLM": {
        "blackwell": Further(0.0, 1.44, 0.54, spread=0.0),
        "hopper": Further(1.0e-6, 1.37, 1.7, spread=0.035),
    },
    "vLLM": {
        "b200": Further(2.5e-6, 0.0, 1.94, spread=0.10, gain={"nvfp4": 5.6e-6}),
        "blackwell": Further(54.7e-6, 9.8, 11.5, spread=0.08, gain={"nvfp4": 6.4e-6}),
        "hopper": Further(55.5e-6, 5.4, 3.9, spread=0.13),
    },
}
#: For an engine without measured modules.
UNKNOWN = Further(0.0, 1.4, 0.5, spread=0.3)


def predictor(table: str) -> Predictor:
    """The predictor of ``mla_prefill.csv`` or ``mla_decode.csv``, by the path in a measurements folder."""
    kernel = kernels.predictor(table)
    prefill = "prefill" in table

    def predict(frame: pd.DataFrame, answers: RowAnswers) -> None:
        whole = (frame["scope"] == "module").to_numpy()
        for where, predict_part in ((~whole, kernel), (whole, modules)):
            if where.any():
                part = RowAnswers(int(where.sum()))
                predict_part(frame[where].reset_index(drop=True), part)
                answers.put(np.flatnonzero(where), part)

    @each_row
    def modules(row: Row, position: int, answers: RowAnswers) -> None:
        estimate = block(device(named_device(row["gpu"])), row, prefill=prefill)
        answers.predict(position, *(value * MICROSECONDS for value in estimate))

    return predict


def block(on: Device, row: Row, *, prefill: bool) -> Estimate:
    """Time one attention block on one rank. Raises InputError if the device has no kernel for it."""
    engine = str(row.get("library", "")).split(" ")[0]
    further = further_of(engine, on)
    layer, rows = layer_of(row), rows_of(row, prefill=prefill)
    kind, latent = layer.attention_kind, layer.model.latent
    assert latent is not None
    if prefill:
        operators = prompts(layer, rows)
    else:
        operators = (
            *kind.enter(layer, rows), *kind.project(layer, rows), *kind.attend(layer, rows), *kind.leave(layer, rows)
        )  # fmt: skip
    parts = [gained(on, operator, isolated(on, operator, engine), further) for operator in operators]
    tokens = sum(queries * sequences for queries, _, sequences in rows) * layer.activation_bytes
    widths = further.states * layer.model.hidden + further.heads * layer.heads * (latent.query_dim + latent.value_dim)
    more = further.seconds + tokens * widths / on.hbm_bytes_per_s
    seconds, low, high = (sum(values) + more for values in zip(*parts, strict=True))
    width = math.exp(further.spread)
    return Estimate(seconds, low / width, high * width)


def prompts(layer: ServingLayer, rows: tuple[tuple[int, int, int], ...]) -> tuple[Operator, ...]:
    """A block of prompts as it was measured: with the kernels of prompts for any length. An engine may use the kernels
    of decoding for short ones."""
    kind, tokens = layer.attention_kind, sum(queries * sequences for queries, _, sequences in rows)
    queries, rope, *_ = kind.project(layer, rows)
    segments = tuple((count, before + count) for count, before, sequences in rows for _ in range(sequences))
    keys_and_values = kind.expand(layer, sum(context for _, context in segments))
    attention, output = layer.attention(segments), layer.output(tokens)
    return *kind.enter(layer, rows), queries, rope, *keys_and_values, attention, output


def gained(on: Device, operator: Operator, alone: Estimate, further: Further) -> Estimate:
    """The time of a kernel in an engine's block: reduced by its ``gain``, and at least its roofline."""
    gain = further.gain.get(operator.dtype, 0.0) if isinstance(operator, Gemm) else 0.0
    if not gain:
        return alone
    least = max(operator.flops / on.peak_of(operator.dtype), operator.hbm_bytes / on.hbm_bytes_per_s)
    share = max(least, alone.seconds - gain) / alone.seconds
    return Estimate(*(value * share for value in alone))


def rows_of(row: Row, *, prefill: bool) -> tuple[tuple[int, int, int], ...]:
    """(query tokens, cached tokens before them, sequences), in the order of serving steps."""
    batch = size(row, "batch")
    return ((size(row, "q_len"), 0, batch),) if prefill else ((1, size(row, "context"), batch),)


def layer_of(row: Row) -> ServingLayer:
    """The layer of a module's row, with the heads of one rank."""
    names = ("hidden", "heads", "q_lora", "kv_lora", "nope", "rope", "v")
    return _layer(*(size(row, name) for name in names), str(row["gemm_dtype"]), str(row["kv_dtype"]))


def size(row: Row, column: str) -> int:
    """A whole number of a row. Raises InputError if it is missing."""
    try:
        return int(float(row[column]))
    except (KeyError, ValueError):
        raise InputError(f"no {column}: a module's row needs it") from None


@remembered(256)
def _layer(
    hidden: int, heads: int, q_rank: int, kv_rank: int, nope: int, rope: int, value: int, products: str, cached: str
) -> ServingLayer:
    """``products`` is the type of the projections, ``cached`` of the cache."""
    latent = LatentAttention(q_rank, kv_rank, nope, rope, value)
    width = (latent.query_dim + value) // 2
    model = Architecture("measured", 1, hidden, heads, heads, width, ffn=0, latent=latent)
    return ServingLayer(model, 1, formats=Formats(products={WeightClass.ATTENTION: products}, cache=cached))


def isolated(on: Device, operator: Operator, engine: str) -> Estimate:
    """The isolated time of an operator's kernel, in the engine's own library if that was measured."""
    if isinstance(operator, Gemm):
        library = library_of(on, "gemm", operator.dtype, engine)
        return on.gemm(operator.m, operator.n, operator.k, operator.dtype, library=library)
    if isinstance(operator, MemoryBound):
        return on.memory_bound(operator.size_bytes, "copy", operator.rows)
    if isinstance(operator, AbsorbProduct):
        library = library_of(on, "absorb", operator.dtype, engine)
        return on.absorb(operator.tokens, operator.heads, operator.n, operator.k, operator.dtype, library=library)
    if isinstance(operator, LatentPrefill):
        (queries, context), *_ = operator.segments
        return on.latent_prefill(
            len(operator.segments), queries, context, operator.heads, operator.key_dim, operator.value_dim,
            operator.dtype, operator.kv_dtype,
        )  # fmt: skip
    assert isinstance(operator, LatentDecode)
    return on.latent_decode(
        operator.batch, operator.context / operator.batch, operator.heads, operator.latent_dim, operator.rope_dim,
        operator.kv_dtype,
    )  # fmt: skip


#: Library whose products stand in for those of an unmeasured engine: the only serving library with a table of them.
PRODUCTS = "TensorRT-LLM"


def library_of(on: Device, family: str, dtype: str, engine: str) -> str | None:
    """The library of an engine that has a fit for a family on a device or its relatives; None: the default."""
    fits = [fit for spec in (on.spec, *on.relatives) for fit in spec.kernels if fit.family == family]
    for prefix in (engine, PRODUCTS):
        for fit in fits:
            if fit.dtype == dtype and fit.library.startswith(prefix):
                return fit.library
    return None


def further_of(engine: str, on: Device) -> Further:
    """The overhead of an engine's block on a device."""
    builds = FURTHER.get(engine, {})
    return next((builds[key] for key in (on.name, on.family) if key in builds), UNKNOWN)
