"""What plans have to keep: limits on their steps, their memory, and the schemes they may use."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...base.errors import InputError, UnknownNameError
from ...base.units import parse
from ...parallel import Plan, scheme_axes
from ...step.result import PlanResult


@dataclass(frozen=True)
class LimitedQuantity:
    """What may be limited: its unit, its value of an answer, and whether only steps that serve have it."""

    unit: str
    value: Callable[[PlanResult], float]
    serves: bool = False


LIMITS: Mapping[str, LimitedQuantity] = {
    "tpot": LimitedQuantity("s", lambda result: result.inference.get("time_per_output_token_s", 0.0), serves=True),
    "ttft": LimitedQuantity("s", lambda result: result.inference.get("time_to_first_token_s", 0.0), serves=True),
    "step": LimitedQuantity("s", lambda result: result.step_time_s),
    "memory_free": LimitedQuantity("bytes", lambda result: result.memory.capacity_bytes - result.memory.peak_bytes),
}
_COMPARES: Mapping[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}
#: The limit that names axes.
SCHEMES_KEY = "schemes"


@dataclass(frozen=True)
class Limit:
    """``name<=value`` or ``name>=value``."""

    name: str
    compare: str
    value: float

    @classmethod
    def of(cls, text: str) -> Limit:
        """Raises InputError.

        >>> Limit.of("tpot<=50ms")
        Limit(name='tpot', compare='<=', value=0.05)
        """
        found = re.fullmatch(r"\s*([a-z_]+)\s*(<=|>=)\s*(.+?)\s*", text)
        if found is None:
            raise InputError(
                f"'{text}' is no limit; write one as step<=20s, memory_free>=8GiB or schemes=tsp,tp", key="--limit"
            )
        name, compare, value = found.groups()
        if name not in LIMITS:
            raise UnknownNameError("limit", name, [*LIMITS, SCHEMES_KEY], key="--limit")
        try:
            return cls(name, compare, parse(value, LIMITS[name].unit))  # type: ignore[arg-type]
        except InputError as error:
            raise error.at(key="--limit") from None

    def holds(self, result: PlanResult) -> bool:
        return _COMPARES[self.compare](LIMITS[self.name].value(result), self.value)

    def __str__(self) -> str:
        return f"{self.name} {self.compare} {self.value:g} {LIMITS[self.name].unit}"


@dataclass(frozen=True)
class Limits:
    """All that a plan has to keep.

    ``schemes`` names the axes that a replica may be spread over by its scheme: those of a plan's that have several
    ranks are among them; ``dp`` stands for a plan where none has. Empty: any.
    """

    each: tuple[Limit, ...] = ()
    schemes: tuple[str, ...] = ()

    @classmethod
    def of(cls, texts: Sequence[str], *, serves: bool) -> Limits:
        """Raises InputError.

        >>> Limits.of(["schemes=tsp, tp", "step<=20s"], serves=False).schemes
        ('tsp', 'tp')
        """
        each, schemes = [], list[str]()
        for text in texts:
            name, _, rest = text.partition("=")
            if name.strip() == SCHEMES_KEY:
                schemes += [part.strip() for part in rest.split(",")]
                continue
            limit = Limit.of(text)
            if LIMITS[limit.name].serves and not serves:
                others = ", ".join(name for name, quantity in LIMITS.items() if not quantity.serves)
                raise InputError(
                    f"{limit.name} is of serving steps (prefill, decode, mixed, verify); use {others} or {SCHEMES_KEY}",
                    key="--limit",
                )
            each.append(limit)
        known = (*scheme_axes(), "dp")
        strange = next((name for name in schemes if name not in known), None)
        if strange is not None:
            raise UnknownNameError("scheme", strange, known, key="--limit")
        return cls(tuple(each), tuple(dict.fromkeys(schemes)))

    def admits(self, degrees: Mapping[str, int]) -> bool:
        """Whether a replica may be spread so."""
        if not self.schemes:
            return True
        spread = [axis for axis in scheme_axes() if degrees.get(axis, 1) > 1]
        return all(axis in self.schemes for axis in spread or ["dp"])

    def hold(self, plan: Plan, result: PlanResult) -> bool:
        """Whether a plan that ran keeps them all."""
        return self.admits(plan.degrees) and all(limit.holds(result) for limit in self.each)

    def ceiling(self, name: str) -> float:
        """The least that a quantity may be at most."""
        return min([each.value for each in self.each if (each.name, each.compare) == (name, "<=")], default=math.inf)

    def floor(self, name: str) -> float:
        """The most that a quantity has to be at least."""
        return max([each.value for each in self.each if (each.name, each.compare) == (name, ">=")], default=0.0)

    @property
    def words(self) -> tuple[str, ...]:
        """Each as it is told."""
        schemes = (f"{SCHEMES_KEY} {', '.join(self.schemes)}",) if self.schemes else ()
        return *map(str, self.each), *schemes


def limit_texts(limits: Iterable[Limit]) -> list[str]:
    """As they may be written."""
    return [f"{each.name}{each.compare}{each.value:g}" for each in limits]
