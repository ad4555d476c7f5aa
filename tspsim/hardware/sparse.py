"""Time of sparse attention: an indexer's scores and selection, and attention to the selected entries.

DeepSeek-AI 2025, DeepSeek-V3.2, §2.1. Each of n queries is scored with s entries of its context, in the mean, and
attends a of them. An entry is a token, or several compressed ones. p is ``overlap_power``:

    indexer    score  = 2 · n · s · index_heads · head_dim / (peak of fp8 · efficiency)
               keys   = entries · KEY_BYTES / (HBM · hbm_efficiency)
               choose = start + min(max(longest, m/units) · scan_ns, split + m/units · scan_ns)
                        m: pairs n · s of queries with more entries than are selected; min: one unit or many a query
               time   = launch + (scoreᵖ + keysᵖ)^(1/p) + choose + n · token_ns

    attention  math   = 2 · n · a · (H⁸ + padded⁸)^(1/8) · (key_dim + value_dim) / (peak · efficiency)
               gather = n · a · bytes of an entry / (units · gather_gb_per_s)     every query fetches its entries
               move   = n · H · (key_dim + value_dim) · 2 / (HBM · move_efficiency)     rope, cache write, merging
               time   = launch + (mathᵖ + gatherᵖ)^(1/p) + n/units · block_us + prompts · prompt_us + move

The indexer's time grows with the context; attention's stops growing at the ``topk`` entries of a query. No time falls
when queries, contexts or heads grow. Times are at least FLOPs / peak and compulsory bytes / HBM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tspsim.operators import Indexer, SparseAttention, TopK

from .limits import DeviceLimits, Parameter, cost_of_p_norm, maximum, minimum

INDEXER_PARAMETERS: dict[str, Parameter] = {
    "launch_us": Parameter(15.0, 0.5, 120.0, "start of the kernels: rotating and quantising, scores"),
    "efficiency": Parameter(0.4, 0.15, 1.0, "share of the dense peak of scoring"),
    "hbm_efficiency": Parameter(0.7, 0.4, 1.0, "share of the HBM bandwidth of reading keys"),
    "overlap_power": Parameter(2.0, 1.0, 20.0, "p: 1 adds scores and keys, ∞ hides the shorter one"),
    "choose_us": Parameter(5.0, 0.001, 150.0, "start of choosing, where there is a choice"),
    "scan_ns": Parameter(0.3, 0.001, 20.0, "a unit's passes over the score of an entry while it chooses"),
    "split_us": Parameter(50.0, 1.0, 1000.0, "sharing a query's scores out among units"),
    "token_ns": Parameter(5.0, 0.01, 500.0, "every query, in the small kernels"),
}
PARAMETERS: dict[str, Parameter] = {
    "launch_us": Parameter(15.0, 0.5, 150.0, "start of the kernels, small ones around it included"),
    "efficiency": Parameter(0.4, 0.005, 1.0, "share of the dense peak"),
    "padded": Parameter(32.0, 1.0, 128.0, "least query heads computed"),
    "gather_gb_per_s": Parameter(40.0, 1.0, 1000.0, "bytes/s of chosen entries that one compute unit fetches"),
    "overlap_power": Parameter(2.0, 1.0, 20.0, "p: 1 adds math and gathering, ∞ hides the shorter one"),
    "block_us": Parameter(0.5, 0.001, 80.0, "every query that a unit takes in turn"),
    "prompt_us": Parameter(0.01, 0.0001, 5.0, "every sequence of several queries, one after the other"),
    "move_efficiency": Parameter(0.3, 0.005, 1.0, "HBM share of rope, cache write and merging parts"),
}
#: Bytes of an index key: 128 elements in fp8 and a scale of 4.
KEY_BYTES = 132.0
#: Bytes moved for a score: written in fp32, and read by the selection.
SCORE_BYTES = 8.0
#: Power p of the smooth maximum of padded and actual heads.
PADDING_POWER = 8.0


def indexer(
    limits: DeviceLimits,
    parameters: Mapping[str, float],
    queries: Any,
    pairs: Any,
    entries: Any,
    choice: Any,
    longest: Any,
    heads: Any,
    head_dim: Any,
    *_: float,
) -> Any:
    """Seconds of scores and selection, without a range: a float, or an array of shape (rows,).

    ``pairs`` are (query, entry) pairs that are scored; ``entries`` are those of all contexts. ``choice`` are the pairs
    of queries with more entries than are selected, ``longest`` the entries of the longest such context.
    """
    return indexer_over(limits, parameters, heads, head_dim)(queries, pairs, entries, choice, longest)


def indexer_over(
    limits: DeviceLimits, parameters: Mapping[str, float], heads: Any, head_dim: Any
) -> Callable[..., Any]:
    """:func:`indexer` as a function of what depends on rows."""
    p = parameters
    rate, bandwidth, power = limits.peak * p["efficiency"], limits.hbm * p["hbm_efficiency"], p["overlap_power"]
    launch, scan, start = p["launch_us"] * 1e-6, p["scan_ns"] * 1e-9, p["choose_us"] * 1e-6
    split, token_ns = p["split_us"] * 1e-6, p["token_ns"]

    def seconds(queries: Any, pairs: Any, entries: Any, choice: Any, longest: Any) -> Any:
        flops = 2.0 * pairs * heads * head_dim
        keys = entries * KEY_BYTES
        score = cost_of_p_norm(flops / rate, keys / bandwidth, power)
        per_unit = choice / limits.compute_units
        choose = start + minimum(maximum(longest, per_unit) * scan, split + per_unit * scan)
        time = launch + score + (longest > 0.0) * choose + queries * token_ns * 1e-9
        return maximum(time, maximum(flops / limits.peak, (keys + SCORE_BYTES * pairs) / limits.hbm))

    return seconds


def attention(
    limits: DeviceLimits,
    parameters: Mapping[str, float],
    queries: Any,
    prompts: Any,
    pairs: Any,
    entries: Any,
    heads: Any,
    key_dim: Any,
    value_dim: Any,
    entry_bytes: Any,
    *_: float,
) -> Any:
    """Seconds of attention to the selected entries, without a range: a float, or an array of shape (rows,).

    ``prompts`` are sequences with several queries, ``pairs`` (query, attended entry) pairs, ``entries`` the distinct
    entries read.
    """
    over = attention_over(limits, parameters, heads, key_dim, value_dim, entry_bytes)
    return over(queries, prompts, pairs, entries)


def attention_over(
    limits: DeviceLimits, parameters: Mapping[str, float], heads: Any, key_dim: Any, value_dim: Any, entry_bytes: Any
) -> Callable[..., Any]:
    """:func:`attention` as a function of what depends on rows."""
    p, width, units = parameters, key_dim + value_dim, limits.compute_units
    rows = cost_of_p_norm(heads, p["padded"], PADDING_POWER)
    # Both are proportional to pairs.
    math = 2.0 * rows * width / (limits.peak * p["efficiency"])
    gather = entry_bytes / (units * p["gather_gb_per_s"] * 1e9)
    pair_s = cost_of_p_norm(math, gather, p["overlap_power"])
    launch, moving = p["launch_us"] * 1e-6, limits.hbm * p["move_efficiency"]
    block_us, prompt_us = p["block_us"], p["prompt_us"]

    def seconds(queries: Any, prompts: Any, pairs: Any, entries: Any) -> Any:
        moved = queries * heads * width * 2.0
        blocks = (queries / units * block_us + prompts * prompt_us) * 1e-6
        time = launch + pairs * pair_s + blocks
        time = time + moved / moving
        flops = 2.0 * pairs * heads * width
        return maximum(time, maximum(flops / limits.peak, (entries * entry_bytes + moved) / limits.hbm))

    return seconds


def indexer_call(scores: Indexer) -> tuple[str, dict[str, float]]:
    """(kernel family, shape) of an indexer."""
    family = "indexer" if scores.compression == 1 else "compressed_indexer"
    names = ("queries", "pairs", "entries", "choice", "longest", "heads", "head_dim")
    return family, {name: float(getattr(scores, name)) for name in names}


def choice_call(best: TopK) -> tuple[str, dict[str, float]]:
    """(kernel family, shape) of a selection: an indexer's kernel with one scored key, as no selection was measured."""
    shape = dict.fromkeys(("queries", "pairs", "entries", "choice", "longest", "heads", "head_dim"), 1.0)
    return "indexer", {**shape, "choice": float(best.queries * best.candidates), "longest": float(best.candidates)}


def attention_call(attention: SparseAttention) -> tuple[str, dict[str, float]]:
    """(kernel family, shape) of sparse attention."""
    family = "sparse_attention" if attention.compression == 1 else "compressed_attention"
    names = ("queries", "prompts", "pairs", "entries", "heads", "key_dim", "value_dim", "entry_bytes")
    return family, {name: float(getattr(attention, name)) for name in names}
