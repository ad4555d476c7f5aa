"""Differences of compared questions besides their hardware: a ratio of rates only compares equal questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tspsim.base.errors import printable, shorten

if TYPE_CHECKING:
    from tspsim.step.result import Result

#: Sections of a scenario that state the question; clusters are what a comparison varies, except for their GPUs.
ASKED = ("workload", "traffic", "loop")
#: Most values of a key in a sentence, and most keys.
MOST_VALUES, MOST_KEYS = 3, 6


@dataclass(frozen=True)
class Difference:
    """A key of the question, and its values in the order of the scenarios; None where a scenario lacks the key."""

    key: str
    values: tuple[Any, ...]

    def in_words(self) -> str:
        """``model llama-3.1-8b and llama-3.1-70b``."""
        texts = list(dict.fromkeys(_plain(value) for value in self.values))
        more = [f"{len(texts) - MOST_VALUES} more"] if len(texts) > MOST_VALUES else []
        *first, last = [*texts[:MOST_VALUES], *more]
        return f"{_short(self.key)} {', '.join(first)} and {last}"

    def to_json(self) -> dict[str, Any]:
        return {"key": self.key, "values": list(self.values)}


def differences(results: Sequence[Result]) -> tuple[Difference, ...]:
    """Keys of the workload, the traffic and the loop that differ between results, and the number of GPUs."""
    questions = [dict(_question_parts(result)) for result in results]
    keys = dict.fromkeys(key for question in questions for key in question)
    differing = (Difference(key, tuple(question.get(key) for question in questions)) for key in keys)
    return tuple(
        difference for difference in differing if any(value != difference.values[0] for value in difference.values)
    )


def in_words(differences_: Sequence[Difference]) -> str:
    """The differences in a sentence; empty where there are none."""
    if not differences_:
        return ""
    texts = [difference.in_words() for difference in differences_[:MOST_KEYS]]
    more = f"; and {len(differences_) - MOST_KEYS} keys more" if len(differences_) > MOST_KEYS else ""
    gpus = any(difference.key == "gpus" for difference in differences_)
    machine = "; between other numbers of GPUs tokens/s/GPU say more" if gpus else ""
    return f"Not the same question: {'; '.join(texts)}{more}. Ratios are of tokens/s as they stand{machine}."


def _question_parts(result: Result) -> Iterator[tuple[str, Any]]:
    for section in ASKED:
        yield from _leaves(section, result.scenario.get(section))
    yield "gpus", result.cluster["gpus"]


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Dotted paths of everything that is no mapping."""
    if not isinstance(value, Mapping):
        if value is not None:
            yield path, value
        return
    for key, inner in value.items():
        yield from _leaves(f"{path}.{key}", inner)


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
