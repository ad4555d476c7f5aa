"""First files of one's own, as ``tspsim init`` writes them."""

from __future__ import annotations

#: Template → its description, and the place of each of its files.
TEMPLATES: dict[str, tuple[str, dict[str, str]]] = {
    "first": ("three plans of a forward pass on two nodes", {"first": "first.yaml"}),
    "training": ("a training step, sharded two ways", {"training": "training.yaml"}),
    "experts": ("a mixture of experts on one node", {"experts": "experts.yaml"}),
    "serving": ("requests to an engine, two plans at two rates", {"serving": "serving.yaml"}),
    "purchase": ("the same work on two offers, for tspsim compare", {"purchase": "purchase.yaml"}),
    "device": (
        "a GPU of your own, and its node",
        {"device": "topologies/devices/my-gpu.yaml", "node": "topologies/nodes/my-gpu-8.yaml"},
    ),
    "announced": (
        "a GPU and its rack from a data sheet alone",
        {"announced": "topologies/devices/next-gpu.yaml", "announced_node": "topologies/nodes/next-gpu-72.yaml"},
    ),
    "node": ("a node of your own", {"node": "topologies/nodes/my-gpu-8.yaml"}),
}


def text_of(part: str) -> str:
    """One file of a template."""
    from importlib import resources

    return (resources.files(__name__) / f"{part}.yaml").read_text(encoding="utf-8")
