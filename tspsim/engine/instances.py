"""What is to be run: which rank runs which program, and by what ranks meet.

Every use of a template by a group of ranks: what it asks of which links.

A *connected component* is a set of ranks that reach each other through the groups their programs use. Components whose
members stand alike in the cluster and share no link with others are copies: one is built.
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
    consider_messages,
    host_copy,
    point_to_point,
    waiting,
)
from ..network.wiring import Wiring
from ..operators import Operator
from ..program import ExpertExchange, Program
from ..program.instructions import Content, Mesh
from .timeline import Label

#: What timelines call copies, by direction.
COPY_KINDS = {"copy_out": "out", "copy_in": "in"}
#: Seconds of one operator on the devices of the cluster.
Cost = Callable[[Operator], float]


@dataclass(frozen=True)
class Assignment:
    """Programs on a mesh: rank r runs ``programs[role_of[r]]``; ``slowness`` stretches the kernels of single ranks."""

    mesh: Mesh
    programs: tuple[Program, ...]
    role_of: NDArray[np.int64] = field(repr=False)
    slowness: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def uniform(cls, mesh: Mesh, program: Program) -> Assignment:
        """Every rank runs the same program."""
        return cls(mesh, (program,), np.zeros(int(mesh.ranks.max()) + 1, dtype=np.int64))

    @property
    def key(self) -> Hashable:
        """Equal for assignments of equal programs to the same ranks."""
        mesh, slow = self.mesh, tuple(sorted(self.slowness.items()))
        return mesh.key, self.programs, self.role_of[mesh.ranks].tobytes(), slow


@quick
@dataclass(frozen=True, slots=True)
class Template:
    """A collective, or one direction of a message, before it is known whose: what ranks meet by.

    ``offset`` is how far along the axis a message goes; it is 0 for a collective.
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
        """Whether a rank is alone with it: its own memory, its host's, a store."""
        return self.kind in COPY_KINDS

    @property
    def is_message(self) -> bool:
        return self.kind == "send_recv"

    def received_bytes(self, members: int) -> float:
        """Payload a rank receives and did not hold, mean over the group."""
        if self.is_message:
            return float(self.size_bytes)
        return KINDS.get(self.kind).received_bytes(self.size_bytes, members)


class Templates:
    """Templates of one mesh by number, in order of first use; no two meshes of an engine have the same numbers."""

    def __init__(self, mesh: Mesh, following: Iterator[int]) -> None:
        self.mesh = mesh
        self.numbers: dict[Template, int] = {}
        #: Those of every instruction met so far, by content: stages of a pipeline have the same.
        self.labels: dict[Content, Label] = {}
        self._following = following

    def number(self, template: Template) -> int:
        if template not in self.numbers:
            self.numbers[template] = next(self._following)
        return self.numbers[template]

    def __iter__(self) -> Iterator[tuple[Template, int]]:
        return iter(self.numbers.items())


# --- every use of a template by a group of ranks --------------------------------------------------------------

Integers = NDArray[np.int64]


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
    first: dict[bytes, int] = {}
    counts: Counter[int] = Counter()
    for index, row in enumerate(row_bytes(np.concatenate([kinds[components], around], axis=1))):
        counts[first.setdefault(row, index)] += 1
    return list(counts.items())


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
    # Groups that stand alike have the same bytes on links that are as fast.
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
        if entry is None:  # the traffic is kept beside them, so that its number stays its own
            entry = shares_of[id(traffic.link_bytes)] = link_shares(cluster, traffic), traffic
        shares = entry[0]
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
        exchange=template.tokens,
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
    if not traffic.links:
        return ()
    busy_s = np.array(traffic.link_bytes) / cluster.links.bandwidth_bytes_per_s[np.array(traffic.links)]
    longest_s = busy_s.max()
    # Plain floats: a numpy number here would spread over every rate and the clock itself.
    return tuple((busy_s / longest_s if longest_s > 0.0 else np.zeros(len(busy_s))).tolist())


class Uses(NamedTuple):
    """Every use of a link in columns: by which instance (its place among them), of which link, which share of it."""

    instance: Integers
    link: Integers
    share: NDArray[np.float64]


def used_links(instances: Sequence[Instance]) -> Uses:
    """Those of some instances, one after the other."""
    lengths = [len(instance.traffic.links) for instance in instances]
    link = np.fromiter(chain.from_iterable(instance.traffic.links for instance in instances), np.int64, sum(lengths))
    share = np.fromiter(chain.from_iterable(instance.shares for instance in instances), np.float64, len(link))
    return Uses(np.repeat(np.arange(len(instances)), lengths), link, share)


def segments(column: Integers) -> tuple[Integers, Integers]:
    """Where each run of equal numbers begins in a column, and where it ends."""
    borders = np.flatnonzero(column[1:] != column[:-1]) + 1
    inner: Integers = borders.astype(np.int64)
    return np.concatenate([[0], inner]), np.concatenate([inner, [len(column)]])


# --- sets of GPUs that stand alike ----------------------------------------------------------------------------


def row_bytes(rows: NDArray[np.int64]) -> list[bytes]:
    """Every row as bytes: equal for equal rows."""
    whole = np.ascontiguousarray(rows)
    voids: Any = whole.view(np.dtype((np.void, whole.shape[1] * whole.itemsize))).reshape(-1).tolist()
    return cast("list[bytes]", voids)


def surroundings(cluster: Cluster, groups: Integers) -> Integers | None:
    """A row a group of GPUs; equal rows mean that the links *among* the members are alike, member by member.

    A row holds where the members stand relative to the first one's node, which slow links their nodes have, and how
    their NICs spread over leaf switches. What others do with those links is not in it (:func:`owned`).

    Parameters
    ----------
    groups
        GPUs, shape (groups, members).

    Returns
    -------
    array of shape (groups, columns), or None
        None where a link between switches is slow, each flow draws a port of its NIC, or flows are spread over a graph
        of switches that somebody gave: then no two groups can be told to be alike without looking.
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
        # Leaves of a Clos network are told by how far they are apart; in any other graph each is itself.
        columns.append(leaf if isinstance(layout.fabric, Wiring) else leaf - leaf[:, :1])
    return np.concatenate(columns, axis=1)


def owned(cluster: Cluster, gpus: ArrayLike, links: ArrayLike) -> bool:
    """Whether only these GPUs can ever move data over these links.

    Links inside a node between members, between a member and its switch or NIC, and of a NIC that serves members alone
    are owned; links between switches are not.
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
    else:  # whoever sends across the node may pass
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
