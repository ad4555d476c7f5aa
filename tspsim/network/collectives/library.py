"""Collectives of a library: for each size, the cheapest of its algorithms.

A library's tuner adds a latency and a transfer time for each algorithm and protocol, and takes the smallest sum (NCCL,
src/graph/tuning.cc). So does :func:`collective`, with this cluster's links instead of the tuner's bandwidths.

A serving engine may have all-reduce kernels inside a node:

    one-shot   base + hop·(n−1) + (n−1)·S/(B·e)     every rank reads every vector
    two-shot   base + hop·(n−1) + V/(B·e)           reduce-scatter and all-gather, V = 2·S·(n−1)/n
    fallback   the same with its own parameters     large messages go to the collective library
    t = (Σ t^−12)^(−1/12)

The formulas follow the kernels (vllm csrc/custom_all_reduce.cuh, TensorRT-LLM customAllReduceKernels.cu).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...base.errors import InputError, UnknownNameError, shorten
from ...program import ExpertExchange
from ..cluster import Cluster
from ..kinds import ALL_REDUCE, ALL_TO_ALL, KINDS, CollectiveKind
from . import (
    direct,
    in_memory,
    multi_ring,  # noqa: F401  (each registers)
    pools,  # noqa: F401
    ring,  # noqa: F401
    tree,  # noqa: F401
    two_level,  # noqa: F401
)
from .algorithm import (
    ALGORITHMS,
    AlgorithmCandidate,
    cheapest,
    floor_and_stretch,
    inside_bytes_per_s,
    protocol_candidates,
)
from .copy_engines import COPY_ENGINES  # noqa: F401  (registers)
from .experts import copies, exchange_candidate, expert_curve
from .schedule import Group, on_links, power_sum, summed
from .traffic import NOTHING, GroupPosition, Traffic, position_of, renumbered_links

if TYPE_CHECKING:
    from ..calibration import CustomAllReduce, TransferSpread


def collective(
    cluster: Cluster,
    ranks: Sequence[int],
    kind: str,
    size_bytes: float,
    *,
    root: int = 0,
    algorithm: str | None = None,
    library: str | None = None,
    exchange: ExpertExchange | None = None,
) -> Traffic:
    """Time and link loads of one collective of a group.

    Parameters
    ----------
    cluster
        Cluster of the ranks.
    ranks
        Distinct GPU numbers.
    kind
        A name in :data:`KINDS`: ``all_gather``, ``reduce_scatter``, ``all_reduce``, ``broadcast``, ``all_to_all``, or
        ``ring_shift``, a hop around the ring of every node's ranks.
    size_bytes
        Bytes as nccl-tests counts: the result of an all-gather, the whole input of a reduce-scatter, the vector of an
        all-reduce or broadcast, a rank's input of an all-to-all, a rank's message of a ring shift.
    root
        Position in ``ranks`` of a broadcast's source.
    algorithm
        Name in :data:`ALGORITHMS`; None: the cheapest of those that the node's library considers. ``dispatch``,
        ``combine`` and their ``_low_latency`` forms run an all-to-all as the exchange of an expert-parallel library
        (docs/network.md).
    library
        Version or launch mode of the node's library, or the all-reduce kernels of a serving engine: a name in
        ``cluster.node.collectives.libraries``. None: the node's ``default_library``, else the middle of the measured
        ones.
    exchange
        Contents of a ``dispatch`` or ``combine``. The library then determines the bytes (such as one copy an expert),
        and ``size_bytes`` only applies if the node has no such library. None: a typical exchange of ``size_bytes``.

    Returns
    -------
    Traffic

    Raises
    ------
    InputError
        An argument is wrong, or the named algorithm cannot run on these ranks.
    UnreachableError
        Dead links leave no route.

    Examples
    --------
    >>> from tspsim.network import load_cluster
    >>> traffic = collective(load_cluster("mi300x-8"), range(8), "all_reduce", 2**30)
    >>> traffic.algorithm, len(traffic.links), traffic.link_bytes[0] / 2**30
    ('direct', 56, 0.25)
    """
    members = tuple(ranks)
    key = (members, kind, size_bytes, root, algorithm, library, exchange)
    remembered: Traffic | None = cluster.memo.get(key)
    if remembered is not None:
        return remembered
    registered = KINDS.get(kind)
    group = _checked(cluster, members, registered, size_bytes, root)
    named = ALGORITHMS.get(algorithm) if algorithm is not None else None
    check_library(cluster, library)
    if library is None and algorithm is None and engine_takes(group, registered):
        library = cluster.engine_all_reduces
    library = library or cluster.node.collectives.default_library
    traffic = NOTHING
    if group.size > 1 and size_bytes > 0:
        if exchange is not None and named is not None:
            size_bytes = named.size_bytes(group, size_bytes, library, exchange)
        traffic = _traffic(group, registered, float(size_bytes), algorithm, library, exchange)
    return _memoised(cluster, key, traffic)


def exchange_experts(
    cluster: Cluster,
    ranks: Sequence[int],
    phase: str,
    exchange: ExpertExchange,
    *,
    mode: str = "normal",
    library: str | None = None,
) -> Traffic:
    """Time and link loads of one phase of an expert exchange: tokens to their experts, or back.

    Parameters
    ----------
    cluster
        Cluster of the ranks.
    ranks
        Distinct GPU numbers, at the same positions in every node.
    phase
        ``dispatch`` or ``combine``.
    exchange
        Contents of the exchange.
    mode
        ``normal``, ``low_latency`` or ``asynchronous``.
    library
        Expert-parallel library; None: the node's first.

    Raises
    ------
    InputError
        An argument is wrong, or the node has no measured library for this phase, mode and group.

    Examples
    --------
    >>> from tspsim.network import load_cluster
    >>> few = ExpertExchange(tokens=128, token_bytes=7168)
    >>> exchange_experts(load_cluster("hgx-h100-8"), range(8), "dispatch", few).algorithm
    'dispatch'
    """
    group = _checked(cluster, tuple(ranks), ALL_TO_ALL, 0.0, 0)
    check_library(cluster, library)
    curve = expert_curve(group, phase, mode, library)
    if curve is None or not group.regular:
        modes = sorted({f"{curve.mode} {curve.phase} on {curve.nodes}" for curve in cluster.node.collectives.experts})
        where = "one node" if len(group.members) == 1 else "several nodes"
        raise InputError(
            f"{cluster.node.name} has no {mode} {phase} of experts on {where} with as many ranks each; "
            f"it has: {', '.join(modes) or 'none'}"
        )
    if group.size == 1 or exchange.tokens <= 0.0:
        return NOTHING
    size_bytes = exchange.tokens * exchange.token_bytes * copies(curve, exchange, group.size)
    return cheapest([exchange_candidate(group, curve, exchange, phase)], size_bytes)


def check_library(cluster: Cluster, library: str | None) -> None:
    """Raise UnknownNameError if the node does not have this library."""
    versions = cluster.node.collectives.libraries
    if library is not None and library not in versions:
        raise UnknownNameError("library", library, versions)


def point_to_point(cluster: Cluster, source: int, destination: int, size_bytes: float) -> Traffic:
    """Time and link loads of one message by the collective library.

    Parameters
    ----------
    cluster
        Cluster of both GPUs.
    source, destination
        GPU numbers; equal ones move nothing.
    size_bytes
        Bytes of the message.

    Raises
    ------
    InputError
        An argument is wrong.

    Examples
    --------
    >>> from tspsim.network import load_cluster
    >>> point_to_point(load_cluster("mi300x-8"), 0, 1, 64e6).link_bytes
    (64000000.0,)
    """
    key = ("point_to_point", source, destination, size_bytes)
    remembered: Traffic | None = cluster.memo.get(key)
    if remembered is not None:
        return remembered
    _check_size(size_bytes)
    ends = cluster.check_gpu(source), cluster.check_gpu(destination)
    traffic = NOTHING
    if ends[0] != ends[1] and size_bytes > 0:
        candidates = cluster.memo.get(("candidates", "point_to_point", ends))
        if candidates is None:
            route_messages(cluster, [ends])
            candidates = cluster.memo["candidates", "point_to_point", ends]
        traffic = cheapest(candidates, float(size_bytes))
    return _memoised(cluster, key, traffic)


def route_messages(cluster: Cluster, pairs: Sequence[tuple[int, int]]) -> None:
    """Compute the routes of messages between distinct GPUs of the cluster in one batch, and keep them in its memo.

    Raises
    ------
    UnreachableError
        Dead links leave no route.
    """
    memo, layout = cluster.memo, cluster.layout.for_messages
    new = [ends for ends in dict.fromkeys(pairs) if ("candidates", "point_to_point", ends) not in memo]
    if not new:
        return
    sources, destinations = np.array(new, dtype=np.int64).T
    usual = layout.sound.routes(sources, destinations)
    routes = layout.routes(sources, destinations) if layout.dead else usual
    across = sources // layout.gpus != destinations // layout.gpus
    relayed = across & (np.take_along_axis(usual, (usual >= 0).argmax(axis=1)[:, None], 1)[:, 0] < layout.host_start)
    pool = cluster.node.memory_pool is not None
    for ends, route, far, stops in zip(new, routes, across.tolist(), relayed.tolist(), strict=True):
        if pool and not far:
            memo["candidates", "point_to_point", ends] = (in_memory.message(Group(cluster, ends)),)
            continue
        links, load = summed(route[route >= 0], np.ones(int((route >= 0).sum())))
        schedule = on_links(
            Group(cluster, ends),
            "point_to_point",
            links,
            load,
            node_steps=int(not far or stops) + layout.relays(*([end] for end in ends)),
            net_steps=int(far),
        )
        memo["candidates", "point_to_point", ends] = protocol_candidates(cluster, "point_to_point", schedule, 1.0)


def candidates_of(
    group: Group,
    kind: CollectiveKind,
    algorithm: str | None,
    library: str | None,
    exchange: ExpertExchange | None = None,
) -> tuple[AlgorithmCandidate, ...]:
    """Candidates of the named algorithm, or of all algorithms that the library's tuner considers.

    Raises
    ------
    InputError
        The algorithm or library cannot run this kind on these ranks.
    """
    if algorithm is None and (engine := engine_candidates(group, kind, library)):
        return engine
    node = group.cluster.node
    named = ALGORITHMS.get(algorithm) if algorithm is not None else None
    if named is not None and kind.name in named.kinds and named.missing(group, library):
        named = None
    here = node.collectives.inside_node if len(group.members) == 1 else node.collectives.between_nodes
    listed = here.get(kind.name, kind.considered) or ALGORITHMS.names()
    algorithms = [ALGORITHMS.get(name) for name in listed] if named is None else [named]
    candidates = [candidate for able in algorithms for candidate in able.candidates(group, kind, library, exchange)]
    if not candidates:
        able = [other.name for other in ALGORITHMS.values() if other.schedules(group, kind)]
        refused = f"algorithm '{named.name}' cannot" if named else f"no algorithm of {node.name} can"
        if named is not None and named.needs and getattr(node, named.needs) is None:
            refused = f"{node.name} states no {named.needs}: algorithm '{named.name}' cannot"
        others = ", ".join(able) or "none"
        raise InputError(f"{refused} run {kind.name} on these {group.size} ranks; here: {others}")
    return tuple(candidates)


def _checked(cluster: Cluster, ranks: tuple[int, ...], kind: CollectiveKind, size_bytes: float, root: int) -> Group:
    _check_size(size_bytes)
    gpus = tuple([cluster.check_gpu(rank) for rank in ranks])
    if len(set(gpus)) != len(gpus) or not gpus:
        raise InputError(f"ranks {shorten(gpus)} of a {kind.name} must be distinct GPUs, at least one")
    if not 0 <= root < len(gpus):
        raise InputError(f"root {shorten(root)} is a position among {len(gpus)} ranks: 0 to {len(gpus) - 1}")
    return Group(cluster, gpus, root)


def _check_size(size_bytes: float) -> None:
    if not 0.0 <= size_bytes < math.inf:
        raise InputError(f"size {shorten(size_bytes)} must be a finite number of bytes, 0 or more")


def _traffic(
    group: Group,
    kind: CollectiveKind,
    size_bytes: float,
    algorithm: str | None,
    library: str | None,
    exchange: ExpertExchange | None = None,
) -> Traffic:
    """Traffic of the cheapest candidate, computed once for all groups at equivalent positions."""
    cluster = group.cluster
    # Candidates are for one byte, whatever the number of tokens.
    exchange = exchange._replace(tokens=1.0) if exchange else None
    position_key = ("position", group.ranks)
    position: GroupPosition | None = cluster.memo.get(position_key)
    if position is None:
        position = cluster.memo[position_key] = position_of(cluster, group.ranks)
    source = -1
    if kind.rooted:  # equivalent groups share a root by its number in the group
        source = group.source if position is None else sorted(group.ranks).index(group.source)
    members = frozenset(group.ranks) if position is None else position.key
    key = ("candidates", kind.name, algorithm, library, members, source, exchange)
    entry: tuple[tuple[AlgorithmCandidate, ...], GroupPosition | None] | None = cluster.memo.get(key)
    if entry is None:
        entry = candidates_of(group, kind, algorithm, library, exchange), position
        cluster.memo[key] = entry
    candidates, first = entry
    if first is None or position is None:
        return cheapest(candidates, size_bytes)
    # Equivalent groups share one tuple of link bytes, so that per-link sums are computed once for all of them.
    traffic: tuple[Traffic, NDArray[np.int64]] | None = cluster.memo.get((key, size_bytes))
    if traffic is None:
        like = cheapest(candidates, size_bytes)
        traffic = cluster.memo[key, size_bytes] = like, np.array(like.links, dtype=np.int64)
    like, links = traffic
    return like if first is position else like.on(tuple(renumbered_links(cluster, links, first, position).tolist()))


def _memoised(cluster: Cluster, key: object, traffic: Traffic) -> Traffic:
    cluster.memo[key] = traffic
    return traffic


# --- all-reduce kernels of serving engines, inside a node -----------------------------------------------------

SHARPNESS = 12.0
#: GPUs that the kernels are made for (vllm, custom_all_reduce.py: _SUPPORTED_WORLD_SIZES).
MOST_RANKS = 8


@dataclass(frozen=True, slots=True)
class Custom:
    """All-reduce kernels of one engine on ``ranks`` GPUs with links of ``bandwidth_bytes_per_s`` in each direction.

    ``floor_s`` is the seconds a byte on the slowest link, ``stretch`` (≥ 1) its ratio to that at specified bandwidths.
    """

    kernels: CustomAllReduce
    ranks: int
    bandwidth_bytes_per_s: float
    floor_s: float
    stretch: float = 1.0

    @property
    def spread(self) -> TransferSpread:
        return self.kernels.spread

    def alone(self, size_bytes: float) -> tuple[float, float]:
        """Uncontended (latency, fluid part) in seconds of an all-reduce of ``size_bytes``."""
        peers = self.ranks - 1
        passed = 2.0 * size_bytes * peers / self.ranks
        shots = [(self.kernels.one_shot, peers * size_bytes), (self.kernels.fallback, passed)]
        if self.kernels.two_shot is not None:
            shots.append((self.kernels.two_shot, passed))
        # Of a mesh some links may carry more than others: no kernel is faster than the slowest, at its specified rate.
        least = size_bytes * self.floor_s / self.stretch
        moving = [max(least, moved / (self.bandwidth_bytes_per_s * shot.efficiency)) for shot, moved in shots]
        times = [shot.base + peers * shot.hop + seconds for (shot, _), seconds in zip(shots, moving, strict=True)]
        total = power_sum(times, -SHARPNESS)
        fluid = min(moving[times.index(min(times))], total)
        # The rest of the smooth minimum is latency, so that neither part falls where another kernel becomes fastest.
        return max(0.0, total - fluid), max(fluid * self.stretch, size_bytes * self.floor_s)


def engine_takes(group: Group, kind: CollectiveKind) -> bool:
    """Whether serving engines have kernels for a group: an all-reduce of at most MOST_RANKS GPUs in one node."""
    return kind is ALL_REDUCE and len(group.members) == 1 and group.size <= MOST_RANKS


def engine_candidates(group: Group, kind: CollectiveKind, library: str | None) -> tuple[AlgorithmCandidate, ...]:
    """Candidate of the serving engine that ``library`` names; empty if it names none.

    Raises
    ------
    InputError
        The engine has no kernel for this kind or group.
    """
    curves = [curve for curve in group.cluster.node.collectives.custom_all_reduce if curve.library == library]
    if not curves:
        return ()
    if kind is not ALL_REDUCE or len(group.members) > 1:
        raise InputError(f"library '{library}' only has all_reduce inside one node")
    schedule = direct.build(group, kind)[0]
    floor, stretch = floor_and_stretch(group, schedule, lambda sound: direct.build(sound, kind)[0])
    cost = Custom(curves[0], group.size, inside_bytes_per_s(group), floor, stretch)
    return (AlgorithmCandidate(curves[0].library.replace(" ", "_"), schedule, cost),)
