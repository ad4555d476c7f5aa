"""Latent attention's tables: calls of a kernel family, and whole attention blocks as a serving step runs them.

A row of scope ``module`` goes from hidden state to hidden state on one rank. Its operators are those that
:mod:`tspsim.model.attention.latent` writes for such rows, each at what the device says of its isolated kernel: the
tables time a block in a loop by itself, at the clock of such a loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tspsim.errors import InputError
from tspsim.hardware import Device, Estimate
from tspsim.model import Architecture
from tspsim.model.formats import Formats, WeightClass
from tspsim.model.parts import LatentAttention
from tspsim.model.serving import ServingLayer
from tspsim.operators import AbsorbProduct, Gemm, LatentDecode, LatentPrefill, MemoryBound, Operator

from . import kernels
from .answers import Answers
from .devices import device, device_name, no_device
from .kernels import MICROSECONDS

if TYPE_CHECKING:
    import pandas as pd


class Further(NamedTuple):
    """What an engine's block runs beside the operators of a step: small kernels that a compiler did not fuse.

    Attributes
    ----------
    seconds
        A block, whatever its tokens.
    states
        Hidden states of its tokens that they move.
    """

    seconds: float
    states: float


#: By engine, and by device or family of devices where builds differ. Fitted to seven in ten shapes of the modules. vLLM
#: was compiled on the B200 alone: elsewhere its small kernels run one by one.
FURTHER: Mapping[str, Mapping[str, Further]] = {
    "TensorRT-LLM": {"": Further(0.0, 1.7)},
    "vLLM": {"b200": Further(0.0, 0.0), "blackwell": Further(49e-6, 13.5), "hopper": Further(57e-6, 6.3)},
}
NOTHING = Further(0.0, 0.0)
#: Half width in log time by which whole blocks lie around the sum of their kernels, beside those kernels' own ranges.
SPREAD: Mapping[str, float] = {"TensorRT-LLM": 0.0, "vLLM": 0.0}


def predictor(table: str) -> Callable[[pd.DataFrame, Answers], None]:
    """The predictor of ``mla_prefill.csv`` or ``mla_decode.csv``, by the path in a measurements folder."""
    kernel = kernels.predictor(table)
    prefill = "prefill" in table

    def predict(frame: pd.DataFrame, answers: Answers) -> None:
        whole = (frame["scope"] == "module").to_numpy()
        for where, each in ((~whole, kernel), (whole, modules)):
            if where.any():
                part = Answers(int(where.sum()))
                each(frame[where].reset_index(drop=True), part)
                answers.put(np.flatnonzero(where), part)

    def modules(frame: pd.DataFrame, answers: Answers) -> None:
        for position, row in enumerate(frame.to_dict("records")):
            name = device_name(row["gpu"])
            if name is None:
                answers.skip(position, no_device(row["gpu"]))
                continue
            try:
                estimate = block(device(name), row, prefill=prefill)
            except InputError as error:
                answers.skip(position, error.message)
                continue
            answers.predict(position, *(value * MICROSECONDS for value in estimate))

    return predict


def block(on: Device, row: Mapping[Any, Any], *, prefill: bool) -> Estimate:
    """One attention block on one rank; raises InputError where the device has no kernel for it."""
    operators, hidden_bytes = operators_of(row, prefill=prefill)
    engine = str(row.get("library", "")).split(" ")[0]
    parts = [isolated(on, operator, engine) for operator in operators]
    further = further_of(engine, on)
    seconds, low, high = (sum(values) for values in zip(*parts, strict=True))
    more = further.seconds + further.states * hidden_bytes / on.hbm_bytes_per_s
    width = math.exp(SPREAD.get(engine, max(SPREAD.values())))
    return Estimate(seconds + more, (low + more) / width, (high + more) * width)


def operators_of(row: Mapping[Any, Any], *, prefill: bool) -> tuple[tuple[Operator, ...], float]:
    """The operators of a module's row, as a serving step writes them, and the bytes of its tokens' hidden states."""
    batch, queries = int(row["batch"]), int(row["q_len"]) if prefill else 1
    rows = ((queries, 0 if prefill else int(row["context"]), batch),)
    layer = layer_of(
        *(_size(row, name) for name in ("hidden", "heads", "q_lora", "kv_lora", "nope", "rope", "v")),
        str(row["gemm_dtype"]), str(row["kv_dtype"]),
    )  # fmt: skip
    kind = layer.attention_kind
    operators = (
        *kind.enter(layer, rows), *kind.project(layer, rows), *kind.attend(layer, rows), *kind.leave(layer, rows)
    )  # fmt: skip
    return operators, batch * queries * layer.model.hidden * layer.activation_bytes


def _size(row: Mapping[Any, Any], column: str) -> int:
    try:
        return int(float(row[column]))
    except (KeyError, ValueError):
        raise InputError(f"no {column}: a module's row needs it") from None


@cache
def layer_of(
    hidden: int, heads: int, q_rank: int, kv_rank: int, nope: int, rope: int, value: int, products: str, cached: str
) -> ServingLayer:
    """A layer with so many heads on its rank: ``products`` is the type of its projections."""
    latent = LatentAttention(q_rank, kv_rank, nope, rope, value)
    width = (latent.query_dim + value) // 2
    model = Architecture("measured", 1, hidden, heads, heads, width, ffn=0, latent=latent)
    return ServingLayer(model, 1, formats=Formats(products={WeightClass.ATTENTION: products}, cache=cached))


def isolated(on: Device, operator: Operator, engine: str) -> Estimate:
    """What an operator's kernel takes by itself, of the engine's own library where it was measured."""
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


#: Whose products stand in for an engine's that nobody measured: the only serving library with a table of them.
PRODUCTS = "TensorRT-LLM"


def library_of(on: Device, family: str, dtype: str, engine: str) -> str | None:
    """The library of an engine that a family was fitted with on a device, or of its relatives; None: the default."""
    fits = [fit for spec in (on.spec, *on.relatives) for fit in spec.kernels if fit.family == family]
    for prefix in (engine, PRODUCTS):
        for fit in fits:
            if fit.dtype == dtype and fit.library.startswith(prefix):
                return fit.library
    return None


def further_of(engine: str, on: Device) -> Further:
    """What an engine runs besides on a device; nothing where no module of it was measured."""
    builds = FURTHER.get(engine, {})
    return next((builds[key] for key in (on.name, on.family, "") if key in builds), NOTHING)
