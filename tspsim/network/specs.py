"""Types of the YAML files of nodes, fabrics and clusters: every number has its unit and its source.

pydantic validates them; the rest of the package reads :class:`~tspsim.network.cluster.Cluster`. GPUs or nodes are
connected by a registered topology, named alone or with its argument (:class:`TopologyKey`). Efficiencies and latencies
of collectives (:mod:`.calibration`) are part of these files, so that a calibration replaces numbers in a file, not
code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic_core import core_schema

from ..base.errors import InputError, UnknownNameError, shorten
from ..base.provenance import Provenance
from ..base.strict import Strict, refuse
from ..base.units import BytesPerSecond, PositiveCount, Seconds
from .calibration import BetweenNodes, CollectivesSpec, Curve, CustomAllReduce, FabricFactors, Fraction, NumberWithBasis
from .graphs import Link, links_of
from .wiring import OWN, TOPOLOGIES, Cable, Wiring, compiled, wired

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True)
class TopologyKey:
    """Annotation of a key that names a registered topology, alone or with its argument.

    Parameters
    ----------
    besides
        Further allowed names, which are no topologies.
    """

    besides: tuple[str, ...] = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        properties = {topology.name: {"description": topology.summary} for topology in TOPOLOGIES.values()}
        named = {"type": "string", "enum": [*self.besides, *TOPOLOGIES]}
        one = {"type": "object", "properties": properties, "minProperties": 1, "maxProperties": 1}
        return {"anyOf": [named, one | {"additionalProperties": False}]}

    def _read(self, value: object) -> str | dict[str, Any]:
        if isinstance(value, str) and value in self.besides:
            return value
        stated: object = {value: None} if isinstance(value, str) else value
        if not isinstance(stated, Mapping) or len(stated) != 1:
            names = ", ".join([*self.besides, *TOPOLOGIES])
            raise refuse(f"{shorten(value)} is not one topology; name one of {names}, alone or with its argument")
        (name,) = stated
        if name not in TOPOLOGIES:
            raise refuse(UnknownNameError("topology", name, (*self.besides, *TOPOLOGIES)).message)
        return value if isinstance(value, str) else dict(stated)


# --- nodes, fabrics and clusters ------------------------------------------------------------------------------

Ratio = Annotated[float, Field(ge=1.0, allow_inf_nan=False)]


class LinkSpec(Strict):
    """The links between the GPUs of one node.

    ``bandwidth`` is that of one physical link in one direction. A GPU has ``per_gpu`` links: spread evenly over its
    peers (full mesh), or all to the switch.
    """

    kind: str = Field(min_length=1)
    bandwidth: NumberWithBasis[BytesPerSecond]
    per_gpu: PositiveCount
    latency: NumberWithBasis[Seconds]


class HostLinkSpec(Strict):
    """The link between a GPU and its NIC, or its host's memory."""

    kind: str = "pcie"
    bandwidth: NumberWithBasis[BytesPerSecond]


class CopyEngineSpec(Strict):
    """The copy engines of a GPU, which copy to peers without its compute units.

    ``bandwidth`` is their rate on one link of the node's graph (behind a switch: out of a GPU) in one direction;
    ``latency`` is the time before a copy's first byte.
    """

    bandwidth: NumberWithBasis[BytesPerSecond]
    latency: NumberWithBasis[Seconds]


class MemoryPoolSpec(Strict):
    """Memory shared by a node's GPUs at the other end of their links, which can add what they write. ``latency`` is
    that of a write, or of a read."""

    latency: NumberWithBasis[Seconds]


class NodeSpec(Strict):
    """A server, or a rack that is one NVLink domain.

    ``intra`` is the topology of its GPUs: ``full_mesh``, ``switch``, ``{torus: [4, 4]}``, or ``{graph: [...]}`` with
    edges ``{between: [0, 1], bandwidth: 50 GB/s, latency: 1 us}`` in both directions; named vertices are switches.
    ``host_memory`` is the link between a GPU and its host's memory, if it is not ``host_link``. ``host_reads`` is the
    rate at which the host's processors read memory for one GPU. ``copy_engine`` is present where it was measured. With
    a ``memory_pool``, the node's ``link`` leads to the pool, which takes the place of the host's memory. ``announced``
    marks an unmeasured node: what its file leaves out is taken from the measured node ``like``
    (:mod:`tspsim.network.announced`).
    """

    name: str
    description: str = ""
    announced: bool = False
    sold: bool = False
    like: str | None = None
    device: str
    gpus: PositiveCount
    intra: Annotated[str | dict[str, Any], TopologyKey()]
    link: LinkSpec
    nics: PositiveCount
    rails: PositiveCount | None = None
    host_link: HostLinkSpec
    host_memory: HostLinkSpec | None = None
    host_reads: NumberWithBasis[BytesPerSecond] | None = None
    memory_pool: MemoryPoolSpec | None = None
    copy_engine: CopyEngineSpec | None = None
    collectives: CollectivesSpec

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.like is not None and not self.announced:
            raise ValueError("like is a key of announced nodes; add announced: true")
        try:
            _ = self.wiring().next_link
        except InputError as error:
            raise ValueError(error.message) from None
        if self.memory_pool is not None and not self.wiring().star:
            raise ValueError("a memory_pool is at the other end of every GPU's link: intra is switch")
        if self.gpus % self.nics:
            raise ValueError(f"{self.nics} NICs do not divide {self.gpus} GPUs")
        if self.nics % (self.rails or self.nics):
            raise ValueError(f"{self.rails} rails do not divide {self.nics} NICs")
        return self

    @property
    def graph(self) -> nx.DiGraph[Any]:
        """Graph of the links between its GPUs (:mod:`tspsim.network.graphs`); raises InputError."""
        link = self.link
        return wired(self.intra, self.gpus, Cable(link.bandwidth.value, link.per_gpu, link.latency.value))

    def wiring(self) -> Wiring:
        """The compiled graph; raises InputError."""
        return compiled(self.graph)

    def with_graph_links(self, graph: nx.Graph[Any]) -> NodeSpec:
        """The node with the links of ``graph``, without what was measured on its own links; raises InputError."""
        gpus, a_nic = sum(isinstance(vertex, int) for vertex in graph), self.gpus // self.nics
        return self.with_links(links_of(graph), gpus, gpus // a_nic if gpus % a_nic == 0 else gpus)

    def with_links(self, links: Sequence[Link], gpus: int, nics: int) -> NodeSpec:
        """The node with these links and numbers of GPUs and NICs, without what was measured on its own links; raises
        InputError."""
        unmeasured: dict[str, Any] = {
            "curves": (), "across": None, "custom_all_reduce": (), "experts": (), "in_switch_latency": None,
            "own_chunk": None, "default_library": None,
        }  # fmt: skip
        intra: str | dict[str, Any] = {"graph": tuple(links)} if links else "switch"
        other = self.model_copy(
            update={
                "intra": intra, "gpus": gpus, "nics": nics, "rails": nics,
                "collectives": self.collectives.model_copy(update=unmeasured),
            }
        )  # fmt: skip
        _ = other.wiring().next_link
        return other

    def part(self, gpus: int) -> NodeSpec:
        """The node with only ``gpus`` of its GPUs, and their share of its NICs.

        Behind a switch every GPU keeps its links; in a full mesh the links to other GPUs are unused.

        Raises
        ------
        InputError
            The node has fewer GPUs, they share no whole number of NICs, or its topology has no equal parts.
        """
        if gpus > self.gpus:
            raise InputError(f"{gpus} are more than the {self.gpus} GPUs of node '{self.name}'")
        if gpus == self.gpus:
            return self
        wiring = self.wiring()
        if not (wiring.complete or wiring.star):
            raise InputError(f"the GPUs of node '{self.name}' have unequal links to each other; use all {self.gpus}")
        if gpus * self.nics % self.gpus:
            per_nic = self.gpus // self.nics
            raise InputError(f"{per_nic} GPUs of node '{self.name}' share a NIC; use a multiple of {per_nic}")
        nics = gpus * self.nics // self.gpus
        rails = max(rail for rail in range(1, (self.rails or self.nics) + 1) if nics % rail == 0)
        link, intra = self.link, self.intra
        if wiring.complete and gpus > 1:
            link = link.model_copy(update={"per_gpu": link.per_gpu * (gpus - 1) // (self.gpus - 1)})
        elif gpus == 1:
            intra = "switch"  # a full mesh needs two GPUs
        name = f"{gpus} GPUs of {self.name}"
        update = {"name": name, "gpus": gpus, "nics": nics, "rails": rails, "link": link, "intra": intra}
        return self.model_copy(update=update)


#: Fabrics of leaf and spine switches.
LEAF_AND_SPINE = ("rails", "rail_optimised", "fat_tree")


class NicSpec(Strict):
    """A NIC; ``latency`` is one side's share, from the GPU's memory to the leaf switch.

    ``ports`` (default 1) share its ``bandwidth``; a flow that switches hash stays on one of them
    (:mod:`tspsim.network.routing`).
    """

    bandwidth: NumberWithBasis[BytesPerSecond]
    latency: NumberWithBasis[Seconds]
    ports: NumberWithBasis[PositiveCount] | None = None


class SwitchSpec(Strict):
    """A switch of the fabric; ``latency`` is that of each link between switches."""

    radix: NumberWithBasis[PositiveCount]
    latency: NumberWithBasis[Seconds]


class TransportSpec(Strict):
    """Transport of messages over a fabric (InfiniBand, RoCE), at any rate.

    ``collectives`` are factors of a library's latency and bandwidth over it, relative to the fabrics to which the
    nodes' files were fitted.
    """

    name: str
    description: str = ""
    collectives: FabricFactors


class FabricSpec(Strict):
    """The fabric between nodes.

    Kinds: ``rails`` has one plane a rail, connected only through nodes; ``rail_optimised`` has leaf switches of one
    rail each, and spines that join all leaves; ``fat_tree`` has leaf switches that serve whole nodes. A topology, alone
    or with its argument (``{torus: [4, 4]}``), connects one router a node, to which all NICs of the node are attached.
    ``oversubscription`` is the bandwidth into a leaf over the bandwidth out of it. ``transport`` names the transport;
    ``collectives`` replaces its factors where they were measured on this fabric.
    """

    name: str
    description: str = ""
    kind: Annotated[str | dict[str, Any], TopologyKey(LEAF_AND_SPINE)]
    transport: str | None = None
    nic: NicSpec
    switch: SwitchSpec
    oversubscription: NumberWithBasis[Ratio]
    efficiency: NumberWithBasis[Fraction]
    collectives: FabricFactors | None = None

    @property
    def leaf_and_spine(self) -> bool:
        """Whether the fabric has leaf and spine switches, not a graph with one vertex a node."""
        return self.kind in LEAF_AND_SPINE

    def joining(self, nodes: int, nics: int) -> str | Wiring:
        """Fabric of ``nodes`` nodes with ``nics`` NICs each: the kind of leaf-and-spine network, or the compiled graph
        of the nodes' routers; raises InputError."""
        if isinstance(self.kind, str) and self.leaf_and_spine:
            return self.kind
        if OWN in self.kind and isinstance(self.kind, dict):
            wiring = Wiring.of_switches(self.kind[OWN])
            if len(wiring.attached) != nodes * nics:
                raise InputError(f"the graph joins {len(wiring.attached)} NICs, not {nodes * nics}")
            return wiring
        return compiled(wired(self.kind, nodes, Cable(self.nic.bandwidth.value, nics, self.switch.latency.value)))


class ClusterSpec(Strict):
    """A cluster's catalog entry: nodes on a fabric. ``library`` replaces the node's ``default_library``, ``transport``
    the fabric's, and ``topology``, a GraphML file, all their links."""

    name: str | None = None
    description: str = ""
    device: str | None = None
    node: str | None = None
    nodes: PositiveCount = 1
    fabric: str | None = None
    oversubscription: Ratio | None = None
    library: str | None = None
    gpus_per_node: PositiveCount | None = None
    transport: str | None = None
    topology: str | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _names_hardware(self) -> Self:
        if self.device is None and self.node is None:
            raise ValueError("name a 'device' or a 'node'")
        return self


# --- where their numbers are from -------------------------------------------------------------------------------


def sources(node: NodeSpec, fabric: FabricSpec | None) -> tuple[Provenance, ...]:
    """Source of every number of a cluster's network, and one of every measured curve."""
    rows = [
        _cited(f"{node.link.kind} link", node.link.bandwidth),
        _cited(f"{node.link.kind} latency", node.link.latency),
        *_library(node.collectives),
        *_curves(node.collectives),
        *(_engine(kernels) for kernels in node.collectives.custom_all_reduce),
    ]
    if fabric is not None:
        rows += [_cited(f"{node.host_link.kind} link", node.host_link.bandwidth), *_fabric(fabric)]
        if node.collectives.across is not None:
            rows += _across(node.collectives, node.collectives.across, fabric)
    return tuple(rows)


def _library(library: CollectivesSpec) -> Iterator[Provenance]:
    for family, number in sorted(library.efficiency.items()):
        yield _cited(f"{library.library} efficiency, {family}", number)
    if library.own_chunk:
        yield _cited(f"{library.library} own chunk", library.own_chunk)
    if library.in_switch_latency:
        yield _cited(f"{library.library} in-switch latency", library.in_switch_latency)
    for protocol in library.protocols:
        what = f"{library.library} {protocol.name} base latency"
        yield Provenance(what, protocol.ring.base, protocol.source, protocol.basis)


def _curves(library: CollectivesSpec) -> Iterator[Provenance]:
    """Source of every curve; one for only some versions of the library names them."""
    taken: set[tuple[tuple[str, ...], tuple[str, ...]]] = set()
    for curve in library.curves:
        what = f"{library.library} {', '.join(curve.kinds)} by {' or '.join(curve.algorithms)}, measured"
        if (curve.kinds, curve.algorithms) in taken:
            what += f" of {', '.join(curve.libraries)}"
        taken.add((curve.kinds, curve.algorithms))
        yield _curve(library, curve, what)


def _curve(library: CollectivesSpec, curve: Curve, what: str) -> Provenance:
    """Source of a curve: its first latency and last bandwidth, with the factors of the default library."""
    value = f"from {curve.base[0] * 1e6:.3g} us, to {curve.efficiency[2]:.3g} of the links"
    own = curve.libraries.get(library.default_library or "")
    if own is None:
        return Provenance(what, value, curve.source, curve.basis)
    value += f"; {library.default_library}: {_factors(own.latency, own.bandwidth)}"
    return Provenance(what, value, own.source or curve.source, curve.basis)


def _engine(kernels: CustomAllReduce) -> Provenance:
    shot = kernels.one_shot
    value = f"from {shot.base * 1e6:.3g} us, to {kernels.fallback.efficiency:.3g} of the links"
    return Provenance(f"{kernels.library} all_reduce, measured", value, kernels.source, kernels.basis)


def _across(library: CollectivesSpec, regimes: BetweenNodes, fabric: FabricSpec) -> Iterator[Provenance]:
    value = f"base {', '.join(f'{base * 1e6:.3g}' for base in regimes.base)} us by protocol"
    yield Provenance(f"{library.library} between nodes, measured", value, regimes.source, regimes.basis)
    if fabric.collectives is not None:
        own = fabric.collectives
        value = _factors(own.latency, own.bandwidth)
        over = f" over {fabric.transport}" if fabric.transport else ""
        yield Provenance(f"{fabric.name} collectives{over} against those", value, own.source, own.basis)


def _fabric(fabric: FabricSpec) -> Iterator[Provenance]:
    yield _cited(f"{fabric.name} NIC", fabric.nic.bandwidth)
    yield _cited(f"{fabric.name} NIC latency", fabric.nic.latency)
    if fabric.nic.ports is not None:
        yield _cited(f"{fabric.name} ports of a NIC", fabric.nic.ports)
    yield _cited(f"{fabric.name} switch radix", fabric.switch.radix)
    yield _cited(f"{fabric.name} switch latency", fabric.switch.latency)
    yield _cited(f"{fabric.name} efficiency", fabric.efficiency)


def _factors(latency: float, bandwidth: float) -> str:
    return f"latency × {latency:.3g}, bandwidth × {bandwidth:.3g}"


def _cited(what: str, number: NumberWithBasis[Any]) -> Provenance:
    return Provenance(what, float(number.value), number.source, number.basis)
