"""Assignments of programs to ranks, and the instances of their communication with their links.

An *instance* is the use of a template by one group of ranks. A *connected component* is a set of ranks that reach each
other through the groups of their programs. Components at equivalent positions of the cluster that share no links are
copies: one of them is built.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..base.quick import quick
from ..network import (
    KINDS,
    Cluster,
    Traffic,
    collective,
    host_copy,
    point_to_point,
    route_messages,
    waiting,
)
from ..network.wiring import Wiring
from ..operators import Operator
from ..program import ExpertExchange, Program
from ..program.instructions import Content, Mesh
from .timeline import Label

#: Kind of a copy in timelines → its direction.
COPY_KINDS = {"copy_out": "out", "copy_in": "in"}
#: Operator → its seconds on the cluster's devices.
Cost = Callable[[Operator], float]


@dataclass(frozen=True)
class Assignment:
    """Programs on a mesh: rank r runs ``programs[role_of[r]]``; ``slowness`` has straggler factors of single ranks."""

    mesh: Mesh
    programs: tuple[Program, ...]
    role_of: NDArray[np.int64] = field(repr=False)
    slowness: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def uniform(cls, mesh: Mesh, program: Program) -> Assignment:
        """The assignment of one program to every rank."""
        return cls(mesh, (program,), np.zeros(int(mesh.ranks.max()) + 1, dtype=np.int64))

    @property
    def key(self) -> Hashable:
        """Key that is equal for assignments of equal programs to the same ranks."""
        mesh, slow = self.mesh, tuple(sorted(self.slowness.items()))
        return mesh.key, self.programs, self.role_of[mesh.ranks].tobytes(), slow


@quick
@dataclass(frozen=True, slots=True)
class Template:
    """A collective, or one direction of a message, without its ranks: the key of a rendezvous.

    ``offset`` is the distance of a message along the axis, in ranks; 0 for a collective.
    """

    axis: str
    kind: str
    size_bytes: int
    root: int = 0
    algorithm: str | None = None
    offset: int = 0
    wrap: bool = True
    tokens: ExpertExchange | None = None
    slices: int = 1
    seconds: float = 0.0

    @property
    def is_copy(self) -> bool:
        """Whether it is a copy of one rank, to or from its host or a store."""
        return self.kind in COPY_KINDS

    @property
    def is_message(self) -> bool:
        return self.kind == "send_recv"

    def received_bytes(self, members: int) -> float:
        """Bytes that a rank receives and did not hold before, mean over the group."""
        if self.is_message:
            return float(self.size_bytes)
        return KINDS.get(self.kind).received_bytes(self.size_bytes, members)


class Templates:
    """Templates of one mesh by number, in order of first use; numbers are unique over all meshes of an engine."""

    def __init__(self, mesh: Mesh, following: Iterator[int]) -> None:
        self.mesh = mesh
        self.numbers: dict[Template, int] = {}
        #: Labels of all instructions so far, by content, which pipeline stages share.
        self.labels: dict[Content, Label] = {}
        self._following = following

    def number(self, template: Template) -> int:
        if template not in self.numbers:
            self.numbers[template] = next(self._following)
        return self.numbers[template]

    def __iter__(self) -> Iterator[tuple[Template, int]]:
        return iter(self.numbers.items())


# --- instances ------------------------------------------------------------------------------------------------

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Instance:
    """Use of a template by one group of ranks; of a message ``ranks`` are sender and receiver.

    ``shares`` are the shares of its links' capacity at full speed. ``copies`` equal components have such an instance.
    ``detoured``: it avoids dead links.
    """

    template: int
    is_message: bool
    ranks: tuple[int, ...]
    traffic: Traffic
    shares: tuple[float, ...]
    copies: int
    detoured: bool = False


def mesh_components(mesh: Mesh, axes: Sequence[str]) -> NDArray[np.int64]:
    """Components of ranks that differ only in ``axes``: shape (components, ranks of one), all in the same order."""
    used = [mesh.axes.index(axis) for axis in axes]
    moved = np.moveaxis(mesh.ranks, used, list(range(mesh.ranks.ndim - len(used), mesh.ranks.ndim)))
    return moved.reshape(-1, prod([mesh.ranks.shape[dimension] for dimension in used]))


def distinct_components(
    cluster: Cluster, components: NDArray[np.int64], kinds: NDArray[np.int64]
) -> list[tuple[int, int]]:
    """``(component, number of equal ones)`` for one component of each kind; all if the cluster cannot compare them."""
    around = position_rows(cluster, components)
    if around is None:
        return [(index, 1) for index in range(len(components))]
    first: dict[bytes, int] = {}
    counts: Counter[int] = Counter()
    for index, row in enumerate(row_bytes(np.concatenate([kinds[components], around], axis=1))):
        counts[first.setdefault(row, index)] += 1
    return list(counts.items())


def template_instances(
    cluster: Cluster, component: NDArray[np.int64], mesh: Mesh, template: Template, index: int, copies: int
) -> Iterator[Instance]:
    """Instances of a template, one for each group of the component."""
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
        route_messages(cluster, [(source, target) for source, target in meeting if source != target])
    # If all nodes are equal, traffic inside one is that of another with higher link ids.
    inside: dict[tuple[int, ...], tuple[int, Traffic, tuple[float, ...]]] = {}
    # Groups at equivalent positions share one tuple of link bytes, and so the shares of their links.
    shares_of: dict[int, tuple[tuple[float, ...], Traffic]] = {}
    for ranks in meeting:
        node = ranks[0] // per_node
        place = tuple([rank - node * per_node for rank in ranks])
        alone = not cluster.factors and min(place) >= 0 and max(place) < per_node
        if alone and place in inside:
            first, like, shares = inside[place]
            step = (node - first) * per_node_links
            traffic = like.on(tuple([link + step for link in like.links]))
            yield Instance(index, template.is_message, ranks, traffic, shares, copies)
            continue
        traffic = moved(cluster, ranks, template)
        entry = shares_of.get(id(traffic.link_bytes))
        if entry is None:  # the entry keeps the traffic alive, so that its id is not reused
            entry = shares_of[id(traffic.link_bytes)] = link_shares(cluster, traffic), traffic
        shares = entry[0]
        if alone:
            inside[place] = (node, traffic, shares)
        detoured = bool(cluster.layout.dead) and moved(cluster.sound, ranks, template).links != traffic.links
        yield Instance(index, template.is_message, ranks, traffic, shares, copies, detoured)


def copied(cluster: Cluster, rank: int, template: Template) -> Traffic:
    """Traffic of a copy of one rank."""
    if template.seconds:
        return waiting(template.seconds)
    return host_copy(cluster, rank, template.size_bytes, COPY_KINDS[template.kind])


def moved(cluster: Cluster, ranks: tuple[int, ...], template: Template) -> Traffic:
    """Traffic of a template for one group, or for one sender and receiver."""
    if template.is_message:
        return point_to_point(cluster, ranks[0], ranks[1], template.size_bytes)
    whole = collective(
        cluster,
        ranks,
        template.kind,
        template.size_bytes * template.slices,
        root=template.root,
        algorithm=template.algorithm,
        exchange=template.tokens,
    )
    return whole if template.slices == 1 else whole.slice_of(template.slices)


def message_pairs(group: Sequence[int], template: Template) -> Iterator[tuple[int, int]]:
    """(sender, receiver) of a message template in a group."""
    size = len(group)
    for position, sender in enumerate(group):
        target = position + template.offset
        if template.wrap:
            yield sender, group[target % size]
        elif 0 <= target < size:
            yield sender, group[target]


def link_shares(cluster: Cluster, traffic: Traffic) -> tuple[float, ...]:
    """Share of each link's capacity at full speed; that of the busiest link is 1."""
    if not traffic.links:
        return ()
    busy_s = np.array(traffic.link_bytes) / cluster.links.bandwidth_bytes_per_s[np.array(traffic.links)]
    longest_s = busy_s.max()
    # Plain floats: NumPy scalars would spread to every rate and to the clock.
    return tuple((busy_s / longest_s if longest_s > 0.0 else np.zeros(len(busy_s))).tolist())


class Uses(NamedTuple):
    """Uses of links as columns: index of the instance, link, and share of the link's capacity at full speed."""

    instance: Integers
    link: Integers
    share: NDArray[np.float64]


def used_links(instances: Sequence[Instance]) -> Uses:
    """Uses of links by instances, in their order."""
    lengths = [len(instance.traffic.links) for instance in instances]
    link = np.fromiter(chain.from_iterable(instance.traffic.links for instance in instances), np.int64, sum(lengths))
    share = np.fromiter(chain.from_iterable(instance.shares for instance in instances), np.float64, len(link))
    return Uses(np.repeat(np.arange(len(instances)), lengths), link, share)


def segments(column: Integers) -> tuple[Integers, Integers]:
    """(begin, end) of the runs of equal numbers in a column."""
    borders = np.flatnonzero(column[1:] != column[:-1]) + 1
    inner: Integers = borders.astype(np.int64)
    return np.concatenate([[0], inner]), np.concatenate([inner, [len(column)]])


# --- equivalent positions in a cluster ------------------------------------------------------------------------


def row_bytes(rows: NDArray[np.int64]) -> list[bytes]:
    """Bytes of every row, equal for equal rows."""
    whole = np.ascontiguousarray(rows)
    voids: Any = whole.view(np.dtype((np.void, whole.shape[1] * whole.itemsize))).reshape(-1).tolist()
    return cast("list[bytes]", voids)


def position_rows(cluster: Cluster, groups: Integers) -> Integers | None:
    """One row for each group of GPUs; equal rows mean equal links *among* the members, member by member.

    A row has the members' positions relative to the first one's node, the slow links of their nodes, and the leaf
    switches of their NICs. It does not include other users of those links (:func:`exclusive`).

    Parameters
    ----------
    groups
        GPUs, shape (groups, members).

    Returns
    -------
    array of shape (groups, columns), or None
        None: groups cannot be compared, because a link between switches is slow, flows are hashed to ports of NICs, or
        flows are spread over a user's graph of switches.
    """
    layout = cluster.layout
    if layout.nic_lanes > 1 or (isinstance(layout.fabric, Wiring) and layout.fabric.choices > 1):
        return None
    home = groups[:, :1] // layout.gpus * layout.gpus
    columns = [groups - home]
    if cluster.factors:
        marks = np.zeros(cluster.nodes, dtype=np.int64)
        slow: dict[int, list[tuple[int, float]]] = {}
        for link, factor in cluster.factors:
            if link < layout.host_start:
                node, local = divmod(link, layout.node_links)
            elif link < layout.nic_start:
                node, local = divmod(link - layout.host_start, 2 * layout.gpus)
                local += layout.node_links
            elif link < layout.switch_start:
                node, local = divmod(link - layout.nic_start, 2 * layout.nics * layout.nic_lanes)
                local += layout.node_links + 2 * layout.gpus
            else:
                return None
            slow.setdefault(node, []).append((local, factor))
        seen: dict[tuple[tuple[int, float], ...], int] = {}
        for node, links in slow.items():
            marks[node] = seen.setdefault(tuple(links), len(seen) + 1)
        columns.append(marks[groups // layout.gpus])
    if layout.fabric is not None and bool((groups // layout.gpus != groups[:, :1] // layout.gpus).any()):
        _, leaf, _ = layout.attachment(layout.nic_of(groups))
        # Leaves of a Clos network are equal up to their distance; in any other graph each leaf is distinct.
        columns.append(leaf if isinstance(layout.fabric, Wiring) else leaf - leaf[:, :1])
    return np.concatenate(columns, axis=1)


def exclusive(cluster: Cluster, gpus: ArrayLike, links: ArrayLike) -> bool:
    """Whether only these GPUs can move data over these links.

    That is so for links inside a node between members, between a member and its switch or NIC, and of a NIC that only
    serves members; not for links between switches.
    """
    layout = cluster.layout
    wanted = np.asarray(links, dtype=np.int64)
    if not wanted.size:
        return True
    if int(wanted.max()) >= layout.switch_start:
        return False
    member = np.zeros(cluster.gpus, dtype=bool)
    member[np.asarray(gpus)] = True
    inside = wanted[wanted < layout.host_start]
    node, local = np.divmod(inside, layout.node_links)
    if layout.mesh or layout.inside.star:
        ends = np.stack(layout.inside.ends)[:, local]
        users = (node * layout.gpus + ends)[ends < layout.gpus]
    else:  # messages of all GPUs of the node may use the link
        users = np.unique(node)[:, None] * layout.gpus + np.arange(layout.gpus)
    if not member[users].all():
        return False
    host = wanted[(wanted >= layout.host_start) & (wanted < layout.nic_start)]
    if not member[(host - layout.host_start) // 2].all():
        return False
    nics = (wanted[wanted >= layout.nic_start] - layout.nic_start) // (2 * layout.nic_lanes)
    if not nics.size:
        return True
    everyone = np.arange(cluster.gpus)
    strangers = np.unique(layout.nic_of(everyone[~member]))
    return not np.isin(nics, strangers).any()
