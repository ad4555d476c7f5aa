"""Collective tables: every row is one collective of a group of GPUs, counted as nccl-tests counts its bytes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from tspsim.errors import InputError
from tspsim.network import Cluster, build_cluster, collective, load_cluster
from tspsim.program import COLLECTIVE_KINDS
from tspsim.simulation import Costs

from .answers import Answers
from .devices import device_name, no_device
from .kernels import MICROSECONDS

if TYPE_CHECKING:
    import pandas as pd

#: GPUs whose domain of NVLink is a rack; one machine of them ("node" 1 of a table) holds four.
RACKS = {"gb200": ("gb200-nvl72", 72), "gb300": ("gb200-nvl72", 72)}
#: What joins the nodes of a GPU's usual machine, where a table does not say.
FABRICS = {"a100-40gb": "rails-200g", "a100-80gb": "rails-200g", "b300": "rails-800g", "mi355x": "rails-400g"}


def predict(frame: pd.DataFrame, answers: Answers) -> None:
    """All-reduce, all-gather, reduce-scatter, all-to-all and broadcast, by nodes and GPUs."""
    columns = ["gpu", "nodes", "gpus", "op"]
    for position, (gpu, nodes, gpus, op, size) in enumerate(
        zip(*(frame[name] for name in (*columns, "bytes")), strict=True)
    ):
        if op not in COLLECTIVE_KINDS:
            answers.skip(position, f"no collective '{op}'")
            continue
        try:
            cluster = cluster_of(str(gpu), int(nodes), int(gpus))
            traffic = collective(cluster, range(int(gpus)), op, float(size))
        except InputError as error:
            answers.skip(position, error.message)
            continue
        time_us = (traffic.latency_s + traffic.fluid_s) * MICROSECONDS
        spread = 1.0 + Costs.TRANSFER_ERROR
        answers.predict(position, time_us, time_us / spread, time_us * spread)


@cache
def cluster_of(gpu: str, nodes: int, gpus: int) -> Cluster:
    """The cluster that a row was measured on.

    Parameters
    ----------
    gpu
        As the table writes it.
    nodes
        Machines; 0: one or several racks that are a domain of NVLink each.
    gpus
        Ranks of the group.

    Raises
    ------
    InputError
        The catalog has no such machine, or it has fewer GPUs.
    """
    written = gpu.strip().lower()
    if written in RACKS:
        node, domain = RACKS[written]
        racks = -(-gpus // domain)
        if racks > 1:
            return build_cluster(node=node, nodes=racks, fabric="rails-400g")
        return load_cluster(node)
    name = device_name(gpu)
    if name is None:
        raise InputError(no_device(gpu))
    if nodes < 1:
        raise InputError(f"{gpu} has no rack-scale domain in the catalog")
    if nodes == 1:
        return build_cluster(device=name)
    return build_cluster(device=name, nodes=nodes, fabric=FABRICS.get(name, "rails-400g"))
