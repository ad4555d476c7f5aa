"""Clusters of the same parts are one object, which remembers; nothing that changes is remembered."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from helpers.engine import make_anew

import tspsim
from tspsim.base import catalog, dialect, memo
from tspsim.base.memo import BoundedCache
from tspsim.base.registry import Registry
from tspsim.network import build_cluster, load_cluster
from tspsim.step.question import cluster_of

FOUR: dict[str, Any] = {"device": "mi300x", "nodes": 4, "fabric": "rails-400g"}


def question(cluster: dict[str, Any] | str, name: str = "asked") -> dict[str, Any]:
    """A plan whose schedule is left open."""
    workload = {"model": "tsp-8b", "pass": "forward", "sequence": "8Ki"}
    return {"name": name, "cluster": cluster, "workload": workload, "plans": [{"name": "P", "tsp": 8}]}


def ask(cluster: dict[str, Any] | str, name: str = "asked") -> str:
    return tspsim.simulate(question(cluster, name)).dumps()


def write_own(folder: Path, kind: catalog.Kind, name: str, **changes: Any) -> None:
    """An entry of the catalog with other numbers, found before the shipped one."""
    entry = dialect.read_yaml(catalog.locate(kind, name))
    for path, value in changes.items():
        part, key = path.split("__")
        entry[part][key]["value"] = value
    target = folder / catalog.FOLDERS[kind] / f"{name}.yaml"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(yaml.safe_dump(entry))


def test_the_same_parts_are_one_cluster_and_other_parts_another() -> None:
    assert load_cluster("mi300x-8") is load_cluster("mi300x-8")
    assert build_cluster(**FOUR) is build_cluster(**FOUR)
    others = {"nodes": 2}, {"fabric": "fat-tree-400g"}, {"oversubscription": 2.0}, {"gpus_per_node": 4}, {"name": "x"}
    made = [build_cluster(**{**FOUR, **change}) for change in ({}, *others)]
    assert len({id(cluster) for cluster in made}) == len(made)
    announced = load_cluster("vera-rubin-nvl144")
    assert announced is load_cluster("vera-rubin-nvl144")


def test_what_is_asked_again_is_said_again_whatever_is_remembered() -> None:
    """Whole answers, with the sources of all kernels that decided: remembered, made anew, after other questions."""
    first = ask("mi300x-8")
    assert ask("mi300x-8") == first
    make_anew()
    ask("mi300x-8", "another")
    ask({**FOUR, "nodes": 1})
    assert ask("mi300x-8") == first


def test_a_changed_file_is_seen_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSPSIM_CATALOG", str(tmp_path))
    shipped, node = ask("mi300x-8"), load_cluster("mi300x-8")
    write_own(tmp_path, "nodes", "mi300x-8", link__bandwidth="32 GB/s")
    slower = ask("mi300x-8")
    assert load_cluster("mi300x-8") is not node
    assert slower != shipped
    (tmp_path / "topologies/nodes/mi300x-8.yaml").unlink()
    assert ask("mi300x-8") == shipped


def test_a_changed_fabric_of_an_island_is_seen_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSPSIM_CATALOG", str(tmp_path))
    islands = [{"nodes": 2, "fabric": "roce-400g-gcp"}, {"nodes": 2, "fabric": "infiniband-400g-lambda"}]
    asked = {"device": "h100", "nodes": 4, "fabric": "ethernet-100g", "islands": islands}
    before = cluster_of(tspsim.load(question(asked)))
    write_own(tmp_path, "fabrics", "roce-400g-gcp", nic__bandwidth="1 GB/s")
    after = cluster_of(tspsim.load(question(asked)))
    assert min(after.bandwidth_bytes_per_s) < min(before.bandwidth_bytes_per_s)


def test_what_was_registered_since_is_asked() -> None:
    """A collective that is new may be the fastest of those that a cluster has compared."""
    before, planets = load_cluster("mi300x-8"), Registry[Any]("planet", "tspsim.planets")
    planets.register(SimpleNamespace(name="mars"))
    with_mars = load_cluster("mi300x-8")
    planets.remove("mars")
    assert len({id(before), id(with_mars), id(load_cluster("mi300x-8"))}) == 3


def test_few_are_kept_and_none_for_ever() -> None:
    shared, parts = BoundedCache(memo.MOST), [object() for _ in range(memo.MOST + 1)]
    made = [shared.of_parts([part], "as it is", list) for part in parts]
    assert shared.of_parts([parts[-1]], "as it is", list) is made[-1]
    assert shared.of_parts([parts[0]], "as it is", list) is not made[0]
    uses = [shared.of_parts([parts[-1]], "often", list) for _ in range(memo.OFTEN + 1)]
    assert uses[memo.OFTEN - 1] is uses[0]
    assert uses[memo.OFTEN] is not uses[0]
