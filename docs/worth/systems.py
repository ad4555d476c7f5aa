"""Every system of the source documents: how far this package has it, and what asks it."""

from __future__ import annotations

from typing import NamedTuple

#: Simulated, and held by a test against figures that are not this package's; simulated, and held against closed forms
#: and whole runs alone; a formula without engine; asked, and refused with a reason.
VERIFIED, WORKS, FORMULA, REFUSED = "verified", "works", "closed form", "refused"


class System(NamedTuple):
    """A system, its verdict, what asks it, and what holds it (a test, below ``tests/``)."""

    name: str
    verdict: str
    command: str
    held: str


def keys(text: str) -> str:
    return f"plan `{{{text}}}`"


def run(name: str) -> str:
    return f"`tspsim run {name}`"


SYSTEMS = (
    System("TSP", VERIFIED, run("tsp-8x-mi355x"), "simulation/test_tsp_inference.py"),
    System("TASP", VERIFIED, run("exchanges-64k-mi300x"), "simulation/test_known_in_advance.py"),
    System("TokenRing", WORKS, run("exchanges-64k-mi300x"), "parallel/test_token_ring.py"),
    System("Ring Self-Attention", VERIFIED, keys("sp: 8, exchange: ring, overlap: false"),
           "parallel/test_ring_self_attention.py"),
    System("Tree Attention", WORKS, run("tree-attention-decode"), "parallel/test_decode_schemes.py"),
    System("Helix", WORKS, keys("tp: 8, kvp: 2"), "parallel/test_decode_schemes.py"),
    System("Ladder residual, parallel blocks", VERIFIED, run("ladder-70b-tp8-mi300x"),
           "simulation/test_known_in_advance.py"),
    System("Flux", VERIFIED, keys("tp: 8, overlap: fused"), "parallel/test_fused.py"),
    System("Comet", WORKS, keys("ep: 8, overlap: fused"), "parallel/test_expert_fused.py"),
    System("EnergonAI", WORKS, keys("pp: 8, padded: true, weight_peers: 4"), "parallel/test_handover_and_padding.py"),
    System("LLEP", VERIFIED, run("llep-gpt-oss-120b-8x-h200"), "simulation/test_known_in_advance.py"),
    System("EPLB", VERIFIED, run("eplb-deepseek-v3-ep64"), "parallel/test_balances.py"),
    System("Tutel", WORKS, keys("ep: 8, expert_pieces: 4"), "parallel/test_expert_pieces.py"),
    System("Janus", WORKS, keys("ep: 8, expert_dispatch: gather, expert_balance: {policy: activated}"),
           "parallel/test_expert_pool.py"),
    System("Speculative MoE, ExFlow", WORKS, keys("ep: 8, expert_dispatch: predicted"),
           "parallel/test_expert_places.py"),
    System("ZeRO++", VERIFIED, run("zeropp-70b-16-nodes"), "parallel/test_narrow_wires.py"),
    System("Three levels (Frontier)", WORKS, keys("zero: 3, shard_group: 8, weight_shard: 2"),
           "parallel/test_shard_levels.py"),
    System("C4P", VERIFIED, run("ecmp-fat-tree"), "simulation/test_drawn_paths.py"),
    System("C4D", FORMULA, "`tspsim compare` with `project.failures`", "studies"),
    System("Pipette", VERIFIED, run("pipette-mapping"), "studies/test_mapping.py"),
    System("Holmes", WORKS, run("holmes-mixed-nics"), "simulation/test_mixed_clusters.py"),
    System("Dynamic CP, ByteScale", WORKS, run("dynamic-cp-long-tail"), "simulation/test_apart.py"),
    System("DataStates-LLM", WORKS, run("checkpoint-overlap"), "parallel/test_checkpoint.py"),
    System("FlexGen", WORKS, keys("host_caches: 0.1"), "parallel/test_host_caches.py"),
    System("APEX", WORKS, keys("host_attention: 0.1"), "parallel/test_host_attention.py"),
    System("FengHuang", WORKS, "node `h200-pool-72`", "network"),
    System("SN40L", FORMULA, "`tspsim.studies.composition`", "studies"),
    System("HybridFlow", WORKS, run("rlhf-70b-mi300x"), "loop"),
    System("Agents over unlike machines", WORKS, run("agents-b200-reads-mi355x-writes"), "serving"),
    System("ParScale, ParaThinker, Hogwild!", WORKS, "`workload.streams`", "simulation/test_streams_and_bits.py"),
    System(
        "Sparse attention on shared contexts (vLLM, ATOM, SGLang)", WORKS,
        "plan `{tp: 8, dcp: 8, index_exchange: exact}`",
        "parallel/test_sparse_contexts.py",
    ),
    System(
        "Prefill context parallelism of sparse attention (SGLang)", WORKS,
        "plan `{sp: 8, ep: 8}`, or `{tsp: 8, ep: 8}`",
        "parallel/test_sparse_contexts.py",
    ),
    System(
        "Context parallelism of linear attention (FLA, SGLang)", WORKS,
        "plan `{sp: 8, ep: 8}` of Kimi-Linear",
        "parallel/test_carried_states.py",
    ),
    System(
        "Draft models, SpecInfer's and EAGLE's trees, DFlash", WORKS,
        "`workload.speculation: {draft: model}`, `{tree: [4, 4]}`, `{draft: dflash}`",
        "parallel/test_drafters.py",
    ),
    System("Tilus", WORKS, "`workload.precision: {weights: int4}`", "simulation/test_streams_and_bits.py"),
    System("ZAYA1's cluster", FORMULA, "fabric `rails-400g`: its shape; its curves are published nowhere", "network"),
)  # fmt: skip


def table() -> str:
    lines = ["| system | verdict | what asks it | what holds it |", "| --- | --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {each.name} | {each.verdict} | {each.command} | `tests/{each.held}` |"
                                for each in SYSTEMS)])  # fmt: skip
