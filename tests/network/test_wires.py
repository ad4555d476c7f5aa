"""Messages sent while a clock runs: times alone, sharing, bundles, several clusters, bytes still being made."""

from __future__ import annotations

import pytest
import simpy

from tspsim.base.errors import InputError
from tspsim.network import Flow, build_cluster, finish_times
from tspsim.network.wires import GpuPlace, Message, Wires

GPU = 8


def wires(nodes: int = 2, **parts) -> Wires:
    cluster = build_cluster("h200", nodes, "rails-400g", **parts)
    return Wires(simpy.Environment(), [cluster])


def ends(wires: Wires, *sends) -> list[float]:
    """When each of ``(start_s, messages, least_s)`` has come."""
    found = [0.0] * len(sends)

    def start(index: int, messages, least_s: float) -> None:
        sent = wires.send(wires.bundle(messages), least_s=least_s)
        sent.callbacks.append(lambda _event: found.__setitem__(index, wires.env.now))

    for index, (start_s, messages, least_s) in enumerate(sends):
        due = wires.env.timeout(start_s)
        due.callbacks.append(lambda _event, index=index, m=messages, least_s=least_s: start(index, m, least_s))
    wires.env.run()
    return found


def nic_rate(wires: Wires) -> float:
    fabric = wires.clusters[0].fabric
    return fabric.nic.bandwidth.value * fabric.efficiency.value


def test_a_message_alone_takes_its_bytes_over_the_slowest_link_and_its_latencies_once():
    net = wires()
    way = net.bundle([Message(GpuPlace(0, 0), GpuPlace(0, GPU), 1e9)])
    assert way.fluid_s == pytest.approx(1e9 / nic_rate(net))
    assert ends(net, (0.0, [Message(GpuPlace(0, 0), GpuPlace(0, GPU), 1e9)], 0.0)) == [pytest.approx(way.alone_s)]


def test_two_that_leave_by_one_nic_take_twice_as_long():
    net = wires(3)
    first = [Message(GpuPlace(0, 0), GpuPlace(0, GPU), 1e9)]
    second = [Message(GpuPlace(0, 0), GpuPlace(0, 2 * GPU), 1e9)]
    alone = net.bundle(first)
    assert ends(net, (0.0, first, 0.0), (0.0, second, 0.0)) == [pytest.approx(2 * alone.fluid_s + alone.latency_s)] * 2


def test_rates_are_those_of_finish_times_where_messages_reach_the_whole_bandwidth():
    net = wires(3)
    share = net.clusters[0].fabric.efficiency.value
    flows = [Flow(0.0, 0, GPU, 1e9), Flow(0.004, 0, 2 * GPU, 3e9), Flow(0.01, GPU, 2 * GPU, 2e9)]
    sends = [
        (flow.start_s / share, [Message(GpuPlace(0, flow.source), GpuPlace(0, flow.destination), flow.size_bytes)], 0.0)
        for flow in flows
    ]
    latency_s = net.bundle(sends[0][1]).latency_s
    assert [end - latency_s for end in ends(net, *sends)] == pytest.approx(
        [(end - latency_s) / share for end in finish_times(net.clusters[0], flows)]
    )


def test_messages_of_a_bundle_end_together_at_the_pace_of_the_busiest_link():
    net = wires()
    bundle = [Message(GpuPlace(0, gpu), GpuPlace(0, GPU + gpu), (gpu + 1) * 1e8) for gpu in range(4)]
    way = net.bundle(bundle)
    assert way.fluid_s == pytest.approx(4e8 / nic_rate(net))
    assert ends(net, (0.0, bundle, 0.0)) == [pytest.approx(way.alone_s)]


def test_bytes_that_are_still_being_made_move_no_faster_and_leave_room_for_others():
    net = wires(3)
    slow, fast = [Message(GpuPlace(0, 0), GpuPlace(0, GPU), 1e9)], [Message(GpuPlace(0, 0), GpuPlace(0, 2 * GPU), 1e9)]
    way = net.bundle(slow)
    found = ends(net, (0.0, slow, 4 * way.fluid_s), (0.0, fast, 0.0))
    assert found[0] == pytest.approx(4 * way.fluid_s + way.latency_s)
    assert found[1] == pytest.approx(way.fluid_s / 0.75 + way.latency_s)


def test_clusters_beside_each_other_are_joined_by_their_nics():
    slower = build_cluster("mi300x", 2, "rails-200g")
    faster = build_cluster("h200", 2, "rails-400g")
    net = Wires(simpy.Environment(), [faster, slower])
    way = net.bundle([Message(GpuPlace(0, 3), GpuPlace(1, 5), 1e9)])
    assert way.fluid_s == pytest.approx(1e9 / (slower.fabric.nic.bandwidth.value * slower.fabric.efficiency.value))
    assert way.latency_s == pytest.approx(slower.fabric.nic.latency.value + faster.fabric.nic.latency.value)
    assert len(way.busy_s) == 4


def test_a_cluster_without_nics_reaches_no_other():
    with pytest.raises(InputError, match="has no fabric"):
        Wires(simpy.Environment(), [build_cluster("h200"), build_cluster("h200", 2, "rails-400g")])


def test_what_goes_nowhere_takes_no_time():
    net = wires()
    assert ends(net, (1.5, [Message(GpuPlace(0, 2), GpuPlace(0, 2), 1e9)], 0.0)) == [1.5]
