"""Clusters and programs that hypothesis draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from helpers.engine import collective, grid, hop, kernel, program
from hypothesis import strategies as st

from tspsim.engine.core import Interference
from tspsim.network import build_cluster, load_cluster
from tspsim.program import COLLECTIVE_KINDS, Compute, Instruction, Program
from tspsim.program.instructions import Mesh

CLUSTERS = {name: load_cluster(name) for name in ("mi300x-8", "hgx-h100-8", "mi300x-2x8", "h100-2x8")}
#: Leaf switches a rail, and spines so narrow that groups of different rails share them.
CLUSTERS["narrow spines"] = build_cluster("h100", 2, "rail-optimised-400g", oversubscription=16.0)
#: The same with one link inside a node, or one on the way between nodes, at a part of its bandwidth; or dead links that
#: leave a way: of meshes inside the node, of others between nodes.
FLAWED = {
    f"{name}, link {link} slow": cluster.with_links({(cluster.links.source[link], cluster.links.target[link]): 0.4})
    for name, cluster in CLUSTERS.items()
    for link in (0, len(cluster.links) - 1)
} | {
    "mi300x-8, pair 0 and 1 dead": CLUSTERS["mi300x-8"].with_links({(0, 1): 0.0, (1, 0): 0.0}),
    "mi300x-2x8, pair 2 and 5 dead": CLUSTERS["mi300x-2x8"].with_links({(2, 5): 0.0, (5, 2): 0.0, (8, 9): 0.5}),
    "mi300x-2x8, a NIC dead": CLUSTERS["mi300x-2x8"].without("node1/nic3"),
    "h100-2x8, a NIC dead": CLUSTERS["h100-2x8"].without("node0/nic0"),
    "h100-2x8, a rail dead": CLUSTERS["h100-2x8"].without("rail2/leaf0"),
    "narrow spines, one dead": CLUSTERS["narrow spines"].without("spine1"),
}
SIZES = st.sampled_from([0, 1000, 10**6, 3 * 10**7, 10**8, 10**9])
INTERFERENCE = st.sampled_from([Interference(), Interference(1.3, 1.15), Interference(compute=2.0)])
#: Instructions of the longest program.
MOST = 12


@st.composite
def programs(
    draw: st.DrawFn, *, axes: str = "xy", streams: int = 3, repeat_kernels: int = 2, most: int = MOST
) -> tuple[Program, ...]:
    """One or two programs of the same communication in the same order, with kernels of their own lengths.

    Waits are for any earlier instruction, so no order of arrival locks ranks against each other.
    """
    shape: list[Instruction] = []
    for index in range(draw(st.integers(1, most))):
        after = draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set[int]()
        stream = f"moves {draw(st.integers(1, streams))}"
        axis = draw(st.sampled_from(axes))
        what = draw(st.sampled_from(["kernel", "collective", "hop"]))
        if what == "kernel":
            shape.append(kernel(0.0, after=sorted(after)))
        elif what == "collective":
            kind, root = draw(st.sampled_from(COLLECTIVE_KINDS)), draw(st.integers(0, 1))
            root = root if kind == "broadcast" else 0
            shape.append(collective(kind, draw(SIZES), axis=axis, after=sorted(after), stream=stream, root=root))
        else:
            to = draw(st.sampled_from([-1, 1]))
            shape.append(hop(draw(SIZES), axis=axis, to=to, after=sorted(after), stream=stream))
    lengths = st.sampled_from([0.0, 1e-5, 2e-4, 1e-3, 5e-3])

    def drawn(after: tuple[int, ...]) -> Compute:
        # One in four runs a second round beside a transfer.
        begun = kernel(draw(lengths), after=after)
        resident = not draw(st.integers(0, 3))
        return replace(begun, operators=tuple(replace(item, resident=resident) for item in begun.operators))

    return tuple(
        program(
            *(drawn(entry.after) if isinstance(entry, Compute) else entry for entry in shape),
            role=f"role {number}",
        )
        for number in range(draw(st.integers(1, repeat_kernels)))
    )


@st.composite
def machines(draw: st.DrawFn, *names: str) -> tuple[str, Mesh]:
    """A cluster by name and a mesh on it: an axis of two or four beside another, either one inside, in the order of
    the GPUs or shuffled."""
    name = draw(st.sampled_from(names or sorted(CLUSTERS)))
    cluster, inner = (CLUSTERS | FLAWED)[name], draw(st.sampled_from([2, 4]))
    mesh = grid(cluster.gpus // inner, inner, axes=draw(st.sampled_from(["xy", "yx"])))
    shuffle = draw(st.integers(-3, 20))
    if shuffle < 0:
        return name, mesh
    order = np.random.default_rng(shuffle).permutation(cluster.gpus)
    return name, Mesh(mesh.axes, order[mesh.ranks])
