"""Rewrite the table of schemes-worth.md: what each scheme is worth on four machines.

    python docs/generate_schemes.py

Every cell is two ratios of rates: over the naive rival that its paper compares with, and over the fastest of the
plans named beside it, which tspsim could run without the scheme. About two minutes of one core. The gallery's page of
it is written as well (``reports/pages/schemes-worth.html``).
``tests/house/test_schemes_page.py`` holds rows of it against what the package says now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pages

import tspsim
from tspsim.errors import InputError
from tspsim.report.worth import write
from tspsim.studies.expert_pools import expert_pools

PAGE = Path(__file__).parent / "schemes-worth.md"
DEVICES = ("mi300x", "mi355x", "h100", "b200")
KI = 1024

Keys = dict[str, Any]

SP8: Mapping[str, Keys] = {
    "ring over one link": {"sp": 8, "exchange": "ring", "context_transport": "ring"},
    "gather": {"sp": 8},
    "gather by blocks": {"sp": 8, "overlap": True, "overlap_by": "blocks"},
    "Ulysses": {"sp": 8, "exchange": "ulysses"},
    "TP8": {"tp": 8},
    "TP4-SP2": {"tp": 4, "sp": 2},
    "TSP8": {"tsp": 8},
}
TP8: Mapping[str, Keys] = {
    "TP8": {"tp": 8},
    "TP8 in chunks": {"tp": 8, "overlap": True},
    "TP8 with regions": {"tp": 8, "sequence_regions": True},
    "TP8 with regions, in chunks": {"tp": 8, "sequence_regions": True, "overlap": True},
    "SP8": {"sp": 8, "exchange": "ring", "context_transport": "multi_ring"},
    "TSP8": {"tsp": 8},
}


DIVIDED: Mapping[str, Keys] = {
    "ZeRO3": {"zero": 3},
    "HSDP": {"zero": 3, "shard_group": 8},
    "TP8, ZeRO1": {"tp": 8, "zero": 1, "overlap": True},
}


@dataclass(frozen=True)
class Entry:
    """A scheme on one question: its plan, and rivals that know nothing of it, the naive one first."""

    name: str
    question: str
    plan: Keys
    rivals: Mapping[str, Keys]
    workload: Keys
    published: str
    explained: str
    needs: str
    nodes: int = 1
    fabric: str | None = None
    further: Keys = field(default_factory=dict)
    #: Keys of the question beside cluster, workload and plans.
    asked: Keys = field(default_factory=dict)
    #: The scheme's rate on a device, and its rival's, where they are no plans of one question.
    computed: Callable[[str], float | None] | None = None
    rival: Callable[[str], float | None] | None = None
    devices: tuple[str, ...] = field(default=DEVICES)


FORWARD = {"pass": "forward", "sequence": 64 * KI}
TENSOR = {"model": "llama-3.1-70b", "pass": "forward", "sequence": 4 * KI}
EVERY_SECOND = {"checkpoint_rate": "200 GB/s", "checkpoint_every": 2}
SKEWED = {"load": "hot", "hot_experts": 16, "hot_share": 0.95}
PLACED: Keys = {"tp": 8, "pp": 2, "zero": 1}
ISLANDS: Keys = {
    "islands": [{"nodes": 4, "fabric": "infiniband-400g-lambda"}, {"nodes": 4, "fabric": "roce-400g-gcp"}]
}
UNEQUAL: Keys = {
    key: value for key, value in tspsim.load("pipette-mapping").to_dict()["cluster"].items() if key == "measured"
}
ITERATION: Keys = {key: value for key, value in tspsim.load("rlhf-70b-mi300x").to_dict().items() if key == "loop"}
REACHED: Keys = {"tp": 8, "pp": 2, "zero": 1}
DECODING: Keys = {"model": "deepseek-v2", "pass": "decode", "batch": 24, "context": 4 * KI}
UNEVEN: Keys = {"model": "llama-3.1-8b", "pass": "forward", "sequence": 8 * KI, "global_batch": 64,
                "lengths": {"kind": "lognormal", "median": 1024, "sigma": 1.0, "floor": 64}}  # fmt: skip
LONG_TAIL: Keys = {"model": "llama-3.1-8b", "pass": "training", "sequence": 128 * KI, "global_batch": 256,
                   "lengths": {"kind": "lognormal", "median": 1024, "sigma": 2.0, "floor": 128}}  # fmt: skip
PATHS: Keys = {"model": "llama-3.1-70b", "pass": "decode", "batch": 1, "context": 120 * KI}


def agents(device: str, reader: str) -> float | None:
    """Output tokens/s of the shipped agents, their prompts read on a node of one device, answers on one of another."""
    asked = tspsim.load("agents-b200-reads-mi355x-writes", [f"cluster.device={device}"])
    plan = asked.plan("B200 reads")
    pools = plan.pools
    assert pools is not None and pools.prefill.cluster is not None
    other = pools.prefill.cluster.model_copy(update={"device": reader})
    pools = pools.model_copy(update={"prefill": pools.prefill.model_copy(update={"cluster": other})})
    asked = asked.model_copy(update={"plans": (plan.model_copy(update={"pools": pools}),)})
    (answer,) = tspsim.simulate(asked).plans
    return answer.tokens_per_s if answer.ran else None


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
    Entry(
        "Ladder residual", "Llama-3.1-70B, TP8, 4Ki", {"tp": 8, "residual": "ladder"}, TP8, TENSOR,
        "1.29× (70B, TP8, 8 × H100, batch 1, with decoding)",
        "one sum beside the next block: max(A, r) + max(M, r)", "**another model**",
    ),
    Entry(
        "Parallel attention and MLP", "the same", {"tp": 8, "residual": "parallel"}, TP8, TENSOR,
        "1.22× (the same)", "one sum instead of two", "**another model**",
    ),
    Entry(
        "No communication", "the same", {"tp": 8, "residual": "desync"}, TP8, TENSOR,
        "the upper end of its plots", "no sums at all: what any overlap of them can reach", "**another model**",
    ),
    Entry(
        "Fused sums (Flux)", "the same", {"tp": 8, "overlap": "fused"}, TP8, TENSOR,
        "1.66× prefill over unfused (L20 and A100 over PCIe)",
        "max(C, W) and a slice; most of the published ratio is a faster transport than NCCL's there",
        "kernels that write to other GPUs",
    ),
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
        "ZeRO++", "Llama-3.1-70B training, 1Ki tokens a GPU, 16 nodes",
        {"zero": 3, "secondary_shard": 8, "weight_wire": "int8", "gradient_wire": "int4"},
        DIVIDED, {"model": "llama-3.1-70b", "pass": "training", "sequence": KI},
        "2.2× at 384 GPUs (V100, 100 to 800 Gb/s)",
        "a quarter of the bytes between nodes, but every byte crosses the node as well",
        "a thin fabric, few tokens a GPU, gradients in four bits", nodes=16, fabric="rails-400g",
    ),
    Entry(
        "Secondary shards (hpZ)", "the same", {"zero": 3, "secondary_shard": 8},
        DIVIDED, {"model": "llama-3.1-70b", "pass": "training", "sequence": KI},
        "a part of ZeRO++ and of Frontier's three levels (1.7× over ZeRO++, 384 dies of MI250X)",
        "backwards gather inside a node: two thirds of the bytes between nodes",
        "room for a second copy of the weights in a node", nodes=16, fabric="rails-400g",
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
    Entry(
        "Fused sums by copy engines", "Llama-3.1-70B, TP8, 4Ki",
        {"tp": 8, "overlap": "fused", "fused_transport": "copy"},
        {"fused by kernels": {"tp": 8, "overlap": "fused"}, **TP8}, TENSOR,
        "2.9× over NCCL after the product (8 × L20 over PCIe)",
        "no compute units taken; a transport that is faster than NCCL's there ([table](schedules.md#tp))",
        "a measured copy engine", devices=("mi355x",),
    ),
    Entry(
        "Planned paths (C4P)", "Llama-3.1-70B training, TP8, 4 × 4Ki a replica, 16 nodes on a fat tree",
        {"tp": 8, "zero": 1, "routing": "planned"},
        {"ECMP": {"tp": 8, "zero": 1, "routing": "ecmp"}, "by destination": {"tp": 8, "zero": 1},
         "hashed, overlapped": {"tp": 8, "zero": 1, "overlap": True, "routing": "ecmp"}},
        {"model": "llama-3.1-70b", "pass": "training", "sequence": 4 * KI, "sequences_per_replica": 4},
        "15 % less communication in jobs (H800, three-tier Clos)",
        "two of eight flows meet on 32 cables; static routing by destination does as well",
        "switches that hash", nodes=16, fabric="fat-tree-400g",
    ),
    Entry(
        "Searched placement (Pipette)", "Llama-3.1-70B training, TP8, PP2, 16 × 4Ki, 8 nodes of unequal links",
        {**PLACED, "placement": {"order": [6, 7, 0, 5, 3, 2, 1, 4]}},
        {"by number": PLACED, "TP8": {"tp": 8, "zero": 1}, "TP8, PP4": {"tp": 8, "pp": 4, "zero": 1}},
        {"model": "llama-3.1-70b", "pass": "training", "sequence": 4 * KI, "global_batch": 16},
        "1.46× over AMP (V100 and A100, whole planner)",
        "which nodes sum gradients; a plan without a pipeline has no such choice",
        "links that differ, and somebody who measured them", nodes=8, fabric="rails-400g", further=UNEQUAL,
    ),
    Entry(
        "Stages across islands (Holmes)", "Llama-3.1-70B training, TP8, 128 × 4Ki, 4 nodes of InfiniBand, 4 of RoCE",
        {**PLACED, "placement": {"node": ["tp", "dp"]}},
        {"replicas across, TP8": {"tp": 8, "zero": 1}, "replicas across, PP2": PLACED,
         "TP8, PP8": {"tp": 8, "pp": 8, "zero": 1}},
        {"model": "llama-3.1-70b", "pass": "training", "sequence": 4 * KI, "global_batch": 128},
        "1.39× over Megatron-LM (7.5B, A100, read off a figure)",
        "sums at RDMA rate; any plan whose replicas stay inside does it, one pipeline of all nodes too",
        "two kinds of RDMA and a slow wire between them", nodes=8, fabric="ethernet-100g", further=ISLANDS,
    ),
    Entry(
        "Dynamic CP", "Llama-3.1-8B training, 256 sequences of up to 128Ki, half below 1Ki, 2 nodes",
        {"sp": "auto", "rank_tokens": 8 * KI, "zero": 1},
        {"SP16 round a ring": {"sp": 16, "exchange": "ring", "rank_tokens": 8 * KI, "zero": 1},
         "SP16, gather": {"sp": 16, "rank_tokens": 8 * KI, "zero": 1},
         "SP16, Ulysses": {"sp": 16, "exchange": "ulysses", "rank_tokens": 8 * KI, "zero": 1}},
        LONG_TAIL,
        "3.9 to 7.9× (ByteScale, up to 2Mi tokens, over CP of 64 to 256)",
        "short sequences exchange nothing; the published rival cuts 4Ki tokens into 64 shards",
        "a long tail of lengths", nodes=2, fabric="rails-400g",
    ),
    Entry(
        "Padding removed (EnergonAI)", "Llama-3.1-8B forward, 64 sequences around 1Ki, up to 8Ki",
        {"rank_tokens": 8 * KI},
        {"padded": {"rank_tokens": 8 * KI, "padded": True},
         "packed, as every framework does today": {"rank_tokens": 8 * KI}}, UNEVEN,
        "−37 % latency (TP) over FasterTransformer, all of EnergonAI",
        "products take B·max over Σ; nothing at equal lengths; any packed batch has it",
        "lengths that differ within a batch",
    ),
    Entry(
        "Hand-over without waiting (EnergonAI)", "Llama-3.1-70B forward, 8 GPUs, PP8, 32 × 2Ki",
        {"pp": 8, "micro_batch": 1}, {"blocking": {"pp": 8, "micro_batch": 1, "schedule": "blocking"},
                                      "TP2-PP4": {"tp": 2, "pp": 4, "micro_batch": 1}, "TP8": {"tp": 8}},
        {"model": "llama-3.1-70b", "pass": "forward", "sequence": 2 * KI, "sequences_per_replica": 32},
        "+10 % scaling of a pipeline", "max(f, x) a micro-batch instead of f + 2x; every framework has it today",
        "messages that take long beside a stage",
    ),
    Entry(
        "HybridFlow", "an iteration of RL, Llama-3.1-70B, 1Ki rollouts, 16 nodes, TP8-PP2 trains, TP4 generates",
        {**REACHED, "rollout": {"tp": 4}},
        {"nodes apart that wait": {**REACHED, "rollout": {"tp": 4, "nodes": 4}},
         "everyone gathers": {**REACHED, "rollout": {"tp": 4, "way": "everyone"}},
         "generated as trained": {**REACHED, "rollout": {"tp": 8, "pp": 2}}},
        {"model": "llama-3.1-70b", "pass": "training", "sequence": 2 * KI, "stack": "megatron-core"},
        "1.53 to 20.57× over DeepSpeed-Chat, OpenRLHF and NeMo-Aligner (abstract)",
        "all GPUs work on every part; the reshard is 1 % of an iteration ([iterations](reinforcement-learning.md))",
        "memory for both layouts", nodes=16, fabric="rails-400g", asked=ITERATION,
    ),
    Entry(
        "Agents over two kinds", "32 agents of six turns, Llama-3.1-70B fp8; B200 reads prompts, this one writes", {},
        {"two nodes of this one": {}}, {},
        "3 to 4× the value of a dollar, B200 and Gaudi 3 over H100 (secondary sources)",
        "the better reader's time on the reader's part ([agents](serving.md#agents-over-unlike-machines))",
        "NICs between them, prompts that grow", computed=lambda device: agents(device, "b200"),
        rival=lambda device: agents(device, device),
    ),
    Entry(
        "ParaThinker", "Llama-3.1-70B decode, TP8, eight paths of 4Ki behind 116Ki, tokens of all",
        {"tp": 8, "workload": {"streams": {"count": 8, "branch": 4 * KI}}},
        {"eight requests, TP8": {"tp": 8, "workload": {"batch": 8}},
         "eight requests, TP4": {"tp": 4, "dp": 2, "workload": {"batch": 4}}}, PATHS,
        "eight paths cost 7.1 % of latency", "(W + k·(C − b + P·b)) / (W + k·C): the prompt is read once",
        "answers worth joining, long prompts beside short paths",
    ),
    Entry(
        "Hogwild!", "the same, eight streams in one cache", {"tp": 8, "workload": {"streams": {"count": 8,
                                                                                      "shared_cache": True}}},
        {"eight requests, TP8": {"tp": 8, "workload": {"batch": 8}},
         "eight requests, TP4": {"tp": 4, "dp": 2, "workload": {"batch": 4}}}, PATHS,
        "–", "one cache is read once for all streams", "work that streams can divide",
    ),
    Entry(
        "ParScale", "Llama-3.1-8B decode, a sequence of 4Ki a GPU, eight caches for one better token",
        {"dp": 8, "workload": {"streams": {"count": 8}}}, {"one stream": {"dp": 8}},
        {"model": "llama-3.1-8b", "pass": "decode", "batch": 1, "context": 4 * KI},
        "22× less memory and 6× less latency than as many more parameters",
        "at most (W + P·K) / (W + K) of the time for one token", "**another model**, whose tokens are worth more",
    ),
    Entry(
        "Weights of four bits (Tilus)", "Llama-3.1-70B decode, TP8, 16 × 4Ki", {"tp": 8, "workload":
                                                                             {"precision": {"weights": "int4"}}},
        {"bf16": {"tp": 8}, "fp8": {"tp": 8, "workload": {"precision": {"weights": "fp8"}}}},
        {"model": "llama-3.1-70b", "pass": "decode", "batch": 16, "context": 4 * KI},
        "1.75× Triton, 1.03× Marlin (kernels of other libraries)",
        "linears take w/16 of their bytes; attention, sums and launches stay", "a model that bears it",
    ),
    Entry(
        "Overlapped checkpoints", "Llama-3.1-70B training, TP8, ZeRO 1, 16 nodes, one every second step at 200 GB/s",
        {"tp": 8, "zero": 1, "checkpoint": "overlapped", **EVERY_SECOND},
        {"written first": {"tp": 8, "zero": 1, "checkpoint": "synchronous", **EVERY_SECOND},
         "copied first": {"tp": 8, "zero": 1, "checkpoint": "staged", **EVERY_SECOND}},
        {"model": "llama-3.1-70b", "pass": "training", "sequence": 4 * KI, "global_batch": 128},
        "up to 48× (a checkpoint), 2.2× (a run), 180 GPUs (DataStates-LLM)",
        "the file system's time; copies hide where gathers of weights do not take the link",
        "hosts with room for the state", nodes=16, fabric="rails-400g",
    ),
    Entry(
        "ByteScale's offload", "the batch of Dynamic CP, 16Ki a GPU, half of the layers of sequences from 16Ki on away",
        {"sp": "auto", "rank_tokens": 16 * KI, "zero": 1, "recomputation": "none", "offload_layers": 16,
         "offload_from": 16 * KI},
        {"SP16 round a ring": {"sp": 16, "exchange": "ring", "rank_tokens": 8 * KI, "zero": 1},
         "Dynamic CP, 8Ki": {"sp": "auto", "rank_tokens": 8 * KI, "zero": 1},
         "Dynamic CP, 16Ki": {"sp": "auto", "rank_tokens": 16 * KI, "zero": 1},
         "Dynamic CP, 8Ki, 16 layers in full": {"sp": "auto", "rank_tokens": 8 * KI, "zero": 1,
                                                "recomputation": {"what": "full", "layers": 16}}},
        LONG_TAIL,
        "2.01 of 3.89× (ByteScale's ablation: 1.59 without, 3.69 with balance as well)",
        "nothing is made again; copies hide behind the square of a length",
        "long sequences, and memory for what stays", nodes=2, fabric="rails-400g",
    ),
    Entry(
        "Weights from the host", "Llama-3.1-405B prefill, TP8, 16Ki, all layers",
        {"tp": 8, "offload_weights": 126}, {"TP8": {"tp": 8}, "TP4-PP2": {"tp": 4, "pp": 2}},
        {"model": "llama-3.1-405b", "pass": "prefill", "sequence": 16 * KI},
        "room for models that do not fit (FlexGen, ZeRO-Inference)",
        "a copy hides behind ten thousand tokens; a decoding step hides none ([table](memory-tiers.md))",
        "prompts that long, or nothing else that fits",
    ),
    Entry(
        "Host attention (APEX)", "Llama-3.1-70B decode, TP8, 64 × 8Ki, a sixteenth of the sequences on hosts",
        {"tp": 8, "host_attention": 0.0625}, {"TP8": {"tp": 8}},
        {"model": "llama-3.1-70b", "pass": "decode", "batch": 64, "context": 8 * KI},
        "+84 to 96 % on T4, +11 to 89 % on A10, over vLLM",
        "room for 1.07 times the sequences, no speed: weights are read twice, DRAM is 1/40 of HBM "
        "([table](memory-tiers.md))",
        "GPUs with little memory beside fast hosts",
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
)  # fmt: skip


@cache
def rate(device: str, entry: str, plan: str) -> float | None:
    """Tokens/s of the machine; None where the plan does not fit or run."""
    (asked,) = (each for each in ENTRIES if each.name == entry)
    if plan == asked.name and asked.computed is not None:
        return asked.computed(device)
    if asked.rival is not None:
        return asked.rival(device)
    keys = dict(asked.plan if plan == asked.name else asked.rivals[plan])
    # A plan or a rival may change the workload: bits of weights, streams, a batch.
    workload = asked.workload | keys.pop("workload", {})
    cluster: Keys = {"device": device, "nodes": asked.nodes}
    if asked.fabric is not None:
        cluster["fabric"] = asked.fabric
    cluster |= asked.further
    plans = [{"name": plan, **keys}]
    question = {"name": "worth", "cluster": cluster, "workload": workload, "plans": plans, **asked.asked}
    try:
        (answer,) = tspsim.simulate(question).plans
    except InputError:
        return None
    return answer.tokens_per_s if answer.ran else None


def cell(entry: Entry, device: str) -> str:
    """Gain over the naive rival, and over the fastest of all."""
    own = rate(device, entry.name, entry.name) if device in entry.devices else None
    if own is None:
        return "–"
    naive, *_ = rates = [rate(device, entry.name, rival) for rival in entry.rivals]
    known = {rival: each for rival, each in zip(entry.rivals, rates, strict=True) if each is not None}
    if not known:
        return "no rival fits"
    best = max(known, key=lambda rival: known[rival])
    over = f"{own / naive:.2f}" if naive is not None else "does not fit"
    return f"{over} · {own / known[best]:.2f} ({best})"


def row(entry: Entry) -> str:
    gains = " | ".join(cell(entry, device) for device in DEVICES)
    rival = next(iter(entry.rivals))
    return (
        f"| {entry.name} | {entry.question}; against {rival} | {gains} | {entry.published} | {entry.explained} "
        f"| {entry.needs} |"
    )


def worth() -> str:
    titles = ["MI300X", "MI355X", "H100", "B200"]
    header = f"| scheme | question | {' | '.join(titles)} | published | what of it physics explains | needs |"
    rule = "| --- | --- | " + " | ".join("---:" for _ in titles) + " | --- | --- | --- |"
    return "\n".join([header, rule, *(row(entry) for entry in ENTRIES)])


def main() -> None:
    pages.rewrite(PAGE, {"worth": worth()})
    show()


def show() -> None:
    """The gallery's page from the table as it stands; ``python -m tspsim.report.gallery reports`` lists it."""
    (table,) = pages.block("worth").findall(PAGE.read_text(encoding="utf-8"))
    write(table, PAGE.parent.parent / "reports")


if __name__ == "__main__":
    main()
