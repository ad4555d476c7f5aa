"""One decoder layer and small whole models on one device, end to end: the sum of their operators.

Norms with the residual add, rope, and the gated activation are one fused memory-bound kernel each, as a compiled model
runs them; the backward of a product is two products of the same size. ``1/tp`` of a layer has its heads and FFN
columns divided and no collective. Operators cost what :meth:`tspsim.hardware.Device.time` says, at sustained clocks.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tspsim.hardware import Device, Estimate
from tspsim.model import Architecture
from tspsim.model.layer import LayerShard, gradients
from tspsim.operators import Attention, Gemm, MemoryBound, Operator

from .answers import Answers
from .devices import device
from .kernels import MICROSECONDS

if TYPE_CHECKING:
    import pandas as pd

#: The tables name no GPU in a column; their file names do.
MEASURED_ON = "h200"
#: A backward that Python's autograd drives cannot end before its calls are issued: what a layer's forward and
#: backward take at least, launched from one thread (PyTorch 2.11, no graph replay of the backward).
LEAST_FORWARD_AND_BACKWARD_S = 2.1e-3
#: And what the device waits, before and between, where its kernels take longer than their launches.
FIRST_LAUNCHES_S = 0.5e-3
#: What a device did before is in no table, and its clock is one factor for everything on the matrix units. Equal
#: products back to back ran at 643 to 769 TFLOP/s (overlap table), and own layers of one length differ by so much each
#: way around the sum of their kernels.
CLOCK_SPREAD = 1.13
#: The overlap table: products in one measurement, and the share of a copy's time that they lose beside it.
PRODUCTS_BESIDE_A_COPY = 8
LOST_BESIDE_A_COPY = 0.68
#: Whose attention kernel decodes in the measured models.
DECODE_LIBRARY = "PyTorch 2.11 SDPA flash"
#: A process's own memory beside its tensors: graph pools and library workspaces, as scenarios assume by default.
RUNTIME_RESERVE_BYTES = 2.0 * 2**30
#: Kernels of the AdamW update that PyTorch fuses read weight, gradient and two moments and write three of them.
FUSED_ADAMW_BYTES_A_PARAMETER = {"weights": 2.0 * 2, "gradients": 2.0, "moments": 2.0 * 2 * 2}


def predict_layers(frame: pd.DataFrame, answers: Answers) -> None:
    """One layer or ``1/tp`` of it: forward, or forward and backward; compiled rows only."""
    on = device(MEASURED_ON)
    for position, row in enumerate(frame.to_dict("records")):
        if row["compiled"] != 1:
            answers.skip(position, "eager execution is not modelled: compiled kernels are")
            continue
        tp = int(row["tp"])
        if row["heads"] % tp or row["kv"] % tp or row["ffn"] % tp:
            answers.skip(position, "tp does not divide heads and FFN")
            continue
        layer = LayerShard(_architecture(row, layers=1, vocab=0), tp)
        batch, sequence = int(row["b"]), int(row["s"])
        operators = forward(layer, batch, sequence)
        if row["pass"] == "fwd+bwd":
            operators += backward(layer, batch, sequence)
        elif row["pass"] != "fwd":
            answers.skip(position, "pass is neither fwd nor fwd+bwd")
            continue
        total = add(on, [(operator, 1) for operator in operators])
        if row["pass"] == "fwd+bwd":
            total = Estimate(*(max(value + FIRST_LAUNCHES_S, LEAST_FORWARD_AND_BACKWARD_S) for value in total))
        answers.predict(position, *(value * MICROSECONDS for value in total))


def predict_models(frame: pd.DataFrame, answers: Answers) -> None:
    """A whole model: prefill, one decoding step, or a training step with a fused AdamW; time and peak memory."""
    on = device(MEASURED_ON)
    for position, row in enumerate(frame.to_dict("records")):
        model = _architecture(row, layers=int(row["layers"]), vocab=int(row["vocab"]))
        batch, sequence, context = int(row["b"]), int(row["s"]), int(row["ctx"])
        phase = row["phase"]
        if phase == "prefill":
            total = add(on, prefill(model, batch, sequence))
        elif phase == "decode":
            total = plus(add(on, decode_step(model, batch)), decode_attention(on, model, batch, context))
        elif phase == "train":
            total = add(on, training_step(model, batch, sequence))
        else:
            answers.skip(position, "phase is none of prefill, decode, train")
            continue
        answers.predict(position, *(value * MICROSECONDS for value in total))
        answers.also(position, "peak_gb", peak_bytes(model, phase, batch, sequence, context) / 1e9)


def predict_overlap(frame: pd.DataFrame, answers: Answers) -> None:
    """Eight products beside one copy inside HBM, and each of the two alone."""
    on = device(MEASURED_ON)
    for position, row in enumerate(frame.to_dict("records")):
        products = add(on, [(Gemm(int(row["m"]), int(row["n"]), int(row["k"])), PRODUCTS_BESIDE_A_COPY)])
        copy = on.memory_bound(2.0 * row["copy_mb"] * 2**20)
        lost = Estimate(*(LOST_BESIDE_A_COPY * value for value in copy))
        both = join((products, lost))
        answers.predict(position, *(value * MICROSECONDS for value in both))
        answers.also(position, "gemm_alone_us", products.seconds * MICROSECONDS)
        answers.also(position, "copy_alone_us", copy.seconds * MICROSECONDS)


def forward(layer: LayerShard, batch: int, sequence: int) -> list[Operator]:
    """A layer's forward on ``batch`` sequences."""
    tokens = batch * sequence
    return [
        layer.norm(tokens), layer.qkv(tokens), layer.rope(tokens), attention(layer, batch, sequence),
        layer.output(tokens), layer.norm(tokens), layer.gate_up(tokens), layer.activation(tokens), layer.down(tokens),
    ]  # fmt: skip


def backward(layer: LayerShard, batch: int, sequence: int) -> list[Operator]:
    """A layer's backward: two products for each of the forward, attention's own, and the small kernels' mirrors."""
    tokens = batch * sequence
    products = (layer.qkv(tokens), layer.output(tokens), layer.gate_up(tokens), layer.down(tokens))
    return [
        *(gradient for product in products for gradient in gradients(product)),
        attention(layer, batch, sequence, "backward"), layer.rope(tokens), layer.activation_backward(tokens),
        layer.norm_backward(tokens), layer.norm_backward(tokens),
    ]  # fmt: skip


def attention(layer: LayerShard, batch: int, sequence: int, direction: str = "forward") -> Attention:
    return layer.attention(((sequence, sequence),) * batch, direction=direction)


def prefill(model: Architecture, batch: int, sequence: int) -> list[tuple[Operator, int]]:
    """Every layer, and the head on the last token of each sequence."""
    layer = LayerShard(model, 1)
    tokens = batch * sequence
    outside: list[Operator] = [layer.embedding(tokens), layer.norm(tokens), layer.head(batch)]
    return [(op, model.layers) for op in forward(layer, batch, sequence)] + [(op, 1) for op in outside]


def decode_step(model: Architecture, batch: int) -> list[tuple[Operator, int]]:
    """One token a sequence through every layer, without attention (see :func:`decode_attention`)."""
    layer = LayerShard(model, 1)
    inside: list[Operator] = [
        layer.norm(batch), layer.qkv(batch), layer.rope(batch), layer.output(batch), layer.norm(batch),
        layer.gate_up(batch), layer.activation(batch), layer.down(batch),
        MemoryBound("cache_write", 2.0 * 2.0 * 2.0 * batch * model.kv_width, batch, name="cache write"),
    ]  # fmt: skip
    outside: list[Operator] = [layer.embedding(batch), layer.norm(batch), layer.head(batch)]
    return [(op, model.layers) for op in inside] + [(op, 1) for op in outside]


def decode_attention(on: Device, model: Architecture, batch: int, context: int) -> Estimate:
    """Attention of one decoding step, all layers."""
    one = on.decode_attention(batch, context, model.heads, model.kv_heads, model.head_dim, library=DECODE_LIBRARY)
    return Estimate(*(value * model.layers for value in one))


def training_step(model: Architecture, batch: int, sequence: int) -> list[tuple[Operator, int]]:
    """Forward, loss, backward of every layer without recomputation, and the optimizer's pass."""
    layer = LayerShard(model, 1)
    tokens = batch * sequence
    inside = forward(layer, batch, sequence) + backward(layer, batch, sequence)
    head = layer.head(tokens)
    update = MemoryBound("adamw", model.parameters * sum(FUSED_ADAMW_BYTES_A_PARAMETER.values()), name="optimizer")
    outside: list[Operator] = [
        layer.embedding(tokens), layer.norm(tokens), head, layer.loss(tokens), *gradients(head),
        layer.norm_backward(tokens), update,
    ]  # fmt: skip
    return [(op, model.layers) for op in inside] + [(op, 1) for op in outside]


def peak_bytes(model: Architecture, phase: str, batch: int, sequence: int, context: int) -> float:
    """Peak memory of one device in bf16: weights, what a phase keeps, and one layer's residual and MLP columns."""
    tokens = batch * sequence
    weights = 2.0 * model.parameters + RUNTIME_RESERVE_BYTES
    alive = 2.0 * tokens * (2 * model.hidden + 3 * model.ffn)
    if phase == "prefill":
        return weights + alive
    if phase == "decode":
        return weights + alive + 2.0 * 2.0 * model.layers * batch * context * model.kv_width
    kept = 2.0 * tokens * (4 * model.hidden + 2 * (model.attention_width + model.kv_width) + 3 * model.ffn)
    logits_and_gradients = tokens * model.vocab * 8.0
    gradients_and_moments = 6.0 * model.parameters
    return weights + gradients_and_moments + model.layers * kept + alive + logits_and_gradients


def add(on: Device, operators: Iterable[tuple[Operator, int]]) -> Estimate:
    """The sum of operators that run one after the other, each a number of times, as a benchmark repeats them.

    What the matrix units decide runs the faster the shorter the whole call is (:meth:`Device.cool_gain`). A family's
    error is one factor for all its calls, and families err independently: their ranges add in quadrature.
    """
    counted = [(operator, times, on.time(operator)) for operator, times in operators]
    gain = on.cool_gain(sum(times * estimate.seconds for _, times, estimate in counted))
    families: dict[str, list[float]] = {}
    for operator, times, estimate in counted:
        kind = f"{operator.kind} {operator.direction}" if isinstance(operator, Attention) else operator.kind
        family = families.setdefault(kind, [0.0, 0.0, 0.0])
        factor = times * (1.0 + on.matrix_share(operator) * (1.0 / gain - 1.0))
        for index, value in enumerate(estimate):
            family[index] += factor * value
    hot = [Estimate(*family) for kind, family in families.items() if kind != "memory_bound"]
    rest = [Estimate(*family) for kind, family in families.items() if kind == "memory_bound"]
    return join([slow_or_cool(join(hot)) if hot else Estimate(0.0, 0.0, 0.0), *rest])


def slow_or_cool(estimate: Estimate) -> Estimate:
    """The same with the state of the clock in its range."""
    seconds = estimate.seconds
    return Estimate(
        seconds,
        seconds * math.exp(-math.hypot(math.log(seconds / estimate.low), math.log(CLOCK_SPREAD))),
        seconds * math.exp(math.hypot(math.log(estimate.high / seconds), math.log(CLOCK_SPREAD))),
    )


def join(parts: Sequence[Estimate]) -> Estimate:
    """The sum of independent estimates."""
    seconds = sum(part.seconds for part in parts)
    faster = sum((part.seconds - part.low) ** 2 for part in parts) ** 0.5
    slower = sum((part.high - part.seconds) ** 2 for part in parts) ** 0.5
    return Estimate(seconds, seconds - faster, seconds + slower)


def plus(one: Estimate, other: Estimate) -> Estimate:
    """Two independent estimates, one after the other."""
    return join((one, other))


def _architecture(row: Mapping[Hashable, Any], *, layers: int, vocab: int) -> Architecture:
    """The model of a row; heads are as wide as the hidden size divides."""
    heads = int(row["heads"])
    return Architecture(
        name=str(row["model"]),
        layers=layers,
        hidden=int(row["h"]),
        heads=heads,
        kv_heads=int(row["kv"]),
        head_dim=int(row["h"]) // heads,
        ffn=int(row["ffn"]),
        vocab=vocab,
        tied_embeddings=True,
    )
