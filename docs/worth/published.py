"""What schemes were published to be worth, asked on the hardware and against the rival of their papers.

Devices and nodes are of the catalog, most of them from data sheets alone; no constant is set for a row. Where what is
known of a paper does not say what decides, the row says so.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

import tspsim
from tspsim.studies.mapping import mapped

from .above import ITERATION, REACHED
from .entry import KI, Keys, rate_of

FOLLOWS, PARTLY, NOT, UNSAID = "follows", "in part", "does not", "cannot be said"

Gains = list[tuple[str, float | None]]


@dataclass(frozen=True)
class Published:
    """A published gain, where it was measured, and what this package gives there."""

    name: str
    #: Hardware and question of the paper, as far as it is known, and whom it is held against.
    setting: str
    rival: str
    published: str
    #: What was varied, in words, and the gain there (None: it does not run or fit).
    gains: Callable[[], Gains]
    verdict: str
    why: str

    @property
    def cell(self) -> str:
        told = [(f"{gain:.2f}" if gain is not None else "–", title) for title, gain in self.gains()]
        return "; ".join(f"{gain} ({title})" if title else gain for gain, title in told)


def rate(cluster: Keys, workload: Keys, plan: Keys, asked: Keys | None = None) -> float | None:
    plans = [{"name": "P", **plan}]
    return rate_of({"name": "published", "cluster": cluster, "workload": workload, "plans": plans, **(asked or {})})


def over(own: float | None, other: float | None) -> float | None:
    """A gain; None where one of both does not run."""
    return own / other if own and other else None


@cache
def attention_alone() -> str:
    """A model of which next to nothing is left but attention of 32 heads of 128, as a file."""
    model = {
        "name": "attention-alone", "layers": 4, "hidden": 128,
        "attention": {"heads": 32, "kv_heads": 32, "head_dim": 128}, "mlp": {"width": 128, "gated": False},
        "embedding": {"vocab": 0}, "max_context": 32_768, "source": "TokenRing's question",
    }  # fmt: skip
    path = Path(tempfile.mkdtemp()) / "attention-alone.yaml"
    path.write_text(yaml.safe_dump(model), encoding="utf-8")
    return str(path)


def token_ring() -> Gains:
    work: Keys = {"model": attention_alone(), "pass": "forward", "sequence": 24_000}
    ring: Keys = {"sp": 4, "exchange": "ring", "context_transport": "ring"}
    cluster: Keys = {"device": "a10", "nodes": 1}
    return [("", over(rate(cluster, work, {"sp": 4, "exchange": "token_ring"}), rate(cluster, work, ring)))]


def frontier() -> Gains:
    cluster: Keys = {"device": "mi250x", "nodes": 48, "fabric": "rails-200g"}
    found: Gains = []
    for batch in (1, 4):
        work: Keys = {"model": "megatron-22b", "pass": "training", "sequence": 2 * KI, "sequences_per_replica": batch}
        levels = rate(cluster, work, {"zero": 3, "shard_group": 8, "weight_shard": 2, "weight_wire": "int8"})
        plus = {"zero": 3, "secondary_shard": 8, "weight_wire": "int8", "gradient_wire": "int4"}
        found.append((f"{batch} × 2Ki a die", over(levels, rate(cluster, work, plus))))
    return found


def holmes() -> Gains:
    """Nodes with four ports of RDMA and with two (the repository's config.json), of 200 Gb/s each (assumed)."""
    islands = [{"nodes": 4, "fabric": "roce-100g"}, {"nodes": 4, "fabric": "roce-50g"}]
    cluster: Keys = {"device": "a100-80gb", "nodes": 8, "fabric": "ethernet-100g", "islands": islands}
    plan: Keys = {"pp": 2, "zero": 1}
    apart = {**plan, "placement": {"node": ["tp", "dp"]}}
    found: Gains = []
    for batch in (1536, 512):
        work: Keys = {"model": "llama-2-7b", "pass": "training", "sequence": 2 * KI, "global_batch": batch}
        found.append((f"{batch} sequences", over(rate(cluster, work, apart), rate(cluster, work, plan))))
    return found


#: GB/s that each of sixteen nodes sends to the other fifteen in turn, measured by mpiGraph: committed beside the code
#: of the paper (yimjinkyu1/date2024_pipette @5715ef7, mpigraph/vivaldi-master/time_1.json), rounded.
PIPETTE_SENDS = """
19.1 17.6 17.6 19.0 17.0 18.6 19.1 18.8 18.9 18.8 18.7 18.8 18.8 18.6 18.5
17.4 17.6 18.7 18.9 18.2 17.3 19.2 18.9 18.9 18.9 18.6 18.7 18.7 18.5 18.5
18.3 18.1 17.1 18.9 18.2 17.2 18.7 17.1 18.8 18.7 18.6 18.7 18.3 18.4 18.5
18.5 17.0 18.9 19.0 18.3 17.7 19.0 18.1 19.1 18.9 18.6 18.8 18.7 18.6 18.7
18.7 18.5 17.2 18.5 18.6 19.0 19.3 17.7 19.1 18.3 18.9 19.2 18.7 18.9 18.8
18.8 17.3 17.2 16.9 18.8 18.6 18.6 18.2 18.3 18.2 18.3 18.2 18.2 18.0 16.8
18.5 18.6 18.1 18.4 17.2 18.6 19.5 17.5 18.7 17.2 18.6 19.2 18.6 18.9 18.6
18.8 18.7 18.3 18.5 18.4 18.8 17.2 18.9 19.1 18.1 17.5 19.2 18.8 18.9 18.8
18.7 18.7 18.4 18.5 18.4 18.7 18.1 17.2 19.1 17.5 17.4 18.7 18.3 18.9 18.8
18.9 18.5 18.5 18.6 18.4 19.0 18.2 18.2 17.0 18.9 17.7 19.1 17.7 18.8 18.8
19.0 18.5 18.6 18.6 18.6 19.1 18.4 18.4 18.3 17.0 18.8 19.2 17.2 17.9 18.0
19.2 18.9 18.9 18.8 18.8 19.2 18.7 18.8 18.6 18.3 17.1 19.8 17.7 18.1 17.5
18.5 19.0 18.8 18.9 18.8 19.1 18.7 18.8 18.7 18.4 18.5 17.3 19.0 17.7 17.7
17.8 18.2 18.9 18.9 19.1 19.2 18.6 18.9 18.9 18.5 18.7 18.6 17.4 19.0 18.0
17.9 17.5 19.0 18.5 19.0 19.1 18.8 18.8 18.8 18.6 18.8 18.6 18.4 17.2 18.9
18.0 17.4 18.7 17.3 19.2 19.1 18.9 18.9 18.5 18.6 18.7 18.6 18.5 18.6 17.1
"""
#: What its script runs (GPT of 8.1B, TP8, PP2, micro-batches of four, 200 Gb/s a node) and other plans of as many GPUs.
PIPETTE_PLANS: tuple[Keys, ...] = (
    {"tp": 8, "pp": 2}, {"tp": 8, "pp": 4}, {"tp": 4, "pp": 4}, {"tp": 2, "pp": 4}, {"tp": 8}, {"tp": 4}, {"pp": 8},
)  # fmt: skip


@cache
def gpt_8b() -> str:
    """The model of Pipette's script as a file."""
    model = {
        "name": "gpt-8.1b", "layers": 64, "hidden": 3072, "attention": {"heads": 24, "kv_heads": 24, "head_dim": 128},
        "mlp": {"width": 12_288, "gated": False}, "embedding": {"vocab": 50_256}, "max_context": KI,
        "source": "Pipette's script for 64 A100",
    }  # fmt: skip
    path = Path(tempfile.mkdtemp()) / "gpt-8.1b.yaml"
    path.write_text(yaml.safe_dump(model), encoding="utf-8")
    return str(path)


def pipette() -> Gains:
    """On the links that the paper's repository has: the best order of nodes, and the best plan over the script's."""
    rows = [[float(rate) for rate in line.split()] for line in PIPETTE_SENDS.split("\n") if line]
    rows = [[*row[:node], 0.0, *row[node:]] for node, row in enumerate(rows)]
    cluster: Keys = {"device": "a100-80gb", "nodes": 16, "fabric": "rails-200g", "measured": {"rows": rows}}
    work: Keys = {"model": gpt_8b(), "pass": "training", "sequence": KI, "global_batch": 256}
    plans = [{"micro_batch": 4, "recomputation": "selective", **plan} for plan in PIPETTE_PLANS]
    asked = {"name": "published", "cluster": cluster, "workload": work, "plans": [{"name": "P", **plans[0]}]}
    placed = mapped(tspsim.load(asked), "P")
    best = max(rate(cluster, work, plan) or 0.0 for plan in plans)
    return [
        ("order of nodes", placed.gain),
        ("best of seven plans over the script's", over(best, placed.default.tokens_per_s)),
    ]


@cache
def experts_alone() -> str:
    """The layer of Tutel's example (tutel/examples/helloworld.py @04a6b09) on 16 GPUs as a file: 2,048 wide, two
    experts of 2,048 a GPU, top 2, and next to no attention."""
    model = {
        "name": "experts-alone", "layers": 4, "hidden": 2048, "attention": {"heads": 1, "kv_heads": 1, "head_dim": 16},
        "mlp": {"kind": "moe", "experts": 32, "topk": 2, "width": 2048, "gated": False},
        "embedding": {"vocab": 0}, "max_context": 32_768, "source": "Tutel's example",
    }  # fmt: skip
    path = Path(tempfile.mkdtemp()) / "experts-alone.yaml"
    path.write_text(yaml.safe_dump(model), encoding="utf-8")
    return str(path)


def tutel() -> Gains:
    """Tokens of the example, and four times as many; and a whole forward."""
    cluster: Keys = {"device": "a100-80gb", "nodes": 2, "fabric": "rails-200g"}
    wide: Keys = {"ep": 16, "expert_dispatch": "links"}
    layer: Keys = {"model": experts_alone(), "pass": "forward", "sequence": 512}
    asked: tuple[tuple[str, Keys, int], ...] = (
        ("16 × 512 tokens a GPU, 2 parts", {**layer, "sequences_per_replica": 16}, 2),
        ("64 × 512, 4 parts", {**layer, "sequences_per_replica": 64}, 4),
        ("Qwen3-30B-A3B whole, 2 parts", {"model": "qwen3-30b-a3b", "pass": "forward", "sequence": 16 * KI}, 2),
    )
    return [
        (title, over(rate(cluster, work, {**wide, "expert_pieces": parts}), rate(cluster, work, wide)))
        for title, work, parts in asked
    ]


def apex() -> Gains:
    """The most tokens/s of any batch and share, over the most without hosts; four GPUs, a replica each."""
    found: Gains = []
    for device, model in (("t4", "llama-2-7b"), ("a10", "llama-3.1-8b")):
        cluster: Keys = {"device": device, "nodes": 1}

        def most(share: float, batches: Sequence[int], cluster: Keys = cluster, model: str = model) -> float:
            keys: Keys = {"host_attention": share} if share else {}
            works = ({"model": model, "pass": "decode", "batch": batch, "context": KI} for batch in batches)
            return max((rate(cluster, work, {"dp": 4, **keys}) or 0.0) for work in works)

        batches = (1, 2, 3, 4, 6, 8, 12) if device == "t4" else (8, 16, 24, 32, 40)
        hosted = max(most(share, batches) for share in (0.1, 0.25, 0.5, 0.7, 0.8))
        found.append((f"{device.upper()}, {model}", over(hosted, most(0.0, batches))))
    return found


def janus() -> Gains:
    from .experts import ENTRIES

    (pools,) = (each for each in ENTRIES if each.name == "Janus' pools")
    own = pools.rate("h100", pools.name)
    return [(rival, over(own, pools.rate("h100", rival))) for rival in pools.rivals]


def hybrid_flow() -> Gains:
    cluster: Keys = {"device": "a100-80gb", "nodes": 16, "fabric": "rails-200g"}
    work: Keys = {"model": "llama-3.1-70b", "pass": "training", "sequence": 2 * KI, "stack": "megatron-core"}
    own = rate(cluster, work, {**REACHED, "rollout": {"tp": 4}}, ITERATION)
    rivals = {"nodes apart that wait": {"tp": 4, "nodes": 4}, "generated as trained": {"tp": 8, "pp": 2}}
    return [
        (title, over(own, rate(cluster, work, {**REACHED, "rollout": rollout}, ITERATION)))
        for title, rollout in rivals.items()
    ]


#: Held by ``tests/parallel/test_ring_self_attention.py``, from memory alone.
RSA: Gains = [("batch", 8.4), ("sequence", 3.1)]

PUBLISHED = (
    Published(
        "Ring Self-Attention", "BERT base, training, 64 P100 of 16 GB (`p100`)", "TP, at most 12 ranks",
        "13.7× the batch, 3.0× the sequence", lambda: RSA, PARTLY,
        "memory alone; the sequence follows, of the batch 61 %: what TP keeps whole in their framework is not known",
    ),
    Published(
        "TokenRing", "attention alone, 32 heads of 128, 24,000 tokens, 4 A10 over PCIe (`a10`)",
        "keys and values round a ring", "1.67×", token_ring, NOT,
        "over a port of its own each GPU sends and receives as many bytes either way; their ring's copies reach 12.9 "
        "GB/s of 31.5, so copies and not ports are the limit there, and two at once carry more",
    ),
    Published(
        "Three levels (Frontier)", "22B for their 20B, 384 dies of MI250X, 48 nodes (`mi250x`)", "ZeRO++", "1.71×",
        frontier, NOT,
        "at the rates of the data sheets all gathers hide behind kernels under either; their ZeRO++ waits for RCCL "
        "over Slingshot, whose rates are not in what could be read (abstract and introduction)",
    ),
    Published(
        "Holmes", "7B for their 7.5B, 64 A100, half on InfiniBand, half on RoCE, Ethernet between", "Megatron-LM",
        "1.39×; 1.14× over Megatron-LLaMA", holmes, PARTLY,
        "who sums over Ethernet; 1.21 of the 1.39 is an overlapped optimizer, which Megatron-LLaMA has too; the batch, "
        "1,536 in their script for 39B, decides, and with TP and PP of 7.5B it is not in what was read",
    ),
    Published(
        "Pipette", "their script's GPT of 8.1B, 128 A100, links as measured in their repository", "AMP's plan", "1.46×",
        pipette, NOT,
        "16 nodes that reach each other at 16.8 to 19.8 GB/s: no order of them is worth more than 0.4 %; what moves is "
        "the plan itself, and AMP's there is not published",
    ),
    Published(
        "Tutel's degree", "16 A100 of two nodes, an MoE layer", "one part", "1.43×", tutel, PARTLY,
        "the layer is that of their repository's example (2,048 wide, two experts of 2,048 a GPU, top 2), in bf16; "
        "which layer and tokens have 1.43 stands in pictures of the paper",
    ),
    Published(
        "Host attention (APEX)", "T4 with Llama-2-7B, A10 with Llama-3.1-8B, 1Ki each", "vLLM", "1.84 to 1.96×, 1.11 "
        "to 1.89×", apex, PARTLY,
        "T4 follows: three sequences fit beside its weights, and hosts (51 GB/s of DRAM a GPU, assumed) take as many "
        "again; A10 has room for forty, and reading weights twice a layer costs more than hosts bring; of the paper "
        "abstract and introduction could be read, not its hosts, prompts and batches",
    ),
    Published(
        "Janus' pools", "DeepSeek-V2, 32 H100", "SGLang (3.9 to 4.7), MegaScale-Infer (2.2)", "3.9 to 4.7×", janus, NOT,
        "a rival with as wide an expert group and its kernels for small messages reads each expert as rarely; how wide "
        "theirs is, is not in what could be read (abstract and introduction)",
    ),
    Published(
        "HybridFlow", "70B, 16 nodes of A100", "DeepSpeed-Chat, OpenRLHF, NeMo-Aligner", "1.53 to 20.57×", hybrid_flow,
        PARTLY,
        "the low end is nodes that wait for each other; the high end are rivals' layouts and engines, which are no "
        "physics",
    ),
)  # fmt: skip


def table() -> str:
    head = "| scheme | where it was measured | against | published | here, on that hardware | verdict | why |"
    lines = [head, "| --- | --- | --- | --- | --- | --- | --- |"]
    for each in PUBLISHED:
        cells = each.name, each.setting, each.rival, each.published, each.cell, each.verdict, each.why
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
