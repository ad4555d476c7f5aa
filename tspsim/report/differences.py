"""In what compared questions differ beside their hardware: a ratio of rates is of one question only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tspsim.base.errors import printable, shorten

if TYPE_CHECKING:
    from tspsim.step.result import Result

#: Sections of a scenario that say what is asked; the cluster is what comparisons are for, but for its GPUs.
ASKED = ("workload", "traffic", "loop")
#: Values of a key that a sentence names, and keys.
MOST_VALUES, MOST_KEYS = 3, 6


@dataclass(frozen=True)
class Difference:
    """A key of the question, and its values by scenario, in their order; None where a scenario has no such key."""

    key: str
    values: tuple[Any, ...]

    def in_words(self) -> str:
        """``model llama-3.1-8b and llama-3.1-70b``."""
        told = list(dict.fromkeys(_plain(value) for value in self.values))
        more = [f"{len(told) - MOST_VALUES} more"] if len(told) > MOST_VALUES else []
        *first, last = [*told[:MOST_VALUES], *more]
        return f"{_short(self.key)} {', '.join(first)} and {last}"

    def to_json(self) -> dict[str, Any]:
        return {"key": self.key, "values": list(self.values)}


def differences(results: Sequence[Result]) -> tuple[Difference, ...]:
    """Keys of the workload, the traffic and the loop that differ between results, and the number of GPUs."""
    told = [dict(_asked(result)) for result in results]
    keys = dict.fromkeys(key for each in told for key in each)
    found = (Difference(key, tuple(each.get(key) for each in told)) for key in keys)
    return tuple(each for each in found if any(value != each.values[0] for value in each.values))


def in_words(found: Sequence[Difference]) -> str:
    """A sentence; empty where nothing differs."""
    if not found:
        return ""
    told = [each.in_words() for each in found[:MOST_KEYS]]
    more = f"; and {len(found) - MOST_KEYS} keys more" if len(found) > MOST_KEYS else ""
    gpus = any(each.key == "gpus" for each in found)
    machine = "; between other numbers of GPUs tokens/s/GPU say more" if gpus else ""
    return f"Not the same question: {'; '.join(told)}{more}. Ratios are of tokens/s as they stand{machine}."


def _asked(result: Result) -> Iterator[tuple[str, Any]]:
    for section in ASKED:
        yield from _leaves(section, result.scenario.get(section))
    yield "gpus", result.cluster["gpus"]


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Dotted paths of everything that is no mapping."""
    if not isinstance(value, Mapping):
        if value is not None:
            yield path, value
        return
    for key, each in value.items():
        yield from _leaves(f"{path}.{key}", each)


def _short(key: str) -> str:
    """A key as sentences name it.

    >>> _short("workload.model"), _short("traffic.prompt.of"), _short("gpus")
    ('model', 'traffic.prompt.of', 'GPUs')
    """
    return {"gpus": "GPUs"}.get(key, key.removeprefix("workload."))


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:,}"
    return printable(shorten(f"{value:,.6g}" if isinstance(value, float) else value, 40))
