"""Experts: balance, exchanges, placement, pools."""

from __future__ import annotations

from tspsim.errors import InputError
from tspsim.studies.expert_pools import expert_pools

from .entry import KI, Entry, Keys

SKEWED = {"load": "hot", "hot_experts": 16, "hot_share": 0.95}
DECODING: Keys = {"model": "deepseek-v2", "pass": "decode", "batch": 24, "context": 4 * KI}


def pooled(device: str) -> float | None:
    """Tokens/s of DeepSeek-V2 with experts on two of four nodes, one micro-batch or two."""
    cluster = {"device": device, "nodes": 4, "fabric": "rails-400g"}
    work = {key: value for key, value in DECODING.items() if key not in ("pass", "batch")}
    try:
        return max(expert_pools(cluster, work, expert_gpus=16, batch=768, micro_batches=m).tokens_per_s for m in (1, 2))
    except InputError:
        return None


ENTRIES = (
    Entry(
        "LLEP", "gpt-oss-120b forward, EP8, 95 % of visits on one GPU's 16 experts",
        {"ep": 8, "expert_dispatch": "experts", "expert_balance": {"policy": "llep"}},
        {"EP": {"ep": 8, "expert_dispatch": "experts"}, "EP, a token once a rank": {"ep": 8}, "TP8": {"tp": 8}},
        {"model": "gpt-oss-120b", "pass": "forward", "sequence": 8 * KI, "sequences_per_replica": 4, "routing": SKEWED},
        "5.2× (the layer, 8 × H200)",
        "7.6 times the mean becomes 1.0; the published layer also waits for its host",
        "a skew that lasts a pass",
    ),
    Entry(
        "EPLB", "DeepSeek-V3 prefill, EP64, Zipf 0.5", {"dp": 64, "ep": 64, "expert_balance": {"policy": "eplb"}},
        {"EP64": {"dp": 64, "ep": 64},
         "placed by load": {"dp": 64, "ep": 64, "expert_balance": {"policy": "eplb", "replicas": 256}}},
        {"model": "deepseek-v3", "pass": "prefill", "sequence": 4 * KI, "sequences_per_replica": 4,
         "precision": {"weights": "fp8"}, "routing": {"load": "zipf", "skew": 0.5}},
        "no timings; busiest over mean",
        "one copy more a rank: 2.98 times the mean becomes 1.01",
        "loads that stay", nodes=8, fabric="rails-400g",
    ),
    Entry(
        "Tutel's degree", "gpt-oss-120b forward, EP8, 64Ki tokens a GPU, in four parts",
        {"ep": 8, "expert_dispatch": "links", "expert_pieces": 4},
        {"EP8": {"ep": 8, "expert_dispatch": "links"}, "EP8 by a library": {"ep": 8}, "TP8": {"tp": 8},
         "TSP8": {"tsp": 8, "ep": 8}},
        {"model": "gpt-oss-120b", "pass": "forward", "sequence": 64 * KI},
        "1.43× at 16 GPUs, 1.04× at 2,048 (the layer, A100, over one part of Tutel's own)",
        "max(2W, W + (W + C)/d, C + 2W/d); smaller products and more latencies take some of it",
        "exchanges as long as the experts",
    ),
    Entry(
        "Tutel's degree, prompts", "Qwen3-30B-A3B prefill, 8Ki a GPU, EP8, in four parts",
        {"dp": 8, "ep": 8, "expert_dispatch": "links", "expert_pieces": 4},
        {"EP8": {"dp": 8, "ep": 8, "expert_dispatch": "links"}, "EP8 by a library": {"dp": 8, "ep": 8},
         "TP8": {"tp": 8}},
        {"model": "qwen3-30b-a3b", "pass": "prefill", "sequence": 8 * KI, "sequences_per_replica": 1},
        "as Tutel's degree",
        "the same bound; each part reads its experts anew, so decoding steps only lose",
        "prompts long enough that experts and exchanges take as long",
    ),
    Entry(
        "Fused exchanges (Comet)", "the same, whole kernels",
        {"dp": 8, "ep": 8, "expert_dispatch": "links", "overlap": "fused"},
        {"EP8": {"dp": 8, "ep": 8, "expert_dispatch": "links"}, "EP8 by a library": {"dp": 8, "ep": 8},
         "EP8 in four parts": {"dp": 8, "ep": 8, "expert_dispatch": "links", "expert_pieces": 4}, "TP8": {"tp": 8}},
        {"model": "qwen3-30b-a3b", "pass": "prefill", "sequence": 8 * KI, "sequences_per_replica": 1},
        "1.96× a layer, 1.71× end to end (H800, over unfused frameworks)",
        "max(C₁, W) + max(C₂, W) and a slice of each; the published baseline's kernels are slower besides",
        "kernels that read and write other GPUs' rows; for AMD nobody has published them",
    ),
    Entry(
        "Tutel's parallelism", "Grok-1 forward, 16 GPUs, 512 tokens each, an expert over two (r = 2)",
        {"ep": 16, "expert_dispatch": "links", "expert_shards": 2},
        {"weights gathered (r = 0)": {"ep": 16, "expert_dispatch": "links", "expert_shards": 0},
         "EP8": {"ep": 8, "expert_dispatch": "links"}, "EP8 by a library": {"ep": 8}, "TP8": {"tp": 8},
         "TP16": {"tp": 16},
         "TP2-EP8": {"tp": 2, "ep": 8, "sequence_regions": True, "expert_dispatch": "links"}},
        {"model": "grok-1", "pass": "forward", "sequence": 512},
        "1.35 to 14.57× from switching r (A100, the layer)",
        "bytes: few tokens go to weights, many call them; the best r depends on both",
        "more GPUs than experts", nodes=2, fabric="rails-400g",
    ),
    Entry(
        "Janus' scheduler", "Qwen3-30B-A3B decode, EP8, two tokens a GPU, two copies more a rank",
        {"dp": 8, "ep": 8, "expert_dispatch": "gather", "expert_balance": {"policy": "activated", "replicas": 144}},
        {"rows spread over copies": {"dp": 8, "ep": 8, "expert_dispatch": "gather",
                                     "expert_balance": {"policy": "activated", "replicas": 144, "spread": "evenly"}},
         "no copies": {"dp": 8, "ep": 8, "expert_dispatch": "gather",
                       "expert_balance": {"policy": "activated", "replicas": 128}}},
        {"model": "qwen3-30b-a3b", "pass": "decode", "batch": 2, "context": 4 * KI,
         "routing": {"load": "zipf", "skew": 0.3}},
        "4.7× over SGLang, 2.2× over MegaScale-Infer a GPU (pools of 8 H100, DeepSeek-V2)",
        "fewer distinct experts on the fullest rank; the published factors are of pools (below)",
        "few tokens beside many experts, room for copies",
    ),
    Entry(
        "Janus' pools", "DeepSeek-V2 decode, 768 × 4Ki, 4 nodes, experts on two of them", {},
        {"EP32 by a library": {"dp": 32, "ep": 32},
         "EP32 by small messages": {"dp": 32, "ep": 32, "expert_dispatch": "low_latency"},
         "EP32 with TP8": {"tp": 8, "dp": 4, "ep": 32, "workload": {"batch": 192}}},
        DECODING,
        "4.7× over SGLang, 2.2× over MegaScale-Infer a GPU (32 H100)",
        "experts read once for all tokens; wide groups do that too, and no half waits ([pools](experts.md#pools))",
        "pools that scale apart; a closed form over kernels and links", nodes=4, fabric="rails-400g", computed=pooled,
    ),
    Entry(
        "Speculative MoE", "Qwen3-30B-A3B prefill, 8Ki a GPU, EP8, 62 % of choices local",
        {"dp": 8, "ep": 8, "expert_dispatch": "predicted"},
        {"EP8": {"dp": 8, "ep": 8, "expert_dispatch": "links"}, "EP8 by a library": {"dp": 8, "ep": 8}},
        {"model": "qwen3-30b-a3b", "pass": "prefill", "sequence": 8 * KI, "sequences_per_replica": 1,
         "routing": {"local_rate": 0.62}},
        "−42 to −47 % a layer, TTFT −25 % (8 GPUs of 96 GB)",
        "(1 − r)/(1 − 1/N) of the exchanges; the published layer also packs fewer rows",
        "traffic like that of the tables",
    ),
    Entry(
        "ExFlow", "Llama 4 Maverick decode, batch 32 a GPU, 1Ki, EP8, fp8, 60 % of tokens follow a partner",
        {"dp": 8, "ep": 8, "expert_dispatch": "staying"},
        {"EP8": {"dp": 8, "ep": 8, "expert_dispatch": "links"},
         "EP8, small messages": {"dp": 8, "ep": 8, "expert_dispatch": "low_latency"}},
        {"model": "llama-4-maverick", "pass": "decode", "batch": 32, "context": KI, "precision": {"weights": "fp8"},
         "routing": {"affinity": 0.6}},
        "2.2× (GPT-MoE-16, 8 A100 of two nodes)",
        "one exchange of two where a token has one expert; with two most of the second stays",
        "one expert a token, and room for every sequence's cache on every rank",
    ),
)  # fmt: skip
