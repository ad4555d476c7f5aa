"""What a column-split product keeps of its gathered input, with sequence regions: registered kinds.

Its weights' gradient needs the tokens of all ranks of ``tp`` again. Either a rank keeps its own tokens and gathers all
of them once more in the backward, beside the product of its input's gradient, or it keeps what it gathered:

    sharded     n·h/T kept, gathered again    Korthikanti et al. 2022 (arXiv:2205.05198), §4.2.2
    gathered    n·h kept                      PyTorch's DTensor; InternEvo's ``msp``

A norm's output that a backward computes again is gathered again under either; adapters beside frozen products keep what
they gathered, and frozen products alone need nothing (:func:`tspsim.parallel.recompute.gathers_inputs_again`).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base.registry import Registry


@dataclass(frozen=True)
class ColumnInputs:
    """What stays of gathered inputs until the backward."""

    #: Its name in stacks, and a line for people.
    name: str
    summary: str
    #: Whether the tokens of all ranks stay, and not this rank's alone.
    whole: bool = False


COLUMN_INPUTS: Registry[ColumnInputs] = Registry("column inputs", "tspsim.column_inputs", ColumnInputs)
SHARDED = COLUMN_INPUTS.register(ColumnInputs("sharded", "own tokens; all are gathered again for the backward"))
COLUMN_INPUTS.register(ColumnInputs("gathered", "the tokens of all ranks of tp", whole=True))
