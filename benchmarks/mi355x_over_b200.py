"""AMD's ROCm 7 training post again: MI355X over B200, each side with plans that its vendor published or that fit best.

    python benchmarks/mi355x_over_b200.py [CASE …]

MI355X has the plans of AMD-AGI/Primus (examples/megatron/configs/MI355X); of B200 the post states none: the fastest of
the plans below is taken, with the least recomputation that fits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from tspsim.parallel.state.memory import peak_bytes
from tspsim.scenario import load
from tspsim.step.simulation import look_up
from tspsim.validation.devices import LOOKUPS
from tspsim.validation.runs import first_plan_of

#: Case → model, precision, tokens a sequence, nodes, and the post's ratio (rocm.blogs.amd.com, ROCm7-MI355X-training).
CASES: dict[str, tuple[str, str, int, int, float]] = {
    "8b bf16": ("llama-3.1-8b", "bf16", 8192, 1, 1.02),
    "8b fp8": ("llama-3.1-8b", "fp8", 8192, 1, 1.08),
    "70b bf16": ("llama-3.1-70b", "bf16", 8192, 1, 1.16),
    "70b fp8": ("llama-3.1-70b", "fp8", 8192, 1, 1.00),
    "mixtral-8x7b bf16": ("mixtral-8x7b", "bf16", 4096, 1, 1.15),
    "70b fp8, 4 nodes": ("llama-3.1-70b", "fp8", 8192, 4, 1.01),
    "mixtral-8x22b bf16, 4 nodes": ("mixtral-8x22b", "bf16", 8192, 4, 1.14),
}
#: Device → node, fabric, stack.
SIDES = {"mi355x": ("mi355x-8", "rails-400g", "primus"), "b200": ("hgx-b200-8", "rail-optimised-400g", "megatron-core")}
REGIONS = {"sequence_regions": True}
EXPERTS = {"zero": 1, "ep": 8, "expert_dispatch": "ranks"}
#: What is recomputed, from the least on, where replicas divide weights; elsewhere whole policies.
LEAST: tuple[Any, ...] = ("none", *({"what": "full", "layers": n, "method": "block"} for n in (20, 40, 60)), "full")


def plans(case: str, device: str) -> Iterator[tuple[dict[str, Any], int]]:
    """Plans of a case on a device, each with its sequences a replica."""
    own = device == "mi355x"
    if case.startswith("8b"):
        yield {"zero": 1, "micro_batch": 4 if own else 2}, 16
    elif case.startswith("mixtral-8x7b"):
        yield EXPERTS | {"micro_batch": 4 if own else 2}, 16
    elif case.startswith("mixtral"):
        yield EXPERTS | {"pp": 4, "micro_batch": 2 if own else 1}, 16
    elif own and "bf16" in case:
        yield {"zero": 3, "micro_batch": 1, "recomputation": {"what": "full", "layers": 30, "method": "block"}}, 16
    elif own:
        yield {"zero": 3, "micro_batch": 3, "recomputation": "full"}, 3
    else:
        yield {"zero": 3, "micro_batch": 1}, 16
        yield {"zero": 1, "tp": 2, "pp": 4, "vpp": 5, "micro_batch": 1} | REGIONS, 64


def rate(case: str, device: str) -> float:
    """Tokens/s a GPU of the fastest plan."""
    model, precision, sequence, nodes, _ = CASES[case]
    node, fabric, stack = SIDES[device]
    cluster: dict[str, Any] = {"device": device, "node": node, "nodes": nodes}
    if nodes > 1:
        cluster["fabric"] = fabric
    best = 0.0
    for plan, sequences in plans(case, device):
        workload = {"model": model, "pass": "training", "sequence": sequence, "precision": precision, "stack": stack}
        for again in LEAST if plan.get("zero") == 3 else ("none", "selective", "full"):
            entry = {"name": "P", "recomputation": again, **plan}
            asked = {"name": "ratio", "cluster": cluster, "plans": [entry]}
            question = look_up(load(asked | {"workload": workload | {"sequences_per_replica": sequences}}), LOOKUPS)
            job = question.job(question.plans[0])
            if peak_bytes(job) <= question.device.visible_memory_bytes:
                seconds = first_plan_of(question, "as stated").seconds
                best = max(best, job.work.counted_over(job.plan.dp) / seconds / question.cluster.gpus)
                break
    return best


def main() -> None:
    misses = []
    for case in sys.argv[1:] or CASES:
        ours, theirs = (rate(case, device) for device in SIDES)
        published = CASES[case][-1]
        misses.append(abs(ours / theirs / published - 1.0))
        print(f"{case:28} {ours:7.0f} {theirs:7.0f} {ours / theirs:5.2f} published {published:.2f}", flush=True)
    print(f"median off by {100 * sorted(misses)[len(misses) // 2]:.1f} %")


if __name__ == "__main__":
    main()
