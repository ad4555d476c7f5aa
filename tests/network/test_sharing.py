"""Sharing of links: against an exact solver in fractions, and against what fairness means."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim.base.errors import InputError
from tspsim.network import Cluster, Flow, build_cluster, finish_times, load_cluster, sharing
from tspsim.network.sharing import FULL, Sharing, contested, shares


def fair_rates(routes: dict[int, tuple[int, ...]], capacity: dict[int, Fraction]) -> dict[int, Fraction]:
    """Max-min rates by the definition of progressive filling, exactly."""
    rate = dict.fromkeys(routes, Fraction(0))
    growing = set(routes)
    while growing:
        steps = {}
        for link, room in capacity.items():
            users = [flow for flow in routes if link in routes[flow]]
            waiting = sum(flow in growing for flow in users)
            if waiting:
                steps[link] = (room - sum(rate[flow] for flow in users)) / waiting
        step = min(steps.values())
        for flow in growing:
            rate[flow] += step
        full = {link for link, most in steps.items() if most == step}
        growing = {flow for flow in growing if not full.intersection(routes[flow])}
    return rate


def exact_finish_times(cluster: Cluster, flows: list[Flow]) -> list[Fraction]:
    """All flows solved again at every event, in fractions: slow, and nothing to go wrong."""
    routes = {i: cluster.route(flow.source, flow.destination) for i, flow in enumerate(flows)}
    edges = cluster.graph.edges
    ends = [(cluster.links.source[link], cluster.links.target[link]) for link in range(len(cluster.links))]
    latency = [sum((Fraction(edges[ends[link]]["latency_s"]) for link in routes[i]), Fraction(0)) for i in routes]
    done = [Fraction(flow.start_s) + latency[i] for i, flow in enumerate(flows)]
    left = {i: Fraction(flow.size_bytes) for i, flow in enumerate(flows) if routes[i] and flow.size_bytes}
    now = Fraction(0)
    while left:
        moving = {i: routes[i] for i in left if Fraction(flows[i].start_s) <= now}
        used = {link for route in moving.values() for link in route}
        rate = fair_rates(moving, {link: Fraction(edges[ends[link]]["bandwidth_bytes_per_s"]) for link in used})
        events = [now + left[i] / rate[i] for i in moving]
        events += [Fraction(flows[i].start_s) for i in left if i not in moving]
        then = min(events)
        for i in moving:
            left[i] -= rate[i] * (then - now)
            if left[i] == 0:
                done[i] = then + latency[i]
                del left[i]
        now = then
    return done


def plain_shares(usages: list[dict[int, float]], weights: list[float]) -> list[float]:
    """Progressive filling word by word: one event after the other, no bookkeeping."""
    speeds = [0.0] * len(usages)
    growing = set(range(len(usages)))
    while growing:
        levels = {1.0 / weights[i]: {i} for i in growing}
        for link in {link for i in growing for link in usages[i]}:
            mine = {i for i in growing if usages[i].get(link)}
            room = 1.0 - math.fsum(usages[i].get(link, 0.0) * speeds[i] for i in range(len(usages)) if i not in growing)
            if mine and sum(usage.get(link, 0.0) for usage in usages) > FULL:
                levels.setdefault(room / math.fsum(usages[i][link] * weights[i] for i in mine), set()).update(mine)
        level = min(levels)
        for i in levels[level] & growing:
            speeds[i] = min(1.0, weights[i] * level)
        growing -= levels[level]
    return speeds


CLUSTERS = [
    load_cluster("mi300x-8"),
    load_cluster("hgx-h100-8"),
    build_cluster("mi300x", 2, "rails-400g"),
    build_cluster("h100", 3, "fat-tree-400g", oversubscription=3.0),
    build_cluster("b200", 3, "rail-optimised-400g"),
    load_cluster("mi300x-8").with_links({(0, 1): 0.3, (2, 1): 0.7}),
]


@st.composite
def questions(draw: st.DrawFn) -> tuple[Cluster, list[Flow]]:
    cluster = draw(st.sampled_from(CLUSTERS))
    gpu = st.integers(0, cluster.gpus - 1)
    time_s = st.sampled_from([0.0, 0.0, 1e-3, 2.5e-3]) | st.floats(0.0, 0.01)
    size = st.integers(0, 2**30).map(float) | st.just(0.0) | st.floats(0.0, 1e9)
    flows = draw(st.lists(st.builds(Flow, time_s, gpu, gpu, size), max_size=12))
    return cluster, flows


@settings(max_examples=35, deadline=None)
@given(questions())
def test_finish_times_equal_an_exact_solver(question: tuple[Cluster, list[Flow]]) -> None:
    cluster, flows = question
    expected = [float(time_s) for time_s in exact_finish_times(cluster, flows)]
    assert finish_times(cluster, flows) == pytest.approx(expected, rel=1e-9, abs=0.0)


@settings(max_examples=25, deadline=None)
@given(questions(), st.data())
def test_more_bytes_are_never_faster(question: tuple[Cluster, list[Flow]], data: st.DataObject) -> None:
    cluster, flows = question
    if not flows:
        return
    which = data.draw(st.integers(0, len(flows) - 1))
    more = data.draw(st.floats(1.0, 1e9))
    flow = flows[which]
    larger = [*flows]
    larger[which] = Flow(flow.start_s, flow.source, flow.destination, flow.size_bytes + more)
    before, after = finish_times(cluster, flows)[which], finish_times(cluster, larger)[which]
    assert after >= before * (1 - 1e-12)


@settings(max_examples=35, deadline=None)
@given(st.floats(1.0, 1e10), st.floats(0.1, 1.0), st.integers(1, 7))
def test_more_bandwidth_is_never_slower(size: float, factor: float, peer: int) -> None:
    full = load_cluster("mi300x-8")
    slow = full.with_links({(0, peer): factor})
    flow = [Flow(0.0, 0, peer, size)]
    assert finish_times(full, flow)[0] <= finish_times(slow, flow)[0]


usages = st.lists(st.dictionaries(st.integers(0, 7), st.floats(0.01, 1.0), max_size=5), min_size=1, max_size=10)


@pytest.mark.in_turn(5)
@settings(max_examples=50, deadline=None)
@given(usages, st.data())
@pytest.mark.parametrize("arrays_from", [0, sharing.MANY])
def test_shares_are_weighted_max_min_with_a_cap(
    arrays_from: int, usage: list[dict[int, float]], data: st.DataObject
) -> None:
    """Whoever is below full speed has a full resource on which nobody has more for its weight."""
    weights = data.draw(st.lists(st.floats(0.01, 100.0), min_size=len(usage), max_size=len(usage)))
    with mock.patch.object(sharing, "MANY", arrays_from):
        speed = shares(usage, weights)  # type: ignore[arg-type]
    assert speed == pytest.approx(plain_shares(usage, weights), rel=1e-12)
    load = [sum(x * u.get(link, 0.0) for x, u in zip(speed, usage, strict=True)) for link in range(8)]
    assert all(0.0 < x <= 1.0 for x in speed)
    assert all(used <= 1 + 1e-9 for used in load)
    for x, u, w in zip(speed, usage, weights, strict=True):
        if x < 1.0:
            assert any(
                load[link] >= 1 - 1e-9
                and all(y / v <= x / w * (1 + 1e-9) for y, t, v in zip(speed, usage, weights, strict=True) if link in t)
                for link in u
            )


@dataclass(frozen=True)
class Wish:
    """A claim of its own number."""

    number: int
    usage: Mapping[Hashable, float]
    weight: float
    weight_at: Mapping[Hashable, float] = field(default_factory=dict)


@settings(max_examples=25, deadline=None)
@given(usages, st.data())
def test_what_is_not_solved_again_is_as_if_it_had_been(usage: list[dict[int, float]], data: st.DataObject) -> None:
    """Activities come and go, several at an instant; speeds are those of all that are there, solved from nothing."""
    weights = data.draw(st.lists(st.floats(0.01, 100.0), min_size=len(usage), max_size=len(usage)))
    wishes = [Wish(i, *each) for i, each in enumerate(zip(usage, weights, strict=True))]
    solver, there, speeds = Sharing[int](), dict[int, Wish](), dict[int, float]()
    for toggled in data.draw(st.lists(st.sets(st.integers(0, len(usage) - 1), min_size=1), max_size=12)):
        for i in sorted(toggled):
            if i in there:
                solver.leave(i)
                del there[i]
            else:
                solver.enter(i, wishes[i])
                there[i] = wishes[i]
        speeds.update(solver.settle())
        now = list(there.values())
        anew = shares([wish.usage for wish in now], [wish.weight for wish in now])  # type: ignore[misc]
        assert [speeds[i] for i in there] == pytest.approx(anew, rel=1e-12)


def test_a_run_of_ever_new_meetings_remembers_so_many_and_no_more() -> None:
    with mock.patch.object(sharing, "REMEMBERED", 40):
        solver = Sharing[int]()
        for i in range(200):
            solver.enter(i, Wish(i, {0: 1.0}, 1.0))
            if i >= 4:
                solver.leave(i - 4)
            assert set(solver.settle().values()) == {1.0 / min(i + 1, 4)}
            assert sum(map(len, solver._solutions.known)) <= 40


def test_weights_of_one_over_the_rate_alone_make_flows_equal_in_bytes() -> None:
    """A fast flow (100 bytes/s alone) and a slow one (20) meet on a link of 50."""
    alone = [50.0, 20.0]
    speed = shares([{"link": 1.0}, {"link": 0.4}], [1 / rate for rate in alone])
    assert [x * rate for x, rate in zip(speed, alone, strict=True)] == pytest.approx([30.0, 20.0])
    crowded = shares([{"link": 1.0}, {"link": 1.0}, {"link": 0.9}], [1 / 50, 1 / 50, 1 / 45])
    assert [crowded[0] * 50, crowded[2] * 45] == pytest.approx([50 / 3, 50 / 3])


def test_equal_weights_slow_down_alike() -> None:
    assert shares([{1: 1.0, 2: 0.1}, {1: 0.5}], [1.0, 1.0]) == pytest.approx([2 / 3, 2 / 3])


def test_nobody_waits_without_a_rival() -> None:
    assert shares([{1: 1.0}, {2: 1.0}, {}], [1.0, 5.0, 1.0]) == [1.0, 1.0, 1.0]
    assert shares([], []) == []


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf])
def test_a_senseless_usage_or_weight_is_refused(bad: float) -> None:
    with pytest.raises(InputError):
        shares([{1: bad}], [1.0])
    with pytest.raises(InputError):
        shares([{1: 1.0}, {1: 1.0}], [1.0, bad])


def test_a_flow_to_itself_takes_no_time_and_an_empty_one_the_latency() -> None:
    cluster = build_cluster("mi300x", 2, "rails-400g")
    latency = sum(cluster.latency_s[link] for link in cluster.route(0, 9))
    assert finish_times(cluster, [Flow(3.0, 4, 4, 1e9), Flow(2.0, 0, 9, 0.0)]) == [3.0, 2.0 + latency]
    assert finish_times(cluster, []) == []


@pytest.mark.parametrize(
    ("flow", "message"),
    [
        (Flow(0.0, 0, 8, 1.0), "0 to 7"),
        (Flow(0.0, -1, 0, 1.0), "0 to 7"),
        (Flow(0.0, "gpu0", 1, 1.0), "no GPU"),  # type: ignore[arg-type]
        (Flow(0.0, 0, 1, -1.0), "negative"),
        (Flow(0.0, 0, 1, math.nan), "finite"),
        (Flow(math.nan, 0, 1, 1.0), "finite"),
        (Flow(0.0, 0, 1, math.inf), "finite"),
        (Flow(0.0, 0, 1, "1 GB"), "finite"),  # type: ignore[arg-type]
    ],
)
def test_a_flow_that_makes_no_sense_is_refused_by_its_place(flow: Flow, message: str) -> None:
    with pytest.raises(InputError, match=rf"flows\[1\].*{message}"):
        finish_times(load_cluster("mi300x-8"), [Flow(0.0, 0, 1, 1.0), flow])


def test_two_thousand_flows_are_quick_enough_to_ask() -> None:
    cluster = build_cluster("mi300x", 16, "rails-400g")
    flows = [Flow(i % 50 * 1e-4, i % 128, i * 37 % 128, 1e6 * (i % 9)) for i in range(2000)]
    finished = finish_times(cluster, flows)
    alone = [finish_times(cluster, [flow])[0] for flow in flows[:50]]
    assert all(together >= single * (1 - 1e-12) for together, single in zip(finished, alone, strict=False))


def test_a_transfer_claims_of_a_contested_link_what_others_claim_there() -> None:
    """A gather moves two bytes inside the node for each over its NIC. Alone it is as fast as its NIC; where another
    transfer fills the links inside the node both get as many bytes/s there, whatever the NIC carries."""
    inside, other = 64.0, Wish(1, {"inside": 1.0}, 1 / 64.0)
    for nic in (20.0, 24.0, 31.0, 33.0, 48.0, 90.0):
        rate = min(nic, inside / 2)  # bytes/s over the NIC, alone
        gather = Wish(
            0, {"nic": rate / nic, "inside": 2 * rate / inside}, 1 / (rate if nic < inside / 2 else 2 * rate),
            {"nic": 1 / rate, "inside": 1 / (2 * rate)},
        )  # fmt: skip
        claims = [gather, other]
        speed = shares([claim.usage for claim in claims], contested(claims))
        assert speed[0] * 2 * rate == pytest.approx(32.0) and speed[1] * 64.0 == pytest.approx(32.0)
        # On its NIC it claims what a message does.
        message = Wish(2, {"nic": 1.0}, 1 / nic)
        claims = [gather, message]
        speed = shares([claim.usage for claim in claims], contested(claims))
        assert speed[0] * rate == pytest.approx(min(nic / 2, rate))
        assert speed[1] * nic == pytest.approx(nic - speed[0] * rate)
