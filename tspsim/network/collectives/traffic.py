"""What a transfer asks of the network."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...base.quick import quick


@quick
@dataclass(frozen=True, slots=True)
class Traffic:
    """A transfer's time alone, and the links it loads.

    Alone it takes ``latency_s + fluid_s``; contention stretches the second part.

    Attributes
    ----------
    algorithm
        Name in :data:`~tspsim.network.ALGORITHMS`, ``point_to_point``, a library's name, or ``none`` where nothing
        moves.
    latency_s
        Seconds that no bandwidth shortens.
    fluid_s
        Seconds the slowest link needs, at the efficiency libraries reach.
    links, link_bytes
        Ids of the links used, and the bytes that cross each in all.
    low, high
        Factors of the time alone between which nine of ten measured ones lie.
    apart
        Copy engines move it: neither do kernels beside it slow down, nor it beside them.
    """

    algorithm: str
    latency_s: float
    fluid_s: float
    links: tuple[int, ...]
    link_bytes: tuple[float, ...]
    low: float = 1.0
    high: float = 1.0
    apart: bool = False

    @property
    def alone_s(self) -> float:
        """Seconds without contention."""
        return self.latency_s + self.fluid_s

    def on(self, links: tuple[int, ...]) -> Traffic:
        """The same over as many other links."""
        return Traffic(
            self.algorithm, self.latency_s, self.fluid_s, links, self.link_bytes, self.low, self.high, self.apart
        )

    def slice_of(self, slices: int) -> Traffic:
        """One of so many equal slices, which begin and end as one transfer."""
        sliced = tuple(size / slices for size in self.link_bytes)
        return replace(self, latency_s=self.latency_s / slices, fluid_s=self.fluid_s / slices, link_bytes=sliced)


NOTHING = Traffic("none", 0.0, 0.0, (), ())
