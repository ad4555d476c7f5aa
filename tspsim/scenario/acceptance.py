"""How many drafts are accepted: measured acceptance lengths by model, drafter and what prompts are like
(workloads/traffic/acceptance.yaml).

L_k tokens a step with k drafts (L_0 = 1) are L_k = 1 + Σ_{i≤k} Π_{j≤i} a_j, where a_i is the share of drafts at
position i that is accepted when all before it were; so a_i = (L_i − L_{i−1}) / (L_{i−1} − L_{i−2}), and a_1 = L_1 − 1.
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
#: What prompts are like, whose acceptance differs: real ones, of which coding is measured; random tokens behind the
#: model's chat template; random tokens alone.
Prompts = Literal["coding", "chat", "random"]
USUAL: Prompts = "coding"


@dataclass(frozen=True)
class Accepted:
    """Tokens a step with 1, 2, … drafts, and where that is from."""

    lengths: tuple[float, ...]
    source: str

    def rates(self, drafts: int) -> tuple[float, ...]:
        """a_i of each of so many drafts; beyond those measured the last one's.

        >>> [round(rate, 3) for rate in Accepted((1.83, 2.43), "").rates(3)]
        [0.83, 0.723, 0.723]
        """
        rates = rates_of(self.lengths)[:drafts]
        return rates + rates[-1:] * (drafts - len(rates))


def rates_of(lengths: Sequence[float]) -> tuple[float, ...]:
    """a_i of measured lengths."""
    steps = [after - before for before, after in zip((1.0, *lengths), lengths, strict=False)]
    return tuple(after / before if before else 0.0 for before, after in zip((1.0, *steps), steps, strict=False))


def length_of(rates: Sequence[float]) -> float:
    """Tokens a step where each draft is accepted at its rate.

    >>> round(length_of((0.83, 0.723)), 2)
    2.43
    """
    length, reached = 1.0, 1.0
    for rate in rates:
        reached *= rate
        length += reached
    return length


def rate_of(length: float, drafts: int) -> float:
    """The rate, the same at every position, at which a step advances by ``length``.

    >>> round(length_of((rate_of(2.5, 3),) * 3), 6)
    2.5
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if length_of((middle,) * drafts) < length else (low, middle)
    return (low + high) / 2.0


def measured(model: str, draft: str, prompts: Prompts = USUAL) -> Accepted | None:
    """Of a model, by its catalog name or its file's, on prompts of a kind; on others of the usual kind where nobody has
    measured it on those, which its source then says; None where nobody has measured it at all."""
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
