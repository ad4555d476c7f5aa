"""Announced nodes and racks, which were not measured: their announced links, and stated defaults for the rest.

A file in ``topologies/nodes`` with ``announced: true`` needs its device, the number of GPUs, a link's bandwidth, and
the measured node that it is ``like``. Latencies, the collective library with its tuner's algorithms, and measured
shares of links are those of the measured node, marked as assumed and with wider ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import create_model

from ..base import catalog
from ..base.errors import InputError, UnknownNameError
from ..base.memo import MOST, BoundedCache
from ..base.registry import changes
from ..base.strict import Strict, keys_of
from ..base.units import PositiveCount
from .calibration import CollectivesSpec, Considered
from .specs import LinkSpec, NodeSpec

#: Keys of a node that its device's file may state too; those of them that an announced node may leave out.
_OF_A_DEVICE = ("like", "gpus", "link", "intra", "nics", "rails", "host_link", "host_memory", "host_reads")
_LENT = ("intra", "nics", "host_link")
#: Keys of an announced node's file besides ``announced``, declared as in :class:`NodeSpec`.
_KEYS = ("sold", "name", "description", "device", "gpus", "like", *_OF_A_DEVICE[2:])

if TYPE_CHECKING:
    _LinkKeys = LinkSpec
    _NodeKeys = NodeSpec
    _LentKeys = NodeSpec
else:
    _link = keys_of(LinkSpec, LinkSpec.model_fields, ("latency",))
    _link["per_gpu"] = (PositiveCount, 1)
    _LinkKeys = create_model("_LinkKeys", __base__=Strict, **_link)


class AnnouncedLink(_LinkKeys):
    """Announced links; the default latency is that of the node ``like``."""


if not TYPE_CHECKING:
    _node = keys_of(NodeSpec, _KEYS, _LENT) | {"link": (AnnouncedLink, ...)}
    _NodeKeys = create_model("_NodeKeys", __base__=Strict, announced=(Literal[True], ...), **_node)
    _part = keys_of(NodeSpec, _OF_A_DEVICE, ("gpus", *_LENT)) | {"link": (AnnouncedLink | None, None)}
    _LentKeys = create_model("_LentKeys", __base__=Strict, **_part)


class OtherLibrary(Strict):
    """Differences of a node's collectives from those of the node ``like``.

    ``library`` names the collective library, if it is not the measured one. ``without`` lists algorithms that its links
    or its library cannot run, such as ``in_switch``.
    """

    library: str | None = None
    without: tuple[str, ...] = ()


class AnnouncedNode(OtherLibrary, _NodeKeys):
    """An announced node, or rack that is one switched domain.

    ``library`` names the collective library, if it is not the measured one. ``without`` lists algorithms that its links
    or its library cannot run, such as ``in_switch``. ``sold``: the node can be bought.
    """

    like: str

    def completed(self, like: NodeSpec) -> dict[str, Any]:
        """Fields of the node's specification; those left out are taken from ``like``."""
        latency = like.link.latency
        assumed = latency.model_copy(update={"source": f"as {like.name}: {latency.source}", "basis": "assumed"})
        link = LinkSpec(
            kind=self.link.kind, bandwidth=self.link.bandwidth, per_gpu=self.link.per_gpu,
            latency=self.link.latency or assumed,
        )  # fmt: skip
        nics = self.nics or self.gpus
        lent = {"intra": like.intra, "host_link": like.host_link, "nics": nics, "rails": nics}
        stated = {name: value for name in _KEYS if (value := getattr(self, name)) is not None}
        collectives = assumed_collectives(like, self.library, self.without)
        return lent | stated | {"announced": True, "like": like.name, "link": link, "collectives": collectives}


class LentNode(OtherLibrary, _LentKeys):
    """The node of a device without a node file: ``like`` another node, except for its GPUs and the keys stated here."""

    like: str

    def of(self, device: str, like: NodeSpec) -> AnnouncedNode:
        """The announced node of a device."""
        link, as_many = like.link, self.gpus in (None, like.gpus)
        announced_link = AnnouncedLink(
            kind=link.kind, bandwidth=link.bandwidth, per_gpu=link.per_gpu, latency=link.latency
        )
        nics = self.nics or (like.nics if as_many else None)
        stated = {name: getattr(self, name) for name in (*_OF_A_DEVICE, *OtherLibrary.model_fields)}
        return AnnouncedNode.model_validate(
            stated
            | {
                "announced": True, "sold": not like.announced or like.sold, "name": f"{like.name} with {device}",
                "device": device, "description": f"as {like.name}, with another GPU", "gpus": self.gpus or like.gpus,
                "like": like.name, "link": self.link or announced_link, "nics": nics,
                "rails": self.rails or (like.rails if as_many and nics == like.nics else None),
                "host_memory": self.host_memory or like.host_memory, "host_reads": self.host_reads or like.host_reads,
            }
        )  # fmt: skip


#: Nodes by catalog name or path; defaults of announced ones are filled in.
NODES: catalog.HardwareFiles[NodeSpec] = catalog.HardwareFiles(
    "nodes", NodeSpec, AnnouncedNode, lambda stated: stated.like
)
#: Nodes that devices' files describe; renewed when a file changes.
_lent = BoundedCache(MOST, changes)


def lent_node(device: str, stated: Mapping[str, Any], file: str) -> NodeSpec:
    """The node that a device's file describes: ``node: {like: hgx-h100-8}``.

    Raises
    ------
    InputError
        A key is wrong, or no node has the name.
    """
    try:
        lent = catalog.validate(dict(stated), LentNode)
        like = NODES.load(lent.like)
    except UnknownNameError as error:
        raise error.at(file=file, key="node.like") from None
    except InputError as error:
        raise InputError(error.message, file=file, key=f"node.{error.key}" if error.key else "node") from None

    def made() -> NodeSpec:
        return catalog.validate(lent.of(device, like).completed(like), NodeSpec, file=file)

    return _lent.of_parts((like,), (device, lent.model_dump_json()), made)


def assumed_collectives(like: NodeSpec, library: str | None, without: tuple[str, ...]) -> CollectivesSpec:
    """Collectives of another node as assumed, with wider ranges and without some algorithms."""
    measured = like.collectives

    def assumed(part: Any) -> Any:
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
        protocols=tuple(assumed(protocol) for protocol in measured.protocols),
        efficiency={family: assumed(share) for family, share in measured.efficiency.items() if family not in without},
        own_chunk=assumed(measured.own_chunk) if measured.own_chunk else None,
        in_switch_latency=assumed(measured.in_switch_latency) if measured.in_switch_latency and switched else None,
        curves=tuple(assumed(curve) for curve in measured.curves if not set(without) & set(curve.algorithms)),
        across=assumed(across) if across is not None else None,
        custom_all_reduce=tuple(assumed(kernels) for kernels in measured.custom_all_reduce),
        experts=tuple(assumed(curve) for curve in measured.experts),
    )
