"""The cluster of a scenario, with slow and dead parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Discriminator, Field, StrictInt, StrictStr, Tag, model_validator

from ..base.errors import InputError, shorten
from ..base.units import BytesPerSecond, PositiveNumber, Watts, parse
from .routing import RoutingChoice
from .section import Name, Section, refuse
from .variation import Variation

MOST_NODES = 2**16
#: Name of a switch or NIC.
Named = Annotated[StrictStr, Field(min_length=1, max_length=60)]
#: A GPU by its number, a switch or NIC by its name.
Vertex = StrictInt | Named


class SlowLink(Section):
    """A link with reduced bandwidth (0: dead) in both directions: an xGMI pair, a GPU's NVLink, a NIC's rail."""

    between: tuple[Vertex, Vertex] = Field(description="GPU numbers, or names such as node0/switch and node0/nic3")
    factor: Annotated[float, Field(ge=0, le=1)] = Field(description="share of the bandwidth that is left; 0: dead")

    def in_words(self) -> str:
        ends = f"The link between {end(self.between[0])} and {end(self.between[1])}"
        if not self.factor:
            return f"{ends} is dead; messages go round it (`cluster.faults.links`)."
        return (
            f"{ends} has {100 * self.factor:g} % of its bandwidth left; nothing is routed around it, but libraries "
            "choose their algorithm with it in view (`cluster.faults.links`)."
        )


class SlowGpu(Section):
    """A GPU whose kernels take longer than the others'."""

    gpu: Annotated[StrictInt, Field(ge=0)] = Field(description="number in the cluster, node by node from 0")
    factor: Annotated[float, Field(ge=1, le=1000)] = Field(description="time of its kernels over the others'")


class Faults(Section):
    """Faults of a cluster: slow and dead links, dead switches and NICs, slow GPUs."""

    links: Annotated[tuple[SlowLink, ...], Field(max_length=1000)] = Field((), description="slower and dead links")
    dead: Annotated[tuple[Named, ...], Field(max_length=1000)] = Field(
        (), description="switches and NICs that are down, such as node0/nic3 or rail3/leaf0; all their links are dead"
    )
    slow_gpus: Annotated[tuple[SlowGpu, ...], Field(max_length=1000)] = Field(
        (), description="GPUs whose kernels take longer"
    )

    @model_validator(mode="after")
    def _once(self) -> Faults:
        gpus = [slow.gpu for slow in self.slow_gpus]
        pairs = [frozenset(map(str, link.between)) for link in self.links]
        twice = next((gpu for gpu in gpus if gpus.count(gpu) > 1), None)
        if twice is not None:
            raise refuse(f"GPU {twice} is slow twice; state one factor")
        again = next((link for link, pair in zip(self.links, pairs, strict=True) if pairs.count(pair) > 1), None)
        if again is not None:
            ends = " and ".join(map(str, again.between))
            raise refuse(f"the link between {ends} is named twice; state one factor")
        return self

    def in_words(self) -> tuple[str, ...]:
        """A sentence per fault."""
        return (
            *(link.in_words() for link in self.links),
            *(f"{shorten(name)} is down; messages go round it (`cluster.faults.dead`)." for name in self.dead),
            *(
                f"Kernels of GPU {slow.gpu} take {slow.factor:g} times as long as those of the others "
                "(`cluster.faults.slow_gpus`)."
                for slow in self.slow_gpus
            ),
        )


def end(vertex: Vertex) -> str:
    """An end of a link, for people."""
    return f"GPU {vertex}" if isinstance(vertex, int) else shorten(vertex)


class MeasuredBandwidths(Section):
    """Measured bandwidths between nodes: ``rows[i][j]`` from node i to node j, with all NICs of both at work."""

    unit: StrictStr = Field("GB/s", description="unit of the numbers in rows")
    rows: Annotated[tuple[tuple[Annotated[float, Field(ge=0)], ...], ...], Field(min_length=2, max_length=256)] = Field(
        description="a row per sending node, a column per receiving node; the diagonal is not read"
    )

    @model_validator(mode="after")
    def _square(self) -> MeasuredBandwidths:
        try:
            parse(f"1 {self.unit}", "bytes/s")
        except InputError as error:
            raise refuse(f"unit: {error}") from None
        if any(len(row) != len(self.rows) for row in self.rows):
            raise refuse(f"{len(self.rows)} rows need as many columns each")
        return self

    @property
    def bytes_per_s(self) -> tuple[tuple[float, ...], ...]:
        """The rows in bytes/s."""
        unit = parse(f"1 {self.unit}", "bytes/s")
        return tuple(tuple(rate * unit for rate in row) for row in self.rows)

    def of_nodes(self, nodes: int) -> MeasuredBandwidths:
        """The measurements of the first ``nodes`` nodes."""
        return self.model_copy(update={"rows": tuple(row[:nodes] for row in self.rows[:nodes])})


class Island(Section):
    """Nodes with a fabric of their own, and optionally with other GPUs."""

    nodes: Annotated[PositiveNumber, Field(le=MOST_NODES)] = Field(description="number of nodes, in order")
    fabric: Name = Field(description="fabric inside the island, from the catalog of fabrics")
    device: Name | None = Field(None, description="its GPUs, no faster than the cluster's; default: the cluster's")


class ClusterInline(Section):
    """A cluster described in the scenario; :mod:`tspsim.network` builds it."""

    device: Name | None = Field(None, description="GPU, from the catalog of devices")
    nodes: Annotated[PositiveNumber, Field(le=MOST_NODES)] = Field(1, description="number of nodes; two need a fabric")
    fabric: Name | None = Field(None, description="fabric between nodes, from the catalog of fabrics")
    node: Name | None = Field(None, description="node type; default: the device's usual eight-GPU node")
    gpus_per_node: PositiveNumber | None = Field(
        None, description="GPUs used of each node, with their share of its NICs; default: all"
    )
    power_limit: Annotated[Watts, Field(gt=0)] | None = Field(
        None, description="power limit of a GPU, such as 500 W; default: the device's own"
    )
    oversubscription: Annotated[float, Field(ge=1, le=64)] | None = Field(
        None, description="leaf downlinks over uplinks; default: the fabric's own"
    )
    transport: Name | None = Field(
        None, description="transport, from the catalog of transports: infiniband, roce; default: the fabric's own"
    )
    nic_bandwidth: BytesPerSecond | None = Field(
        None, description="bandwidth of every NIC between nodes, such as 200 Gb/s; default: the fabric's own"
    )
    library: Name | None = Field(
        None, description="version or launch mode of the node's collective library, such as NCCL 2.29.2"
    )
    islands: Annotated[tuple[Island, ...], Field(max_length=64)] = Field(
        (), description="groups of nodes with a fabric of their own; `fabric` joins the groups"
    )
    topology: Annotated[StrictStr, Field(min_length=1, max_length=400)] | None = Field(
        None, description="GraphML file whose links replace the node's and the fabric's"
    )
    measured: MeasuredBandwidths | None = Field(
        None, description="measured bandwidth between every two nodes, in place of the switches"
    )
    routing: RoutingChoice | None = Field(
        None, description="choice among equal paths between switches: a policy, or its name and seeds; default: spread"
    )
    faults: Faults | None = Field(None, description="slow and dead links, slow GPUs")
    variation: Variation | None = Field(None, description="variation between GPUs and between steps; default: none")

    @model_validator(mode="after")
    def _connected(self) -> ClusterInline:
        if self.device is None and self.node is None:
            raise refuse("needs a device, such as device: mi300x, or a node, such as node: mi300x-8")
        if self.nodes > 1 and self.fabric is None:
            raise refuse(f"{self.nodes} nodes need a fabric between them, such as fabric: rails-400g")
        joined = sum(island.nodes for island in self.islands)
        if self.islands and joined != self.nodes:
            raise refuse(f"islands have {joined} nodes, but the cluster has {self.nodes}")
        if self.nic_bandwidth is not None and (self.fabric is None or self.islands):
            raise refuse(
                "nic_bandwidth is of the one fabric that joins all nodes; state it beside fabric, without islands"
            )
        if self.islands and self.measured is not None:
            raise refuse("state islands or what was measured between nodes, not both")
        if self.topology is not None:
            given = ("gpus_per_node", "oversubscription", "nic_bandwidth", "islands", "measured")
            also = next((name for name in given if getattr(self, name)), None)
            if also is not None:
                raise refuse(f"topology says what all links are; leave out {also}")
        if self.measured is not None and len(self.measured.rows) != self.nodes:
            raise refuse(f"measured has {len(self.measured.rows)} rows for {self.nodes} nodes")
        return self

    def in_words(self) -> tuple[str, ...]:
        """Sentences on what differs from the cluster's parts: GPUs left out, limits, islands, faults, variation."""
        used = self.gpus_per_node
        are = "GPU is used, with its" if used == 1 else "GPUs are used, with their"
        part = f"Of each node {used} {are} share of its NICs, and paid (`cluster.gpus_per_node`)."
        own = (f"Links are those of {shorten(self.topology, 200)} (`cluster.topology`).",) if self.topology else ()
        faults = (*own, *(self.faults.in_words() if self.faults else ()))
        varied = self.variation.in_words() if self.variation else ()
        limit = f"A GPU draws at most {self.power_limit or 0:g} W; its clock is that (`cluster.power_limit`)."
        rate = f"{8e-9 * (self.nic_bandwidth or 0.0):g} Gb/s"
        nic = f"A NIC between nodes has {rate} instead of the fabric's own (`cluster.nic_bandwidth`)."
        parts = ((part, used), (limit, self.power_limit), (nic, self.nic_bandwidth))
        sentences = tuple(sentence for sentence, stated in parts if stated is not None)
        return (*sentences, *self._islands_in_words(), *faults, *varied)

    def _islands_in_words(self) -> Iterator[str]:
        """A sentence per island."""
        first = 0
        for island in self.islands:
            nodes = f"Nodes {first} to {first + island.nodes - 1}" if island.nodes > 1 else f"Node {first}"
            first += island.nodes
            yield f"{nodes} have {shorten(island.fabric)} among them; with others they share {shorten(self.fabric)}."
            if island.device is not None:
                yield (
                    f"{nodes} have {shorten(island.device)}: every kernel of a rank there takes as much longer as its "
                    "program does (`cluster.islands`); MFU counts the peak of both."
                )


def _form_of_cluster(value: Any) -> str:
    return "inline" if isinstance(value, Mapping | ClusterInline) else "name"


ClusterChoice = Annotated[
    Annotated[Name, Tag("name")] | Annotated[ClusterInline, Tag("inline")], Discriminator(_form_of_cluster)
]
