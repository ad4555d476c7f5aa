"""From programs on a mesh to what the machine runs: simulated ranks and the channels they meet in.

An *island* is a set of ranks that reach each other through the groups their programs use. Islands whose members
stand alike in the cluster and share no link with others are copies: one is built. Inside an island every use of a
template by a group is an *instance* with its own links; :mod:`tspsim.engine.folding` then says which ranks and
instances are alike. Running every rank is the same construction without that last step and with all islands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..network import Cluster, ExpertExchange, Traffic, collective, point_to_point
from ..network.fluid import Channel
from ..network.symmetry import owned, surroundings
from ..parallel.mesh import Mesh
from .assignment import Assignment, Cost, Role, Template, Templates, prepare
from .folding import number, refine
from .ranks import Rank
from .timeline import Labels


@dataclass(frozen=True)
class Instance:
    """One group's use of a template; ``copies`` islands have the same. ``ranks`` of a message: sender, receiver.

    ``detoured``: dead links make it use other links than it would.
    """

    template: int
    is_message: bool
    ranks: tuple[int, ...]
    traffic: Traffic
    shares: tuple[float, ...]
    copies: int
    detoured: bool = False


@dataclass(frozen=True)
class SimulatedRank:
    """A rank that is run, for ``size`` ranks that do the same."""

    rank: Rank
    role: Role
    size: int


@dataclass
class System:
    """What runs, and how to read it afterwards.

    Attributes
    ----------
    instances
        Every instance that was built, with the channel that stood for it: the carrier of link loads.
    """

    ranks: list[SimulatedRank]
    channels: list[Channel]
    instances: list[tuple[Instance, Channel]] = field(repr=False)

    def horizon_s(self, role: Role) -> float:
        """Seconds a role's program takes with everything one after the other: the scale of the whole run."""
        transfer_s: dict[int, float] = {}
        for instance, _ in self.instances:
            alone_s = instance.traffic.latency_s + instance.traffic.fluid_s
            transfer_s[instance.template] = max(alone_s, transfer_s.get(instance.template, 0.0))
        return role.alone_s(transfer_s)

    def link_loads(self) -> Iterator[tuple[int, float, int]]:
        """``(link, bytes carried, copies)`` of every link of the islands that were built."""
        carried: dict[int, float] = {}
        copies: dict[int, int] = {}
        for instance, channel in self.instances:
            for link, size_bytes in zip(instance.traffic.links, instance.traffic.link_bytes, strict=True):
                carried[link] = carried.get(link, 0.0) + channel.uses * size_bytes
                copies[link] = instance.copies
        for link in sorted(carried):
            yield link, carried[link], copies[link]


def build_system(cluster: Cluster, assignment: Assignment, cost: Cost, *, every_rank: bool = False) -> System:
    """Prepare every role, find the islands, and fold them unless ``every_rank``."""
    mesh = assignment.mesh
    templates = Templates()
    roles = [prepare(program, cost, templates, mesh) for program in assignment.programs]
    likeness = np.array(number([role.signature for role in roles]), dtype=np.int64)[assignment.role_of]
    slow = sorted(assignment.slowness.items())
    marks = number([(int(likeness[rank]), factor) for rank, factor in slow])
    for (rank, _), mark in zip(slow, marks, strict=True):
        likeness[rank] = len(roles) + mark
    met = {part for template, _ in templates for part in mesh.parts(template.axis)}
    axes = tuple(axis for axis in mesh.axes if axis in met)
    islands = mesh_islands(mesh, axes)
    if every_rank:
        chosen = [(index, 1) for index in range(len(islands))]
    else:
        chosen = distinct_islands(cluster, islands, likeness, templates, mesh)
    instances = [
        instance
        for index, copies in chosen
        for instance in island_instances(cluster, mesh, islands[index], templates, copies)
    ]
    members = [(int(rank), copies) for index, copies in chosen for rank in islands[index]]
    rank_class, instance_class = (
        (list(range(len(members))), list(range(len(instances))))
        if every_rank
        else alike(cluster, members, likeness, instances)
    )
    return assemble(assignment, roles, members, instances, rank_class, instance_class)


def mesh_islands(mesh: Mesh, axes: Sequence[str]) -> NDArray[np.int64]:
    """Ranks that differ only in ``axes``: shape (islands, ranks of one), alike in order."""
    used = [mesh.axes.index(axis) for axis in axes]
    moved = np.moveaxis(mesh.ranks, used, list(range(mesh.ranks.ndim - len(used), mesh.ranks.ndim)))
    size = int(np.prod([mesh.ranks.shape[dimension] for dimension in used], dtype=np.int64))
    return moved.reshape(-1, size)


def distinct_islands(
    cluster: Cluster,
    islands: NDArray[np.int64],
    likeness: NDArray[np.int64],
    templates: Templates,
    mesh: Mesh,
) -> list[tuple[int, int]]:
    """``(island, how many stand like it)``, one of each kind; all of them where islands share links."""
    around = surroundings(cluster, islands)
    if around is None:
        return [(index, 1) for index in range(len(islands))]
    rows = np.concatenate([likeness[islands], around], axis=1)
    _, first, counts = np.unique(rows, axis=0, return_index=True, return_counts=True)
    chosen = sorted(zip(first.tolist(), counts.tolist(), strict=True))
    private = all(
        owned(cluster, islands[index], instance.traffic.links)
        for index, copies in chosen
        if copies > 1 or len(chosen) > 1
        for instance in island_instances(cluster, mesh, islands[index], templates, copies)
    )
    return chosen if private else [(index, 1) for index in range(len(islands))]


def island_instances(
    cluster: Cluster, mesh: Mesh, island: NDArray[np.int64], templates: Templates, copies: int
) -> Iterator[Instance]:
    """Every template used by every group that lies in the island."""
    per_node, per_node_links = cluster.gpus_per_node, cluster.layout.node_links
    for template, index in templates:
        groups = mesh.groups(template.axis)
        numbers = dict.fromkeys(mesh.group_of(template.axis)[island].tolist())
        # Where all nodes are alike, what happens inside one happens inside the others, so many links further on.
        inside: dict[tuple[int, ...], tuple[int, Traffic, tuple[float, ...]]] = {}
        for group in groups[list(numbers)].tolist():
            for ranks in message_pairs(group, template) if template.is_message else [tuple(group)]:
                node = ranks[0] // per_node
                place = tuple([rank - node * per_node for rank in ranks])
                alone = not cluster.factors and min(place) >= 0 and max(place) < per_node
                if alone and place in inside:
                    first, like, shares = inside[place]
                    step = (node - first) * per_node_links
                    traffic = replace(like, links=tuple([link + step for link in like.links]))
                    yield Instance(index, template.is_message, ranks, traffic, shares, copies)
                    continue
                traffic = moved(cluster, ranks, template)
                shares = link_shares(cluster, traffic)
                if alone:
                    inside[place] = (node, traffic, shares)
                detoured = bool(cluster.layout.dead) and moved(cluster.sound, ranks, template).links != traffic.links
                yield Instance(index, template.is_message, ranks, traffic, shares, copies, detoured)


def moved(cluster: Cluster, ranks: tuple[int, ...], template: Template) -> Traffic:
    """What a template asks of the network for one group, or one sender and receiver."""
    if template.is_message:
        return point_to_point(cluster, ranks[0], ranks[1], template.size_bytes)
    return collective(
        cluster,
        ranks,
        template.kind,
        template.size_bytes,
        root=template.root,
        algorithm=template.algorithm,
        exchange=ExpertExchange(**template.tokens._asdict()) if template.tokens else None,
    )


def message_pairs(group: Sequence[int], template: Template) -> Iterator[tuple[int, ...]]:
    """Senders and receivers."""
    size = len(group)
    for position, sender in enumerate(group):
        target = position + template.offset
        if template.wrap:
            yield sender, group[target % size]
        elif 0 <= target < size:
            yield sender, group[target]


def link_shares(cluster: Cluster, traffic: Traffic) -> tuple[float, ...]:
    """Share of each link's capacity at full speed: the busiest link is full."""
    bandwidth = cluster.links.bandwidth_bytes_per_s
    # Plain floats: a numpy number here would spread over every rate and the clock itself.
    busy_s = [size / float(bandwidth[link]) for link, size in zip(traffic.links, traffic.link_bytes, strict=True)]
    longest_s = max(busy_s, default=0.0)
    return tuple(busy / longest_s if longest_s > 0.0 else 0.0 for busy in busy_s)


def alike(
    cluster: Cluster,
    members: Sequence[tuple[int, int]],
    likeness: NDArray[np.int64],
    instances: Sequence[Instance],
) -> tuple[list[int], list[int]]:
    """Classes of ranks and of instances, by colour refinement over ranks, instances and links.

    A fabric whose switches the groups do not divide evenly has a little more load on some links than on others, and
    then hardly two ranks are alike. Where that makes more than :data:`MANY` classes, and the links between switches
    the cause of most, these do not tell ranks apart: each class moves as fast as the busiest link on any member's way
    allows (docs/engine.md says how far that errs).
    """
    exact = told_apart(cluster, members, likeness, instances, len(cluster.links))
    if max(exact[0]) < MANY:
        return exact
    rough = told_apart(cluster, members, likeness, instances, cluster.layout.switch_start)
    return rough if 2 * max(rough[0]) < max(exact[0]) else exact


#: Classes of ranks beyond which a fabric's uneven load is taken at its worst (:func:`alike`).
MANY = 128


def told_apart(
    cluster: Cluster,
    members: Sequence[tuple[int, int]],
    likeness: NDArray[np.int64],
    instances: Sequence[Instance],
    links: int,
) -> tuple[list[int], list[int]]:
    """The classes of :func:`alike` with only the first ``links`` of the cluster's links to tell them apart.

    Links of the same bandwidth that the same instances use in the same shares are told from each other by nothing: they
    are one vertex, with their number in its colour.
    """
    bandwidth = cluster.links.bandwidth_bytes_per_s
    vertex = {rank: index for index, (rank, _) in enumerate(members)}
    colours: list[tuple[object, ...]] = [("rank", int(likeness[rank]), copies) for rank, copies in members]
    users: dict[int, list[tuple[int, float]]] = {}
    for index, instance in enumerate(instances):
        colours.append(("instance", instance.template, instance.traffic.latency_s, instance.traffic.fluid_s))
        for link, share in zip(instance.traffic.links, instance.shares, strict=True):
            if link < links:
                users.setdefault(link, []).append((index, share))
    twins: dict[tuple[tuple[int, float], ...], Counter[float]] = {}
    for link, using in users.items():
        twins.setdefault(tuple(using), Counter())[float(bandwidth[link])] += 1
    colours += [("links", *sorted(rates.items())) for rates in twins.values()]
    edges: list[list[tuple[object, int]]] = [[] for _ in colours]
    for index, instance in enumerate(instances, len(members)):
        for position, rank in enumerate(instance.ranks):
            label = ("end", position) if instance.is_message else ("member", 0)
            edges[index].append((label, vertex[rank]))
            edges[vertex[rank]].append((label, index))
    for there, pattern in enumerate(twins, len(members) + len(instances)):
        for user, share in pattern:
            edges[len(members) + user].append((("share", share), there))
            edges[there].append((("share", share), len(members) + user))
    classes = refine(colours, edges)
    first_instance = len(members)
    return number(classes[:first_instance]), number(classes[first_instance : first_instance + len(instances)])


def assemble(
    assignment: Assignment,
    roles: Sequence[Role],
    members: Sequence[tuple[int, int]],
    instances: Sequence[Instance],
    rank_class: Sequence[int],
    instance_class: Sequence[int],
) -> System:
    """One simulated rank a rank class, one channel an instance class, and the constraints between channels."""
    first_of: dict[int, int] = {}
    sizes: Counter[int] = Counter()
    class_of_rank: dict[int, int] = {}
    for (rank, copies), cls in zip(members, rank_class, strict=True):
        first_of.setdefault(cls, rank)
        sizes[cls] += copies
        class_of_rank[rank] = cls
    simulated = {
        cls: Rank(rank, {}, slowness=assignment.slowness.get(rank, 1.0)) for cls, rank in first_of.items()
    }
    channels: list[Channel] = []
    users: dict[int, dict[int, float]] = {}
    for instance, cls in zip(instances, instance_class, strict=True):
        if cls == len(channels):
            ranks = tuple(simulated[c] for c in dict.fromkeys(class_of_rank[rank] for rank in instance.ranks))
            traffic = instance.traffic
            busiest = max(
                zip(instance.shares, traffic.link_bytes, strict=True),
                key=lambda pair: pair[0],
                default=(0.0, 0.0),
            )[1]
            channels.append(
                Channel(
                    cls,
                    traffic.latency_s,
                    traffic.fluid_s,
                    {},
                    traffic.fluid_s / busiest if busiest > 0.0 else 1.0,
                    ranks,
                    traffic.algorithm.replace("_", " ") + " round dead links" * instance.detoured,
                    parties=2 if instance.is_message else len(ranks),
                )
            )
        for link, share in zip(instance.traffic.links, instance.shares, strict=True):
            by_channel = users.setdefault(link, {})
            by_channel[cls] = by_channel.get(cls, 0.0) + share
    constrain(channels, users)
    for instance, cls in zip(instances, instance_class, strict=True):
        # A message is known to its sender by half 0 of its key, to its receiver by half 1; a collective only by half 0.
        for half, rank in enumerate(instance.ranks):
            simulated_rank = simulated[class_of_rank[rank]]
            if simulated_rank.number == rank:
                simulated_rank.channels[2 * instance.template + (half if instance.is_message else 0)] = channels[cls]
    ranks_out = []
    named: dict[int, Role] = {}
    for cls, rank_state in simulated.items():
        number = int(assignment.role_of[rank_state.number])
        if number not in named:
            named[number] = with_algorithms(roles[number], rank_state)
        rank_state.expect(len(named[number].labels))
        ranks_out.append(SimulatedRank(rank_state, named[number], sizes[cls]))
    carried = [(instance, channels[cls]) for instance, cls in zip(instances, instance_class, strict=True)]
    return System(ranks_out, channels, carried)


def constrain(channels: Sequence[Channel], users: Mapping[int, Mapping[int, float]]) -> None:
    """Give every channel its constraints and region.

    Links that the same channels use in the same shares are one constraint; of those that a channel has to itself the
    tightest says it all.
    """
    patterns = dict.fromkeys(tuple(sorted(by_channel.items())) for by_channel in users.values())
    tightest: dict[int, float] = {}
    shared = []
    for pattern in patterns:
        if len(pattern) == 1:
            user, share = pattern[0]
            tightest[user] = max(share, tightest.get(user, 0.0))
        else:
            shared.append(pattern)
    region = list(range(len(channels)))

    def find(channel: int) -> int:
        while region[channel] != channel:
            region[channel] = region[region[channel]]
            channel = region[channel]
        return channel

    usage: list[dict[Hashable, float]] = [{} for _ in channels]
    for constraint, pattern in enumerate([*shared, *((only,) for only in tightest.items())]):
        for user, share in pattern:
            usage[user][constraint] = share
            region[find(user)] = find(pattern[0][0])
    for index, channel in enumerate(channels):
        channel.usage = usage[index]
        channel.region = find(index)


def with_algorithms(role: Role, rank: Rank) -> Role:
    """The role whose labels of communication say which algorithm moved the data of one of its ranks."""
    distinct = list(role.labels.distinct)
    for _, keys, label, _ in role.known.values():
        channel = rank.channels.get(keys[0]) if keys else None
        if channel is not None:
            distinct[label] = distinct[label].with_shape(f"{distinct[label].shape}, {channel.algorithm}")
    return replace(role, labels=Labels(distinct, role.labels.which, role.labels.layer))
