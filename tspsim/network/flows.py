"""Finish times of any list of flows that share a cluster's links."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..base.errors import InputError, shorten
from .cluster import Cluster

if TYPE_CHECKING:
    import simpy

    from .fluid import Channel, Fluid


@dataclass(frozen=True, slots=True)
class Flow:
    """``size_bytes`` from one GPU to another, ready at ``start_s``."""

    start_s: float
    source: int
    destination: int
    size_bytes: float


def finish_times(cluster: Cluster, flows: Iterable[Flow]) -> list[float]:
    """Times at which each flow's last byte arrives.

    Parameters
    ----------
    cluster
        Cluster whose routes (:meth:`Cluster.route`, label 0), bandwidths and latencies apply.
    flows
        Flows in any order.

    Returns
    -------
    list of float
        Seconds on the clock of ``start_s``, in the order of ``flows``.

    Raises
    ------
    InputError
        A start or size is not a finite number, a size is negative, or a GPU is not in the cluster.

    Notes
    -----
    A flow uses every link of its route from its start until its last byte has left. Rates are max-min fair over the
    links' full bandwidth, without an efficiency, and change when a flow starts or ends. The route's latency is added
    once, at the end. A flow from a GPU to itself takes no time; an empty flow takes the latency.

    Examples
    --------
    Two GPUs of an MI300X node share one link of 64 GB/s, however many links the node has:

    >>> from tspsim.network import Flow, finish_times, load_cluster
    >>> cluster = load_cluster("mi300x-8")
    >>> alone, = finish_times(cluster, [Flow(start_s=0.0, source=0, destination=1, size_bytes=64e9)])
    >>> round(alone, 6)
    1.000001
    >>> both = finish_times(cluster, [Flow(0.0, 0, 1, 64e9), Flow(0.5, 0, 1, 16e9)])
    >>> [round(time_s, 6) for time_s in both]
    [1.250001, 1.000001]
    """
    # Imported here, because most imports of this package do not run the event loop.
    import simpy

    from .fluid import Calendar, Channel, Fluid

    flow_list = list(flows)
    for index, flow in enumerate(flow_list):
        _check(cluster, index, flow)
    table = cluster.layout.routes([flow.source for flow in flow_list], [flow.destination for flow in flow_list])
    finish_s: list[float] = []
    env = simpy.Environment(min([float(flow.start_s) for flow in flow_list], default=0.0))
    fluid = Fluid(env, Calendar(env))
    for index, (flow, row) in enumerate(zip(flow_list, table, strict=True)):
        route = row[row >= 0]
        bandwidth = cluster.bandwidth_bytes_per_s[route]
        latency_s = sum(cluster.latency_s[route].tolist())
        finish_s.append(float(flow.start_s) + latency_s)
        if route.size and flow.size_bytes > 0.0:
            alone = float(bandwidth.min())
            usage = dict(zip(route.tolist(), (alone / bandwidth).tolist(), strict=True))
            way = Channel(index, latency_s, flow.size_bytes / alone, usage, 1.0 / alone, (), "", parties=1)
            fluid.calendar.at(env.now, flow.start_s - env.now).callbacks.append(_start(fluid, way, finish_s))
    env.run()
    return finish_s


def _start(fluid: Fluid, way: Channel, finish_s: list[float]) -> Callable[[simpy.Event], None]:
    """A callback that starts a flow's transfer, and records its end when it happens."""

    def arrived(_event: simpy.Event) -> None:
        finish_s[way.number] = fluid.env.now

    def begin(_event: simpy.Event) -> None:
        fluid.arrive(way, 0).callbacks.append(arrived)

    return begin


def _check(cluster: Cluster, index: int, flow: Flow) -> None:
    for what, value in (("start_s", flow.start_s), ("size_bytes", flow.size_bytes)):
        try:
            finite = math.isfinite(value)
        except (TypeError, OverflowError):
            finite = False
        if not finite:
            raise InputError(f"{what} {shorten(value)} is not a finite number", key=f"flows[{index}]")
    if flow.size_bytes < 0:
        raise InputError(f"size_bytes {shorten(flow.size_bytes)} is negative", key=f"flows[{index}]")
    try:
        cluster.check_gpu(flow.source)
        cluster.check_gpu(flow.destination)
    except InputError as error:
        raise error.at(key=f"flows[{index}]") from None
