"""Time of linear attention: the recurrence over a state per head, and the short convolution before it.

Prefill runs a prompt's chunks one after the other, as matrix products (Yang et al. 2024, arXiv:2412.06464, §3.3); in
decode every token is a chunk. For b sequences with t tokens together and q tokens in the longest, and H value heads:

    chain  = chunk_us · max(ceil(q / chunk), max(b, t / chunk) · H / compute units)      chunk: 64 tokens, or 1
    states = (b + w) · H · k_dim · v_dim · bytes_state / (HBM · state_efficiency)      w states written: b; verify: t
    tokens = large(2 · t · H · (k_dim + v_dim) · bytes) / (HBM · token_efficiency)       all passes of the chunks
    time   = launch + first · (1 − e^(−(q−1)/16)) + (chainᵖ + (states + tokens)ᵖ)^(1/p)

and for the convolution over C channels:

    blocks = b · C · channel_ns;   moved = large((2·t + 2·b·(width−1)) · C · bytes) / (HBM · hbm_efficiency)
    time   = launch + first · (1 − e^(−(q−1)/8)) + (blocksᵖ + movedᵖ)^(1/p)

``large`` is the cost of bytes beyond the caches: bytes · (1 + large_cost · x⁴/(1+x⁴)), x = bytes / large_megabytes.
Times are at least compulsory bytes / HBM and FLOPs / peak.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tspsim.operators import DeltaScan, ShortConvolution

from .limits import DeviceLimits, Parameter, ceil, cost_of_p_norm, maximum, minimum

_LARGE = {
    "large_cost": Parameter(0.1, 0.001, 10.0, "further cost a byte of sizes beyond large_megabytes"),
    "large_megabytes": Parameter(500.0, 50.0, 3000.0, "where large sizes begin"),
}
SCAN_PARAMETERS: dict[str, Parameter] = {
    "launch_us": Parameter(8.0, 0.3, 80.0, "start of the kernels"),
    "first_us": Parameter(4.0, 0.001, 60.0, "what a chunk of many tokens takes beyond one of a single token"),
    "chunk_us": Parameter(2.0, 0.01, 40.0, "one chunk after the other of a head"),
    "state_efficiency": Parameter(0.5, 0.02, 1.0, "share of the HBM bandwidth of reading and writing states"),
    "token_efficiency": Parameter(0.3, 0.01, 1.0, "the same of q, k, v and the output, all passes over them together"),
    "overlap_power": Parameter(1.5, 1.0, 20.0, "p: 1 adds the chain of chunks and memory, ∞ hides the shorter one"),
    **_LARGE,
}
CONVOLUTION_PARAMETERS: dict[str, Parameter] = {
    "launch_us": Parameter(3.0, 0.3, 40.0, "start of the kernel, or of those for q, k and v"),
    "first_us": Parameter(1.0, 0.001, 40.0, "what a sequence of many tokens takes beyond one of a single token"),
    "hbm_efficiency": Parameter(0.5, 0.02, 1.0, "share of the HBM bandwidth"),
    "channel_ns": Parameter(0.05, 0.0001, 20.0, "every channel of a sequence, over all compute units"),
    "overlap_power": Parameter(1.5, 1.0, 20.0, "p: 1 adds blocks and memory, ∞ hides the shorter one"),
    **_LARGE,
}
#: Taps of the convolution in every known model.
WIDTH = 4.0
#: Tokens over which ``first_us`` grows to its full value, in the recurrence and in the convolution.
RAMP = 16.0
CONVOLUTION_RAMP = 8.0


def large(size: Any, parameters: Mapping[str, float]) -> Any:
    """Bytes weighted by their cost, which is higher beyond the caches."""
    x4 = minimum(size / (parameters["large_megabytes"] * 1e6), 1e6) ** 4
    return size * (1.0 + parameters["large_cost"] * x4 / (1.0 + x4))


def scan(
    limits: DeviceLimits,
    parameters: Mapping[str, float],
    sequences: Any,
    tokens: Any,
    longest: Any,
    k_heads: Any,
    k_dim: Any,
    v_heads: Any,
    v_dim: Any,
    bytes_token: float,
    bytes_state: float,
    *,
    extra_states: Any = 0.0,
    chunk: float = 64.0,
) -> Any:
    """Seconds of one call, without a range: a float, or an array of shape (rows,).

    ``extra_states`` are states written beyond one a sequence (verify steps).
    """
    p = parameters
    states = (2.0 * sequences + extra_states) * v_heads * k_dim * v_dim * bytes_state
    waves = maximum(sequences, tokens / chunk) * v_heads / limits.compute_units
    chain = p["chunk_us"] * 1e-6 * maximum(ceil(longest / chunk), waves)
    passes = large(2.0 * tokens * v_heads * (k_dim + v_dim) * bytes_token, p)
    memory = (states / p["state_efficiency"] + passes / p["token_efficiency"]) / limits.hbm
    first = p["first_us"] * 1e-6 * -np.expm1(-(longest - 1.0) / RAMP)
    time = p["launch_us"] * 1e-6 + first + cost_of_p_norm(chain, memory, p["overlap_power"])
    least = states + tokens * (2.0 * k_heads * k_dim + 2.0 * v_heads * v_dim) * bytes_token
    flops = tokens * v_heads * (6.0 * k_dim * v_dim + minimum(longest, chunk) * (3.0 * k_dim + 2.0 * v_dim))
    return maximum(time, maximum(least / limits.hbm, flops / limits.peak))


def convolution(
    limits: DeviceLimits,
    parameters: Mapping[str, float],
    sequences: Any,
    tokens: Any,
    longest: Any,
    channels: Any,
    bytes_token: float,
    *_: float,
) -> Any:
    """Seconds of one call, without a range: a float, or an array of shape (rows,)."""
    p = parameters
    moved = (2.0 * tokens + 2.0 * sequences * (WIDTH - 1.0)) * channels * bytes_token
    blocks = sequences * channels * p["channel_ns"] * 1e-9
    time = cost_of_p_norm(blocks, large(moved, p) / (limits.hbm * p["hbm_efficiency"]), p["overlap_power"])
    first = p["first_us"] * 1e-6 * -np.expm1(-(longest - 1.0) / CONVOLUTION_RAMP)
    return maximum(p["launch_us"] * 1e-6 + first + time, moved / limits.hbm)


#: Most tokens a sequence in the decode kernels: drafts + 1.
MOST_STEPPED = 16
#: Kernel family and shape of one call.
Call = tuple[str, dict[str, float]]


def scan_calls(scan: DeltaScan) -> list[list[Call]]:
    """Candidates (family, shape) of each call of a recurrence: prompts in chunks; short queries token by token, or in
    chunks."""
    heads = {"k_heads": scan.k_heads, "k_dim": scan.k_dim, "v_heads": scan.v_heads, "v_dim": scan.v_dim}
    if scan.verifies:  # the chunked kernel does not write the state after every token
        sizes = {"sequences": scan.sequences, "tokens": scan.tokens, "longest": max(q for q, _ in scan.rows)}
        return [[(f"{scan.variant}_step", {**sizes, **heads, "extra_states": scan.written - scan.sequences})]]
    return _calls(scan.rows, f"{scan.variant}_scan", f"{scan.variant}_step", heads)


def convolution_calls(convolution: ShortConvolution) -> list[list[Call]]:
    """Candidates (family, shape) of each call of a convolution."""
    name = f"{convolution.variant}_convolution"
    return _calls(convolution.rows, name, f"{name}_step", {"channels": convolution.channels})


def _calls(rows: tuple[tuple[int, int], ...], many: str, few: str, sizes: Mapping[str, float]) -> list[list[Call]]:
    prompts = [row for row in rows if row[0] > MOST_STEPPED]
    others = [row for row in rows if row[0] <= MOST_STEPPED]
    calls = []
    for families, part in (((many,), prompts), ((few, many), others)):
        if part:
            sequences, tokens = sum(n for _, n in part), sum(q * n for q, n in part)
            longest = max(q for q, _ in part)
            shape = {"sequences": sequences, "tokens": tokens, "longest": longest, **sizes}
            calls.append([(family, shape) for family in (families if longest > 1 else families[:1])])
    return calls
