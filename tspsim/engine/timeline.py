"""Timelines as columns, with one row for each instruction of each rank.

The engine writes two numbers a row. Names, shapes and sizes are looked up in a table of *labels* when the timeline is
read, so that a thousand ranks of a thousand instructions take some ten megabytes, not millions of objects.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

if TYPE_CHECKING:
    import pandas
    from numpy.typing import NDArray


#: Kind of the host's launches.
ON_HOST = "launch"


class Label(NamedTuple):
    """Description of an instruction, common to all its runs.

    ``kind`` is the operator family or the kind of collective. ``size_bytes`` is what operators move to and from HBM, or
    the bytes that a rank receives. ``alone_s`` is the uncontended time of a kernel in seconds, ``parts_s`` the same by
    operator family. ``axis`` is the mesh axis of a collective or message; ``host`` for copies.
    """

    stream: str
    name: str
    kind: str
    part: str
    layer: int
    size_bytes: float
    flops: float
    shape: str
    alone_s: float = 0.0
    parts_s: tuple[tuple[str, float], ...] = ()
    is_compute: bool = False
    axis: str = ""

    def at_layer(self, layer: int) -> Label:
        """The label in another layer."""
        # _replace, five times as fast: a run makes ten thousand labels.
        return Label._make((*self[:4], layer, *self[5:]))

    def with_shape(self, shape: str) -> Label:
        """The label with another description of its shape."""
        return Label._make((*self[:7], shape, *self[8:]))


class Labels(Sequence[Label]):
    """Labels of instructions, most of which differ only in their layer; they are made on access.

    Parameters
    ----------
    distinct
        Labels without a layer.
    which, layer
        For every instruction its index in ``distinct``, and its layer (−1: none).
    """

    __slots__ = ("distinct", "layer", "which")

    def __init__(self, distinct: Sequence[Label], which: NDArray[np.int32], layer: NDArray[np.int32]) -> None:
        self.distinct = distinct
        self.which = which
        self.layer = layer

    def __len__(self) -> int:
        return len(self.which)

    @overload
    def __getitem__(self, index: int) -> Label: ...

    @overload
    def __getitem__(self, index: slice) -> Labels: ...

    def __getitem__(self, index: int | slice) -> Label | Labels:
        if isinstance(index, slice):
            return Labels(self.distinct, self.which[index], self.layer[index])
        label: Label = self.distinct[int(self.which[index])]
        return label.at_layer(int(self.layer[index]))

    def __iter__(self) -> Iterator[Label]:
        for number, layer in zip(self.which.tolist(), self.layer.tolist(), strict=True):
            yield self.distinct[number].at_layer(layer)

    def __repr__(self) -> str:
        return repr(list(self))


class Timeline:
    """Columns ``rank, label, start_s, end_s`` of every instruction that ran, and the table of labels.

    Times are in seconds. A collective's ``start_s`` is the arrival of the last rank of its group, so that waiting for
    other ranks is a gap before it. The engine writes rows rank by rank, in the order in which programs issue them.
    """

    __slots__ = ("end_s", "label", "labels", "rank", "start_s")

    rank: Sequence[int] | NDArray[np.int32]
    label: Sequence[int] | NDArray[np.int32]
    start_s: Sequence[float] | NDArray[np.float64]
    end_s: Sequence[float] | NDArray[np.float64]
    labels: Sequence[Label]

    def __init__(self) -> None:
        self.rank = array("i")
        self.label = array("i")
        self.start_s = array("d")
        self.end_s = array("d")
        self.labels = []

    def __len__(self) -> int:
        return len(self.rank)

    def columns(self) -> dict[str, NDArray[Any]]:
        """The four columns as NumPy arrays, which must not be changed."""
        return {
            "rank": np.asarray(self.rank, dtype=np.int32),
            "label": np.asarray(self.label, dtype=np.int32),
            "start_s": np.asarray(self.start_s, dtype=np.float64),
            "end_s": np.asarray(self.end_s, dtype=np.float64),
        }

    def kinds(self) -> tuple[Sequence[Label], NDArray[np.int32]]:
        """Labels that differ in more than their layer, and for every row the index of its label."""
        label = np.asarray(self.label, dtype=np.int32)
        if isinstance(self.labels, Labels):
            return self.labels.distinct, self.labels.which[label]
        return self.labels, label

    def labelled(self, of: Callable[[Label], Any], dtype: Any = None) -> NDArray[Any]:
        """Array of ``of(label)`` for every row; ``of`` must not depend on the layer."""
        labels, number = self.kinds()
        return np.array([of(entry) for entry in labels], dtype=dtype)[number]

    def layers(self) -> NDArray[np.int32]:
        """The layer of every row."""
        labels = self.labels
        layers = labels.layer if isinstance(labels, Labels) else np.array([e.layer for e in labels], dtype=np.int32)
        return layers[np.asarray(self.label, dtype=np.int32)]

    def frame(self) -> pandas.DataFrame:
        """All rows as a DataFrame, ordered by rank, stream and start."""
        import pandas as pd

        columns = self.columns()
        frame = pd.DataFrame(
            {
                "rank": columns["rank"],
                "stream": self.labelled(lambda entry: entry.stream, object),
                "name": self.labelled(lambda entry: entry.name, object),
                "kind": self.labelled(lambda entry: entry.kind, object),
                "part": self.labelled(lambda entry: entry.part, object),
                "layer": self.layers(),
                "start_s": columns["start_s"],
                "end_s": columns["end_s"],
                "bytes": self.labelled(lambda entry: entry.size_bytes, np.float64),
                "flops": self.labelled(lambda entry: entry.flops, np.float64),
                "shape": self.labelled(lambda entry: entry.shape, object),
            }
        )
        return frame.sort_values(["rank", "stream", "start_s", "end_s"], kind="stable", ignore_index=True)
