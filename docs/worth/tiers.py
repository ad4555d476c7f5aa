"""Memory beyond the GPU: checkpoints, hosts, pools, tiers of models."""

from __future__ import annotations

from tspsim.base.errors import InputError
from tspsim.network import host_bandwidth, load_cluster
from tspsim.studies.composition import composition

from .entry import KI, Entry, Keys, rate_of

EVERY_SECOND = {"checkpoint_rate": "200 GB/s", "checkpoint_every": 2}

NODE = {"mi300x": "mi300x-8", "mi355x": "mi355x-8", "h100": "hgx-h100-8", "b200": "hgx-b200-8"}
PROMPT: Keys = {"model": "llama-2-7b", "pass": "prefill", "sequence": 4 * KI}


def composed(device: str, tier: str) -> float | None:
    """Tokens/s of prompts, each to one of 150 models of 7B, that are read once their model is here."""
    node, weights = NODE[device], 14e9
    host = host_bandwidth(load_cluster(node).node)
    # Bytes/s into each of eight GPUs.
    rates = {"copies to one GPU": host / 8, "copies over all hosts' links": host, TIER: 200e9}
    cluster, plans = {"device": device, "nodes": 1}, [{"name": "P", "tp": 8}]
    read = rate_of({"name": "worth", "cluster": cluster, "workload": PROMPT, "plans": plans})
    if read is None:
        return None
    try:
        found = composition(node, 150, weights, tier_bytes_per_s=rates[tier])
    except InputError:
        return None
    tokens = PROMPT["sequence"]
    return float(tokens / (tokens / read + found.mean_switch_s))


TIER = "a capacity tier"


ENTRIES = (
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
        "Weights from the host", "Llama-3.1-405B prefill, TP8, 16Ki, all layers",
        {"tp": 8, "offload_weights": 126}, {"TP8": {"tp": 8}, "TP4-PP2": {"tp": 4, "pp": 2}},
        {"model": "llama-3.1-405b", "pass": "prefill", "sequence": 16 * KI},
        "room for models that do not fit (FlexGen, ZeRO-Inference)",
        "a copy hides behind ten thousand tokens; a decoding step hides none ([table](memory-tiers.md))",
        "prompts that long, or nothing else that fits",
    ),
    Entry(
        "Weights from neighbours (EnergonAI)",
        "Llama-3.1-70B prefill, two GPUs a replica, four replicas, 2Ki each, all layers among the four",
        {"tp": 2, "offload_weights": 80, "weight_peers": 4},
        {"from the hosts": {"tp": 2, "offload_weights": 80}, "TP2": {"tp": 2}, "TP4": {"tp": 4}, "TP8": {"tp": 8}},
        {"model": "llama-3.1-70b", "pass": "prefill", "sequence": 2 * KI, "sequences_per_replica": 1},
        "larger models than memory holds, over NVLink instead of PCIe (abstract; no figure of its own)",
        "a gather hides where (1 − 1/p)·W/b is below the kernels of the layers between",
        "replicas side by side, prompts; room is all it gives",
    ),
    Entry(
        "Caches from the host (FlexGen)", "the same question as of APEX below, those caches copied to the GPU instead",
        {"tp": 8, "host_caches": 0.0625}, {"TP8": {"tp": 8}, "attended by hosts": {"tp": 8, "host_attention": 0.0625}},
        {"model": "llama-3.1-70b", "pass": "decode", "batch": 64, "context": 8 * KI},
        "batches that do not fit (FlexGen); 93 % less local memory with a pool (FengHuang)",
        "room for 1.07 times the sequences, no speed: a link of the host carries 1/80 of HBM's bytes "
        "([table](memory-tiers.md))",
        "GPUs with little memory; or a pool whose links are as fast as memory",
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
        "A tier for models (SN40L)",
        "150 models of 7B behind a router (Zipf), a prompt of 4Ki to one of them at a time, TP8", {},
        {"copies to one GPU": {}, "copies over all hosts' links": {}}, {},
        "3.7× DGX H100, 6.6× DGX A100; switching 15 to 31× faster",
        "miss share × weights over the tier's rate; eight MI355X hold all 150 and gain nothing",
        "200 GB/s of DDR a socket; more models than memory", computed=lambda device: composed(device, TIER),
        rival=composed,
    ),
)  # fmt: skip
