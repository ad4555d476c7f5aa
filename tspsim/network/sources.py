"""Where the numbers of a cluster are from: links, the library's own latencies, and what was measured in their place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..base.provenance import Provenance

if TYPE_CHECKING:
    from .calibration import BetweenNodes, Curve, CustomAllReduce
    from .specs import CollectivesSpec, FabricSpec, NodeSpec, NumberWithBasis


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
