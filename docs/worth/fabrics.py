"""What crosses nodes: divided state, paths, placement, failures."""

from __future__ import annotations

from collections.abc import Mapping

import tspsim
from tspsim.base.errors import InputError
from tspsim.scenario.project import Failures
from tspsim.studies.purchase.checkpoints import CheckpointCost

from .entry import KI, Entry, Keys

DIVIDED: Mapping[str, Keys] = {
    "ZeRO3": {"zero": 3},
    "HSDP": {"zero": 3, "shard_group": 8},
    "TP8, ZeRO1": {"tp": 8, "zero": 1, "overlap": True},
}
PLACED: Keys = {"tp": 8, "pp": 2, "zero": 1}
ISLANDS: Keys = {"islands": [{"nodes": 4, "fabric": "infiniband-400g-lambda"}, {"nodes": 4, "fabric": "roce-400g-gcp"}]}
UNEQUAL: Keys = {
    key: value for key, value in tspsim.load("pipette-mapping").to_dict()["cluster"].items() if key == "measured"
}

THIN: Mapping[str, Keys] = {
    **DIVIDED,
    "ZeRO++": {"zero": 3, "secondary_shard": 8, "weight_wire": "int8", "gradient_wire": "int4"},
    "hpZ": {"zero": 3, "secondary_shard": 8},
    "TP8-PP2, ZeRO1": {"tp": 8, "pp": 2, "zero": 1},
    "ZeRO1": {"zero": 1},
}
#: From a failure until it is seen, until the node at fault is out, until the first step: with timeouts and people, and
#: as C4D has them (docs/purchase.md).
TIMEOUTS = {"detection": "10 min", "diagnosis": "40 min", "restart": "5 min"}
WATCHED = {"detection": "0.5 min", "diagnosis": "1 min", "restart": "5 min"}
NODES = 256


def with_failures(device: str, outage: Mapping[str, str], checkpoint: str | None) -> float | None:
    """Tokens/s of a long run of 70B on 2,048 GPUs, failures with it; checkpoints as a plan writes them, or of the
    project's minute each."""
    written = {"checkpoint": checkpoint, "checkpoint_rate": "200 GB/s"} if checkpoint else {}
    question = {
        "name": "worth",
        "cluster": {"device": device, "nodes": NODES, "fabric": "rails-400g"},
        "workload": {"model": "llama-3.1-70b", "pass": "training", "sequence": 4 * KI, "global_batch": 1024},
        "plans": [{"name": "P", "tp": 8, "zero": 1, **written}],
    }
    try:
        (plan,) = tspsim.simulate(question).plans
    except InputError:
        return None
    failures = Failures.model_validate(outage)
    return 1e12 / CheckpointCost.of(plan, failures).run(1e12, NODES, failures).elapsed_s if plan.ran else None


def unwatched(device: str, rival: str) -> float | None:
    return with_failures(device, TIMEOUTS, None if "a minute" in rival else "overlapped")


ENTRIES = (
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
        "Three levels (Frontier)",
        "Llama-3.1-70B training, eight micro-batches of 1Ki a GPU, 16 nodes of 200 Gb/s a GPU",
        {"zero": 3, "shard_group": 8, "weight_shard": 8, "weight_wire": "int8"}, THIN,
        {"model": "llama-3.1-70b", "pass": "training", "sequence": KI, "sequences_per_replica": 8},
        "1.7× over ZeRO++ (20B, 384 dies of MI250X)",
        "between nodes what ZeRO 1 moves, once a step; weights in a node, state over all. These GPUs are a package "
        "each: two levels of three",
        "room for 1/8 of the weights, many micro-batches, a thin fabric", nodes=16, fabric="rails-200g",
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
        "Failures found at once (C4D)",
        "Llama-3.1-70B training, TP8, 256 nodes, one failure in 264 days a node, out after 6.5 min instead of 55", {},
        {"timeouts": {}, "timeouts, checkpoints of a minute": {}}, {},
        "30 % less error overhead; downtime 31 % to 1.2 % (2,400 GPUs)",
        "goodputs as e^(−ΔR/M), on any machine; nothing of a step",
        "somebody who watches collectives", computed=lambda device: with_failures(device, WATCHED, "overlapped"),
        rival=unwatched,
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
)  # fmt: skip
