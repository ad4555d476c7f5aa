"""A pool of memory that adds what is written to it: collectives, messages, copies, weights that come from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import tspsim
from tspsim.base import catalog
from tspsim.base.errors import InputError
from tspsim.network import collective, host_bandwidth, load_cluster, point_to_point
from tspsim.step.bound import bounds

POOL = load_cluster("h200-pool-72")
RATE = host_bandwidth(POOL.node)
LATENCY = 1e-6


def seconds(kind: str, size_bytes: float, ranks: int = 8, cluster: Any = POOL) -> float:
    moved = collective(cluster, range(ranks), kind, size_bytes)
    return moved.latency_s + moved.fluid_s


@pytest.mark.parametrize("size", [2.0**14, 2.0**20, 2.0**30])
def test_an_all_reduce_is_written_and_read_once_whoever_takes_part(size: float) -> None:
    every = {seconds("all_reduce", size, ranks) for ranks in (2, 8, 72)}
    (only,) = {round(each, 15) for each in every}
    assert only == pytest.approx(2 * size / RATE + 2 * LATENCY, rel=1e-9)


@pytest.mark.parametrize("ranks", [2, 8, 72])
def test_the_other_kinds_are_what_they_write_and_what_they_read(ranks: int) -> None:
    size, own = 2.0**26, 1.0 / ranks
    passed = {"all_gather": own + 1 - own, "reduce_scatter": 1 + own, "all_to_all": 2 * (1 - own), "broadcast": 2.0}
    for kind, times in passed.items():
        assert seconds(kind, size, ranks) == pytest.approx(times * size / RATE + 2 * LATENCY, rel=1e-9)
    message = point_to_point(POOL, 0, ranks - 1, size)
    assert message.latency_s + message.fluid_s == pytest.approx(2 * size / RATE + 2 * LATENCY, rel=1e-9)


def test_what_is_published_is_steps_and_a_faster_link() -> None:
    """16 to 70 times: at the link that is assumed small messages gain their steps, large ones the link's rate, and at
    NVLink's own rate large ones lose."""
    here = load_cluster("hgx-h200-8")
    small, large = (seconds("all_reduce", size, cluster=here) / seconds("all_reduce", size) for size in (2**14, 2**30))
    assert 5 < small < 16 and 5 < large < 16
    link = here.node.link.bandwidth.value * here.node.link.per_gpu
    as_fast = 2 * 2**30 / (link * RATE / 4e12)
    assert as_fast > seconds("all_reduce", 2**30, cluster=here)


def told(cluster: Any, pass_: str = "decode", **plan: Any) -> Any:
    work = {"batch": 16, "context": 4096} if pass_ == "decode" else {"sequence": 8192}
    asked = {"name": "t", "cluster": cluster, "workload": {"model": "llama-3.1-70b", "pass": pass_, **work},
             "plans": [{"name": "P", "tp": 8, **plan}]}  # fmt: skip
    ran, (bound,) = tspsim.simulate(asked).plans[0], bounds(tspsim.load(asked)).plans
    assert ran.tokens_per_s <= bound.tokens_per_s
    return ran


def pool(folder: Path, rate: str) -> dict[str, Any]:
    facts = yaml.safe_load(catalog.locate("nodes", "h200-pool-72").read_text(encoding="utf-8"))
    facts["link"]["bandwidth"]["value"] = rate
    path = folder / f"pool-{rate.split()[0]}.yaml"
    path.write_text(yaml.safe_dump(facts), encoding="utf-8")
    return {"node": str(path), "gpus_per_node": 8}


def test_weights_in_the_pool_leave_the_gpu_two_layers_and_cost_nothing_once_it_is_as_fast_as_hbm(
    tmp_path: Path,
) -> None:
    """A decoding layer is max(C, W/b): with a link of HBM's rate and more it is what it was at home."""
    times = {}
    for rate in ("1 TB/s", "4 TB/s", "16 TB/s"):
        here, away = (told(pool(tmp_path, rate), offload_weights=layers) for layers in (0, 80))
        times[rate] = away.step_time_s / here.step_time_s
        assert away.memory.parts["weight_buffers"] == pytest.approx(here.memory.parts["weights"] * 2 / 80, rel=0.05)
    assert times["1 TB/s"] > 1.5 > times["4 TB/s"] > 1.0 and times["16 TB/s"] < 1.03
    slow = told(pool(tmp_path, "1 TB/s"), "prefill", offload_weights=80)
    # What is left is what sums wait for on the link that they share with copies.
    assert slow.step_time_s < 1.06 * told(pool(tmp_path, "1 TB/s"), "prefill").step_time_s


def test_copies_share_the_link_with_collectives() -> None:
    frame = told({"node": "h200-pool-72", "gpus_per_node": 8}, "prefill", offload_weights=80).timeline.frame()
    copies = frame[frame.name == "weights from host"]
    lasting = copies.end_s - copies.start_s
    assert float(lasting.max()) > 1.05 * float(lasting.min())


def test_a_pool_is_at_the_end_of_every_link(tmp_path: Path) -> None:
    facts = yaml.safe_load(catalog.locate("nodes", "h200-pool-72").read_text(encoding="utf-8"))
    facts["intra"], facts["link"]["per_gpu"] = "full_mesh", 71
    path = tmp_path / "mesh.yaml"
    path.write_text(yaml.safe_dump(facts), encoding="utf-8")
    with pytest.raises(InputError, match="memory_pool"):
        told({"node": str(path), "gpus_per_node": 8})
