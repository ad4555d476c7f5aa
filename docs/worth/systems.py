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


def run(name: str, *keys: str) -> str:
    """Of a shipped scenario, with ``KEY=VALUE`` set."""
    return f"`{' '.join(['tspsim run', name, *(f'--set {each}' for each in keys)])}`"


#: The model and device of questions about sparse attention.
GLM_ON_B300 = ("workload.model=glm-5.1", "workload.precision=fp8", "cluster.device=b300")

SYSTEMS = (
    System("TSP", VERIFIED, run("tsp-8x-mi355x"), "step/test_tsp_inference.py"),
    System("TASP", VERIFIED, run("exchanges-64k-mi300x"), "step/test_known_in_advance.py"),
    System("TokenRing", WORKS, run("exchanges-64k-mi300x"), "parallel/test_token_ring.py"),
    System(
        "Ring Self-Attention",
        VERIFIED,
        run("tsp-vs-tpsp-8x-mi300x", "plans.SP8.exchange=ring", "plans.SP8.overlap=false"),
        "parallel/test_ring_self_attention.py",
    ),
    System("Tree Attention", WORKS, run("tree-attention-decode"), "parallel/test_decode_schemes.py"),
    System("Helix", WORKS, run("tsp-decode-128k"), "parallel/test_decode_schemes.py"),
    System(
        "Ladder residual, parallel blocks",
        VERIFIED,
        run("ladder-70b-tp8-mi300x"),
        "step/test_known_in_advance.py",
    ),
    System("Flux", VERIFIED, run("ladder-70b-tp8-mi300x"), "parallel/test_fused.py"),
    System("Comet", WORKS, run("llep-gpt-oss-120b-8x-h200", "plans.EP.overlap=fused"), "parallel/test_expert_fused.py"),
    System(
        "EnergonAI",
        WORKS,
        run("dynamic-cp-long-tail", "workload.pass=forward", "plans.Static.padded=true"),
        "parallel/test_handover_and_padding.py",
    ),
    System("LLEP", VERIFIED, run("llep-gpt-oss-120b-8x-h200"), "step/test_known_in_advance.py"),
    System("EPLB", VERIFIED, run("eplb-deepseek-v3-ep64"), "parallel/test_balances.py"),
    System(
        "Tutel", WORKS, run("llep-gpt-oss-120b-8x-h200", "plans.EP.expert_pieces=4"), "parallel/test_expert_pieces.py"
    ),
    System(
        "Janus",
        WORKS,
        run(
            "tree-attention-decode",
            "workload.context=4Ki",
            "plans.TP8.tp=1",
            "plans.TP8.ep=8",
            "plans.TP8.expert_dispatch=gather",
            "plans.TP8.expert_balance.policy=activated",
        ),
        "parallel/test_expert_pool.py",
    ),
    System(
        "Speculative MoE, ExFlow",
        WORKS,
        run("eplb-deepseek-v3-ep64", "workload.routing.local_rate=0.62", "plans.Plain.expert_dispatch=predicted"),
        "parallel/test_expert_places.py",
    ),
    System("ZeRO++", VERIFIED, run("zeropp-70b-16-nodes"), "parallel/test_narrow_wires.py"),
    System(
        "Three levels (Frontier)",
        WORKS,
        run("zeropp-70b-16-nodes", "plans.HSDP.weight_shard=2"),
        "parallel/test_shard_levels.py",
    ),
    System("C4P", VERIFIED, run("ecmp-fat-tree"), "step/test_drawn_paths.py"),
    System(
        "C4D",
        FORMULA,
        "`tspsim compare llama-3-405b-8192-h100 --set project.tokens=15T --set project.failures.detection=60s`",
        "studies/test_purchase_checkpoints.py",
    ),
    System("Pipette", VERIFIED, run("pipette-mapping"), "studies/test_mapping.py"),
    System("Holmes", WORKS, run("holmes-mixed-nics"), "step/test_mixed_clusters.py"),
    System("Dynamic CP, ByteScale", WORKS, run("dynamic-cp-long-tail"), "step/test_apart.py"),
    System("DataStates-LLM", WORKS, run("checkpoint-overlap"), "parallel/test_checkpoint.py"),
    System("FlexGen", WORKS, run("tsp-decode-128k", "plans.TP8.host_caches=0.125"), "parallel/test_host_caches.py"),
    System("APEX", WORKS, run("tsp-decode-128k", "plans.TP8.host_attention=0.125"), "parallel/test_host_attention.py"),
    System(
        "FengHuang",
        WORKS,
        run(
            "tsp-decode-128k", "cluster.node=mi300x-pool-72", "cluster.gpus_per_node=8", "plans.TP8.offload_weights=80"
        ),
        "network/test_memory_pool.py",
    ),
    System("SN40L", FORMULA, "`tspsim.studies.composition`, from Python", "studies/test_composition.py"),
    System("HybridFlow", WORKS, run("rlhf-70b-mi300x"), "loop/test_loop.py"),
    System("Agents over unlike machines", WORKS, run("agents-b200-reads-mi355x-writes"), "serving/test_agents.py"),
    System(
        "ParScale, ParaThinker, Hogwild!",
        WORKS,
        run("tsp-decode-128k", "workload.streams.count=8", "workload.streams.shared_cache=true"),
        "step/test_streams_and_bits.py",
    ),
    System(
        "Sparse attention on shared contexts (vLLM, ATOM, SGLang)",
        WORKS,
        run(
            "tsp-decode-128k",
            *GLM_ON_B300,
            "plans.TP8.dcp=8",
            "plans.TP8.ep=8",
        ),
        "parallel/test_sparse_contexts.py",
    ),
    System(
        "Prefill context parallelism of sparse attention (SGLang)",
        WORKS,
        run(
            "tsp-inference-128k",
            *GLM_ON_B300,
            "plans.SP8.ep=8",
            "plans.TSP8.ep=8",
        ),
        "parallel/test_sparse_contexts.py",
    ),
    System(
        "Prefill context parallelism beside experts, in steps that put out tokens (vLLM, ATOM)",
        WORKS,
        run(
            "tsp-decode-128k",
            *GLM_ON_B300,
            "plans.TP8.tp=1",
            "plans.TP8.sp=8",
            "plans.TP8.ep=8",
        ),
        "parallel/test_shards_beside_experts.py",
    ),
    System(
        "Context parallelism of linear attention (FLA, SGLang)",
        WORKS,
        run("tsp-inference-128k", "workload.model=kimi-linear-48b", "plans.SP8.ep=8"),
        "parallel/test_carried_states.py",
    ),
    System(
        "Draft models, SpecInfer's and EAGLE's trees, DFlash",
        WORKS,
        run(
            "tsp-decode-128k",
            "workload.pass=verify",
            "workload.speculation.tokens=4",
            "workload.speculation.draft=model",
            "workload.speculation.model=llama-3.1-8b",
        ),
        "parallel/test_drafters.py",
    ),
    System(
        "Draft models on GPUs of their own, under traffic too (without drafting ahead, as AMUSD and PEARL do)",
        WORKS,
        run(
            "tsp-decode-128k",
            "workload.pass=verify",
            "workload.speculation.tokens=4",
            "workload.speculation.draft=model",
            "workload.speculation.model=llama-3.1-8b",
            "workload.context=32Ki",
            "plans.TP8.tp=4",
            "plans.TP8.draft_replicas=1",
        ),
        "parallel/test_draft_pool.py",
    ),
    System("Tilus", WORKS, run("tsp-decode-128k", "workload.precision.weights=int4"), "step/test_streams_and_bits.py"),
    System("ZAYA1 and its cluster", WORKS, run("zaya1-1024-mi300x"), "model/test_zaya.py"),
)


def table() -> str:
    lines = ["| system | verdict | what asks it | what holds it |", "| --- | --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {each.name} | {each.verdict} | {each.command} | `tests/{each.held}` |"
                                for each in SYSTEMS)])  # fmt: skip
