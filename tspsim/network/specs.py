"""How a file says what joins its GPUs or its nodes: a registered topology by name, alone or with its argument.

Nodes, fabrics and clusters as their YAML states them: every number with its unit and its source.

This is the border, validated by pydantic; :class:`~tspsim.network.cluster.Cluster` is what the rest of the
package asks. Efficiencies and latencies of collectives stand here too, so that a better calibration replaces
numbers in a file and not code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Self

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic_core import PydanticCustomError, core_schema

from ..base.errors import InputError, UnknownNameError, shorten
from ..base.stated import Stated, Value
from ..base.strict import Strict
from ..base.units import BytesPerSecond, PositiveCount, Seconds
from .calibration import Basis, BetweenNodes, Curve, CustomAllReduce, ExpertCurve, FabricFactors, Fraction, Kind
from .graphs import Link, links_of
from .wiring import OWN, TOPOLOGIES, Cable, Wiring, compiled, wired

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True)
class Joined:
    """Annotates it.

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
#: Families of algorithms that share one efficiency on a node; ``default`` serves those not named.
Family = Literal["default", "ring", "tree", "direct", "in_switch", "in_memory", "point_to_point"]


class NumberWithBasis(Stated[Value], Generic[Value]):
    """A number, where it is from, and how it was come by."""

    basis: Basis = "data sheet"


class LinkSpec(Strict):
    """The links between the GPUs of one node.

    ``bandwidth`` is of one physical link in one direction; a GPU has ``per_gpu`` of them, spread evenly over
    its peers (full mesh) or all to the switch.
    """

    kind: str = Field(min_length=1)
    bandwidth: NumberWithBasis[BytesPerSecond]
    per_gpu: PositiveCount
    latency: NumberWithBasis[Seconds]


class Steps(Strict):
    """Seconds an algorithm needs before its first byte, for a hop inside a node, and for one between
    nodes."""

    base: Seconds
    hop: Seconds
    net_hop: Seconds


class MessageProtocol(Strict):
    """How a library moves a message: a low latency or the whole bandwidth.

    ``bandwidth_ratio`` is the share of the bandwidth it reaches; ``node_cap`` and ``fabric_cap`` bound the
    bytes/s a GPU can pass on with it inside a node and between nodes.
    """

    name: str
    bandwidth_ratio: Fraction
    ring: Steps
    tree: Steps
    node_cap: BytesPerSecond | None = None
    fabric_cap: BytesPerSecond | None = None
    source: str = Field(min_length=3)
    basis: Basis = "library"


#: Names of the algorithms that a tuner chooses from, for each kind of collective; a kind left out: all that can run it.
Considered = dict[Kind, Annotated[tuple[str, ...], Field(min_length=1)]]


class CollectivesSpec(Strict):
    """The collective library of a node.

    ``inside_node`` and ``between_nodes`` list what its tuner considers for each kind; the cheapest is taken.
    ``efficiency`` is the share of a link's bandwidth that a family of algorithms reaches. ``own_chunk`` is
    the rate at which a ring passes over a rank's own chunk, a step in which that rank's link stays idle;
    absent where measurements show none. What was measured takes their place where it applies: ``curves`` inside a node,
    ``across`` between nodes, ``custom_all_reduce`` for the kernels of a serving engine, ``experts`` for the libraries
    that bring tokens to experts. ``default_library`` is the version or launch mode, of those the curves name, that a
    collective gets that names none; absent: the middle of those measured.
    """

    library: str
    default_library: str | None = None
    inside_node: Considered
    between_nodes: Considered
    protocols: tuple[MessageProtocol, ...] = Field(min_length=1)
    efficiency: dict[Family, NumberWithBasis[Fraction]]
    own_chunk: NumberWithBasis[BytesPerSecond] | None = None
    in_switch_latency: NumberWithBasis[Seconds] | None = None
    curves: tuple[Curve, ...] = ()
    across: BetweenNodes | None = None
    custom_all_reduce: tuple[CustomAllReduce, ...] = ()
    experts: tuple[ExpertCurve, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if "default" not in self.efficiency:
            raise ValueError("efficiency needs a 'default'")
        if self.default_library is not None and self.default_library not in self.versions:
            allowed = ", ".join(self.versions) or "none"
            raise ValueError(f"default_library '{self.default_library}' is in no curve's libraries: {allowed}")
        if self.across is not None:
            counts = len(self.across.base), len(self.across.share), len(self.protocols)
            if len(set(counts)) > 1:
                raise ValueError("across has {} bases and {} shares, for {} protocols".format(*counts))
            if self.in_switch_latency is not None and self.across.in_switch is None:
                raise ValueError("across needs an in_switch where in_switch_latency is stated")
        return self

    @property
    def versions(self) -> tuple[str, ...]:
        """Versions and launch modes of the library that curves have factors for."""
        return tuple(dict.fromkeys(name for curve in self.curves for name in curve.libraries))

    def all_reduces_of(self, word: str) -> str | None:
        """The library of a serving engine's all-reduces that begins with ``word``; None where there is none."""
        names = (kernels.library for kernels in self.custom_all_reduce)
        return next((name for name in names if name.split()[0] == word), None)

    @property
    def libraries(self) -> tuple[str, ...]:
        """Every name that a collective may ask for as its library."""
        engines = [kernels.library for kernels in self.custom_all_reduce]
        exchanges = [curve.library for curve in self.experts]
        return tuple(dict.fromkeys([*self.versions, *engines, *exchanges]))


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
