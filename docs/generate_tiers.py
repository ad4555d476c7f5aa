"""Rewrite the tables of memory-tiers.md: weights from the host, attention on the host, a pool of memory.

    python docs/generate_tiers.py

About half a minute of one core. ``tests/house/test_tiers_page.py`` holds cells of it against what the package says now.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pages

import tspsim
from tspsim.model import load_model
from tspsim.network import collective, host_bandwidth, load_cluster
from tspsim.step.result import PlanResult

PAGE = Path(__file__).parent / "memory-tiers.md"
KI = 1024
DEVICES = {"mi300x": "MI300X", "mi355x": "MI355X", "h100": "H100", "b200": "B200"}
MODEL = "llama-3.1-70b"
LENGTHS = (KI, 2 * KI, 4 * KI, 8 * KI, 16 * KI)
SHARES = (0.0, 1 / 64, 1 / 32, 1 / 16, 1 / 8)
SIZES = (16 * KI, 256 * KI, 1024 * KI, 16 * 1024 * KI, 256 * 1024 * KI)
POOL = {"node": "h200-pool-72", "gpus_per_node": 8}
SERVED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gpt-3-175b", {}), ("grok-1", {"ep": 8}), ("qwen3-235b-a22b", {"ep": 8})
)  # fmt: skip


#: Keys and values of a section of a scenario.
Pairs = tuple[tuple[str, Any], ...]


@cache
def _told(cluster: Pairs, work: Pairs, plan: Pairs) -> PlanResult:
    asked = {"name": "tiers", "cluster": dict(cluster), "workload": dict(work), "plans": [{"name": "P", **dict(plan)}]}
    return tspsim.simulate(asked).plans[0]


def told(cluster: dict[str, Any], work: dict[str, Any], plan: dict[str, Any]) -> PlanResult:
    return _told(tuple(cluster.items()), tuple(work.items()), tuple(plan.items()))


# --- weights from the host ----------------------------------------------------------------------------------


def prefill_ratio(device: str, tokens: int, layers: int) -> float:
    """A prompt's time with weights of so many layers of 80 on the host, over all at home."""
    cluster, work = {"device": device, "nodes": 1}, {"model": MODEL, "pass": "prefill", "sequence": tokens}
    here, away = (told(cluster, work, {"tp": 8, "offload_weights": each}) for each in (0, layers))
    return away.step_time_s / here.step_time_s


def weights() -> str:
    """Prefill of 70B over eight GPUs, all layers and every fourth from the host; a decoding step; memory."""
    lines = ["| tokens | " + " | ".join(f"{name}: all, every 4th" for name in DEVICES.values()) + " |",
             "| ---: |" + " ---: |" * len(DEVICES)]  # fmt: skip
    for tokens in LENGTHS:
        cells = [" , ".join(f"{prefill_ratio(device, tokens, each):.2f}" for each in (80, 20)) for device in DEVICES]
        lines.append(f"| {tokens // KI}Ki | {' | '.join(cell.replace(' ,', ',') for cell in cells)} |")
    decode: dict[str, Any] = {"model": MODEL, "pass": "decode", "batch": 16, "context": 4 * KI}
    cells = []
    for device in DEVICES:
        here, some, every = (
            told({"device": device, "nodes": 1}, decode, {"tp": 8, "offload_weights": each}) for each in (0, 20, 80)
        )
        cells.append(f"{every.step_time_s / here.step_time_s:.1f}, {some.step_time_s / here.step_time_s:.1f}")
    return "\n".join([*lines, f"| decode, 16 × 4Ki | {' | '.join(cells)} |"])


# --- attention on the host ----------------------------------------------------------------------------------


def served(device: str, share: float) -> PlanResult:
    work = {"model": MODEL, "pass": "decode", "batch": 64, "context": 8 * KI}
    plan: dict[str, Any] = {"tp": 8} | ({"host_attention": share} if share else {})
    return told({"device": device, "nodes": 1}, work, plan)


def hosts() -> str:
    """A decoding step by the share of its sequences on hosts: time over that of none, and sessions."""
    lines = ["| share on hosts | " + " | ".join(DEVICES.values()) + " |", "| ---: |" + " ---: |" * len(DEVICES)]
    for share in SHARES:
        cells = []
        for device in DEVICES:
            plan, none = served(device, share), served(device, 0.0)
            sessions = plan.inference["capacity"]["sessions"] / none.inference["capacity"]["sessions"]
            cells.append(f"{plan.step_time_s / none.step_time_s:.2f}, {sessions:.2f}")
        lines.append(f"| {100 * share:.3g} % | {' | '.join(cells)} |")
    return "\n".join(lines)


# --- a pool of memory ---------------------------------------------------------------------------------------


def all_reduces() -> str:
    """Microseconds of an all-reduce: NVLink and NCCL, the pool at its assumed rate, and a pool as slow as NVLink."""
    here, pool = load_cluster("hgx-h200-8"), load_cluster(POOL["node"])
    link = here.node.link.bandwidth.value * here.node.link.per_gpu
    slow = host_bandwidth(pool.node) * link / (pool.node.link.bandwidth.value * pool.node.link.per_gpu)
    head = ["bytes", "8 × H200, us", "pool, 8 or 72, us", "gain", "pool at NVLink's rate, gain"]
    lines = [f"| {' | '.join(head)} |", "| ---: |" + " ---: |" * (len(head) - 1)]
    for size in SIZES:
        ring, eight, many = (
            moved.latency_s + moved.fluid_s
            for moved in (
                collective(each, range(n), "all_reduce", size) for each, n in ((here, 8), (pool, 8), (pool, 72))
            )
        )
        assert abs(eight - many) < 1e-9 * eight
        alike = 2.0 * size / slow + 2e-6
        text = f"{size // KI} KiB" if size < 1024 * KI else f"{size // 1024 // KI} MiB"
        lines.append(f"| {text} | {ring * 1e6:.1f} | {eight * 1e6:.1f} | {ring / eight:.1f} | {ring / alike:.1f} |")
    return "\n".join(lines)


def pooled() -> str:
    """Decoding steps with all weights in the pool: time over NVLink's node, and bytes of weights on a GPU."""
    head = ["model", "8 × H200, ms", "pool, weights at home, ms", "pool, weights there, ms", "weights on a GPU, GB"]
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    for model, more in SERVED:
        work = {"model": model, "pass": "decode", "batch": 16, "context": 2 * KI}
        layers = load_model(model).layers
        plans = [{"tp": 8, **more}, {"tp": 8, **more}, {"tp": 8, "offload_weights": layers, **more}]
        clusters = [{"device": "h200", "nodes": 1}, POOL, POOL]
        found = [told(cluster, work, plan) for cluster, plan in zip(clusters, plans, strict=True)]
        bytes_ = [sum(each.memory.parts.get(part, 0.0) for part in ("weights", "weight_buffers")) for each in found]
        times = " | ".join(f"{each.step_time_s * 1e3:.1f}" for each in found)
        lines.append(f"| {model} | {times} | {bytes_[1] / 1e9:.1f} → {bytes_[2] / 1e9:.1f} |")
    return "\n".join(lines)


def machines() -> str:
    """Decoding steps of a node of each device and of its pool, weights at home and there."""
    head = ["eight", "node, ms", "pool, weights at home, ms", "pool, weights there, ms", "there over node"]
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    for device, title in {**DEVICES, "h200": "H200"}.items():
        work = {"model": MODEL, "pass": "decode", "batch": 16, "context": 2 * KI}
        plans = [{"tp": 8}, {"tp": 8}, {"tp": 8, "offload_weights": load_model(MODEL).layers}]
        pool = {"node": f"{device}-pool-72", "gpus_per_node": 8}
        clusters = [{"device": device, "nodes": 1}, pool, pool]
        found = [told(cluster, work, plan).step_time_s for cluster, plan in zip(clusters, plans, strict=True)]
        times = " | ".join(f"{each * 1e3:.1f}" for each in found)
        lines.append(f"| {title} | {times} | {found[2] / found[0]:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parts = {"weights": weights(), "hosts": hosts(), "all_reduces": all_reduces(), "pooled": pooled()}
    pages.rewrite(PAGE, {**parts, "machines": machines()})


if __name__ == "__main__":
    pages.asked(__doc__)
    main()
