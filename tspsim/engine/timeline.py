"""What happened when: columns, one row an instruction a rank.

Rows are appended by the engine as four numbers; names, shapes and sizes are looked up in a table of *labels* (one
a distinct instruction of a role) only when somebody reads the timeline. A thousand ranks of a thousand
instructions are thus a few tens of megabytes, not millions of objects.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas
    from numpy.typing import NDArray


class Label(NamedTuple):
    """What all runs of one instruction have in common.

    ``size_bytes`` is what an operator moves to and from HBM, or the payload a rank receives; ``kind`` is the operator
    family or the collective; ``alone_s`` is the time a kernel needs when nothing disturbs it, ``parts_s`` the same by
    operator family.
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

    def at_layer(self, layer: int) -> Label:
        """The same in another layer."""
        # What _replace does, five times as fast: a run makes ten thousand of these.
        return Label._make((*self[:4], layer, *self[5:]))

    def with_shape(self, shape: str) -> Label:
        """The same with another description of its shape."""
        return Label._make((*self[:7], shape, *self[8:]))


class Timeline:
    """Columns ``rank, label, start_s, end_s`` of every instruction that ran, and the table of labels.

    ``start_s`` is when the instruction began to work: for a collective, when the last rank of its group arrived (the
    time a rank waits for others is a gap before it, not a part of it).
    """

    __slots__ = ("end_s", "label", "labels", "rank", "start_s")

    def __init__(self) -> None:
        self.rank = array("i")
        self.label = array("i")
        self.start_s = array("d")
        self.end_s = array("d")
        self.labels: list[Label] = []

    def __len__(self) -> int:
        return len(self.rank)

    def columns(self) -> dict[str, NDArray[Any]]:
        """The four columns as numpy arrays (copies)."""
        return {
            "rank": np.array(self.rank, dtype=np.int32),
            "label": np.array(self.label, dtype=np.int32),
            "start_s": np.array(self.start_s, dtype=np.float64),
            "end_s": np.array(self.end_s, dtype=np.float64),
        }

    def frame(self) -> pandas.DataFrame:
        """A DataFrame of every row, ordered by rank, stream and start."""
        import pandas as pd

        columns = self.columns()
        label = columns["label"]
        table = {
            "stream": [entry.stream for entry in self.labels],
            "name": [entry.name for entry in self.labels],
            "kind": [entry.kind for entry in self.labels],
            "part": [entry.part for entry in self.labels],
            "layer": [entry.layer for entry in self.labels],
            "bytes": [entry.size_bytes for entry in self.labels],
            "flops": [entry.flops for entry in self.labels],
            "shape": [entry.shape for entry in self.labels],
        }
        frame = pd.DataFrame(
            {
                "rank": columns["rank"],
                **{key: np.array(table[key], dtype=object)[label] for key in ("stream", "name", "kind", "part")},
                "layer": np.array(table["layer"], dtype=np.int32)[label],
                "start_s": columns["start_s"],
                "end_s": columns["end_s"],
                "bytes": np.array(table["bytes"], dtype=np.float64)[label],
                "flops": np.array(table["flops"], dtype=np.float64)[label],
                "shape": np.array(table["shape"], dtype=object)[label],
            }
        )
        return frame.sort_values(["rank", "stream", "start_s", "end_s"], kind="stable", ignore_index=True)
