"""A collective library as the YAML of a node or fabric states it: what its tuner considers, and its parameters,
measured or its own.

Every measured set carries the rows it was fitted on, the error on rows not used, and how far measured times lie around
the predicted one (:class:`TransferSpread`). The forms themselves stand beside the algorithms, in
:mod:`tspsim.network.collectives`; the study behind them is docs/collective-models.md.
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


#: The name of a registered kind of collective.
Kind = Annotated[str, AfterValidator(_kind)]
Basis = Literal["data sheet", "library", "measured", "fitted", "assumed"]
#: One value a regime of a library's protocols: LL, LL128, Simple.
Regimes = tuple[Seconds, Seconds, Seconds]
Efficiencies = tuple[Efficiency, Efficiency, Efficiency]
#: Families of algorithms that share one efficiency on a node; ``default`` serves those not named.
Family = Literal["default", "ring", "tree", "direct", "in_switch", "in_memory", "point_to_point"]


class NumberWithBasis(Stated[Value], Generic[Value]):
    """A number, where it is from, and how it was come by."""

    basis: Basis = "data sheet"


class TransferSpread(Strict):
    """Between which factors of the predicted time nine of ten measured ones lie.

    ``small`` is for transfers that are all latency, ``large`` for those that are all bandwidth; between them the share
    of the fluid part weighs. ``rows`` that no fit had seen told them.
    """

    small: tuple[Lower, Upper]
    large: tuple[Lower, Upper]
    rows: int = Field(ge=0)

    def factors(self, latency_s: float, fluid_s: float) -> tuple[float, float]:
        """Low and high factor of a transfer of these parts."""
        total_s = latency_s + fluid_s
        share = fluid_s / total_s if total_s > 0.0 else 0.0
        low, high = (a + (b - a) * share for a, b in zip(self.small, self.large, strict=True))
        return low, high

    def wider(self) -> TransferSpread:
        """Beyond what was measured: one and a half times the width on a log scale."""
        small, large = ((low**1.5, high**1.5) for low, high in (self.small, self.large))
        return TransferSpread(small=small, large=large, rows=0)


#: What stands where nothing was measured: most anchors of docs/network-anchors.md lie within it.
UNMEASURED = TransferSpread(small=(0.6, 1.7), large=(0.85, 1.2), rows=0)


class Factors(Strict):
    """What a library's version, a launch mode or a fabric changes: latencies times one, bandwidths times the other."""

    latency: Factor = 1.0
    bandwidth: Factor = 1.0


class LibraryFactors(Factors):
    """A version or launch mode of a library; ``source`` where it was measured apart from its curve."""

    source: str | None = Field(default=None, min_length=3)


class Curve(Strict):
    """The measured time of algorithms inside a node (:mod:`tspsim.network.collectives.algorithm`).

    ``ranks`` are the least and most that were measured; larger groups follow the same curve with a wider range.
    ``efficiency`` is by the bytes a ring would pass on, so that of
    a reduction in the switch, which passes on fewer, may exceed one. From ``switch``·(n/2)^``switch_exponent`` bytes on
    the library's tuner takes its last protocol, whatever the others would need; 0: the cheapest. ``libraries`` are
    versions and launch modes by name; a collective that names none gets factors of one.
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
        """Whether the switch adds: there are no hops."""
        return "in_switch" in self.algorithms


class BetweenNodes(Strict):
    """A library's regimes between nodes (:mod:`tspsim.network.collectives.between`).

    ``base`` takes the place of its protocols' base latencies, ``share`` is what each protocol reaches of the
    algorithm's bandwidth, one each in the order of the node's protocols; hops are the protocols' own. ``ramp`` is what
    the last protocol's pipeline of chunks takes to fill. ``in_switch`` is the base latency of two nodes that reduce in
    their switches, where there are such. ``most_rails`` bounds the NICs of a node that rings and trees use.
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
    """What a fabric changes of :class:`BetweenNodes`: its transport and hosts."""

    spread: TransferSpread = UNMEASURED
    source: str = Field(min_length=3)
    basis: Basis = "fitted"


class Shot(Strict):
    """One way of a custom all-reduce: seconds, seconds a peer, and the share of the links' bandwidth."""

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
    """One phase of a library that brings tokens to experts and back (:mod:`tspsim.network.collectives.experts`).

    Attributes
    ----------
    copies
        What a token is sent to: each ``rank`` that holds one of its experts, or each ``expert``.
    nodes
        Whether the group lies in ``one`` node or spans ``several``.
    base, doubling, node
        Seconds; a doubling of the experts; times the root of the nodes beyond the first.
    efficiency, per_multiprocessor
        Share of the links inside a node, and bytes/s that a multiprocessor moves.
    per_copy
        Seconds of a token's copy on 24 multiprocessors.
    fabric_efficiency, fabric_loss
        Share of the NICs, and what four nodes beyond the fourth add to the time on them.
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
    per_copy: Seconds
    fabric_efficiency: Fraction = 1.0
    fabric_loss: float = Field(default=0.0, ge=0.0)
    spread: TransferSpread = UNMEASURED
    source: str = Field(min_length=3)
    basis: Basis = "fitted"


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
