"""Nodes and racks that nobody can measure yet: what is announced of their links, and stated defaults for the rest.

A file in ``topologies/nodes`` that says ``announced: true`` needs its device, the number of GPUs, a link's bandwidth,
and the measured node that it is ``like``. From that it takes latencies, the library with what its tuner considers, and
the shares of the links that were measured on it, all marked as assumed and with wider ranges.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .. import catalog
from ..strict import Strict
from ..units import BytesPerSecond, PositiveCount, Seconds
from .joined import Joined
from .specs import CollectivesSpec, Considered, HostLinkSpec, LinkSpec, NodeSpec, Sourced


class AnnouncedLink(Strict):
    """The links as announced; a latency left out is that of the node it is like."""

    kind: str = Field(min_length=1)
    bandwidth: Sourced[BytesPerSecond]
    per_gpu: PositiveCount = 1
    latency: Sourced[Seconds] | None = None


class AnnouncedNode(Strict):
    """A node, or a rack that is one switched domain, as its vendor announces it.

    ``library`` names the collective library, where that is another than the one measured. ``without`` are algorithms
    that its links or its library cannot run, such as ``in_switch``. ``sold``: as of a device.
    """

    announced: Literal[True]
    sold: bool = False
    name: str
    description: str = ""
    device: str
    gpus: PositiveCount
    like: str
    link: AnnouncedLink
    intra: Annotated[str | dict[str, Any], Joined()] | None = None
    nics: PositiveCount | None = None
    rails: PositiveCount | None = None
    host_link: HostLinkSpec | None = None
    host_memory: HostLinkSpec | None = None
    host_reads: Sourced[BytesPerSecond] | None = None
    library: str | None = None
    without: tuple[str, ...] = ()

    def completed(self, like: NodeSpec) -> dict[str, Any]:
        """The fields of the node's specification, what is left out as ``like`` has it."""
        latency = like.link.latency
        assumed = latency.model_copy(update={"source": f"as {like.name}: {latency.source}", "basis": "assumed"})
        link = LinkSpec(
            kind=self.link.kind, bandwidth=self.link.bandwidth, per_gpu=self.link.per_gpu,
            latency=self.link.latency or assumed,
        )  # fmt: skip
        nics = self.nics or self.gpus
        return {
            "name": self.name, "description": self.description, "announced": True, "sold": self.sold,
            "like": like.name,
            "device": self.device, "gpus": self.gpus, "intra": self.intra or like.intra, "link": link,
            "nics": nics, "rails": self.rails or nics, "host_link": self.host_link or like.host_link,
            "host_memory": self.host_memory, "host_reads": self.host_reads,
            "collectives": assumed_collectives(like, self.library, self.without),
        }  # fmt: skip


def assumed_collectives(like: NodeSpec, library: str | None, without: tuple[str, ...]) -> CollectivesSpec:
    """A library as it was measured on another node: marked so, ranges wider, some algorithms left out."""
    measured = like.collectives

    def told(part: Any) -> Any:
        wider = {"spread": part.spread.wider()} if hasattr(part, "spread") else {}
        return part.model_copy(update={"source": f"as {like.name}: {part.source}", "basis": "assumed", **wider})

    def left(considered: Considered) -> Considered:
        kept = {kind: tuple(name for name in names if name not in without) for kind, names in considered.items()}
        return {kind: names for kind, names in kept.items() if names}

    across, switched = measured.across, "in_switch" not in without
    if across is not None and not switched:
        across = across.model_copy(update={"in_switch": None})
    return CollectivesSpec(
        library=library or measured.library,
        default_library=measured.default_library,
        inside_node=left(measured.inside_node),
        between_nodes=left(measured.between_nodes),
        protocols=tuple(told(protocol) for protocol in measured.protocols),
        efficiency={family: told(share) for family, share in measured.efficiency.items() if family not in without},
        own_chunk=told(measured.own_chunk) if measured.own_chunk else None,
        in_switch_latency=told(measured.in_switch_latency) if measured.in_switch_latency and switched else None,
        curves=tuple(told(curve) for curve in measured.curves if not set(without) & set(curve.algorithms)),
        across=told(across) if across is not None else None,
        custom_all_reduce=tuple(told(kernels) for kernels in measured.custom_all_reduce),
        experts=tuple(told(curve) for curve in measured.experts),
    )


def load_node(name: str) -> NodeSpec:
    """A node file; an announced one with its defaults filled in.

    Raises
    ------
    InputError
        The file is wrong, or an announced node is like one that was not measured either.
    """
    return catalog.load_announced("nodes", name, NodeSpec, AnnouncedNode, lambda stated: stated.like)
