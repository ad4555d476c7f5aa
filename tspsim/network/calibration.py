"""Types of a collective library in the YAML of nodes and fabrics: its tuner's algorithms, and its parameters.

Measured parameters have their source and the range of measured over predicted times (:class:`TransferSpread`). The
formulas are beside the algorithms in :mod:`tspsim.network.collectives`; docs/collective-models.md has the study.
"""

from __future__ import annotations

from typing import Annotated, Generic, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from ..base.stated import Stated, Value
from ..base.strict import Strict
from ..base.units import BytesPerSecond, PositiveBytes, PositiveCount, Seconds
from .kinds import KINDS

Fraction = Annotated[float, Field(gt=0.0, le=1.0)]
Factor = Annotated[float, Field(gt=0.0, le=100.0)]
Lower = Annotated[float, Field(gt=0.0, le=1.0)]
Upper = Annotated[float, Field(ge=1.0, le=100.0)]
Efficiency = Annotated[float, Field(gt=0.0, le=2.0)]


def _kind(name: str) -> str:
    if name not in KINDS:
        raise ValueError(f"there is no collective '{name}'; there are {', '.join(KINDS)}")
    return name


#: Name of a registered kind of collective.
Kind = Annotated[str, AfterValidator(_kind)]
Basis = Literal["data sheet", "library", "measured", "fitted", "assumed"]
#: One value for each regime of a library's protocols: LL, LL128, Simple.
Regimes = tuple[Seconds, Seconds, Seconds]
Efficiencies = tuple[Efficiency, Efficiency, Efficiency]
#: Families of algorithms with one efficiency each on a node; ``default`` is that of all others.
Family = Literal["default", "ring", "tree", "direct", "in_switch", "in_memory", "point_to_point"]


class NumberWithBasis(Stated[Value], Generic[Value]):
    """A number, its source, and its basis (data sheet, measured, …)."""

    basis: Basis = "data sheet"


class TransferSpread(Strict):
    """Factors of the predicted time between which 90 % of measured times lie.

    ``small`` applies to transfers of only latency, ``large`` to those of only bandwidth; between them the factors are
    weighted by the share of the fluid part. ``rows`` is the number of held-out rows from which they were estimated.
    """

    small: tuple[Lower, Upper]
    large: tuple[Lower, Upper]
    rows: int = Field(ge=0)

    def factors(self, latency_s: float, fluid_s: float) -> tuple[float, float]:
        """(low, high) factor of a transfer with these parts, in seconds."""
        total_s = latency_s + fluid_s
        share = fluid_s / total_s if total_s > 0.0 else 0.0
        low, high = (a + (b - a) * share for a, b in zip(self.small, self.large, strict=True))
        return low, high

    def wider(self) -> TransferSpread:
        """Spread beyond the measured range: 1.5 times the width on a log scale."""
        small, large = ((low**1.5, high**1.5) for low, high in (self.small, self.large))
        return TransferSpread(small=small, large=large, rows=0)


#: Spread without measurements; most anchors of docs/network-anchors.md lie within it.
UNMEASURED = TransferSpread(small=(0.6, 1.7), large=(0.85, 1.2), rows=0)


class Factors(Strict):
    """Factors on latencies and bandwidths of a library's version, a launch mode or a fabric."""

    latency: Factor = 1.0
    bandwidth: Factor = 1.0


class LibraryFactors(Factors):
    """Factors of a version or launch mode of a library; ``source`` if it is not the curve's."""

    source: str | None = Field(default=None, min_length=3)


class Curve(Strict):
    """The measured time of algorithms inside a node (:mod:`tspsim.network.collectives.algorithm`).

    ``ranks`` are the least and most measured; larger groups follow the same curve with a wider range. ``efficiency``
    relates to the bytes that a ring passes on; a reduction in the switch passes on fewer, so its value may exceed 1.
    From ``switch``·(n/2)^``switch_exponent`` bytes the library's tuner takes its last protocol; without ``switch`` it
    takes the cheapest at every size. ``libraries`` are versions and launch modes by name; a collective that names none
    has factors of 1.
    """

    algorithms: tuple[str, ...] = Field(min_length=1)
    kinds: tuple[Kind, ...] = Field(min_length=1)
    ranks: tuple[PositiveCount, PositiveCount]
    base: Regimes
    hop: Regimes
    efficiency: Efficiencies
    own: BytesPerSecond | None = None
    growth: Seconds
    switch: PositiveBytes | None = None
    switch_exponent: float = Field(default=0.0, ge=0.0, le=2.0)
    libraries: dict[str, LibraryFactors] = Field({})
    spread: TransferSpread = UNMEASURED
    source: str = Field(min_length=3)
    basis: Basis = "fitted"

    @property
    def in_switch(self) -> bool:
        """Whether the switch reduces, without hops between GPUs."""
        return "in_switch" in self.algorithms


class BetweenNodes(Strict):
    """A library's regimes between nodes (:mod:`tspsim.network.collectives.between`).

    ``base`` replaces the protocols' base latencies, and ``share`` is the share of the algorithm's bandwidth that each
    reaches, both in the order of the node's protocols; hops are the protocols'. ``ramp`` is the time to fill the last
    protocol's pipeline of chunks. ``in_switch`` is the base latency of two nodes that reduce in their switches.
    ``most_rails`` bounds the NICs of a node that rings and trees use.
    """

    base: tuple[Seconds, ...] = Field(min_length=1)
    share: tuple[Efficiency, ...] = Field(min_length=1)
    growth: Seconds
    ramp: Seconds = 0.0
    in_switch: Seconds | None = None
    most_rails: PositiveCount | None = None
    spread: TransferSpread = UNMEASURED
    source: str = Field(min_length=3)
    basis: Basis = "fitted"


class FabricFactors(Factors):
    """Factors of a fabric's transport and hosts on :class:`BetweenNodes`."""

    spread: TransferSpread = UNMEASURED
    source: str = Field(min_length=3)
    basis: Basis = "fitted"


class Shot(Strict):
    """One algorithm of a custom all-reduce: base seconds, seconds a peer, and share of the links' bandwidth."""

    base: Seconds
    hop: Seconds
    efficiency: Fraction


class CustomAllReduce(Strict):
    """The all-reduce kernels of a serving engine (:mod:`tspsim.network.collectives.library`)."""

    library: str
    one_shot: Shot
    two_shot: Shot | None = None
    fallback: Shot
    spread: TransferSpread = UNMEASURED
    source: str = Field(min_length=3)
    basis: Basis = "fitted"


class ExpertCurve(Strict):
    """One phase of an expert-parallel library (:mod:`tspsim.network.collectives.experts`).

    Attributes
    ----------
    copies
        A token is sent once to each ``rank`` with one of its experts, or once to each ``expert``.
    nodes
        Whether the group is in ``one`` node or spans ``several``.
    base, doubling, node
        Seconds: constant; for each doubling of the experts; times the square root of the nodes beyond the first.
    efficiency, per_multiprocessor
        Share of the bandwidth of links inside a node; bytes/s of a multiprocessor.
    sent_per_multiprocessor
        Bytes/s of a multiprocessor towards all nodes, its own among them; None: no such bound.
    per_copy
        Seconds of a token's copy on 24 multiprocessors.
    fabric_efficiency, fabric_loss
        Share of the NICs' bandwidth; share by which the time on them grows from 4 nodes to 8.
    """

    library: str
    mode: Literal["normal", "low_latency", "asynchronous"]
    phase: Literal["dispatch", "combine"]
    copies: Literal["rank", "expert"]
    nodes: Literal["one", "several"]
    base: Seconds
    doubling: Seconds = 0.0
    node: Seconds = 0.0
    efficiency: Fraction
    per_multiprocessor: BytesPerSecond | None = None
    sent_per_multiprocessor: BytesPerSecond | None = None
    per_copy: Seconds
    fabric_efficiency: Fraction = 1.0
    fabric_loss: float = Field(default=0.0, ge=0.0)
    spread: TransferSpread = UNMEASURED
    source: str = Field(min_length=3)
    basis: Basis = "fitted"

    @property
    def multiprocessor_rates(self) -> dict[str, float]:
        """The stated rates of a multiprocessor, by key."""
        rates = {"per_multiprocessor": self.per_multiprocessor, "sent_per_multiprocessor": self.sent_per_multiprocessor}
        return {name: rate for name, rate in rates.items() if rate is not None}


class Steps(Strict):
    """Latencies of an algorithm in seconds: before the first byte, a hop inside a node, a hop between nodes."""

    base: Seconds
    hop: Seconds
    net_hop: Seconds


class MessageProtocol(Strict):
    """A protocol of a collective library (NCCL: LL, LL128, Simple), which trades latency for bandwidth.

    ``bandwidth_ratio`` is the share of the bandwidth that it reaches. ``node_cap`` and ``fabric_cap`` bound the bytes/s
    that a GPU passes on inside a node and between nodes.
    """

    name: str
    bandwidth_ratio: Fraction
    ring: Steps
    tree: Steps
    node_cap: BytesPerSecond | None = None
    fabric_cap: BytesPerSecond | None = None
    source: str = Field(min_length=3)
    basis: Basis = "library"


#: Kind of collective → algorithms that a tuner considers; a kind left out: all that can run it.
Considered = dict[Kind, Annotated[tuple[str, ...], Field(min_length=1)]]


class CollectivesSpec(Strict):
    """The collective library of a node.

    ``inside_node`` and ``between_nodes`` list the algorithms that its tuner considers for each kind; the cheapest is
    taken. ``efficiency`` is the share of a link's bandwidth that a family of algorithms reaches. ``own_chunk`` is the
    rate at which a ring handles a rank's own chunk, while that rank's link is idle; absent where measurements show no
    such time. Measured curves replace these formulas where they apply: ``curves`` inside a node, ``across`` between
    nodes, ``custom_all_reduce`` for a serving engine's kernels, ``experts`` for dispatch and combine.
    ``default_library`` is the version or launch mode, of those in the curves, of collectives that name none; absent:
    the middle of the measured ones.
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
        """Versions and launch modes of the library with factors in the curves."""
        return tuple(dict.fromkeys(name for curve in self.curves for name in curve.libraries))

    def all_reduces_of(self, word: str) -> str | None:
        """Library of all-reduce kernels whose first word is ``word`` (a serving engine); None: there is none."""
        names = (kernels.library for kernels in self.custom_all_reduce)
        return next((name for name in names if name.split()[0] == word), None)

    @property
    def libraries(self) -> tuple[str, ...]:
        """Names that a collective can state as its library."""
        engines = [kernels.library for kernels in self.custom_all_reduce]
        exchanges = [curve.library for curve in self.experts]
        return tuple(dict.fromkeys([*self.versions, *engines, *exchanges]))
