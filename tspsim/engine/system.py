"""From programs on meshes to simulated devices and channels, with one partition of the ranks for all programs.

Inside a connected component every use of a template by a group is an *instance* with its own links
(:mod:`tspsim.engine.instances`). :mod:`tspsim.engine.classes` groups equal ranks and equal instances into classes. To
run every rank, all components are built and this last step is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count

import numpy as np
from numpy.typing import NDArray

from ..base.errors import TspsimError
from ..base.memo import BoundedCache, once
from ..network import Cluster
from ..network.fluid import Channel
from ..network.sharing import Solutions
from .classes import Floats, RankClasses, connect, links_of, number, sums, users_of
from .instances import (
    Assignment,
    Cost,
    Instance,
    Integers,
    Templates,
    distinct_components,
    exclusive,
    mesh_components,
    template_instances,
    used_links,
)
from .lowered import LoweredProgram, lower_program
from .ranks import Rank, SimulatedDevice

#: Bounds of a cluster's memos: links of all instances; number of partitions, for the steps and blocks of a few plans.
MOST_LINKS, MOST_ALIKE = 500_000, 8


@dataclass(frozen=True)
class SimulatedRank:
    """A simulated rank, which represents ``size`` equal ones."""

    rank: Rank
    role: LoweredProgram
    size: int


@dataclass(frozen=True)
class System:
    """Simulated ranks and channels of an assignment."""

    ranks: Sequence[SimulatedRank]
    #: Every built instance with its channel.
    instances: Sequence[tuple[Instance, Channel]] = field(repr=False)
    #: Unequal loads between switches do not split classes: each class moves at its slowest link (:func:`rank_classes`).
    at_worst: bool = False
    #: Note on how the run was shortened, for the result.
    note: str = ""

    @property
    def channels(self) -> list[Channel]:
        """Distinct channels of the instances."""
        return list(dict.fromkeys(channel for _, channel in self.instances))

    def horizon_s(self, role: LoweredProgram) -> float:
        """Seconds of a role's program with all instructions one after the other: the scale of the run."""
        transfer_s: dict[int, float] = {}
        for instance, _ in self.instances:
            alone_s = instance.traffic.latency_s + instance.traffic.fluid_s
            transfer_s[instance.template] = max(alone_s, transfer_s.get(instance.template, 0.0))
        return role.alone_s(transfer_s)

    def uses(self) -> Mapping[Channel, int]:
        """Number of uses of each channel by the programs."""
        return self._uses

    @once
    def _uses(self) -> Mapping[Channel, int]:
        by_role: dict[int, Counter[int]] = {}
        uses = dict.fromkeys(self.channels, 0)
        for simulated in self.ranks:
            role, channels = simulated.role, simulated.rank.device.channels
            if id(role) not in by_role:
                by_role[id(role)] = role.uses()
            for key, times in by_role[id(role)].items():
                # Half 0 of a key is a collective or a send: one for each use.
                if key % 2 == 0 and key in channels:
                    uses[channels[key]] = times
        return uses

    def link_loads(self) -> tuple[Integers, Floats, Integers]:
        """(link, bytes that it carried, number of equal components) of the components that were built, as columns."""
        uses = self.uses()
        every = [(instance.traffic, uses[channel], instance.copies) for instance, channel in self.instances]
        lengths = [len(traffic.links) for traffic, _, _ in every]
        if not sum(lengths):
            return np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0, dtype=np.int64)
        link = np.fromiter(chain.from_iterable(traffic.links for traffic, _, _ in every), np.int64, sum(lengths))
        sizes = np.fromiter(chain.from_iterable(traffic.link_bytes for traffic, _, _ in every), np.float64, len(link))
        times, copies = (np.repeat(np.array([row[place] for row in every]), lengths) for place in (1, 2))
        distinct, carried = sums(link, times * sizes)
        # Links of several instances get the copies of the last one.
        copies_of = np.zeros(int(distinct[-1]) + 1, dtype=np.int64)
        copies_of[link] = copies
        return distinct, carried, copies_of[distinct]


@dataclass(eq=False)
class Prepared:
    """An assignment that can be launched any number of times: costed, with interned templates and folded ranks."""

    assignment: Assignment
    roles: Sequence[LoweredProgram] = field(repr=False)
    templates: Templates = field(repr=False)
    #: Number by GPU: equal for ranks with equal programs and costs, −1 for GPUs without a program.
    kinds: NDArray[np.int64] = field(repr=False)
    #: Simulated ranks and channels; None until its ranks are folded together with all that is prepared.
    system: System | None = field(default=None, repr=False)


def rank_kinds(assignment: Assignment, roles: Sequence[LoweredProgram], gpus: int) -> NDArray[np.int64]:
    """Number by GPU: equal for ranks with programs of equal costs on equally fast devices; −1 outside the mesh."""
    ranks = assignment.mesh.ranks.reshape(-1)
    kinds = np.full(gpus, -1, dtype=np.int64)
    kinds[ranks] = np.array(number([role.signature for role in roles]), dtype=np.int64)[assignment.role_of[ranks]]
    slow = sorted((rank, factor) for rank, factor in assignment.slowness.items() if kinds[rank] >= 0)
    marks = number([(int(kinds[rank]), factor) for rank, factor in slow])
    for (rank, _), mark in zip(slow, marks, strict=True):
        kinds[rank] = len(roles) + mark
    return kinds


class Partition:
    """Classes of a cluster's ranks that are equal under everything prepared so far, and a device for each class.

    It is the coarsest partition that is stable under the groups and links of every assignment. So ranks of a class stay
    equal whatever is launched at any time, as long as assignments are launched whole. The partition is computed on
    first use after something was prepared that may split classes.
    """

    def __init__(self, cluster: Cluster, *, every_rank: bool = False) -> None:
        self.cluster = cluster
        self.every_rank = every_rank
        self.devices: dict[int, SimulatedDevice] = {}
        self._at_worst = False
        self.stable = False
        self._kinds = np.zeros(cluster.gpus, dtype=np.int64)
        self._templates: dict[Hashable, Templates] = {}
        self._numbers = count()
        self._prepared: list[Prepared] = []
        self._instances: dict[Hashable, list[Instance]] = {}
        # The next run of a plan often has the same groups and classes.
        lately = cluster.memo.once
        self._instances_lately = lately(("engine", "instances"), lambda: BoundedCache(MOST_LINKS, size=links_of))
        self._alike_lately = lately(("engine", "classes"), lambda: BoundedCache(MOST_ALIKE))
        self._carried: list[tuple[Instance, Channel]] = []
        self.solutions = Solutions()

    def prepare(self, assignment: Assignment, cost: Cost) -> Prepared:
        """Lower an assignment's programs, and register it for the next partition."""
        mesh, met = assignment.mesh, assignment.mesh.key in self._templates
        templates = self._templates.setdefault(mesh.key, Templates(mesh, self._numbers))
        before = len(templates.numbers), int(self._kinds.max())
        roles = [lower_program(program, cost, templates) for program in assignment.programs]
        kinds = rank_kinds(assignment, roles, self.cluster.gpus)
        prepared = Prepared(assignment, roles, templates, kinds)
        self._prepared.append(prepared)
        _, self._kinds = np.unique(self._kinds * (int(kinds.max()) + 2) + kinds + 1, return_inverse=True)
        # Without new templates or kinds of ranks the classes stay as they are.
        self.stable = self.stable and met and before == (len(templates.numbers), int(self._kinds.max()))
        if self.stable:
            prepared.system = system_of(prepared, self.devices.values(), self._carried, at_worst=self._at_worst)
        return prepared

    def settle(self, in_flight: Iterable[Prepared]) -> None:
        """Refine the classes until they are stable under all that is prepared; give each a device and channels.

        Raises
        ------
        TspsimError
            A class of ranks in a submission in flight would be split.
        """
        members, parts = self._built()
        instances = list(chain.from_iterable(parts))
        if self.every_rank:
            everyone = list(range(len(members))), list(range(len(instances))), False
            alike = RankClasses(everyone, users_of(used_links(instances), everyone[1]))
        else:
            among = tuple(members), self._kinds.tobytes()
            alike = self._alike_lately.of_parts(
                parts, among, lambda: RankClasses.of(self.cluster, members, self._kinds, instances)
            )
        rank_class, instance_class, self._at_worst = alike.classes
        self.solutions = alike.solutions
        sizes: Counter[int] = Counter()
        first_of: dict[int, int] = {}
        for (rank, copies), cls in zip(members, rank_class, strict=True):
            sizes[cls] += copies
            if cls not in first_of or (rank in self.devices and first_of[cls] not in self.devices):
                first_of[cls] = rank
        same = {
            rank for cls, rank in first_of.items() if rank in self.devices and self.devices[rank].size == sizes[cls]
        }
        for prepared in in_flight:
            if prepared.system is not None and any(
                simulated.rank.number not in same for simulated in prepared.system.ranks
            ):
                raise TspsimError(
                    "this assignment splits a class of ranks in a submission in flight: "
                    "prepare it before that launch, or run every rank"
                )
        by_class = {
            cls: self.devices[rank] if rank in same else SimulatedDevice(rank, sizes[cls])
            for cls, rank in first_of.items()
        }
        self.devices = {device.number: device for device in by_class.values()}
        device_of = {rank: by_class[cls] for (rank, _), cls in zip(members, rank_class, strict=True)}
        channels = connect(instances, instance_class, alike.users, device_of, self.cluster.links.bandwidth_bytes_per_s)
        self._carried = [(instance, channels[cls]) for instance, cls in zip(instances, instance_class, strict=True)]
        for prepared in self._prepared:
            if prepared.system is None or any(simulated.rank.number not in same for simulated in prepared.system.ranks):
                prepared.system = system_of(prepared, self.devices.values(), self._carried, at_worst=self._at_worst)
        self.stable = True

    def _built(self) -> tuple[list[tuple[int, int]], list[list[Instance]]]:
        """(rank, number of equal components) of the ranks, and the instances among them by template.

        If all that is prepared is on one mesh, equal components are built once; else all components are built.
        """
        cluster, tables = self.cluster, list(self._templates.values())
        if len(tables) > 1:
            ranks = np.unique(np.concatenate([templates.mesh.ranks.reshape(-1) for templates in tables]))
            return [(rank, 1) for rank in ranks.tolist()], [
                built for templates in tables for built in self._among(templates.mesh.ranks.reshape(-1), templates, 1)
            ]
        (templates,) = tables
        mesh = templates.mesh
        met = {part for template, _ in templates for part in mesh.parts(template.axis)}
        components = mesh_components(mesh, tuple(axis for axis in mesh.axes if axis in met))
        chosen = [(index, 1) for index in range(len(components))]
        if not self.every_rank:
            distinct = distinct_components(cluster, components, self._kinds)
            # One component of each kind suffices only if components share no links.
            if len(distinct) < len(components) and all(
                exclusive(cluster, components[index], instance.traffic.links)
                for index, copies in distinct
                if copies > 1 or len(distinct) > 1
                for instance in chain.from_iterable(self._among(components[index], templates, copies))
            ):
                chosen = distinct
        return [(int(rank), copies) for index, copies in chosen for rank in components[index]], [
            built for index, copies in chosen for built in self._among(components[index], templates, copies)
        ]

    def _among(self, component: NDArray[np.int64], templates: Templates, copies: int) -> list[list[Instance]]:
        """Instances of every template in every group of the component, from the memo if possible."""
        mesh, place = templates.mesh, component.tobytes()
        instances: list[list[Instance]] = []
        # Meshes that differ only along other axes have the same groups along this one.
        axes = {template.axis for template, _ in templates if not template.is_copy}
        groups = {axis: mesh.groups(axis) for axis in axes}
        lines = {axis: (members.shape, members.tobytes()) for axis, members in groups.items()}
        for template, index in templates:
            key = lines.get(template.axis), template, index, place, copies
            built = self._instances.get(key) or self._instances_lately.get(key)
            if built is None:
                built = list(template_instances(self.cluster, component, mesh, template, index, copies))
                self._instances_lately[key] = built
            self._instances[key] = built
            instances.append(built)
        return instances


def system_of(
    prepared: Prepared,
    devices: Iterable[SimulatedDevice],
    carried: Iterable[tuple[Instance, Channel]],
    *,
    at_worst: bool,
) -> System:
    """Simulated ranks and instances of an assignment."""
    assignment = prepared.assignment
    used = {key // 2 for role in prepared.roles for takes in role.by_instruction.values() for key in takes.keys}
    ranks = []
    named: dict[int, LoweredProgram] = {}
    for device in devices:
        if prepared.kinds[device.number] < 0:
            continue
        role = int(assignment.role_of[device.number])
        if role not in named:
            named[role] = with_algorithms(prepared.roles[role], device)
        rank = Rank(device, assignment.slowness.get(device.number, 1.0))
        ranks.append(SimulatedRank(rank, named[role], device.size))
    return System(ranks, [(instance, channel) for instance, channel in carried if instance.template in used], at_worst)


def with_algorithms(role: LoweredProgram, device: SimulatedDevice) -> LoweredProgram:
    """The role with the algorithm of one of its devices' channels in the labels of communication."""
    distinct = list(role.distinct)
    for _, keys, label, _, _, _ in role.by_instruction.values():
        channel = device.channels.get(keys[0]) if keys else None
        if channel is not None:
            distinct[label] = distinct[label].with_shape(f"{distinct[label].shape}, {channel.algorithm}")
    return replace(role, distinct=distinct)
