"""Nodes, fabrics and clusters as their YAML states them: every number with its unit and its source.

This is the border, validated by pydantic; :class:`~tspsim.network.cluster.Cluster` is what the rest of the package
asks. What joins GPUs or nodes is a registered topology by name, alone or with its argument (:class:`Joined`).
Efficiencies and latencies of collectives (:mod:`.calibration`) stand in these files too, so that a better calibration
replaces numbers in a file and not code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic_core import PydanticCustomError, core_schema

from ..base.errors import InputError, UnknownNameError, shorten
from ..base.provenance import Provenance
from ..base.strict import Strict
from ..base.units import BytesPerSecond, PositiveCount, Seconds
from .calibration import BetweenNodes, CollectivesSpec, Curve, CustomAllReduce, FabricFactors, Fraction, NumberWithBasis
from .graphs import Link, links_of
from .wiring import OWN, TOPOLOGIES, Cable, Wiring, compiled, wired

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True)
class Joined:
    """Annotates what joins GPUs or nodes.

    Parameters
    ----------
    besides
        Names that are allowed too, and no topology's.
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
            raise _refused(f"{shorten(value)} is no one topology; name one of {names}, alone or with its argument")
        (name,) = stated
        if name not in TOPOLOGIES:
            raise _refused(UnknownNameError("topology", name, (*self.besides, *TOPOLOGIES)).message)
        return value if isinstance(value, str) else dict(stated)


def _refused(sentence: str) -> PydanticCustomError:
    return PydanticCustomError("refused", "{sentence}", {"sentence": sentence})


# --- nodes, fabrics and clusters as their YAML states them ----------------------------------------------------

Ratio = Annotated[float, Field(ge=1.0, allow_inf_nan=False)]


class LinkSpec(Strict):
    """The links between the GPUs of one node.

    ``bandwidth`` is of one physical link in one direction; a GPU has ``per_gpu`` of them, spread evenly over
    its peers (full mesh) or all to the switch.
    """

    kind: str = Field(min_length=1)
    bandwidth: NumberWithBasis[BytesPerSecond]
    per_gpu: PositiveCount
    latency: NumberWithBasis[Seconds]


class HostLinkSpec(Strict):
    """What joins a GPU and its NIC."""

    kind: str = "pcie"
    bandwidth: NumberWithBasis[BytesPerSecond]


class CopyEngineSpec(Strict):
    """The engines of a GPU that copy to peers without its compute units.

    ``bandwidth`` is what they reach on one link of the node's graph (behind a switch: out of a GPU), one direction;
    ``latency`` what a copy takes before its first byte.
    """

    bandwidth: NumberWithBasis[BytesPerSecond]
    latency: NumberWithBasis[Seconds]


class MemoryPoolSpec(Strict):
    """Memory that GPUs of a node share, at the other end of their links: it adds what is written to it where it is
    told to. ``latency`` is of a write, or of a read."""

    latency: NumberWithBasis[Seconds]


class NodeSpec(Strict):
    """A server, or a rack that is one NVLink domain.

    ``intra`` is what joins its GPUs: ``full_mesh``, ``switch``, ``{torus: [4, 4]}``, or ``{graph: [...]}`` with edges
    ``{between: [0, 1], bandwidth: 50 GB/s, latency: 1 us}``, both ways, in which a name is a switch. ``host_memory``
    joins a GPU and its host's memory where that is another link than ``host_link``. ``host_reads`` is what the host's
    processors read from memory for one GPU. ``copy_engine`` stands where it was measured. With a ``memory_pool`` the
    node's ``link`` leads to it, and what a GPU would have in its host's memory is there. ``announced`` is a node that
    nobody has measured yet, whose file may leave out what is then taken from the measured node ``like``
    (:mod:`tspsim.network.announced`).
    """

    name: str
    description: str = ""
    announced: bool = False
    sold: bool = False
    like: str | None = None
    device: str
    gpus: PositiveCount
    intra: Annotated[str | dict[str, Any], Joined()]
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
            _ = self.wiring().towards
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
        """What joins its GPUs (:mod:`tspsim.network.graphs`); raises InputError."""
        link = self.link
        return wired(self.intra, self.gpus, Cable(link.bandwidth.value, link.per_gpu, link.latency.value))

    def wiring(self) -> Wiring:
        """The same compiled; raises InputError."""
        return compiled(self.graph)

    def joined_by(self, graph: nx.Graph[Any]) -> NodeSpec:
        """Its GPUs and library on other links; nothing that was measured on its own applies. Raises InputError."""
        gpus, a_nic = sum(isinstance(vertex, int) for vertex in graph), self.gpus // self.nics
        return self.on_links(links_of(graph), gpus, gpus // a_nic if gpus % a_nic == 0 else gpus)

    def on_links(self, links: Sequence[Link], gpus: int, nics: int) -> NodeSpec:
        """The same, of links and NICs that were read off a graph. Raises InputError."""
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
        _ = other.wiring().towards
        return other

    def part(self, gpus: int) -> NodeSpec:
        """The same node with only ``gpus`` of its GPUs and their share of its NICs.

        Behind a switch every GPU keeps its links; of a full mesh those to GPUs that are left out are not used.

        Raises
        ------
        InputError
            It has fewer GPUs, they come with no whole number of NICs, or it is joined in a way that has no equal parts.
        """
        if gpus > self.gpus:
            raise InputError(f"{gpus} are more than the {self.gpus} GPUs of node '{self.name}'")
        if gpus == self.gpus:
            return self
        wiring = self.wiring()
        if not (wiring.complete or wiring.star):
            raise InputError(f"the GPUs of node '{self.name}' are not all alike to each other; use all {self.gpus}")
        if gpus * self.nics % self.gpus:
            per_nic = self.gpus // self.nics
            raise InputError(f"{per_nic} GPUs of node '{self.name}' share a NIC; use a multiple of {per_nic}")
        nics = gpus * self.nics // self.gpus
        rails = max(rail for rail in range(1, (self.rails or self.nics) + 1) if nics % rail == 0)
        link, intra = self.link, self.intra
        if wiring.complete and gpus > 1:
            link = link.model_copy(update={"per_gpu": link.per_gpu * (gpus - 1) // (self.gpus - 1)})
        elif gpus == 1:
            intra = "switch"  # a GPU alone has nobody to be joined to
        name = f"{gpus} GPUs of {self.name}"
        update = {"name": name, "gpus": gpus, "nics": nics, "rails": rails, "link": link, "intra": intra}
        return self.model_copy(update=update)


#: Fabrics of leaf and spine switches.
LEAF_AND_SPINE = ("rails", "rail_optimised", "fat_tree")


class NicSpec(Strict):
    """A NIC; ``latency`` is one side's share, from the GPU's memory to the leaf switch.

    ``ports`` share its ``bandwidth``: flows that switches hash stay on one (:mod:`tspsim.network.routing`); one when
    left out.
    """

    bandwidth: NumberWithBasis[BytesPerSecond]
    latency: NumberWithBasis[Seconds]
    ports: NumberWithBasis[PositiveCount] | None = None


class SwitchSpec(Strict):
    """A switch of the fabric; ``latency`` is for one more link between switches."""

    radix: NumberWithBasis[PositiveCount]
    latency: NumberWithBasis[Seconds]


class TransportSpec(Strict):
    """What carries messages over a fabric, whatever its rate: ``collectives`` says how much slower or faster libraries
    were measured over it than on the fabrics that the nodes' files were fitted on."""

    name: str
    description: str = ""
    collectives: FabricFactors


class FabricSpec(Strict):
    """What joins nodes.

    ``rails``: one plane a rail and no way between planes but through a node; ``rail_optimised``: a leaf
    switch serves one rail, spines join them all; ``fat_tree``: leaf switches serve whole nodes. A topology, alone or
    with its argument (``{torus: [4, 4]}``), joins the nodes' routers, on each of which all NICs of a node hang.
    ``oversubscription`` is the bandwidth into a leaf over the bandwidth out of it. ``transport`` names what carries
    messages; ``collectives`` stand for its factors where they were measured on this very fabric. Fabrics of one family
    differ in their rate alone.
    """

    name: str
    description: str = ""
    kind: Annotated[str | dict[str, Any], Joined(LEAF_AND_SPINE)]
    transport: str | None = None
    nic: NicSpec
    switch: SwitchSpec
    oversubscription: NumberWithBasis[Ratio]
    efficiency: NumberWithBasis[Fraction]
    collectives: FabricFactors | None = None

    @property
    def leaf_and_spine(self) -> bool:
        """Whether it is of leaf and spine switches, not a graph that names each node."""
        return self.kind in LEAF_AND_SPINE

    def joining(self, nodes: int, nics: int) -> str | Wiring:
        """What joins so many nodes of ``nics`` NICs each: the kind of its leaves and spines, or the graph of the nodes'
        routers; raises InputError."""
        if isinstance(self.kind, str) and self.leaf_and_spine:
            return self.kind
        if OWN in self.kind and isinstance(self.kind, dict):
            wiring = Wiring.of_switches(self.kind[OWN])
            if len(wiring.attached) != nodes * nics:
                raise InputError(f"the graph joins {len(wiring.attached)} NICs, not {nodes * nics}")
            return wiring
        return compiled(wired(self.kind, nodes, Cable(self.nic.bandwidth.value, nics, self.switch.latency.value)))


class ClusterSpec(Strict):
    """Nodes on a fabric: a catalog entry. ``library`` takes the place of the node's ``default_library``, ``transport``
    of the fabric's, and ``topology``, a GraphML file, of all their links."""

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
    """Every number of a cluster with its source, a line each; measured curves, with rows and error, a line a curve."""
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
    """A line each; one that only some versions of the library take names them."""
    taken: set[tuple[tuple[str, ...], tuple[str, ...]]] = set()
    for curve in library.curves:
        what = f"{library.library} {', '.join(curve.kinds)} by {' or '.join(curve.algorithms)}, measured"
        if (curve.kinds, curve.algorithms) in taken:
            what += f" of {', '.join(curve.libraries)}"
        taken.add((curve.kinds, curve.algorithms))
        yield _curve(library, curve, what)


def _curve(library: CollectivesSpec, curve: Curve, what: str) -> Provenance:
    """The curve's first latency and last bandwidth, with the factors of the library that collectives get."""
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
