"""Pricers of this package's operators: the time of each inside a step, from its kernel family."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import ceil

import numpy as np

from tspsim.operators import (
    AbsorbProduct,
    Attention,
    ChoiceKernels,
    Computes,
    DecodeAttention,
    DeltaScan,
    FusedMoE,
    Gemm,
    GroupedGemm,
    Indexer,
    LatentDecode,
    LatentPrefill,
    MemoryBound,
    Operator,
    Part,
    ShortConvolution,
    SparseAttention,
    TopK,
    element_bytes,
    widened_to,
)

from . import linear, pricers, sparse
from .device import READ_AS, Device
from .kernels import OTHER_TYPE, Kernel
from .limits import Estimate, FloatArray
from .pricers import bound_of, price, pricer

FREE = Estimate(0.0, 0.0, 0.0)
#: What an engine's ``libraries`` say of experts that it multiplies in grouped products.
GROUPED = "grouped products"
#: Columns of prefill kernels beside their segments.
_WIDTHS = "heads", "kv_heads", "head_dim", "causal"
_LATENT_WIDTHS = "heads", "key_dim", "value_dim"

#: Family of both gradients of several products, measured together.
GRADIENTS = "grouped_gemm_backward"

#: Seconds a token of PyTorch's ``topk`` among some hundred scores (one thread block a token), and multiprocessors of
#: the measured device. sgl-project/sglang#13374 times sigmoid, ``topk`` of 384 and a gather, compiled, on up to 40,000
#: tokens: 19.2 ns a token, of which 1.7 are the bytes of the others. NVIDIA/Megatron-LM#6456 has 15.9 ns for 128
#: scores, DeepSeek's public profile 16.3 ns for 256.
SEARCH_S, SEARCH_UNITS = 17.5e-9, 132


@pricer(Gemm, GroupedGemm)
def products(device: Device, product: Gemm) -> Estimate:
    """Time of a product at the clock of a step, and of the kernel that quantises A if the operator needs one.

    Product and cast are priced separately on every device, whatever its tables time together
    (:meth:`.device.Device.product_without_cast`). A narrow type is never slower than a wider one, because a kernel of
    wider operands can read the same weights.
    """
    wider = widened_to(product.dtype) if product.weight_dtype is None else ()
    candidates = (product, *(replace(product, dtype=dtype) for dtype in wider if dtype in device.peak_flops_per_s))
    alone = min(_product_without_cast(device, candidate) for candidate in candidates)
    if element_bytes(product.dtype) < element_bytes("bf16"):
        alone = Estimate(*(a + b for a, b in zip(alone, cast_of(device, product), strict=True)))
    return alone


def cast_of(device: Device, product: Gemm) -> Estimate:
    """Time to cast A from bf16 to a product's narrow type; zero if the kernel before or another operator writes it so.

    Both gradients read their operands transposed. So a cast gradient is written in both orientations, one that comes in
    the narrow type is read and written once more, and the forward input is written a second time for the weight
    gradient (Transformer Engine, cast_transpose; block formats also need scales along the other side). The launch is
    that of the device's fastest measured cast.
    """
    element = element_bytes(product.dtype)
    if element >= element_bytes("bf16") or product.cast_apart:
        return FREE
    rows = product.batch * product.m
    wide, across = element_bytes("bf16") + element, element_bytes("bf16") + 2.0 * element

    def moved(size: float) -> Estimate:
        copied = device.streaming(rows * product.k * size, rows)
        return Estimate(*(seconds + device.cast_start_s for seconds in copied))

    if product.computes is Computes.WEIGHT_GRADIENT and product.quantised:
        return Estimate(*(max(0.0, a - b) for a, b in zip(moved(across), moved(wide), strict=True)))
    if product.quantised:
        return moved(2.0 * element) if product.computes is Computes.INPUT_GRADIENT else FREE
    return moved(across if product.computes is Computes.INPUT_GRADIENT else wide)


def _product_without_cast(device: Device, product: Gemm) -> Estimate:
    """Time of a product whose A is already in its type.

    Several products in one call use the grouped kernel if it was measured on this device, or on one of its generation,
    in their type. Gradients use the kernel measured for them, or are slower by ``sustained.gradients``.
    """
    spec = device.spec
    kernel = device.product_without_cast(_family(device, product), product.dtype, product.weight_dtype)
    one = replace(kernel, family="grouped_gemm") if kernel.family == GRADIENTS else kernel
    shape = {"m": product.m, "n": product.n, "k": product.k, "batch": product.batch}
    alone = device.isolated(one, product.weight_dtype, **shape)
    alone = device.at_clock(alone, product, kernel)
    slower = spec.sustained.gradients
    if slower is not None and _is_wide_gradient(product) and kernel.family != GRADIENTS:
        alone = pricers.at_clock(alone, device.matrix_share(product), slower.value)
    alone = pricers.with_parts(alone, product.batch, spec.sustained)
    conflict = spec.channel_conflict
    if conflict is None or bound_of(device, product) != "bytes":
        return alone
    row_bytes = product.k * element_bytes(product.weight_dtype or product.dtype)
    if not conflict.spreads(row_bytes):
        return alone
    return Estimate(*(time_s / conflict.value for time_s in alone))


def _family(device: Device, product: Gemm) -> str:
    """The family whose kernel multiplies: of one product, of several in a call, or of the gradients of several."""
    if product.batch == 1:
        return "gemm"
    wanted = (GRADIENTS, "grouped_gemm") if product.computes is not Computes.OUTPUT else ("grouped_gemm",)
    return next((family for family in wanted if device.measured_alike(family, product.dtype)), "gemm")


def _is_wide_gradient(product: Gemm) -> bool:
    return product.computes is not Computes.OUTPUT and element_bytes(product.dtype) >= element_bytes("bf16")


def _segments(
    device: Device, kernel: Kernel, attention: Attention | LatentPrefill, widths: tuple[tuple[str, float], ...]
) -> Estimate:
    """Time of all segments of a prefill in one call, at the clock of a step."""
    isolated = device.of_segments(kernel, attention.kv_dtype, attention.segments, widths)
    return device.at_clock(isolated, attention, kernel)


def _over_caches(device: Device, family: str, attention: DecodeAttention | LatentDecode, **widths: object) -> Estimate:
    """Time of attention over caches, at the clock of a step.

    Unequal contexts are priced as equal ones of their mean length, because bytes decide. The price is at least that of
    any number of the longest contexts, so that one sequence more, which lowers the mean, is never faster. No measured
    row has unequal contexts.
    """
    kernel = device.kernel(family, attention.dtype, kv_dtype=device.read_as(family, attention.kv_dtype))
    call = {"heads": attention.heads, "queries": attention.queries, **widths}

    def isolated(batch: object, context: object) -> Estimate:
        return device.isolated(kernel, attention.kv_dtype, batch=batch, context=context, **call)

    lengths = sorted({context for context, _ in attention.rows}, reverse=True)
    if len(lengths) == 1:
        return device.at_clock(isolated(attention.batch, lengths[0]), attention, kernel)
    sequences_of = Counter[int]()
    for context, sequences in attention.rows:
        sequences_of[context] += sequences
    counts = [sequences_of[context] for context in lengths]
    alone = [replace(attention, rows=((context, 1),)) for context in lengths]

    def prefix_sums(values: Iterable[float]) -> FloatArray:
        """Sums over all sequences of the greatest length, those and one more, and so on: of equal ones more are never
        faster."""
        return np.cumsum(np.repeat(np.array(list(values), dtype=float), counts))[counts[0] - 1 :]

    batches = np.arange(float(counts[0]), attention.batch + 1.0)
    times = device.shares_at_clock(
        isolated(batches, prefix_sums(lengths) / batches),
        device.matrix_shares(
            attention.dtype, prefix_sums(one.flops for one in alone), prefix_sums(one.hbm_bytes for one in alone)
        ),
        kernel,
    )
    slowest = int(np.argmax(times.seconds))
    return Estimate(*(float(part[slowest]) for part in times))


@pricer(Part)
def part(device: Device, part: Part) -> Estimate:
    """1/``of`` of the whole call's time."""
    whole = price(device, part.whole)
    return Estimate(*(seconds / part.of for seconds in whole))


@pricer(Attention)
def attention(device: Device, attention: Attention) -> Estimate:
    """Time of attention without rope and cache write, which are operators of their own."""
    alone = device.attention_alone(f"attention_{attention.direction}", attention.dtype, attention.kv_dtype)
    sizes = attention.heads, attention.kv_heads, attention.head_dim, attention.causal
    return _segments(device, alone, attention, tuple(zip(_WIDTHS, sizes, strict=True)))


@pricer(LatentPrefill)
def latent_prefill(device: Device, attention: LatentPrefill) -> Estimate:
    """Time of attention with expanded keys and values."""
    kernel = device.kernel("latent_prefill", attention.dtype, kv_dtype=attention.kv_dtype)
    sizes = attention.heads, attention.key_dim, attention.value_dim
    return _segments(device, kernel, attention, tuple(zip(_LATENT_WIDTHS, sizes, strict=True)))


@pricer(DecodeAttention)
def decode_attention(device: Device, attention: DecodeAttention) -> Estimate:
    """Time of attention over cached keys and values."""
    widths = {"kv_heads": attention.kv_heads, "head_dim": attention.head_dim}
    return _over_caches(device, "attention_decode", attention, **widths)


@pricer(LatentDecode)
def latent_decode(device: Device, attention: LatentDecode) -> Estimate:
    """Time of attention over cached latents."""
    widths = {"latent_dim": attention.latent_dim, "rope_dim": attention.rope_dim}
    return _over_caches(device, "latent_decode", attention, **widths)


@pricer(AbsorbProduct)
def absorb(device: Device, product: AbsorbProduct) -> Estimate:
    """Time of absorb products at the clock of a step, in another type where the engine says so (``as fp8``) for the
    type of attention's weights and the family of the device."""
    stated = device.override_of("absorb", product.weights, device.spec.family)
    kernel = device.kernel("absorb", product.dtype if stated is None else stated.removeprefix(READ_AS))
    isolated = device.isolated(kernel, tokens=product.tokens, heads=product.heads, n=product.n, k=product.k)
    return device.at_clock(isolated, product, kernel)


@pricer(FusedMoE)
def fused_moe(device: Device, fused: FusedMoE) -> Estimate:
    """Time of fused MoE kernels at the clock of a step."""
    kept = fused.weight_dtype or fused.dtype
    choices_elsewhere = fused.sent or fused.rows < 0.999 * fused.tokens * fused.topk
    words = (
        "whole" if choices_elsewhere else "divided",
        device.spec.vendor,
        device.spec.family,
        fused.layout,
    )
    library = device.override_of("fused_moe", fused.dtype, kept, *words)
    if library == GROUPED:
        return _grouped_experts(device, fused)
    kernel = device.kernel("fused_moe", fused.dtype, library, kept)
    isolated = device.isolated(
        kernel,
        kept,
        tokens=fused.tokens,
        hidden=fused.hidden,
        expert_ffn=fused.expert_ffn,
        experts=fused.experts,
        topk=fused.topk,
        pairs=fused.rows,
        touched=fused.experts_read,
        gated=fused.gated,
        elsewhere=0.0 if fused.sent else 1.0,
    )
    return device.at_clock(isolated, fused, kernel)


def _grouped_experts(device: Device, fused: FusedMoE) -> Estimate:
    """Time of experts whose dispatched rows are multiplied in grouped products, the activation between them casting its
    output; inputs came cast. Contiguous rows are ordered before and summed by token behind
    (DeepEPMoE.forward_deepgemm_contiguous of SGLang's layers/moe/ep_moe/layer.py: ep_scatter,
    m_grouped_gemm_fp8_fp8_bf16_nt_contiguous twice, silu_and_mul with per_token_group_quant between, ep_gather); masked
    ones stay where they came (forward_deepgemm_masked: m_grouped_gemm_fp8_fp8_bf16_nt_masked twice,
    silu_and_mul_masked_post_quant_fwd between), and the exchange sums them."""
    experts = max(1, round(fused.experts_read))
    rows, element = ceil(fused.rows / experts), element_bytes(fused.dtype)
    entering = (fused.matrices - 1) * fused.expert_ffn
    up, down = (
        GroupedGemm(rows, columns, width, fused.dtype, experts, quantised=True, role=fused.role)
        for columns, width in ((entering, fused.hidden), (fused.hidden, fused.expert_ffn))
    )
    moved = [fused.rows * (2.0 * entering + element * fused.expert_ffn)]
    if fused.layout == "contiguous":
        moved += [(fused.tokens + fused.rows) * fused.hidden * width for width in (element, 2.0)]
    kernels = device.time(up), device.time(down), *(device.streaming(size, round(fused.rows)) for size in moved)
    return Estimate(*(sum(kernel[end] for kernel in kernels) for end in range(3)))


@pricer(ChoiceKernels)
def choice_of_experts(device: Device, choice: ChoiceKernels) -> Estimate:
    """Time of the kernels that choose experts: each takes as long as a copy of its bytes; searches add their time a
    token."""
    units = device.spec.compute_units.value
    one = device.streaming(8.0 * choice.tokens * choice.experts, choice.tokens)
    start = device.streaming(8.0 * choice.tokens, choice.tokens)
    searched_s = choice.tokens * (choice.searches * SEARCH_S * SEARCH_UNITS / units + choice.token_s)
    others = choice.kernels - choice.scores
    return Estimate(*(choice.scores * a + others * b + searched_s for a, b in zip(one, start, strict=True)))


@pricer(MemoryBound)
def memory_bound(device: Device, operator: MemoryBound) -> Estimate:
    """Time of a kernel that streams as many bytes: between other kernels all memory-bound ops run as fast as a copy,
    unless their stack states what longer they take. A resident kernel takes the time of its own op; one of few blocks
    streams at the rate of its multiprocessors; several kernels share the bytes."""
    if operator.resident:
        return device.memory_bound(operator.size_bytes, operator.op, operator.rows)
    fewer = max(1.0, device.spec.compute_units.value / operator.units) if operator.units else 1.0
    calls = operator.calls
    one = device.streaming(operator.slower * fewer * operator.size_bytes / calls, operator.rows)
    return one if calls == 1 else Estimate(*(calls * end for end in one))


def scoring_at_clock(device: Device, kernel: Kernel) -> Kernel:
    """A sparse-attention kernel at the clock of a step, which slows matrix products but not gathers or selection."""
    rate = pricers.rate(device.spec.sustained, kernel.family, device.clocks, measured_sustained=kernel.sustained)
    rate *= device.spec.clock_at_limit
    return replace(kernel, parameters={**kernel.parameters, "efficiency": kernel.parameters["efficiency"] * rate})


@pricer(Indexer)
def indexer(device: Device, scores: Indexer) -> Estimate:
    """Time of index scores and selection at the clock of a step."""
    family, shape = sparse.indexer_call(scores)
    kernel = scoring_at_clock(device, device.kernel(family, scores.dtype))
    return device.isolated(kernel, None, **shape)


@pricer(TopK)
def best_of(device: Device, best: TopK) -> Estimate:
    """Time of an indexer's selection among as many scores, and at least a copy of the candidates."""
    family, shape = sparse.choice_call(best)
    kernel = device.kernel(family, best.dtype)
    alone = replace(kernel, parameters={**kernel.parameters, "launch_us": 0.0})
    chosen, moved = device.isolated(alone, None, **shape), device.streaming(best.hbm_bytes, best.queries)
    return max(chosen, moved, key=lambda estimate: estimate.seconds).widened(OTHER_TYPE)


@pricer(SparseAttention)
def sparse_attention(device: Device, attention: SparseAttention) -> Estimate:
    """Time of sparse attention at the clock of a step."""
    family, shape = sparse.attention_call(attention)
    kernel = device.kernel(family, attention.dtype, kv_dtype=attention.kv_dtype)
    return device.isolated(scoring_at_clock(device, kernel), attention.kv_dtype, **shape)


@pricer(DeltaScan)
def delta_scan(device: Device, scan: DeltaScan) -> Estimate:
    """Isolated time of the recurrence, which does not depend on the matrix units' clock: a call for prompts in chunks,
    and one for short queries."""
    return _in_sequence(device, linear.scan_calls(scan), scan.dtype, scan.state_dtype)


@pricer(ShortConvolution)
def short_convolution(device: Device, convolution: ShortConvolution) -> Estimate:
    """Isolated time of the convolution, which uses no matrix units."""
    return _in_sequence(device, linear.convolution_calls(convolution), convolution.dtype, None)


def _in_sequence(device: Device, calls: list[list[linear.Call]], dtype: str, second_dtype: str | None) -> Estimate:
    """Sum of the isolated times of ``calls``; each is the fastest of its candidates (family, shape)."""
    parts = [
        min(
            device.isolated(device.kernel(family, dtype, kv_dtype=second_dtype), second_dtype, **shape)
            for family, shape in candidates
        )
        for candidates in calls
    ]
    return Estimate(*(sum(values) for values in zip(*parts, strict=True)))


# --- costs for the engine -------------------------------------------------------------------------------------


class Costs:
    """A device's estimates as seconds, as the engine takes them; records the uncertainty of each kernel family.

    ``scales`` are factors on the times of a family (:attr:`Operator.kind`), for the effect of an error in it.
    """

    def __init__(self, device: Device, scales: Mapping[str, float] | None = None) -> None:
        self.device = device
        self.scales = scales or {}
        self._spread: dict[str, list[float]] = {}
        #: Low and high factor of the transfers of a step at these costs (90 % interval).
        self.transfers = (1.0, 1.0)

    def __call__(self, operator: Operator) -> float:
        kind = operator.kind
        seconds, low, high = self.device.time(operator)
        spread = self._spread.get(kind)
        if spread is None:
            spread = self._spread[kind] = [0.0, 0.0, 0.0]
        spread[0] += low
        spread[1] += seconds
        spread[2] += high
        return float(seconds) * self.scales.get(kind, 1.0)

    def errors(self) -> dict[str, tuple[float, float]]:
        """Low and high factor of every family priced so far (90 % interval)."""
        return {family: (low / middle, high / middle) for family, (low, middle, high) in self._spread.items()}
