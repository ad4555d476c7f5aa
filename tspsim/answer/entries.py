"""A catalog entry in a line or two, read in the same way as by whoever names it."""

from __future__ import annotations

from pathlib import Path

from ..base.catalog import Kind


def entry_in_words(kind: Kind, name_or_path: str | Path) -> str:
    """The content of a catalog file in a line or two; raises InputError."""
    name = str(name_or_path)
    if kind == "devices":
        from ..base.units import compact, gib
        from ..hardware import load_device

        device = load_device(name)
        rates = ", ".join(f"{dtype} {compact(rate, 'FLOP/s')}" for dtype, rate in device.peak_flops_per_s.items())
        memory = f"{gib(device.visible_memory_bytes)} of memory to use at {compact(device.hbm_bytes_per_s, 'B/s')}"
        return f"A device with {memory}; dense peak {rates}"
    if kind == "models":
        from ..base.units import compact, gib
        from ..model import load_model

        model = load_model(name)
        note = f"\nnote: {model.note}" if model.note else ""
        held = f"weights {gib(model.weight_bytes())}, caches {model.cache_bytes_per_token():,.0f} bytes a token"
        return f"A model of {compact(model.parameters)} parameters in {model.layers} layers; {held} as stated{note}"
    if kind == "stacks":
        from ..parallel import load_stack

        return f"A stack: {load_stack(name).description}"
    if kind == "failures":
        from ..base.catalog import load
        from ..base.units import several
        from ..fleet.failure_keys import FailureEntry

        entry = load("failures", name, FailureEntry)
        rate = sum(part.rate for part in entry.components.values())
        return f"Failures of {several(len(entry.components), 'part')}, {rate:.3g} per 1,000 node-days"
    from ..base.units import several
    from ..network import build_cluster, load_cluster

    if kind == "fabrics":
        from ..base.units import compact
        from ..network.load import load_fabric

        fabric = load_fabric(name)
        return f"A fabric with {compact(fabric.nic.bandwidth.value, 'B/s')} a NIC"
    if kind == "transports":
        from ..base.catalog import load
        from ..network.specs import TransportSpec

        factors = load("transports", name, TransportSpec).collectives
        return f"A transport: latency × {factors.latency:g}, bandwidth × {factors.bandwidth:g}"
    cluster = build_cluster(node=name) if kind == "nodes" else load_cluster(name)
    nodes = "A node" if kind == "nodes" else several(cluster.nodes, "node")
    suffix = "" if kind == "nodes" else " each"
    return f"{nodes} of {cluster.gpus_per_node} × {cluster.device_name}, {several(cluster.node.nics, 'NIC')}{suffix}"
