"""``cluster.nic_bandwidth``: a fabric with faster or slower NICs, held against fabrics of the catalog."""

from __future__ import annotations

from typing import Any

import pytest

import tspsim
from tspsim.base.errors import InputError
from tspsim.network.load import load_fabric


def asked(**cluster: Any) -> dict[str, Any]:
    return {
        "name": "nics",
        "cluster": {"device": "h100", "nodes": 4, "fabric": "rails-400g", **cluster},
        "workload": {"model": "llama-3.1-8b", "pass": "training", "sequence": "8Ki", "global_batch": 64},
        "plans": [{"name": "FSDP", "zero": 3}],
    }


def step_s(**cluster: Any) -> float:
    return tspsim.simulate(asked(**cluster)).plans[0].step_time_s


def test_a_stated_bandwidth_is_that_of_the_catalog_s_fabric_of_the_rate() -> None:
    fast, stated = load_fabric("rails-800g"), load_fabric("rails-400g", nic_bandwidth=1e11)
    assert stated.nic.bandwidth.value == fast.nic.bandwidth.value == 1e11
    assert "cluster.nic_bandwidth" in stated.nic.bandwidth.source
    assert step_s(nic_bandwidth="400 Gb/s") == step_s()
    assert step_s(nic_bandwidth="800 Gb/s") == pytest.approx(step_s(fabric="rails-800g"), rel=1e-9)


def test_what_crosses_nodes_alone_takes_as_much_longer_as_nics_are_slower() -> None:
    """An exchange that nothing hides goes with the bandwidth, and nothing else does."""
    slow, slower = step_s(nic_bandwidth="4 Gb/s"), step_s(nic_bandwidth="2 Gb/s")
    assert slower / slow == pytest.approx(2.0, rel=0.03)
    assert step_s(nic_bandwidth="200 Gb/s") > step_s()


def test_the_answer_says_so() -> None:
    told = tspsim.simulate(asked(nic_bandwidth="25 GB/s")).defaults
    assert any("A NIC between nodes has 200 Gb/s" in each for each in told)


@pytest.mark.parametrize(
    ("cluster", "why"),
    [
        ({"nodes": 1, "fabric": None, "nic_bandwidth": "400 Gb/s"}, "of the one fabric that joins all nodes"),
        ({"nic_bandwidth": "0 Gb/s"}, "must be more than zero"),
        ({"nic_bandwidth": 400}, "unit"),
        ({"nic_bandwidth": "400 Gb/s", "topology": "a.graphml"}, "leave out nic_bandwidth"),
    ],
)
def test_what_is_wrong_is_told(cluster: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        tspsim.load(asked(**cluster))
