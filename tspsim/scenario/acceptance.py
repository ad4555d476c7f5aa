"""Acceptance of drafts: measured acceptance lengths by model, drafter and kind of prompt
(workloads/traffic/acceptance.yaml).

With k drafts a step advances L_k tokens (L_0 = 1): L_k = 1 + Σ_{i≤k} Π_{j≤i} a_j, with a_i the share of drafts at
position i that are accepted if all before them were. So a_i = (L_i − L_{i−1}) / (L_{i−1} − L_{i−2}), and a_1 = L_1 − 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..base import catalog, dialect
from ..base.errors import InputError
from ..base.memo import remembered
from ..traffic.traces import FOLDER

FILE = "acceptance.yaml"
#: Kinds of prompt with acceptances of their own: coding (a measured real use), random tokens behind the model's chat
#: template, random tokens alone.
Prompts = Literal["coding", "chat", "random"]
USUAL: Prompts = "coding"


@dataclass(frozen=True)
class Accepted:
    """Measured tokens per step with 1, 2, … drafts, and the source."""

    lengths: tuple[float, ...]
    source: str

    def rates(self, drafts: int) -> tuple[float, ...]:
        """a_i of each of ``drafts`` drafts; beyond the measured ones, that of the last.

        >>> [round(rate, 3) for rate in Accepted((1.83, 2.43), "").rates(3)]
        [0.83, 0.723, 0.723]
        """
        rates = rates_of(self.lengths)[:drafts]
        return rates + rates[-1:] * (drafts - len(rates))


def rates_of(lengths: Sequence[float]) -> tuple[float, ...]:
    """a_i from acceptance lengths L_1, L_2, …."""
    steps = [after - before for before, after in zip((1.0, *lengths), lengths, strict=False)]
    return tuple(after / before if before else 0.0 for before, after in zip((1.0, *steps), steps, strict=False))


def length_of(rates: Sequence[float]) -> float:
    """Tokens per step if draft i is accepted with ``rates[i]``.

    >>> round(length_of((0.83, 0.723)), 2)
    2.43
    """
    length, reached = 1.0, 1.0
    for rate in rates:
        reached *= rate
        length += reached
    return length


def rate_of(length: float, drafts: int) -> float:
    """The rate, equal at every position, with which a step advances ``length`` tokens.

    >>> round(length_of((rate_of(2.5, 3),) * 3), 6)
    2.5
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if length_of((middle,) * drafts) < length else (low, middle)
    return (low + high) / 2.0


def measured(model: str, draft: str, prompts: Prompts = USUAL) -> Accepted | None:
    """The acceptance of a model, given by its catalog name or file, on prompts of a kind.

    If nobody measured it on that kind, the usual kind's, and the source says so; None if nobody measured it at all.
    """
    entry = _table().get(Path(model).stem if catalog.is_path(model) else model, {}).get(draft)
    if entry is None:
        return None
    measurement = entry.get("prompts", {}).get(prompts, entry)
    besides = f"; of {USUAL} prompts, none measured of {prompts}" if measurement is entry and prompts != USUAL else ""
    return Accepted(tuple(map(float, measurement["lengths"])), f"{measurement['source']}{besides}")


@remembered(1)
def _table() -> dict[str, dict[str, dict[str, Any]]]:
    for root in catalog.roots():
        path = root / FOLDER / FILE
        if path.is_file():
            data = dialect.read_yaml(path)
            models = data.get("models")
            if not isinstance(models, dict):
                raise InputError("is required", file=str(path), key="models")
            return models
    return {}
