"""Attention: exchanges of keys and values, TSP, and contexts that decoding ranks share."""

from __future__ import annotations

from collections.abc import Mapping

from .entry import KI, Entry, Keys

SP8: Mapping[str, Keys] = {
    "ring over one link": {"sp": 8, "exchange": "ring", "context_transport": "ring"},
    "gather": {"sp": 8},
    "gather by blocks": {"sp": 8, "overlap": True, "overlap_by": "blocks"},
    "Ulysses": {"sp": 8, "exchange": "ulysses"},
    "TP8": {"tp": 8},
    "TP4-SP2": {"tp": 4, "sp": 2},
    "TSP8": {"tsp": 8},
}
FORWARD = {"pass": "forward", "sequence": 64 * KI}

ENTRIES = (
    Entry(
        "TASP", "tsp-8b forward, 64Ki, 8 ranks", {"sp": 8, "exchange": "ring", "context_transport": "multi_ring"}, SP8,
        {"model": "tsp-8b", **FORWARD},
        "1.57× mean on MI300X, 1.05× on H100 over a ring (attention alone)",
        "all of it: seven links instead of one; a gather uses them too",
        "a mesh, and heads with keys of their own",
    ),
    Entry(
        "TokenRing", "the same", {"sp": 8, "exchange": "token_ring"}, SP8, {"model": "tsp-8b", **FORWARD},
        "1.67× over a ring (4 × A10 over PCIe)",
        "two directions of a link instead of one, where every head has its own keys",
        "links whose directions do not share a port",
    ),
    Entry(
        "TokenRing, grouped", "Llama-3.1-8B forward, 64Ki, 8 ranks", {"sp": 8, "exchange": "token_ring"}, SP8,
        {"model": "llama-3.1-8b", **FORWARD},
        "–", "queries are twice as heavy as keys and values of four heads", "as above; never with grouped queries",
    ),
    Entry(
        "Ring Self-Attention", "tsp-8b forward, 64Ki, 8 ranks",
        {"sp": 8, "exchange": "ring", "context_transport": "ring", "overlap": False},
        {"TP8": {"tp": 8}, **SP8}, {"model": "tsp-8b", **FORWARD},
        "13.7× the batch, 3.0× the length of TP (64 × P100)",
        "memory is what it was for: no rank holds all tokens; each later exchange has that and hides hops besides",
        "nothing; it came first",
    ),
    Entry(
        "TSP", "Llama-3.1-70B prefill, 128Ki, 8 GPUs", {"tsp": 8},
        {"TSP8-published": {"tsp": 8, "tsp_schedule": "published"}, "TP8": {"tp": 8}, "TP4-SP2": {"tp": 4, "sp": 2},
         "SP8": {"sp": 8, "exchange": "ring", "context_transport": "multi_ring"},
         "Ulysses": {"sp": 8, "exchange": "ulysses"}},
        {"model": "llama-3.1-70b", "pass": "prefill", "sequence": 128 * KI},
        "1.2 to 2× over TP+SP ([figures](published-tsp.md))",
        "weights over all links beside compute; over sequence shards it is memory, not time",
        "long prompts",
    ),
    Entry(
        "Tree Attention", "Kimi-K2 decode, batch 8, 256Ki, fp8 cache", {"tp": 8, "dcp": 8, "decode_exchange": "tree"},
        {"cache round a ring": {"tp": 8, "dcp": 8, "decode_exchange": "ring"}, "TP8": {"tp": 8},
         "Helix": {"tp": 8, "kvp": 8}, "all-to-all": {"tp": 8, "dcp": 8, "decode_exchange": "all_to_all"}},
        {"model": "kimi-k2", "pass": "decode", "batch": 8, "context": 256 * KI,
         "precision": {"weights": "mxfp4", "kv": "fp8"}},
        "up to 8× over ring decoding",
        "far more than published: a ring that moves the cache for one token is no rival",
        "latents or few key/value heads, long contexts",
        devices=("mi300x", "mi355x", "b200"),
    ),
    Entry(
        "Helix", "Qwen3-235B-A22B decode, batch 8, 32Ki, four key/value heads", {"tp": 8, "kvp": 2},
        {"TP8": {"tp": 8}, "tree": {"tp": 8, "dcp": 2, "decode_exchange": "tree"}},
        {"model": "qwen3-235b-a22b", "pass": "decode", "batch": 8, "context": 32 * KI},
        "1.5× time a token, 32× batch (DeepSeek-R1, 1Mi, GB200, simulated)",
        "no cache twice: capacity more than time, and nothing where every rank has a key/value head of its own",
        "fewer key/value heads than ranks",
    ),
)  # fmt: skip
