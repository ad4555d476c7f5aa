"""Above a step: reinforcement learning, agents, streams, bits."""

from __future__ import annotations

import tspsim

from .entry import KI, Entry, Keys

ITERATION: Keys = {key: value for key, value in tspsim.load("rlhf-70b-mi300x").to_dict().items() if key == "loop"}
REACHED: Keys = {"tp": 8, "pp": 2, "zero": 1}
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


ENTRIES = (
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
        rival=lambda device, name: agents(device, device),
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
)  # fmt: skip
