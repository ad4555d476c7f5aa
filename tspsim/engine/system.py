"""From programs on meshes to what the machine runs: devices, the channels they meet in, and one partition for all.

A *connected component* is a set of ranks that reach each other through the groups their programs use. Components whose
members stand alike in the cluster and share no link with others are copies: one is built. Inside a component every use
of a template by a group is an *instance* with its own links; :mod:`tspsim.engine.folding` then says which ranks and
instances are alike. Running every rank is the same construction without that last step and with all components.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count
from math import prod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import TspsimError
from ..mesh import Mesh
from ..network import (
    Cluster,
    ExpertExchange,
    Traffic,
    collective,
    consider_messages,
    host_copy,
    point_to_point,
    waiting,
)
from ..network.fluid import Channel
from ..network.sharing import Solutions
from ..network.symmetry import owned, surroundings
from .assignment import COPY_KINDS, Assignment, Cost, ReadyProgram, Template, Templates, make_ready
from .folding import number, refine
from .ranks import Device, Rank
from .timeline import Labels


@dataclass(frozen=True)
class Instance:
    """One group's use of a template; ``copies`` components have the same. ``ranks`` of a message: sender, receiver.

    ``detoured``: dead links make it use other links than it would.
    """

    template: int
    is_message: bool
    ranks: tuple[int, ...]
    traffic: Traffic
    shares: tuple[float, ...]
    copies: int
    detoured: bool = False


#: Class of every rank, of every instance, and whether ranks are only nearly alike (:func:`alike`).
Classes = tuple[list[int], list[int], bool]


@dataclass(frozen=True)
class SimulatedRank:
    """A rank that is run, for ``size`` ranks that do the same."""

    rank: Rank
    role: ReadyProgram
    size: int


@dataclass(frozen=True)
class System:
    """What runs an assignment, and how to read it afterwards.

    Attributes
    ----------
    instances
        Every instance that was built, with the channel that stood for it: the carrier of link loads.
    at_worst
        Uneven links between switches do not tell ranks apart: classes move at their worst link (:func:`alike`).
    """

    ranks: Sequence[SimulatedRank]
    instances: Sequence[tuple[Instance, Channel]] = field(repr=False)
    at_worst: bool = False

    @property
    def channels(self) -> list[Channel]:
        """Those of its instances, each once."""
        return list(dict.fromkeys(channel for _, channel in self.instances))

    def horizon_s(self, role: ReadyProgram) -> float:
        """Seconds a role's program takes with everything one after the other: the scale of the whole run."""
        transfer_s: dict[int, float] = {}
        for instance, _ in self.instances:
            alone_s = instance.traffic.latency_s + instance.traffic.fluid_s
            transfer_s[instance.template] = max(alone_s, transfer_s.get(instance.template, 0.0))
        return role.alone_s(transfer_s)

    def uses(self) -> Mapping[Channel, int]:
        """How often the programs use each channel."""
        return self._uses

    @cached_property
    def _uses(self) -> Mapping[Channel, int]:
        by_role: dict[int, Counter[int]] = {}
        found = dict.fromkeys(self.channels, 0)
        for simulated in self.ranks:
            role, channels = simulated.role, simulated.rank.device.channels
            if id(role) not in by_role:
                by_role[id(role)] = role.uses()
            for key, times in by_role[id(role)].items():
                # Half 0 of a key is a collective or a sending: one a use.
                if key % 2 == 0 and key in channels:
                    found[channels[key]] = times
        return found

    def link_loads(self) -> Iterator[tuple[int, float, int]]:
        """``(link, bytes carried, copies)`` of every link of the components that were built."""
        if not self.instances:
            return
        uses = self.uses()
        every = [(instance.traffic, uses[channel], instance.copies) for instance, channel in self.instances]
        lengths = [len(traffic.links) for traffic, _, _ in every]
        link = np.fromiter(chain.from_iterable(traffic.links for traffic, _, _ in every), np.int64, sum(lengths))
        each = np.fromiter(chain.from_iterable(traffic.link_bytes for traffic, _, _ in every), np.float64, len(link))
        times, copies = (np.repeat(np.array([row[place] for row in every]), lengths) for place in (1, 2))
        distinct, last = np.unique(link[::-1], return_index=True)
        carried = np.bincount(np.searchsorted(distinct, link), weights=times * each)
        yield from zip(distinct.tolist(), carried.tolist(), copies[::-1][last].tolist(), strict=True)


@dataclass(eq=False)
class Prepared:
    """An assignment made ready to be launched as often as wanted: operators costed, templates interned, ranks folded.

    Attributes
    ----------
    kinds
        By GPU: equal for ranks whose programs take the same, −1 for those that have none.
    system
        What runs it, once its ranks are folded together with those of everything else that is prepared.
    """

    assignment: Assignment
    roles: Sequence[ReadyProgram] = field(repr=False)
    templates: Templates = field(repr=False)
    kinds: NDArray[np.int64] = field(repr=False)
    system: System | None = field(default=None, repr=False)


def rank_kinds(assignment: Assignment, roles: Sequence[ReadyProgram], gpus: int) -> NDArray[np.int64]:
    """Equal numbers for ranks with programs that cost the same on devices that are as fast; −1 outside the mesh."""
    ranks = assignment.mesh.ranks.reshape(-1)
    kinds = np.full(gpus, -1, dtype=np.int64)
    kinds[ranks] = np.array(number([role.signature for role in roles]), dtype=np.int64)[assignment.role_of[ranks]]
    slow = sorted((rank, factor) for rank, factor in assignment.slowness.items() if kinds[rank] >= 0)
    marks = number([(int(kinds[rank]), factor) for rank, factor in slow])
    for (rank, _), mark in zip(slow, marks, strict=True):
        kinds[rank] = len(roles) + mark
    return kinds


class Partition:
    """The ranks of a cluster in classes that nothing prepared so far tells apart, and a device for each.

    One partition serves all: it is the coarsest that is stable under the groups and links of every assignment, so that
    ranks of a class stay alike whatever is launched when, as long as it is launched whole. It is made when it is first
    needed after something was prepared that may part ranks.
    """

    def __init__(self, cluster: Cluster, *, every_rank: bool = False) -> None:
        self.cluster = cluster
        self.every_rank = every_rank
        self.devices: dict[int, Device] = {}
        self._at_worst = False
        self.stable = False
        self._kinds = np.zeros(cluster.gpus, dtype=np.int64)
        self._templates: dict[Hashable, Templates] = {}
        self._numbers = count()
        self._prepared: list[Prepared] = []
        self._instances: dict[Hashable, list[Instance]] = {}
        self._recent: Recent = cluster.memo.setdefault("recent instances", Recent())
        self._carried: list[tuple[Instance, Channel]] = []
        self.solutions = Solutions()

    def prepare(self, assignment: Assignment, cost: Cost) -> Prepared:
        """Cost an assignment and take note of it."""
        mesh, known = assignment.mesh, assignment.mesh.key in self._templates
        templates = self._templates.setdefault(mesh.key, Templates(mesh, self._numbers))
        before = len(templates.numbers), int(self._kinds.max())
        roles = [make_ready(program, cost, templates) for program in assignment.programs]
        kinds = rank_kinds(assignment, roles, self.cluster.gpus)
        prepared = Prepared(assignment, roles, templates, kinds)
        self._prepared.append(prepared)
        _, self._kinds = np.unique(self._kinds * (int(kinds.max()) + 2) + kinds + 1, return_inverse=True)
        # Ranks that meet as they did and are told apart as they were stay in their classes.
        self.stable = self.stable and known and before == (len(templates.numbers), int(self._kinds.max()))
        if self.stable:
            prepared.system = system_of(prepared, self.devices.values(), self._carried, at_worst=self._at_worst)
        return prepared

    def settle(self, in_flight: Iterable[Prepared]) -> None:
        """Refine the classes until they are stable under all that is prepared, and give each a device and channels.

        Raises
        ------
        TspsimError
            Ranks that stand for each other in something in flight have to part.
        """
        members, instances = self._built()
        everyone = list(range(len(members))), list(range(len(instances))), False
        found = (
            Alike(members, b"", instances, everyone)
            if self.every_rank
            else self._recent.classes(self.cluster, members, self._kinds, instances)
        )
        rank_class, instance_class, self._at_worst = found.classes
        self.solutions = found.solutions
        sizes: Counter[int] = Counter()
        first_of: dict[int, int] = {}
        for (rank, copies), cls in zip(members, rank_class, strict=True):
            sizes[cls] += copies
            if cls not in first_of or (rank in self.devices and first_of[cls] not in self.devices):
                first_of[cls] = rank
        same = {
            rank
            for cls, rank in first_of.items()
            if rank in self.devices and self.devices[rank].size == sizes[cls]
        }
        for prepared in in_flight:
            if prepared.system is not None and any(each.rank.number not in same for each in prepared.system.ranks):
                raise TspsimError(
                    "what is prepared now tells ranks apart that stand for each other in a submission in flight: "
                    "prepare it before that is launched, or run every rank"
                )
        by_class = {
            cls: self.devices[rank] if rank in same else Device(rank, sizes[cls]) for cls, rank in first_of.items()
        }
        self.devices = {device.number: device for device in by_class.values()}
        device_of = {rank: by_class[cls] for (rank, _), cls in zip(members, rank_class, strict=True)}
        channels = connect(instances, instance_class, device_of)
        self._carried = [(instance, channels[cls]) for instance, cls in zip(instances, instance_class, strict=True)]
        for prepared in self._prepared:
            if prepared.system is None or any(each.rank.number not in same for each in prepared.system.ranks):
                prepared.system = system_of(prepared, self.devices.values(), self._carried, at_worst=self._at_worst)
        self.stable = True

    def _built(self) -> tuple[list[tuple[int, int]], list[Instance]]:
        """Ranks, each with how many components have one like it, and the instances among them.

        Copies are left out where all that is prepared stands on one mesh; else all components are built.
        """
        cluster, tables = self.cluster, list(self._templates.values())
        if len(tables) > 1:
            ranks = np.unique(np.concatenate([templates.mesh.ranks.reshape(-1) for templates in tables]))
            return [(rank, 1) for rank in ranks.tolist()], [
                instance
                for templates in tables
                for instance in self._among(templates.mesh.ranks.reshape(-1), templates, 1)
            ]
        (templates,) = tables
        mesh = templates.mesh
        met = {part for template, _ in templates for part in mesh.parts(template.axis)}
        components = mesh_components(mesh, tuple(axis for axis in mesh.axes if axis in met))
        chosen = [(index, 1) for index in range(len(components))]
        if not self.every_rank:
            distinct = distinct_components(cluster, components, self._kinds)
            # Only of what shares no link with others is one of each kind enough.
            if len(distinct) < len(components) and all(
                owned(cluster, components[index], instance.traffic.links)
                for index, copies in distinct
                if copies > 1 or len(distinct) > 1
                for instance in self._among(components[index], templates, copies)
            ):
                chosen = distinct
        return [(int(rank), copies) for index, copies in chosen for rank in components[index]], [
            instance for index, copies in chosen for instance in self._among(components[index], templates, copies)
        ]

    def _among(self, component: NDArray[np.int64], templates: Templates, copies: int) -> list[Instance]:
        """Every template used by every group that lies in the component; each is looked for once."""
        mesh, place = templates.mesh, component.tobytes()
        instances: list[Instance] = []
        for template, index in templates:
            key = mesh.key, template, index, place, copies
            found = self._instances.get(key) or self._recent.instances.get(key)
            if found is None:
                found = list(template_instances(self.cluster, component, mesh, template, index, copies))
                self._recent.keep(key, found)
            self._instances[key] = found
            instances += found
        return instances


@dataclass(frozen=True)
class Alike:
    """Classes of a partition, of what they were found (``members``, the ``kinds`` of ranks, these very
    ``instances``), and the rates solved between their channels."""

    members: Sequence[tuple[int, int]]
    kinds: bytes
    instances: Sequence[Instance]
    classes: Classes
    solutions: Solutions = field(default_factory=Solutions)

    def found_of(self, members: Sequence[tuple[int, int]], kinds: bytes, instances: Sequence[Instance]) -> bool:
        """Whether it is that of the same."""
        if self.kinds != kinds or self.members != members or len(self.instances) != len(instances):
            return False
        return all(map(operator.is_, self.instances, instances))


@dataclass
class Recent:
    """What was found on a cluster lately: a plan's next question often has the same groups and classes."""

    instances: dict[Hashable, list[Instance]] = field(default_factory=dict)
    alike: list[Alike] = field(default_factory=list)
    _links: int = 0

    #: Links of instances that are kept, and beyond which those found first are let go.
    MOST_LINKS: ClassVar[int] = 200_000
    #: Partitions that are kept: those of a plan's step and of its block, for two numbers of micro-batches.
    MOST_ALIKE: ClassVar[int] = 4

    def keep(self, key: Hashable, found: list[Instance]) -> None:
        """Remember instances that were not known."""
        self.instances[key] = found
        self._links += links_of(found)
        while self._links > self.MOST_LINKS:
            self._links -= links_of(self.instances.pop(next(iter(self.instances))))

    def classes(
        self, cluster: Cluster, members: Sequence[tuple[int, int]], kinds: NDArray[np.int64], instances: list[Instance]
    ) -> Alike:
        """What :func:`alike` says, found now or lately."""
        as_bytes = kinds.tobytes()
        for known in self.alike:
            if known.found_of(members, as_bytes, instances):
                return known
        found = Alike(members, as_bytes, instances, alike(cluster, members, kinds, instances))
        self.alike = [*self.alike[-self.MOST_ALIKE + 1 :], found]
        return found


def links_of(instances: Iterable[Instance]) -> int:
    return sum([len(each.traffic.links) for each in instances])


def mesh_components(mesh: Mesh, axes: Sequence[str]) -> NDArray[np.int64]:
    """Ranks that differ only in ``axes``: shape (components, ranks of one), alike in order."""
    used = [mesh.axes.index(axis) for axis in axes]
    moved = np.moveaxis(mesh.ranks, used, list(range(mesh.ranks.ndim - len(used), mesh.ranks.ndim)))
    return moved.reshape(-1, prod([mesh.ranks.shape[dimension] for dimension in used]))


def distinct_components(
    cluster: Cluster, components: NDArray[np.int64], kinds: NDArray[np.int64]
) -> list[tuple[int, int]]:
    """``(component, how many stand like it)``, one of each kind; all where the cluster does not tell."""
    around = surroundings(cluster, components)
    if around is None:
        return [(index, 1) for index in range(len(components))]
    rows = np.concatenate([kinds[components], around], axis=1)
    _, first, counts = np.unique(rows, axis=0, return_index=True, return_counts=True)
    return sorted(zip(first.tolist(), counts.tolist(), strict=True))


def template_instances(
    cluster: Cluster, component: NDArray[np.int64], mesh: Mesh, template: Template, index: int, copies: int
) -> Iterator[Instance]:
    """A template used by every group that lies in the component."""
    if template.is_copy:
        for rank in component.tolist():
            traffic = copied(cluster, rank, template)
            yield Instance(index, False, (rank,), traffic, link_shares(cluster, traffic), copies)
        return
    per_node, per_node_links = cluster.gpus_per_node, cluster.layout.node_links
    numbers = dict.fromkeys(mesh.group_of(template.axis)[component].tolist())
    groups = mesh.groups(template.axis)[list(numbers)].tolist()
    meeting = [
        ranks
        for group in groups
        for ranks in (message_pairs(group, template) if template.is_message else [tuple(group)])
    ]
    if template.is_message and template.size_bytes and not cluster.layout.dead:
        consider_messages(cluster, [(source, target) for source, target in meeting if source != target])
    # Where all nodes are alike, what happens inside one happens inside the others, so many links further on.
    inside: dict[tuple[int, ...], tuple[int, Traffic, tuple[float, ...]]] = {}
    for ranks in meeting:
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


def copied(cluster: Cluster, rank: int, template: Template) -> Traffic:
    """What a copy of one rank asks of its links."""
    if template.seconds:
        return waiting(template.seconds)
    return host_copy(cluster, rank, template.size_bytes, COPY_KINDS[template.kind])


def moved(cluster: Cluster, ranks: tuple[int, ...], template: Template) -> Traffic:
    """What a template asks of the network for one group, or one sender and receiver."""
    if template.is_message:
        return point_to_point(cluster, ranks[0], ranks[1], template.size_bytes)
    whole = collective(
        cluster,
        ranks,
        template.kind,
        template.size_bytes * template.slices,
        root=template.root,
        algorithm=template.algorithm,
        exchange=ExpertExchange(**template.tokens._asdict()) if template.tokens else None,
    )
    return whole if template.slices == 1 else whole.slice_of(template.slices)


def message_pairs(group: Sequence[int], template: Template) -> Iterator[tuple[int, int]]:
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
    kinds: NDArray[np.int64],
    instances: Sequence[Instance],
) -> tuple[list[int], list[int], bool]:
    """Classes of ranks and of instances, by colour refinement over ranks, instances and links; and whether they are
    only nearly alike.

    A fabric whose switches the groups do not divide evenly has a little more load on some links than on others, and
    then hardly two ranks are alike. Where that makes more than :data:`MANY` classes, and the links between switches
    the cause of most, these do not tell ranks apart: each class moves as fast as the busiest link on any member's way
    allows (docs/engine.md says how far that errs).
    """
    exact = told_apart(cluster, members, kinds, instances, len(cluster.links))
    if max(exact[0]) < MANY:
        return *exact, False
    rough = told_apart(cluster, members, kinds, instances, cluster.layout.switch_start)
    return (*rough, True) if 2 * max(rough[0]) < max(exact[0]) else (*exact, False)


#: Classes of ranks beyond which a fabric's uneven load is taken at its worst (:func:`alike`).
MANY = 128


def told_apart(
    cluster: Cluster,
    members: Sequence[tuple[int, int]],
    kinds: NDArray[np.int64],
    instances: Sequence[Instance],
    links: int,
) -> tuple[list[int], list[int]]:
    """The classes of :func:`alike` with only the first ``links`` of the cluster's links to tell them apart.

    Links of the same bandwidth that the same instances use in the same shares are told from each other by nothing: they
    are one vertex, with their number in its colour.
    """
    bandwidth = cluster.links.bandwidth_bytes_per_s
    vertex = {rank: index for index, (rank, _) in enumerate(members)}
    colours: list[tuple[object, ...]] = [("rank", int(kinds[rank]), copies) for rank, copies in members]
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


def connect(
    instances: Sequence[Instance], instance_class: Sequence[int], device_of: Mapping[int, Device]
) -> list[Channel]:
    """One channel an instance class, known to its devices, and the constraints between channels.

    A channel that its devices know already stays the same object.
    """
    known: dict[int, Channel] = {}
    ends: list[tuple[Device, int, int]] = []
    channels: list[Channel] = []
    users: dict[int, dict[int, float]] = {}
    for instance, cls in zip(instances, instance_class, strict=True):
        if cls == len(channels):
            channels.append(channel_of(instance, cls, tuple(dict.fromkeys(device_of[rank] for rank in instance.ranks))))
        for link, share in zip(instance.traffic.links, instance.shares, strict=True):
            by_channel = users.setdefault(link, {})
            by_channel[cls] = by_channel.get(cls, 0.0) + share
        # A message is known to its sender by half 0 of its key, to its receiver by half 1; a collective only by half 0.
        for half, rank in enumerate(instance.ranks):
            device = device_of[rank]
            if device.number == rank:
                key = 2 * instance.template + (half if instance.is_message else 0)
                ends.append((device, key, cls))
                if key in device.channels:
                    known[cls] = device.channels[key]
    constrain(channels, users)
    for cls, channel in known.items():
        channel.become(channels[cls])
        channels[cls] = channel
    for device, key, cls in ends:
        device.channels[key] = channels[cls]
    return channels


def channel_of(instance: Instance, number: int, devices: tuple[Device, ...]) -> Channel:
    """The channel of a class of instances, read from one of them; it has no constraints yet."""
    traffic = instance.traffic
    busiest = max(
        zip(instance.shares, traffic.link_bytes, strict=True), key=lambda pair: pair[0], default=(0.0, 0.0)
    )[1]
    return Channel(
        number,
        traffic.latency_s,
        traffic.fluid_s,
        {},
        traffic.fluid_s / busiest if busiest > 0.0 else 1.0,
        () if traffic.apart else devices,
        traffic.algorithm.replace("_", " ") + " round dead links" * instance.detoured,
        parties=2 if instance.is_message else len(devices),
    )


def system_of(
    prepared: Prepared, devices: Iterable[Device], carried: Iterable[tuple[Instance, Channel]], *, at_worst: bool
) -> System:
    """The devices and instances that an assignment has to do with."""
    assignment = prepared.assignment
    used = {key // 2 for role in prepared.roles for each in role.known.values() for key in each.keys}
    ranks = []
    named: dict[int, ReadyProgram] = {}
    for device in devices:
        if prepared.kinds[device.number] < 0:
            continue
        role = int(assignment.role_of[device.number])
        if role not in named:
            named[role] = with_algorithms(prepared.roles[role], device)
        rank = Rank(device, assignment.slowness.get(device.number, 1.0))
        ranks.append(SimulatedRank(rank, named[role], device.size))
    return System(ranks, [(instance, channel) for instance, channel in carried if instance.template in used], at_worst)


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


def with_algorithms(role: ReadyProgram, device: Device) -> ReadyProgram:
    """The role whose labels of communication say which algorithm moved the data of one of its devices."""
    distinct = list(role.labels.distinct)
    for _, keys, label, _ in role.known.values():
        channel = device.channels.get(keys[0]) if keys else None
        if channel is not None:
            distinct[label] = distinct[label].with_shape(f"{distinct[label].shape}, {channel.algorithm}")
    return replace(role, labels=Labels(distinct, role.labels.which, role.labels.layer))
