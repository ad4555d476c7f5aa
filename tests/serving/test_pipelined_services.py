"""Services whose replicas are pipelines over nodes."""

from __future__ import annotations

import pytest

import tspsim


def served(nodes: int) -> dict[str, float]:
    scenario = {
        "name": "pipelines",
        "cluster": {"device": "mi355x", "nodes": nodes, "fabric": "rails-400g"},
        "workload": {"model": "llama-3.1-70b", "stack": "vllm"},
        "traffic": {"arrivals": {"kind": "closed", "concurrency": 1}, "prompt": 512, "output": 16, "requests": 2},
        "plans": [{"name": "TP8-PP2", "tp": 8, "pp": 2}],
    }
    told = tspsim.simulate(scenario).to_json()["plans"][0]["serving"]
    return {name: told[name]["mean"] for name in ("ttft_s", "tpot_s")}


def test_a_request_alone_waits_as_long_in_a_pipeline_of_a_large_cluster_as_in_the_only_one() -> None:
    """On 16 nodes messages between stages are those of eight replicas at once; that such a message has no time of its
    own was an AssertionError."""
    assert served(16) == pytest.approx(served(2), rel=1e-6)
