"""What is to be run: which rank runs which program, and by what ranks meet."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..base.quick import quick
from ..network import KINDS
from ..operators import Operator
from ..program import Program, Tokens
from ..program.instructions import Content
from ..program.mesh import Mesh
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
    tokens: Tokens | None = None
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
