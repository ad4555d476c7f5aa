"""Which degree of a plan a process group is of, by the name that its framework gives it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .simulated import Operation

#: Axes of transfers by words in a group's name (Megatron-Core's, PyTorch's device meshes, SGLang's and vLLM's), the
#: first that fits; a name of two degrees is of neither.
_AXES = (
    ("", re.compile(r"_and_|\bdefault|\bworld\b|embedding", re.IGNORECASE)),
    ("edp", re.compile(r"expert_data|edp|dp_mod_ep", re.IGNORECASE)),
    ("dp", re.compile(r"data_?parallel|(\b|_)dp(_|\b)|dp_(shard|replicate|cp)|fsdp|hsdp", re.IGNORECASE)),
    ("ep", re.compile(r"expert|(\b|_)ep(_|\b)", re.IGNORECASE)),
    ("pp", re.compile(r"pipeline|(\b|_)pp(_|\b)", re.IGNORECASE)),
    ("sp", re.compile(r"context_?parallel|(\b|_)cp(_|\b)|ulysses", re.IGNORECASE)),
    ("tp", re.compile(r"tensor|(\b|_)tp(_|\b)", re.IGNORECASE)),
)


def axis_of(group: str) -> str:
    """The axis of a process group; empty where its name does not say one.

    >>> axis_of("TENSOR_MODEL_PARALLEL_GROUP"), axis_of("mesh_dp_shard"), axis_of("default_pg")
    ('tp', 'dp', '')
    >>> axis_of("DATA_PARALLEL_GROUP_WITH_CP"), axis_of("TENSOR_AND_CONTEXT_PARALLEL_GROUP"), axis_of("tp:0")
    ('dp', '', 'tp')
    """
    return next((axis for axis, pattern in _AXES if pattern.search(group) is not None), "")


def apart(
    rows: NDArray[np.int64],
    kinds: NDArray[np.str_],
    groups: NDArray[np.str_],
    pool: Sequence[int],
    operations: Sequence[Operation],
) -> Iterator[tuple[NDArray[np.int64], list[int]]]:
    """Transfers of a lane and their operations: apart by the groups that both sides name, and by kind where a kind is
    as frequent on both sides, since transfers beside each other may begin in either order."""
    for own, theirs in _by_axis(rows, groups, pool, operations):
        rest, left = own, theirs
        for kind in sorted(set(kinds[own].tolist())):
            alike = [index for index in theirs if operations[index].kind == kind]
            if len(alike) == int((kinds[own] == kind).sum()):
                yield own[kinds[own] == kind], alike
                rest = rest[kinds[rest] != kind]
                left = [index for index in left if operations[index].kind != kind]
        yield rest, left


def _by_axis(
    rows: NDArray[np.int64], groups: NDArray[np.str_], pool: Sequence[int], operations: Sequence[Operation]
) -> Iterator[tuple[NDArray[np.int64], list[int]]]:
    """Apart by axis; what a trace names no axis of is with the operations of all other axes."""
    axes = np.array([axis_of(group) for group in groups[rows].tolist()], dtype=object)
    there = {operations[index].axis for index in pool}
    named = sorted({axis for axis in axes.tolist() if axis in there})
    if len(there) < 2 or not named:
        yield rows, list(pool)
        return
    for axis in named:
        yield rows[axes == axis], [index for index in pool if operations[index].axis == axis]
    yield rows[~np.isin(axes, named)], [index for index in pool if operations[index].axis not in named]
