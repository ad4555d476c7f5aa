"""Nodes and fabrics of the catalog with better links, in files of their own."""

from __future__ import annotations

import copy
from pathlib import Path

import yaml

from tspsim.base import catalog, dialect


def better(folder: Path, kind: catalog.Kind, name: str, factor: float) -> str:
    """A node or fabric of the catalog with faster links, or NICs, under a name of its own in a file of ``folder``."""
    entry = copy.deepcopy(dialect.read_yaml(catalog.locate(kind, name)))
    bandwidth = entry["link" if kind == "nodes" else "nic"]["bandwidth"]
    value, unit = str(bandwidth["value"]).split(" ", 1)
    bandwidth["value"], entry["name"] = f"{float(value) * factor:.12g} {unit}", f"{name}-better"
    path = folder / f"topologies/{kind}/{entry['name']}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(entry), encoding="utf-8")
    return str(entry["name"])
